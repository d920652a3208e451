"""What the pages show runs as it stands and prints what they say: programs, commands, tutorials, and the contract's examples.

The table of `runner.py` names for each block the preparation here that runs it.
"""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.tools.registry import ToolRegistry
from gradeloop.batches.contract import Upload
from gradeloop.judges.client import Judge
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.server import ServerInfo
from rig.node_peers import PROMPTFOO, peer
from tests.docs.runner import OFTEN, TIMES, Block, block_of, blocks, ends_alike, run_process, runs, scripted, text_of
from tests.rig.batches import batching, passes
from tests.rig.cli import CommandLine, Done
from tests.rig.judging import MATCH, answers
from tests.rig.threads import Models, draft, page, says, serving
from worker import build

QUEUE = "gradeloop"
"""The documents' own."""

CONTRACT = tuple(f"docs/{name}.md" for name in ("contract", "remote", "turns", "verdicts", "watching"))
"""The pages with the contract's examples."""

NAMES = ("anthropic:claude-haiku-4-5", "openai:gpt-5-mini")
"""The documents' models; where an example is run, scripted ones of the same names stand for them."""

pytestmark = pytest.mark.timeout(450)


@dataclass(frozen=True)
class Desk:
    """What a preparation may use."""

    client: Client
    server: ServerInfo
    folder: Path
    commands: CommandLine
    times: int
    """How often a program is run."""

    async def run(self, *arguments: str, **variables: str) -> Done:
        """Run a command in the folder."""
        return await run_process(*arguments, folder=self.folder, TEMPORAL_ADDRESS=self.server.address, **variables)

    async def repeat(self, text: Callable[[int], str]) -> Done:
        """Run a program as often as it is to be run, and return how each of them ends."""
        programs = [(sys.executable, "-c", text(number)) for number in range(self.times)]
        return await ends_alike(programs, TEMPORAL_ADDRESS=self.server.address)


@pytest.fixture
def desk(client: Client, temporal_server: ServerInfo, commands: CommandLine, tmp_path: Path) -> Desk:
    return Desk(client, temporal_server, tmp_path, commands, 1)


def shown(about: str) -> Any:
    """Return a JSON example of the contract's pages."""
    (block,) = (block for page in CONTRACT for block in blocks(page) if block.kind == f"json {about}")
    return block.value


def renamed(text: str, thread: str) -> str:
    """Name another thread than the documents do."""
    return re.sub(r"haiku-\d", thread, text)


def vendors(value: Any) -> Any:
    """Name the vendors' models again in what a run came to."""
    text = json.dumps(value)
    for name in NAMES:
        text = text.replace(scripted(name), name)
    return json.loads(text)


def same_but_for_ids(real: Any, example: Any) -> bool:
    """Compare two values; whatever differs from run to run need only be of the same form."""
    if isinstance(real, dict) and isinstance(example, dict):
        ids = real.keys() & {"thread_id", "grading_run_id", "time", "seconds", "cost_usd"}
        alike = all(isinstance(real[key], type(example.get(key))) for key in ids)
        return alike and real.keys() == example.keys() and all(same_but_for_ids(real[key], example[key]) for key in real.keys() - ids)
    if isinstance(real, list) and isinstance(example, list):
        return len(real) == len(example) and all(map(same_but_for_ids, real, example))
    return bool(real == example)


def drafts() -> list[str]:
    """Return the drafts of the documents' example."""
    return [message["content"] for message in shown("RunResult")["messages"] if message["role"] == "assistant"]


@asynccontextmanager
async def documents(client: Client) -> AsyncIterator[None]:
    """Serve the documents' queue with the replies behind their example, taken from what the contract says came back."""
    first, evaluations = shown("answer"), shown("RunResult")["evaluations"]
    second = first | {"k2": {"reason": "5-7-5.", "passed": True, "gap": ""}, "summary": "All three hold."}
    derived = {"calls", "attempts", "seconds", "cost_usd"}
    costs = [{name: count for name, count in evaluation["usage"].items() if name not in derived} for evaluation in evaluations]
    replies = [
        draft(0, drafts()[0], usage={"input": 31, "output": 19}),
        draft(1, drafts()[1], usage={"input": 142, "output": 20}),
        says(json.dumps(first), 0) | {"usage": costs[0]},
        says(json.dumps(second), 1) | {"usage": costs[1]},
    ]
    models = Models([reply | {"run": run} for run in (0, 1) for reply in replies], {})
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=QUEUE)):
        yield
    await models.aclose()


async def run_thread(client: Client, name: str, **more: Any) -> Any:
    """Run the thread of the contract's example to its end, and return its handle."""
    argument = json.loads(block_of(CONTRACT[0], "json ThreadRequest").scripted()) | more
    handle = await client.start_workflow("GradingThread", argument, id=name, task_queue=QUEUE, result_type=dict[str, Any])
    await handle.result()
    return handle


# Preparations


async def run_service(desk: Desk, block: Block) -> None:
    async with documents(desk.client):
        done = await desk.repeat(lambda number: renamed(block.scripted(), f"{desk.folder.name}-{number}"))

    assert done == Done(0, f"satisfied 1.0 {shown('RunResult')['output']}\n", "")


async def run_loop(desk: Desk, block: Block) -> None:
    """Run a loop around an agent that the page does not have."""
    agent = """
class Agent:
    async def run(self, messages):
        return "Three lines." if len(messages) == 1 else "Three better lines."

my_agent = Agent()
"""
    first = {"k1": {"reason": "Two.", "passed": False, "gap": "add one"}, "k2": {"reason": "5-7-5.", "passed": True, "gap": ""}}
    second = {name: row | {"passed": True, "gap": ""} for name, row in first.items()}
    replies = [says(json.dumps(rows | {"unjudgeable": "", "summary": ""}), at) for at, rows in enumerate((first, second))]
    models = Models(replies, {})
    async with build(desk.client, models, ToolRegistry(), WorkerSettings(task_queue=QUEUE)):
        (desk.folder / "poet.py").write_text(agent + block.scripted())
        done = await desk.run(sys.executable, "poet.py", GRADELOOP_TASK_QUEUE=QUEUE)
    await models.aclose()

    assert done == Done(0, "satisfied Three better lines.\n", "")


async def run_two_calls(desk: Desk, block: Block) -> None:
    names = [f"{desk.folder.name}-{number}" for number in range(desk.times)]
    async with documents(desk.client):
        handles = await asyncio.gather(*(run_thread(desk.client, name) for name in names))
        done = await desk.repeat(lambda number: renamed(block.text, names[number]))
        evaluations = await page(desk.client.get_workflow_handle(handles[0].id), "evaluations", 0, 9)

    assert done == Done(0, "satisfied 2\n", "")
    assert len(evaluations["items"]) == 4


async def run_judge(desk: Desk, block: Block) -> None:
    async with serving(desk.client, answers(MATCH), task_queue=QUEUE):
        done = await desk.repeat(lambda number: block.scripted().replace("paris-1", f"{desk.folder.name}-{number}"))

    assert done.out.splitlines() == ["DIRECT_RESULT match", "france 2"]


async def run_temporal(desk: Desk, *blocks: Block) -> None:
    async with documents(desk.client):
        for block in blocks:
            text = renamed(block.scripted(), f"shell-{block.line}").strip()
            done = [await desk.run("bash", "-c", line) for line in re.split(r"\n(?=\w)", text)]
            assert [command.code for command in done] == [0] * len(done), done
            assert re.search(r'"?status"?: ?"?satisfied', done[0].out)
            assert all("idle" in command.out or "Signal workflow succeeded" in command.out for command in done[1:])


async def run_first_task(desk: Desk, block: Block) -> None:
    install, export, init, run = (shlex.split(line, comments=True) for line in block.text.splitlines())
    models = ["--model", "scripted:any", "--grader", "scripted:any"]
    async with documents(desk.client):
        written = await desk.run(*init)
        done = await desk.run(*run, *models, GRADELOOP_TASK_QUEUE=QUEUE)

    assert (install, export[0]) == (["pip", "install", "gradeloop[all]"], "export")
    assert (written.code, done.code) == (0, 0), done.err
    assert "satisfied after 2 iterations" in done.out


async def run_reply(desk: Desk, *blocks: Block) -> None:
    """Run a task whose first draft has 81 words, and whose second one is short; its grader calls the tools that the page has."""
    for block in blocks:
        (desk.folder / ("reply.yaml" if block.language == "yaml" else "tools.py")).write_text(block.scripted())
    files = [desk.folder / "tools.py"] if len(blocks) > 1 else []
    row = {"reason": "So it says.", "passed": True, "gap": ""}
    verdict = json.dumps({"k1": row, "k2": row, "unjudgeable": ""})
    said = [draft(0, "word " * 81), draft(1, "Bring it in on Monday from 9 on; we will mend it while you wait.")]
    calls = [{"name": "opening_hours", "arguments": {"day": "Sunday"}}]
    for at in (0, 1):
        said += [{"role": "grader", "iteration": at, "tool_calls": calls}] if files else []
        said += [says(verdict, at, step=len(files))]
    queue = f"reply-{desk.folder.name}"
    async with build(desk.client, Models(said, {}), ToolRegistry.load(files), WorkerSettings(task_queue=queue)):
        done = await desk.run("gradeloop", "run", "reply.yaml", GRADELOOP_TASK_QUEUE=queue)

    assert done.code == 0, done.err
    assert "It has at most 80 words: words: 81" in done.out
    assert ("the grader calls opening_hours" in done.out) == bool(files)
    assert "satisfied after 2 iterations" in done.out


async def run_contract_thread(desk: Desk, _: Block) -> None:
    async with documents(desk.client):
        thread = await run_thread(desk.client, "contract")
        read = [await thread.query(name, result_type=dict[str, Any]) for name in ("state", "checkpoint")]
        events = await page(thread, "events", 3, 2)

    assert same_but_for_ids(vendors(await thread.result()), shown("RunResult"))
    assert same_but_for_ids(read[0], shown("ThreadState"))
    assert same_but_for_ids(events, shown("events"))
    assert {"temporal_run_id", "thread"} == set(read[1])


async def run_generator(desk: Desk, *_: Block) -> None:
    asked: list[Any] = []

    @activity.defn(name=shown("Generator")["activity"])
    async def write(argument: dict[str, Any]) -> Any:
        asked.append(argument)
        said = drafts()[argument["iteration"]]
        return {"messages": [{"role": "assistant", "content": said}]} if argument["iteration"] else said

    async with documents(desk.client), Worker(desk.client, task_queue=shown("Generator")["task_queue"], activities=[write]):
        result = await (await run_thread(desk.client, "own", generator=shown("Generator"))).result()

    assert (result["status"], result["output"]) == ("satisfied", drafts()[1])
    conversation = shown("RunResult")["messages"][:-1]
    assert asked[0] == {"messages": conversation[:1], "iteration": 0, "feedback": None}
    assert asked[1] == {"messages": conversation, "iteration": 1, "feedback": conversation[-1]["content"]}


async def run_batch(desk: Desk, upload: Block, request: Block) -> None:
    for case in (cases := upload.value)["cases"]:
        case["grader"]["model"] = "scripted:judge"
    async with batching(desk.client, desk.folder, passes()) as batches:
        queue, mapping, name = batches.served.task_queue, dict[str, Any], request.value["batch_id"]
        stored = await desk.client.execute_workflow("StoreCases", cases, id="cases-of-17", task_queue=queue, result_type=int)
        summary = await desk.client.execute_workflow("GradingBatch", request.value, id=name, task_queue=queue, result_type=mapping)

    assert stored == len(Upload.model_validate(cases).cases)
    assert (summary["status"], summary["passed"]) == ("finished", 1)


async def run_judgement(desk: Desk, judge: Block, run: Block) -> None:
    async with serving(desk.client, *(answers(MATCH, at) for at in range(3))) as served:
        asked = Judge(judge.value | {"judge_model": "scripted:judge"}, desk.client, task_queue=served.task_queue)
        result = await asked(run.value)

    assert (result.output, result.agent_run_id) == (MATCH, "paris-1")
    assert result.result_metadata["citation_counts"] == {"cited": 1, "verified": 1}


async def run_pytest(desk: Desk, *blocks: Block) -> None:
    names = {"settings": "pytest.ini", "service": "service.py", "conftest": "conftest.py", "tests": "test_service.py"}
    for block in blocks:
        (desk.folder / names[block.about]).write_text(block.text)
    done = await desk.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")

    assert "2 passed" in done.out, done.out


async def run_demo(desk: Desk, block: Block) -> None:
    table, done = block.text.splitlines(), desk.commands("demo")

    assert [line.rstrip() for line in done.out.splitlines()][-len(table) :] == table


async def run_promptfoo(gradeloop: CommandLine, *arguments: str) -> Done:
    """Run the real promptfoo, whose Python is ours; skip where it cannot be had."""
    try:
        promptfoo = peer(PROMPTFOO)
    except SystemExit as error:
        pytest.skip(str(error))
    assert arguments[0] == "promptfoo"
    entry = promptfoo.modules / "promptfoo" / "dist" / "src" / "entrypoint.js"
    own = {"PROMPTFOO_CONFIG_DIR": str(gradeloop.folder / "kept"), "PROMPTFOO_PYTHON": sys.executable, "PROMPTFOO_DISABLE_TELEMETRY": "1"}
    own |= {"PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1", "COLUMNS": "200"}
    environment = promptfoo.environment(gradeloop._environment(own))
    command = [str(promptfoo.node), str(entry), *arguments[1:], "--no-share", "--no-progress-bar"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=gradeloop.folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    return Done(done.returncode, done.stdout, done.stderr)


async def run_tutorial(desk: Desk, *blocks: Block) -> None:
    """Write a tutorial's files, run its commands, which end with the codes behind them, and compare what it says is printed."""
    gradeloop, printed, ran = desk.commands, "", 0
    for block in blocks:
        if block.language in {"yaml", "json", "js", "python"}:
            before = "\n".join(text_of(block.page).splitlines()[: block.line])
            file = gradeloop.folder / re.findall(r"Save as `([\w./]+)`", before)[-1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
        for line in block.text.splitlines() if block.language in {"sh", "text"} else ():
            if block.language == "text":
                assert line in printed
            elif not line.startswith("pip install"):
                program, *arguments = shlex.split(line, comments=True)
                code = re.search(r"#\s+exit (\d+)", line)
                done = gradeloop(*arguments) if program == "gradeloop" else await run_promptfoo(gradeloop, *arguments)
                printed, ran = done.out + done.err, ran + 1
                assert program in {"gradeloop", "npx"}
                assert done.code == (int(code[1]) if code else 0), f"{line}\n{printed}"
    assert ran


PROGRAMS: dict[str, Callable[[Desk, Block], Awaitable[None]]] = {"judge": run_judge, "service": run_service, "two calls": run_two_calls}
"""Those that are run more than once."""

PREPARATIONS: dict[str, Callable[..., Awaitable[None]]] = {
    "batch": run_batch,
    "demo": run_demo,
    "first task": run_first_task,
    "generator": run_generator,
    "judgement": run_judgement,
    "pytest": run_pytest,
    "loop": run_loop,
    "reply": run_reply,
    "temporal": run_temporal,
    "thread": run_contract_thread,
    "tutorial": run_tutorial,
    **PROGRAMS,
}


def rows() -> Iterator[Any]:
    """Yield the blocks that run together, with their preparation and how often."""
    for (name, run), together in runs().items():
        yield pytest.param(PREPARATIONS[run], together, TIMES if run in PROGRAMS else 1, marks=pytest.mark.slow, id=f"{name}, {run}")
        if run in PROGRAMS:
            yield pytest.param(PREPARATIONS[run], together, OFTEN, marks=pytest.mark.storm, id=f"{name}, {run}, often")


@pytest.mark.parametrize(("prepared", "blocks", "times"), list(rows()))
async def test_what_a_page_shows_runs_as_it_stands(
    prepared: Callable[..., Awaitable[None]], blocks: list[Block], times: int, desk: Desk
) -> None:
    await prepared(Desk(**vars(desk) | {"times": times}), *blocks)
