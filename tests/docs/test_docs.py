"""The documents match the code: their examples run, their outputs are real, their numbers are the code's."""

import asyncio
import json
import os
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from pydantic import BaseModel
from ruamel.yaml import YAML
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from activities import errors as failures
from activities import model_call, tool_call
from activities.notify import NotifyActivities
from activities.providers import base as model
from activities.providers import http
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop import errors, exit_codes
from gradeloop.cli.schemas import json_schemas
from gradeloop.cli.task_file import TaskFile
from gradeloop.client import client as typed_client
from gradeloop.client.watch import PATIENCE_SECONDS
from gradeloop.contract import base as page
from gradeloop.contract import messages as transcript
from gradeloop.contract import model_spec as modelspec
from gradeloop.contract import model_spec as tool_elsewhere
from gradeloop.contract import rubric
from gradeloop.contract import thread as contracts
from gradeloop.contract import thread as request
from gradeloop.contract.base import Strict
from gradeloop.contract.criterion import VOTES
from gradeloop.contract.evaluation import EVIDENCE_BYTES, Event, RunStatus, Verdict
from gradeloop.contract.model_spec import PROVIDERS, ModelConfig, ModelSpec
from gradeloop.contract.notice import ALL_KINDS, Notice
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, InvokeRequest, RunResult, ThreadRequest, ThreadState
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import call_groups
from gradeloop.grading.templates import VARS_BYTES
from gradeloop.grading.verdicts import METADATA_BYTES, REPAIRS, parse_verdict
from gradeloop.settings.catalog import capability_of, load_catalogue
from gradeloop.settings.default_model import DEFAULTS
from gradeloop.settings.endpoints import EndpointSettings, load_presets, preset_variables
from gradeloop.settings.worker import NotifySettings, WorkerSettings, load_settings
from gradeloop.temporal import connect
from gradeloop.temporal.server import ServerInfo
from tests.rig.cli import CommandLine, Done
from tests.rig.threads import Models, Reply, draft, says
from tests.rig.threads import page as page_of_thread
from worker import GRACE, build
from workflows import activity_calls, grading_thread, thread_rules, thread_state, tool_calls

ROOT = Path(__file__).parents[2]
README, CONTRACT, ARCHITECTURE = (ROOT / name for name in ("README.md", "docs/contract.md", "docs/architecture.md"))
DOCUMENTS = (README, CONTRACT, ARCHITECTURE)
TOOLS, BENCHMARKS = (ROOT / name for name in ("docs/tools/README.md", "docs/benchmarks.md"))
PAGES = (README, ROOT / "CHANGELOG.md", ROOT / "deploy/README.md", *sorted((ROOT / "docs").rglob("*.md")))
"""Every document."""
BIN = Path(sys.executable).parent

QUEUE = "gradeloop"
"""The documents' own."""

NAMES = ("anthropic:claude-haiku-4-5", "openai:gpt-5-mini")
"""The documents' models; where an example is run, scripted ones of the same names stand for them."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    language: str
    about: str
    """What stands behind the language: the name of what the block shows."""
    text: str

    def scripted(self) -> str:
        """Return the text with models that need no key."""
        return scripted(self.text)


def scripted(text: str) -> str:
    """Name scripted models instead of the vendors'."""
    return re.sub(r"\b(anthropic|openai):(?=[a-z])", "scripted:", text)


def renamed(text: str, thread: str) -> str:
    """Name another thread than the documents do."""
    return re.sub(r"haiku-\d", thread, text)


def vendors(value: Any) -> Any:
    """Name the vendors' models again in what a run came to."""
    text = json.dumps(value)
    for name in NAMES:
        text = text.replace(scripted(name), name)
    return json.loads(text)


def blocks(*documents: Path) -> Iterator[Block]:
    """Yield the fenced blocks of the documents."""
    for path in documents:
        for found in re.finditer(r"^(```+)(\w*)[ ]?(\w*)\n(.*?)^\1$", path.read_text(), flags=re.MULTILINE | re.DOTALL):
            yield Block(path.name, *found.groups()[1:])


def block(document: Path, language: str, about: str = "", having: str = "") -> Block:
    """Return the one block that is meant."""
    (found,) = (block for block in blocks(document) if (block.language, block.about) == (language, about) and having in block.text)
    return found


def shown(about: str) -> Any:
    """Return a JSON example of the contract."""
    return json.loads(block(CONTRACT, "json", about).text)


def rows(document: Path, heading: str) -> list[tuple[str, ...]]:
    """Return the table under a heading, without its head."""
    section = document.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def haiku() -> list[Reply]:
    """Return the replies behind the documents' example, taken from what the contract says came back."""
    drafts = [message["content"] for message in shown("RunResult")["messages"] if message["role"] == "assistant"]
    first = shown("Verdict")
    mended = [
        criterion | {"reason": "5-7-5.", "passed": True, "gap": None} if not criterion["passed"] else criterion
        for criterion in first["criteria"]
    ]
    second = {"criteria": mended, "explanation": "All three hold.", "result": "satisfied"}
    costs = [
        {"input": 31, "output": 19},
        {"input": 142, "output": 20},
        *(evaluation["usage"] for evaluation in shown("RunResult")["evaluations"]),
    ]
    for cost in costs:
        for counted in ("calls", "attempts", "seconds", "cost_usd"):
            cost.pop(counted, None)
    replies = [
        draft(0, drafts[0], usage=costs[0]),
        draft(1, drafts[1], usage=costs[1]),
        says(json.dumps(first), 0) | {"usage": costs[2]},
        says(json.dumps(second), 1) | {"usage": costs[3]},
    ]
    return [reply | {"run": run} for run in (0, 1) for reply in replies]


@pytest.fixture(scope="module")
async def worker(client: Client) -> AsyncIterator[Models]:
    """Serve the documents' queue with the documents' replies, and the tools that the README shows."""
    models = Models(haiku(), {})
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=QUEUE)):
        yield models
    await models.aclose()


@pytest.fixture
def temporal_address(temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the server to commands, as `export TEMPORAL_ADDRESS=...` does."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


async def command(*arguments: str, folder: Path | None = None, **variables: str) -> Done:
    """Run a command while this process goes on serving."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 240)
    return Done(process.returncode or 0, out.decode(), err.decode())


async def python(text: str) -> Done:
    """Run a document's Python to its end."""
    return await command(sys.executable, "-c", text)


def same_but_for_ids(real: Any, example: Any) -> bool:
    """Compare two values; whatever differs from run to run need only be of the same form."""
    if isinstance(real, dict) and isinstance(example, dict):
        ids = real.keys() & {"thread_id", "grading_run_id", "time", "seconds", "cost_usd"}
        alike = all(isinstance(real[key], type(example.get(key))) for key in ids)
        return alike and real.keys() == example.keys() and all(same_but_for_ids(real[key], example[key]) for key in real.keys() - ids)
    if isinstance(real, list) and isinstance(example, list):
        return len(real) == len(example) and all(map(same_but_for_ids, real, example))
    return bool(real == example)


class Asked(Strict):
    """What a generator that is not ours is given."""

    messages: tuple[transcript.Message, ...]
    iteration: int
    feedback: str | None


MODELS: dict[str, type[BaseModel]] = {
    "Notice": Notice,
    "ThreadRequest": ThreadRequest,
    "InvokeRequest": InvokeRequest,
    "Generator": Generator,
    "foreign": Asked,
    "ModelSpec": ModelSpec,
    "Rubric": Rubric,
    "ToolElsewhere": tool_elsewhere.RemoteTool,
    "RunResult": RunResult,
    "ThreadState": ThreadState,
    "Verdict": Verdict,
    "events": page.Page[Event],
}


@pytest.mark.parametrize("example", [block for block in blocks(*DOCUMENTS) if block.language == "json"], ids=lambda item: item.about)
def test_every_json_example_fits_the_model_that_it_names(example: Block) -> None:
    value = json.loads(example.text)

    assert isinstance(MODELS[example.about].model_validate(value), MODELS[example.about])


def test_the_schemas_are_those_of_the_contracts_examples() -> None:
    named = {block.about for block in blocks(CONTRACT) if block.language == "json"} - {"events", "foreign", "Generator", "ModelSpec"}

    assert named <= set(json_schemas())


@pytest.mark.parametrize("example", [block for block in blocks(CONTRACT) if block.about in {"Rubric", "ThreadRequest", "InvokeRequest"}])
def test_the_examples_keep_the_printed_schemas(example: Block) -> None:
    assert list(Draft202012Validator(json_schemas(example.about)).iter_errors(json.loads(example.text))) == []


def test_every_block_of_every_document_is_of_a_kind_that_is_checked() -> None:
    known = {"json", "sh", "python", "yaml", "text", "toml"}

    assert [block for block in blocks(*DOCUMENTS) if block.language not in known] == []
    assert {block.language for block in blocks(README)} == {"sh", "python", "yaml", "text"}


def test_the_table_of_models_of_the_contract_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.toml").write_text(block(CONTRACT, "toml").text)
    monkeypatch.setenv("GRADELOOP_MODELS", str(tmp_path / "models.toml"))

    newest = capability_of(ModelSpec(id="openai:gpt-7-luna"))

    assert (newest.efforts, newest.max_output) == (("low", "high"), 128_000)
    assert [row.instead for row in load_catalogue().retired if row.names(ModelSpec(id="openai:gpt-5.5-2026-04-23"))] == ["gpt-7"]


def test_the_contracts_webhook_is_one() -> None:
    tables = tomllib.loads(block(CONTRACT, "toml", "notify").text)["notify"]
    offered = NotifyActivities(
        {name: NotifySettings.model_validate(table) for name, table in tables.items()},
        {"OPS_WEBHOOK_URL": "https://ops.example/hook", "OPS_WEBHOOK_SECRET": "secret"},
    ).offered

    assert offered == {"ops": ("thread.waiting", "batch.ended")}
    assert [row[0].strip("` ") for row in rows(CONTRACT, "Notices")] == list(ALL_KINDS)


async def test_the_contracts_examples_are_what_a_run_really_returns(client: Client, worker: Models) -> None:
    argument = json.loads(block(CONTRACT, "json", "ThreadRequest").scripted())
    thread = await client.start_workflow("GradingThread", argument, id="contract", task_queue=QUEUE, result_type=dict[str, Any])

    assert same_but_for_ids(vendors(await thread.result()), shown("RunResult"))
    assert same_but_for_ids(await thread.query("state", result_type=dict[str, Any]), shown("ThreadState"))
    assert same_but_for_ids(await page_of_thread(thread, "events", 3, 2), shown("events"))
    assert {"temporal_run_id", "thread"} == set(await thread.query("checkpoint", result_type=dict[str, Any]))


def test_the_contracts_verdict_is_accepted_by_the_rules_beside_it() -> None:
    asked = Rubric.model_validate(shown("ThreadRequest")["rubric"])

    assert isinstance(parse_verdict(block(CONTRACT, "json", "Verdict").text, call_groups(asked)[0]), Verdict)


def test_the_contracts_fields_handlers_types_and_columns_are_the_codes() -> None:
    text = CONTRACT.read_text()
    door = workflow._Definition.must_from_class(contracts.GradingThread)
    kinds = {"signal": door.signals, "query": door.queries, "update": door.updates}

    assert names_in(rows(CONTRACT, "Start a thread")) == set(ThreadRequest.model_fields)
    assert names_in(rows(CONTRACT, "Further turns")) == set(InvokeRequest.model_fields)
    for kind, handlers in kinds.items():
        assert names_in([row for row in rows(CONTRACT, "Read and steer a thread") if row[1] == kind]) == set(handlers), kind
    assert all(f"`{name}`" in text for name in (*modelspec.PROVIDERS, *contracts.SEARCH_ATTRIBUTES))
    assert f"`{contracts.WORKFLOW}` on the task queue `{contracts.TASK_QUEUE}`" in text
    assert all(f"`{kind}`" in text for kind in (*failures.RETRYABLE, *failures.PERMANENT))
    assert all(f"`{name}`" in text for name in Event.model_json_schema()["properties"]["type"]["enum"])
    assert all(f"`{status}`" in text for status in set(get_args(RunStatus)) - {"waiting"})


def names_in(table: list[tuple[str, ...]]) -> set[str]:
    """Return what stands as code in a table's first column."""
    return {name for row in table for name in re.findall(r"`(\w+)", row[0])}


def test_the_contracts_refusals_are_the_codes() -> None:
    source = "".join(path.read_text() for path in (ROOT / "workflows").glob("*.py"))
    refusals = {"ThreadTooLarge", *re.findall(r'type="([A-Z]\w+)"', source)}
    (documented,) = (row[1] for row in rows(CONTRACT, "Errors") if row[0] == "a turn or a resumption that cannot be taken")

    assert set(re.findall(r"`(\w+)`", documented)) == refusals


def test_the_methods_and_errors_of_the_contract_are_the_clients() -> None:
    named = {name for row in rows(CONTRACT, "From Python") for name in re.findall(r"`(\w+)", row[0])}
    section = CONTRACT.read_text().split("\n## From Python\n")[1].split("\n## ")[0]

    methods = vars(typed_client.GradingClient)
    assert named == {name for name in methods if not name.startswith("_")}
    raised = re.findall(r"`([A-Z]\w+)`", section.split("They raise")[1])
    assert all(issubclass(getattr(errors, name), errors.GradeloopError) for name in raised)
    assert f"waits {PATIENCE_SECONDS:.0f} s" in section


async def run_shell(text: str) -> list[Done]:
    """Run a block's commands one after the other."""
    commands = [line for line in re.split(r"\n(?=\w)", text.strip()) if line]
    return [await command("bash", "-c", line) for line in commands]


SHELL = [block for block in blocks(README, CONTRACT) if block.language == "sh" and block.text.startswith("temporal workflow")]


@pytest.mark.usefixtures("temporal_address", "worker")
@pytest.mark.parametrize("number", range(len(SHELL)))
async def test_temporals_own_command_line_starts_a_thread_and_reads_it(number: int) -> None:
    text = renamed(SHELL[number].scripted(), f"shell-{number}")

    done = await run_shell(text)

    assert [command.code for command in done] == [0] * len(done), done
    assert re.search(r'"?status"?: ?"?satisfied', done[0].out)
    assert all("idle" in command.out or "Signal workflow succeeded" in command.out for command in done[1:])


@pytest.mark.usefixtures("temporal_address", "worker")
async def test_the_readmes_service_prints_evaluations_events_and_the_best_draft() -> None:
    text = renamed(block(README, "python", having="on_evaluation").scripted(), "service")
    done = await python(text)

    output = shown("RunResult")["output"]
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"0 needs_revision\n1 satisfied\nsatisfied 1.0 {output}\n1 message\n")
    assert done.out.endswith(f"\n{shown('events')['total']} run_ended\n")


@pytest.mark.usefixtures("temporal_address", "worker")
async def test_the_contracts_two_calls_go_on_with_a_closed_thread(client: Client) -> None:
    argument = json.loads(block(CONTRACT, "json", "ThreadRequest").scripted())
    await client.execute_workflow("GradingThread", argument, id="two-calls", task_queue=QUEUE)

    done = await python(renamed(block(CONTRACT, "python").text, "two-calls"))

    assert (done.code, done.out, done.err) == (0, "satisfied 2\n", "")
    assert len((await page_of_thread(client.get_workflow_handle("two-calls"), "evaluations", 0, 9))["items"]) == 4


@pytest.mark.usefixtures("worker")
async def test_the_contracts_generator_of_ones_own_gets_what_is_shown(client: Client) -> None:
    drafts = [message["content"] for message in shown("RunResult")["messages"] if message["role"] == "assistant"]
    asked: list[Any] = []

    @activity.defn(name=shown("Generator")["activity"])
    async def write(argument: dict[str, Any]) -> Any:
        asked.append(argument)
        said = drafts[argument["iteration"]]
        return {"messages": [{"role": "assistant", "content": said}]} if argument["iteration"] else said

    argument = json.loads(block(CONTRACT, "json", "ThreadRequest").scripted()) | {"generator": shown("Generator")}
    async with Worker(client, task_queue=shown("Generator")["task_queue"], activities=[write]):
        result = await client.execute_workflow("GradingThread", argument, id="own", task_queue=QUEUE, result_type=dict[str, Any])

    assert (result["status"], result["output"]) == ("satisfied", drafts[1])
    assert asked[0]["feedback"] is None
    assert same_but_for_ids(asked[1], shown("foreign"))
    (other,) = re.findall(r'`(\{"workflow": .*?\})`', CONTRACT.read_text())
    assert Generator.model_validate_json(other).workflow


@pytest.mark.usefixtures("temporal_address", "worker")
async def test_the_readmes_first_task_is_written_and_run(tmp_path: Path) -> None:
    steps = [line.split("#")[0].split() for line in block(README, "sh", having="gradeloop init").text.splitlines()]
    install, export, init, run = steps

    assert install == ["pip", "install", "'gradeloop[all]'"]
    assert export[0] == "export"
    assert (await command(*init, folder=tmp_path)).code == 0
    models = ["--model", "scripted:any", "--grader", "scripted:any"]
    done = await command(*run, *models, folder=tmp_path, GRADELOOP_TASK_QUEUE=QUEUE)
    assert done.code == 0, done.err
    assert "satisfied after 2 iterations" in done.out


@pytest.mark.usefixtures("temporal_address")
async def test_the_readmes_task_is_judged_by_its_check_and_its_grader(client: Client, tmp_path: Path) -> None:
    (tmp_path / "reply.yaml").write_text(block(README, "yaml", having="# reply.yaml").scripted())
    done = await run_reply(client, tmp_path, ToolRegistry(), [verdict_on_reply(0), verdict_on_reply(1)])

    assert done.code == 0, done.err
    assert "It has at most 80 words: words: 81" in done.out
    assert "satisfied after 2 iterations" in done.out


@pytest.mark.usefixtures("temporal_address")
async def test_the_task_with_tools_runs_with_its_check_and_its_tool(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(block(TOOLS, "python", having="# tools.py").text)
    (tmp_path / "reply.yaml").write_text(block(TOOLS, "yaml", "task").scripted())
    calls = [{"name": "opening_hours", "arguments": {"day": "Sunday"}}]
    replies = [reply for at in (0, 1) for reply in ({"role": "grader", "iteration": at, "tool_calls": calls}, verdict_on_reply(at, step=1))]
    done = await run_reply(client, tmp_path, ToolRegistry.load([tmp_path / "tools.py"]), replies)

    assert done.code == 0, done.err
    assert "It has at most 80 words: words: 81" in done.out
    assert "the grader calls opening_hours" in done.out
    assert "satisfied after 2 iterations" in done.out


def verdict_on_reply(iteration: int, step: int = 0) -> Reply:
    """Return a grader's reply that passes the two criteria of `reply.yaml` which no check decides."""
    passing = [{"id": name, "reason": "So it says.", "passed": True, "gap": None} for name in ("c2", "c3")]
    return says(json.dumps({"criteria": passing, "explanation": "Fine.", "result": "satisfied"}), iteration, step=step)


async def run_reply(client: Client, folder: Path, tools: ToolRegistry, graders: list[Reply]) -> Done:
    """Run `reply.yaml` of the folder: its first draft has 81 words, the second one is short."""
    queue, long, short = f"reply-{folder.name}", "word " * 81, "Bring it in on Monday from 9 on; we will mend it while you wait."
    async with build(client, Models([draft(0, long), draft(1, short), *graders], {}), tools, WorkerSettings(task_queue=queue)):
        return await command("gradeloop", "run", "reply.yaml", folder=folder, GRADELOOP_TASK_QUEUE=queue)


def test_the_readmes_lines_for_ollama_call_the_server_that_they_name() -> None:
    export, run = block(README, "sh", having="OPENAI_BASE_URL").text.splitlines()
    variable, url = export.removeprefix("export ").split("=")
    flags = run.split()
    models = [ModelSpec.model_validate(flags[flags.index(flag) + 1]) for flag in ("--model", "--grader")]

    assert [Environment.read({variable: url}).endpoint(model).base_url for model in models] == [url, url]


def test_the_table_in_the_readme_is_what_the_demo_prints(commands: CommandLine) -> None:
    done = commands("demo")
    table = block(README, "text", having="iteration  result").text.splitlines()

    assert [line.rstrip() for line in done.out.splitlines()][-len(table) :] == table


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900


def test_the_limits_are_the_codes() -> None:
    documented = {row[0]: row[1] for row in rows(CONTRACT, "Limits")}

    assert documented == {
        "a rubric": f"{rubric.RUBRIC_BYTES // 1024} KiB, {rubric.MAX_CRITERIA} criteria",
        "`max_iterations`": f"1 to {request.MAX_ITERATIONS}",
        "a `system_prompt`, a rubric's `prompt`": "65,536 characters",
        "`vars`": f"{VARS_BYTES // 1024} KiB",
        "votes on a criterion, conversations of a pass": f"{VOTES}, {rubric.CONVERSATIONS}",
        "a row's `metadata`": f"{METADATA_BYTES // 1024} KiB",
        "a message, as JSON": f"{transcript.MESSAGE_BYTES // 1024:,} KiB",
        "messages sent at once": f"{transcript.MAX_MESSAGES:,}",
        "a thread's messages and evaluations": f"{request.STATE_BYTES // 1024:,} KiB",
        "the same with external storage": f"{request.STORED_STATE_BYTES // 1024**2} MiB, {request.STATE_BYTES // 1024:,} KiB at the start",
        "turns that wait": f"{request.QUEUED}",
        "keys remembered": f"{thread_state.OUTCOMES_KEPT}",
        "a `key`": f"{most(InvokeRequest, 'key')} characters",
        "`idle_timeout`": f"{most(ThreadRequest, 'idle_timeout') // 86_400} days",
        "`outage_timeout`": f"{most(ThreadRequest, 'outage_timeout') // 86_400} days",
        "a `timeout`, a `call_timeout`": f"{modelspec.LONGEST_TIMEOUT // 3600} hours",
        "tool calls of one conversation": f"{activity_calls.TOOL_CALLS}",
        "turns of one conversation": f"{activity_calls.TURNS}",
        "turns to repair a verdict": f"{REPAIRS}",
        "a tool's output": f"{EVIDENCE_BYTES // 1024} KiB",
        "the `parameters` of a remote tool": f"{tool_elsewhere.PARAMETERS_BYTES // 1024} KiB",
        "the arguments of a call that a person approves": f"{tool_calls.APPROVED_BYTES // 1024} KiB",
        "a tool's time": f"{tool_call.TOOL_SECONDS:.0f} s",
        "one model call": f"{modelspec.CALL_SECONDS:.0f} s",
        "a stream without data": f"{model.IDLE_TIMEOUT:.0f} s",
        "a reply": f"{http.BODY_BYTES // 1024**2} MiB, unpacked",
        "a generator of your own": foreign_limits(),
        "events kept": f"{thread_state.EVENTS_KEPT:,}",
    }
    assert Generator.model_fields["system_prompt"].annotation == request.SystemPrompt | None
    assert f"{contracts.RESULT_MESSAGES_BYTES // 1024} KiB" in CONTRACT.read_text()
    assert page.PAGE_BYTES == 1024 * 1024
    assert f"has the key `{thread_rules.START_KEY}`" in CONTRACT.read_text()
    assert f"{grading_thread.FIRST_TURN_SECONDS:.0f} seconds (or `idle_timeout`, if longer)" in CONTRACT.read_text()
    assert all(f"from {connect.THRESHOLD // 1024} KiB on" in path.read_text() for path in (CONTRACT, ARCHITECTURE))


def most(model_type: type[BaseModel], field: str) -> int:
    """Return the upper bound of a number, or of a text's length."""
    schema = model_type.model_json_schema()["properties"][field]
    return next(
        int(bound) for choice in schema.get("anyOf", [schema]) for name, bound in choice.items() if name in {"maximum", "maxLength"}
    )


def foreign_limits() -> str:
    """Write what somebody else's generator may take."""
    call, hour = activity_calls.REMOTE_CALL, timedelta(hours=1)
    waited, once, policy = call["schedule_to_start_timeout"], call["start_to_close_timeout"], call["retry_policy"]
    assert waited is not None
    assert once is not None
    assert policy is not None
    assert (call["schedule_to_close_timeout"], activity_calls.FIND_WORKER["schedule_to_close_timeout"]) == (
        activity_calls.REMOTE_SECONDS,
        waited,
    )
    in_all = f"{waited.seconds} s until a worker takes it, {activity_calls.REMOTE_SECONDS // hour} hours in all"
    return f"{in_all}; of an activity {once.seconds // 60} minutes a call, {policy.maximum_attempts} calls"


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket"])
async def test_what_external_storage_needs_is_what_the_documents_say(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("aioboto3", "gcloud", "gcloud.aio", "gcloud.aio.storage"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidRequest) as refused:
        await connect.build_converter(url)

    (package,) = re.findall(r"pip install ([\w-]+)", str(refused.value))
    assert f"`{url}`" in CONTRACT.read_text()
    assert f"`pip install {package}`" in CONTRACT.read_text()
    assert f"{package}`" in (ROOT / "deploy/README.md").read_text()


def test_the_exit_codes_are_the_commands() -> None:
    codes = [int(row[0]) for row in rows(CONTRACT, "Exit codes")]

    names = ("SATISFIED", "CAPPED", "BAD_INPUT", "NO_VERDICT", "UNREACHABLE", "INTERNAL", "STOPPED", "BROKEN_PIPE")
    assert codes == [getattr(exit_codes, name) for name in names]


async def test_the_seconds_in_which_a_death_and_an_interrupt_are_noticed_are_the_codes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, timeout = ARCHITECTURE.read_text(), activity_calls.MODEL_CALL["heartbeat_timeout"]
    made: dict[str, timedelta] = {}
    monkeypatch.setattr("worker.Worker", lambda *_, **settings: made.update(settings))
    build(client, Models([], {}), ToolRegistry())
    beat = made["max_heartbeat_throttle_interval"]

    assert model_call.HEARTBEAT_SECONDS == 1
    assert f"a call pulses every second, and the worker sends a heartbeat every {beat.total_seconds():.0f} seconds at most" in text
    assert timeout is not None
    assert f"is missed within {timeout.total_seconds():.0f}," in text
    assert f"gives its calls {GRACE.total_seconds():.0f} seconds" in text


def test_every_line_that_the_example_task_offers_is_one_that_a_task_takes() -> None:
    example = (ROOT / "src/gradeloop/cli/task_example.yaml").read_text()
    offered = re.findall(r"^# (?=(\w+): )", example, flags=re.MULTILINE)
    whole = YAML(typ="safe").load(re.sub(r"^# (?=\w+: )", "", example, flags=re.MULTILINE))

    assert {"generator", "grader", "tools", "thread", "idle_timeout"} == set(offered)
    assert set(offered) <= set(TaskFile.model_validate(whole).model_fields_set)


def test_the_variables_of_the_contract_are_the_ones_that_are_read() -> None:
    named = set(re.findall(r"`(GRADELOOP_\w+|\w+_API_KEY|\w+_BASE_URL)`", CONTRACT.read_text()))
    source = "\n".join(path.read_text() for folder in ("src", "activities") for path in (ROOT / folder).rglob("*.py"))
    private = {"until_idle", "ready_file", "examine"}
    settings = {f"GRADELOOP_{name.upper()}" for name in WorkerSettings.model_fields if name not in private}

    nested = {name for name in named if "__" in name}
    assert {name for name in named if name.startswith("GRADELOOP_")} - nested == settings | set(re.findall(r'"(GRADELOOP_\w+)"', source))
    assert {name for name in named if not name.startswith(("GRADELOOP_", "TEMPORAL_"))} == provider_variables()


def provider_variables() -> set[str]:
    """Return the variables that change what the worker calls."""
    vendors = ("ANTHROPIC", "OPENAI", "OPENROUTER", "GOOGLE", "GEMINI", "PALM", "GOOGLE_GEMINI", "MISTRAL", "AZURE_OPENAI")
    of_presets = [name for name in preset_variables() if name.endswith(("_API_KEY", "_BASE_URL"))]
    names = [*(f"{vendor}_{kind}" for vendor in vendors for kind in ("API_KEY", "BASE_URL")), *of_presets]
    beside = {"AZURE_OPENAI_ENDPOINT": "https://example.com"}
    return {name for name in names if called_with({name: "https://example.com/v1"} | beside) != called_with(beside)}


def test_the_endpoints_of_the_contract_are_settings_and_its_presets_the_tables(tmp_path: Path) -> None:
    (tmp_path / "gradeloop.toml").write_text(block(CONTRACT, "toml", "providers").text)
    providers = load_settings(["--config", str(tmp_path / "gradeloop.toml")]).providers
    documented = {
        name.strip("`"): protocol.strip("`") for name, protocol, *_ in rows(CONTRACT, "Endpoints with names") if protocol[0] == "`"
    }

    assert set(providers) == {"house", "azure-eu", "anthropic"}
    assert names_in(rows(CONTRACT, "Endpoints with names")) >= set(EndpointSettings.model_fields)
    assert documented == {preset.name: preset.protocol for preset in load_presets().presets if preset.name not in PROVIDERS}


def called_with(environ: dict[str, str]) -> tuple[Environment, frozenset[str]]:
    """Return what a worker with these variables calls, and with which keys."""
    environment = Environment.read(environ)
    return environment, environment.secrets


def test_the_default_graders_of_the_contract_are_the_tables() -> None:
    documented = [(tuple(re.findall(r"`(\w+)`", row[0])), row[1].strip("`")) for row in rows(CONTRACT, "The default grader")]

    assert documented == [(row.variables, row.model) for row in DEFAULTS]


def test_the_settings_of_the_contract_are_those_of_a_model() -> None:
    beside = set(ModelSpec.model_fields) - {"id", "config"}

    assert names_in(rows(CONTRACT, "Models")) == set(ModelConfig.model_fields) | beside


def test_every_path_that_a_document_names_exists() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())]
    code = re.compile(r"`((?:tests|activities|workflows)/[\w/.]+)`")
    checks = [(page, name) for page in (README, ARCHITECTURE) for name in code.findall(page.read_text())]

    assert links
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []
    assert [(page.name, name) for page, name in checks if not (ROOT / name).exists() and not (ROOT / "src" / name).exists()] == []


def test_every_heading_that_a_document_links_to_is_there() -> None:
    def anchors(page: Path) -> set[str]:
        headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    links = [(page, *found) for page in PAGES for found in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text())]

    assert [
        (page.name, target, anchor) for page, target, anchor in links if anchor not in anchors(page.parent / target if target else page)
    ] == []


def test_every_make_target_and_module_that_the_benchmarks_name_is_there() -> None:
    text, makefile = BENCHMARKS.read_text(), (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make ([\w-]+)$", text, flags=re.MULTILINE)
    modules = re.findall(r"^python -m ([\w.]+)", text, flags=re.MULTILINE)

    assert len(targets) == 10
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []
    places = {name: ROOT / name.replace(".", "/") for name in modules}
    assert [name for name, place in places.items() if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file())] == []


def test_no_file_names_the_host_of_a_package_index() -> None:
    folders = ("lab", "rig", "deploy", "docs", "examples", "src", "tests", "workflows", "activities", ".ci")
    files = [*ROOT.glob("*.*"), ROOT / "Makefile", *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    hosts = re.compile("p[y]pi[.]|p[y]thonhosted|np[m]js|crates[.]i[o]")

    assert [str(path) for path in files if path.is_file() and hosts.search(path.read_text(errors="replace"))] == []
