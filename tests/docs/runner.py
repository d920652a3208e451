"""The fenced blocks of every page, and one table that says how a block is checked and, where it is run, by which preparation."""

import ast
import asyncio
import configparser
import importlib
import inspect
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from pydantic import BaseModel

from activities.notify import NotifyActivities
from activities.providers.scripted import Script
from activities.tools.base import Tool, ToolContext, tool_of
from activities.tools.registry import build_rows
from gradeloop.batches.answer import answer_of, results_line
from gradeloop.batches.contract import BatchRequest, BatchSummary
from gradeloop.batches.gate import expectation
from gradeloop.calibration.cli.backtest import Backtest, Outcome, backtest_lines
from gradeloop.cli.main import app
from gradeloop.cli.schemas import json_schemas, models
from gradeloop.cli.task_file import Task, TaskFlags, read_task
from gradeloop.contract.base import Page
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import Event, Verdict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, Grader
from gradeloop.contract.transcript import RunMessage
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.scoring import GraderAnswer, PassFindings, aggregate, call_groups, result_of, score_of
from gradeloop.grading.templates import fill
from gradeloop.grading.verdicts import parse_verdict
from gradeloop.judges.contract import CriteriaJudge, SchemaJudge, parse_judge
from gradeloop.judges.judgements import Label
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.monty import Monty
from gradeloop.settings.catalog import capability_of, load_catalogue
from gradeloop.settings.paths import state_folder
from gradeloop.settings.worker import NotifySettings, SandboxSettings, WorkerSettings, load_settings
from gradeloop.stats.decided import EarlyAnswer
from gradeloop.stats.intervals import Estimate
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from gradeloop.transcripts.mapping import Mapping
from gradeloop.transcripts.registry import detect
from tests.conftest import ROOT
from tests.rig.cli import Done

PAGES = tuple(
    str(path.relative_to(ROOT))
    for folder, pattern in ((ROOT, "*.md"), *((ROOT / name, "**/*.md") for name in ("docs", "deploy", "examples")))
    for path in sorted(folder.glob(pattern))
)
"""Every page, by its path in the repository."""

FENCE = re.compile(r"^( *)(```+|~~~+)(\w*) ?([^\n`]*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    about: str
    """The words behind the language, which name what the block shows."""
    text: str

    @property
    def kind(self) -> str:
        """Its language, and what it shows."""
        return f"{self.language} {self.about}".strip()

    @property
    def place(self) -> str:
        """Its page and line."""
        return f"{self.page}:{self.line}"

    @property
    def value(self) -> Any:
        """The value of its JSON or YAML."""
        return json.loads(self.text) if self.language == "json" else read_yaml(self.text, self.place)

    def scripted(self) -> str:
        """Return the text with models that need no key."""
        return scripted(self.text)


def scripted(text: str) -> str:
    """Name scripted models instead of the vendors'."""
    return re.sub(r"\b(anthropic|openai):(?=[a-z])", "scripted:", text)


@cache
def text_of(page: str) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text()


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page."""
    text = text_of(page)
    return tuple(Block(page, text[: found.start()].count("\n") + 1, *found.groups()[2:]) for found in FENCE.finditer(text))


def block_of(page: str, kind: str, having: str = "") -> Block:
    """Return the one block of this language and name that has these words."""
    (found,) = (block for block in blocks(page) if block.kind == kind and having in block.text)
    return found


def section(page: str, heading: str) -> str:
    """Return the text under a heading of the second level."""
    return text_of(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(page: str, heading: str) -> list[tuple[str, ...]]:
    """Return the table under a heading, without its head."""
    lines = [line for line in section(page, heading).splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def codes(page: str, heading: str, pattern: str = r"`(\w+)") -> set[str]:
    """Return what stands as code in the first column of the table under a heading."""
    return {name for row in rows(page, heading) for name in re.findall(pattern, row[0])}


# Checks of shell blocks


FOREIGN = {"chmod", "claude", "docker", "echo", "helm", "kubectl", "npm", "npx", "pre-commit", "pyright", "temporal"}
"""Programs of others: what they are told is run by the slow tests, or by nobody."""

ASSIGNMENT = re.compile(r"([A-Z]\w*)=")


@cache
def command_line() -> Any:
    """Return the command `gradeloop` with everything below it."""
    top: Any = typer.main.get_command(app)
    top.load_all()
    return top


@cache
def commands() -> dict[str, Any]:
    """Return the commands by their names, those of groups with both."""
    top: dict[str, Any] = command_line().commands
    return top | {f"{name} {inner}": found for name, group in top.items() for inner, found in getattr(group, "commands", {}).items()}


def flags(name: str) -> set[str]:
    """Return the long flags of a command."""
    named = {flag for param in commands()[name].params for flag in (*param.opts, *param.secondary_opts)}
    return {flag for flag in named if flag.startswith("--")} - {"--help"}


@cache
def variables() -> set[str]:
    """Return the variables of gradeloop's own that are read somewhere."""
    source = "\n".join(path.read_text() for folder in ("src", "activities") for path in (ROOT / folder).rglob("*.py"))
    settings = WorkerSettings.model_fields.keys() - {"until_idle", "until_input_ends", "ready_file", "examine"}
    return {f"GRADELOOP_{name.upper()}" for name in settings} | set(re.findall(r'"(GRADELOOP_\w+)"', source))


def split_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell text; a quotation may go on over lines, and `$(...)` is left out."""
    pending = ""
    for line in re.sub(r"\$\([^)]*\)", "PRINTED", text.replace("\\\n", " ")).splitlines():
        pending = f"{pending}\n{line}" if pending else line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        while "&&" in words:
            yield words[: words.index("&&")]
            words = words[words.index("&&") + 1 :]
        if words:
            yield words
    assert not pending, "a quotation does not end"


def names_commands(block: Block) -> None:
    """Require that every command, flag, variable, extra, make target, module and file that a shell block names is there."""
    for words in split_commands(block.text):
        assigned = [ASSIGNMENT.match(word) for word in words]
        before = next((at for at, word in enumerate(words) if word not in {"export", "exec"} and not assigned[at]), len(words))
        for name in (found[1] for found in assigned[:before] if found and found[1].startswith("GRADELOOP_")):
            assert name in variables() | {"GRADELOOP_MCP_CHECKS", "GRADELOOP_AGENTS"}, f"nothing reads {name}"
        for word in words:
            assert not re.match(r"(deploy|examples|tests|docs)/", word) or (ROOT / word).exists(), f"there is no {word}"
        if words[before:]:
            check_command(words[before:])


def check_command(words: list[str]) -> None:
    """Require that a program is one of ours or a known one, and that it takes its words."""
    program, *arguments = words
    if program == "gradeloop":
        check_arguments(arguments)
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make has no target {arguments[0]}"
    elif program.endswith("python"):
        if arguments[0] == "-m":
            place = ROOT / arguments[1].replace(".", "/")
            assert arguments[1] == "pytest" or place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), f"no {arguments[1]}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {name for named in re.findall(r"gradeloop\[(.*)\]", " ".join(arguments)) for name in named.split(",")} <= set(extras)
    else:
        assert program in FOREIGN, f"{program!r} is no program that the table knows"
    if "--" in arguments:
        check_command(arguments[arguments.index("--") + 1 :])


def check_arguments(arguments: list[str]) -> None:
    """Require that `gradeloop` has the command, and that the command takes these flags and arguments."""
    command, given = command_line(), list(arguments)
    while True:
        context = command.context_class(command)
        options, rest, _ = command.make_parser(context).parse_args(given)
        if not hasattr(command, "commands"):
            break
        if not rest:
            assert command.invoke_without_command, f"a command is missing after {command.name}"
            return
        assert rest[0] in command.commands, f"there is no command {rest[0]!r}"
        command, given = command.commands[rest[0]], rest[1:]
    assert not rest, f"{command.name} does not take {rest}"
    for param in command.params:
        value = options.get(param.name)
        assert value is not None or not param.required, f"{command.name} needs {param.name}"
        annotation = param.type_descriptor.annotation
        for choice in (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, Enum)):
            assert set(value if isinstance(value, list) else [value]) - {None} <= {member.value for member in choice}, param.name


def is_usage(block: Block) -> None:
    """Require that the first words of a usage line are a command; the page itself is written from the code."""
    (line,) = block.text.splitlines()
    name = " ".join(re.findall(r"[a-z-]+", line.split(" [")[0].removeprefix("gradeloop ")))
    assert name in commands(), f"there is no command {name!r}"


# Checks of Python blocks


def is_python(block: Block) -> None:
    """Require that a block compiles, that its imports exist, and that a program is run somewhere."""
    tree = compile(block.text, block.place, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    compile(tree, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        if isinstance(node, ast.ImportFrom) and node.module != "service":  # the page's own file
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], f"not in {node.module}"
    assert "asyncio.run(" not in block.text or rule_of(block).run, "no preparation runs this program"


@cache
def tools() -> dict[str, Tool]:
    """Return all built-in tools; their sandbox is one that needs nothing of the machine, for nothing is run."""
    settings = WorkerSettings(commands={"x": {"argv": ["/bin/sh"]}}, fetch={"hosts": ["a"]}, files={"roots": {"r": ROOT}})
    context = ToolContext(settings, SandboxChoice(Monty(), Monty(), Monty(), ()))
    return {tool.spec.name: tool for tool in map(tool_of, build_rows(context)[0])}


def is_signature(block: Block) -> None:
    """Require that a tool's signature on its page is the code's."""
    found = re.fullmatch(r"((\w+)\(.*\)) -> \{.*\}\n", block.text)
    assert found, "it is not written `tool(parameters) -> {...}`"
    assert found[2] == Path(block.page).stem
    if found[2] == "read_transcript":  # part of grading itself
        return
    tool, function = tools()[found[2]], ast.parse(f"def {found[1].replace('|', 'or')}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    parameters = dict.fromkeys(names) | dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    hidden = {"draft", "operation_id"}
    shown = {name: parameter for name, parameter in inspect.signature(tool.function).parameters.items() if name not in hidden}
    assert list(parameters) == list(shown)
    for name, parameter in shown.items():
        assert parameters[name] == (None if parameter.default is inspect.Parameter.empty else parameter.default), name
    assert tool.required == tuple(name for name, parameter in shown.items() if parameter.default is inspect.Parameter.empty)


# Checks of JSON, YAML and TOML blocks


UNPRINTED: dict[str, type[BaseModel]] = {
    "Generator": Generator,
    "Grader": Grader,
    "ModelSpec": ModelSpec,
    "RunMessage": RunMessage,
    "case label": Label,
    "events": Page[Event],
}
"""The models that `gradeloop schema` does not print under this name; all others it has to print."""

schemas = cache(json_schemas)


def is_the_model_that_it_names(block: Block) -> None:
    """Require that a JSON block fits its model, and the printed schema of the same name."""
    shown = models(lambda owner: {**owner.sent, **owner.received}) | UNPRINTED
    shown[block.about].model_validate_json(block.text)
    if block.about not in UNPRINTED:
        assert [error.message for error in Draft202012Validator(schemas()[block.about]).iter_errors(block.value)] == []


def is_accepted_by_the_rubric(block: Block) -> None:
    """Require that a verdict is read by the rules of the contract's rubric."""
    asked = Rubric.model_validate(block_of("docs/contract.md", "json ThreadRequest").value["rubric"])
    assert isinstance(parse_verdict(block.text, call_groups(asked)[0]), Verdict)


def is_value(block: Block) -> None:
    """Require that a block is a map of JSON, YAML, TOML or INI; the JSON of tutorials has one in each line."""
    if block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "ini":
        configparser.ConfigParser().read_string(block.text)
    elif block.language == "json" and "/tutorials/" in block.page:
        assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())
    else:
        assert isinstance(block.value, dict)


def is_text(block: Block) -> None:
    """Require some text, which a run compares with what is printed."""
    assert block.text.strip()


def shows(read: Callable[[Block], object], expected: object) -> Callable[[Block], None]:
    """Return a check that what is read of a block is this."""

    def check(block: Block) -> None:
        assert read(block) == expected

    return check


def in_file(block: Block, name: str) -> Path:
    """Write a block into a file of a new folder."""
    path = Path(tempfile.mkdtemp(dir=state_folder())) / name
    path.write_text(block.text)
    return path


def read_as_task(block: Block) -> Task:
    """Return the task that `gradeloop run` would read, beside the Python files that its page shows."""
    path = in_file(block, "task.yaml")
    for other in blocks(block.page):
        if named := re.match(r"# (\w+\.py)\n", other.text):
            (path.parent / named[1]).write_text(other.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-of-nobody")
        patch.setenv("ANTHROPIC_API_KEY", "sk-of-nobody")
        return read_task(path, TaskFlags())


def filled_criteria(block: Block) -> list[str | None]:
    """Return the criteria of a task, filled from its variables."""
    asked = read_as_task(block).request
    return criteria_of(fill(asked.rubric, asked.vars))


def criteria_of(rubric: object) -> list[str | None]:
    """Return the texts of a rubric's criteria."""
    return [criterion.text for criterion in Rubric.model_validate(rubric).criteria]


def is_suite(block: Block) -> None:
    """Require that a suite is read, with its cases."""
    assert list(read_suite(in_file(block, "suite.yaml"), SuiteFlags(check=True)).cases())


def is_judge(block: Block) -> None:
    """Require that a judge is of the kind that its name says."""
    assert isinstance(parse_judge(block.value), CriteriaJudge if block.about == "criteria" else SchemaJudge)


def is_verdict(block: Block) -> None:
    """Require that the verdict has the score and the result that the page says under the rubric above it."""
    above, said = blocks(block.page)[blocks(block.page).index(block) - 1], block.value
    assert above.kind == "yaml rubric"
    rubric = Rubric.model_validate(above.value)
    found = [{"id": name, "reason": "r", "gap": None if row["passed"] else "g"} | row for name, row in said["rows"].items()]
    answer = Verdict.model_validate({"criteria": found, "explanation": "e", "result": "needs_revision"})
    judgement = aggregate(rubric, PassFindings(answers={(0, 0): GraderAnswer(judge="j", verdict=answer)}))
    assert len(call_groups(rubric)) == 1
    assert score_of(rubric, judgement) == pytest.approx(said["score"])
    assert result_of(rubric, judgement) == said["result"]


def is_criterion_of_the_tool(block: Block) -> None:
    """Require that a criterion is checked by the tool of its page, with arguments that it takes."""
    check = Criterion.model_validate(block.value).check
    assert check is not None
    assert check.tool == Path(block.page).stem
    tool = tools()[check.tool]
    parameter = tool.check_parameter(check.arguments)
    assert parameter is not None
    assert tool.arguments is not None
    tool.arguments.model_validate(check.arguments if tool.takes_draft else {**check.arguments, parameter: "A draft."})


def is_github_workflow(block: Block) -> None:
    """Require that the job gives the action inputs that it has, and flags that `eval` has."""
    (given,) = (step["with"] for step in block.value["jobs"]["suite"]["steps"] if "gradeloop" in step["uses"])
    action: Any = read_yaml(ROOT / "action.yml", "the action")
    assert set(given) <= set(action["inputs"])
    check_arguments(["eval", given["suite"], *shlex.split(given["arguments"])])


def is_gitlab_job(block: Block) -> None:
    """Require that the commands of the job exist."""
    for line in (*block.value["suite"]["script"], *block.value["suite"]["after_script"]):
        if line.startswith("gradeloop "):
            check_command(shlex.split(line))


def is_recipe(block: Block) -> None:
    """Require that each line that begins with a command of ours names one that exists; a test of the Action runs them all."""
    for line in block.text.splitlines():
        if line.startswith("gradeloop "):
            check_command(shlex.split(line.partition(" ||")[0]))


def starts_the_mcp_server(block: Block) -> None:
    """Require that the settings of a coding agent name a command that exists."""
    value = tomllib.loads(block.text)["mcp_servers"] if block.language == "toml" else block.value["mcpServers"]
    check_command([value["gradeloop"]["command"], *value["gradeloop"]["args"]])


def is_line_about_a_format(block: Block) -> None:
    """Require that the line is what `judge` prints of a file in LangSmith's format."""
    found = detect({"id": "1", "run_type": "chain", "inputs": {}})
    assert f"read as {found.format.name} ({found.why}), " in block.text


def is_table_of_models(block: Block) -> None:
    """Require that the table says of a model what its rows say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_MODELS", str(in_file(block, "models.toml")))
        newest, retired = capability_of(ModelSpec(id="openai:gpt-7-luna")), load_catalogue().retired
    assert (newest.efforts, newest.max_output) == (("low", "high"), 128_000)
    assert [row.instead for row in retired if row.names(ModelSpec(id="openai:gpt-5.5-2026-04-23"))] == ["gpt-7"]


def webhooks(block: Block) -> object:
    """Return what the webhooks of a table are offered."""
    tables = {name: NotifySettings.model_validate(table) for name, table in tomllib.loads(block.text)["notify"].items()}
    return NotifyActivities(tables, {"OPS_WEBHOOK_URL": "https://ops.example/hook", "OPS_WEBHOOK_SECRET": "secret"}).offered


def settings_of(block: Block) -> WorkerSettings:
    """Return the settings of a worker whose `gradeloop.toml` this is."""
    return load_settings(["--config", str(in_file(block, "gradeloop.toml"))])


def is_settings_file(block: Block) -> None:
    """Require that the page's settings are read, and that what is shown of the sandbox are the defaults."""
    path = in_file(block, "project.toml").parent / "project" / "gradeloop.toml"
    (path.parent / "docs").mkdir(parents=True)
    path.write_text(block.text.replace('"ruff"', '"/bin/sh"'))
    settings, documented = load_settings(["--config", str(path)]), tomllib.loads(block.text)

    assert documented["sandbox"].items() <= SandboxSettings().model_dump().items()
    assert settings.mcp["wiki"].tools == ("search", "read")


def is_drawing(block: Block) -> None:
    """Require that the files and folders at the left edge of a drawing are there."""
    named = re.findall(r"^(\S+(?:/|\.py))(?= |$)", block.text, re.MULTILINE)
    assert [name for name in named if not (ROOT / name).exists()] == []


# Processes

CONCURRENCY = 4
TIMES, OFTEN = 10, 100
"""How often each of four programs is run: about one in 20 that leave a client of the SDK open ends with exit status 134, or hangs."""


async def run_process(*arguments: str, folder: Path | None = None, **variables: str) -> Done:
    """Run a command to its end while this process goes on serving."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | variables
    process = await asyncio.create_subprocess_exec(
        *arguments, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 600)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return Done(process.returncode or 0, out.decode(), err.decode())


async def ends_alike(programs: Sequence[tuple[str, ...]], **variables: str) -> Done:
    """Run programs, a few at once, each with a state folder of its own; return the one way in which all of them end, with exit status 0."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def run(arguments: tuple[str, ...]) -> Done:
        async with slots:
            own = {"GRADELOOP_STATE_DIR": tempfile.mkdtemp(dir=state_folder())}
            return await run_process(*arguments, folder=None, **own, **variables)

    ends = set(await asyncio.gather(*map(run, programs)))
    assert {done.code for done in ends} == {0}, ends
    assert len(ends) == 1, ends
    return ends.pop()


def is_an_early_end(block: Block) -> None:
    """Require the lines that an early end is expected with, and told with."""
    known = {"pass_rate": 0.9, "total": 500}
    asked = BatchRequest.model_validate({"batch_id": "b", "until_decided": {}} | known)
    decision = EarlyAnswer(answer="passed", asked=78, risk=0.05, wanted=0.9)
    summary = BatchSummary(batch_id="b", created="", status="finished", passed=100, failed=4, decision=decision, total=500, pass_rate=0.9)
    assert block.text.splitlines() == [expectation(asked), f"{answer_of(summary).text}: {answer_of(summary).words}", results_line(summary)]


def is_a_backtest(block: Block) -> None:
    """Require the lines that a backtest's preview and report have."""
    basis, _, *lines = block.text.splitlines()
    example = Outcome(name="haiku-395@1", end="sent_back", draft=1, text="", why="", rows=())
    found = Backtest(
        threads=400,
        drafts=644,
        asked=644,
        ends={"sent_back": 41, "accepted": 32, "same": 204, "diverges": 123, "unknown": 0},
        saved=47,
        diverged={1: 123},
        criteria={"c3": {"asked": 644, "same": 473, "fell": 86, "rose": 85}},
        examples=(example,),
        left_out={},
        agreed=None,
        agrees_more=Estimate(),
        usage=Usage(calls=644, cost_usd=0.7497),
    )
    assert re.fullmatch(r"400 threads, 644 drafts; only c3 changed: 644 calls, \$[0-9.]+", basis)
    assert lines == list(backtest_lines(found, Path("rubric-v2.md")))


# The table


@dataclass(frozen=True)
class Rule:
    """One row: the blocks that it takes, their quick check, and the preparation of `test_page_programs.py` that runs them."""

    page: str
    """A page, or a pattern of pages."""
    kind: str
    """The blocks' language and name; `*` is any name."""
    check: Callable[[Block], object]
    run: str = ""
    having: str = ""
    """Words of the block."""

    def takes(self, block: Block) -> bool:
        """Whether the row is about this block."""
        return fnmatch(block.page, self.page) and fnmatch(block.kind, self.kind) and self.having in block.text


NOT_RUN = "not run"
"""In the place of a preparation: a program that serves until it is stopped; those of `examples/agents` do the same, and are run."""

WRITING = "docs/writing-rubrics.md"

RULES = (
    Rule("README.md", "python", is_python, "loop", having="@gradeloop.loop"),
    Rule("README.md", "python", is_python, "service"),
    Rule("README.md", "sh", names_commands, having="gradeloop doctor"),  # run by tests/real/test_readme_local.py
    Rule("README.md", "sh", names_commands, "first task", having="gradeloop init"),
    Rule("README.md", "text", is_text, "demo", having="iteration  result"),
    Rule("README.md", "text", is_drawing),
    Rule("docs/architecture.md", "text", is_drawing),
    Rule("docs/agents.md", "sh", names_commands),
    Rule("docs/agents.md", "json", starts_the_mcp_server, having="mcpServers"),
    Rule("docs/agents.md", "toml", starts_the_mcp_server, having="command ="),
    Rule("docs/batches.md", "json *", is_the_model_that_it_names, "batch"),
    Rule("docs/batches.md", "toml", shows(lambda block: set(settings_of(block).limits), {"openai", "openai:gpt-6-luna"})),
    Rule("docs/batches.md", "yaml unsure", is_suite),
    Rule("docs/batches.md", "text early", is_an_early_end),
    Rule("docs/backtest.md", "sh", names_commands),
    Rule("docs/backtest.md", "text backtest", is_a_backtest),
    Rule("docs/ci.md", "yaml", is_github_workflow, having="jobs:"),
    Rule("docs/ci.md", "yaml", is_gitlab_job),
    Rule("docs/ci.md", "sh recipe", is_recipe),
    Rule("docs/ci.md", "sh", names_commands),
    Rule("docs/cli.md", "text", is_usage),
    *(Rule("docs/cookbook.md", kind, is_value, "tutorial") for kind in ("json", "yaml")),
    Rule("docs/cookbook.md", "text", is_text, "tutorial"),
    Rule("docs/cookbook.md", "sh", names_commands, "tutorial"),
    Rule("docs/contract.md", "json ThreadRequest", is_the_model_that_it_names, "thread"),
    Rule("docs/contract.md", "json *", is_the_model_that_it_names),
    Rule("docs/contract.md", "sh", names_commands, "temporal", having="temporal workflow"),
    Rule("docs/encryption.md", "sh", names_commands),
    Rule("docs/extensions.md", "python *", is_python),  # run by tests/test_third_party.py, with the rest of the page
    Rule("docs/extensions.md", "toml pyproject.toml", lambda block: tomllib.loads(block.text)["project"]["entry-points"]),
    Rule("docs/extensions.md", "toml providers", lambda block: tomllib.loads(block.text)["providers"]),
    Rule("docs/from-deepagents.md", "python *", is_python),  # run by tests/integrations/test_langchain.py
    Rule("docs/generators.md", "python", is_python, NOT_RUN),
    Rule("docs/generators.md", "yaml", read_as_task),
    Rule("docs/judging.md", "json AgentRun", is_the_model_that_it_names, "judgement"),
    Rule("docs/judging.md", "python", is_python, "judge"),
    Rule("docs/judging.md", "python docent", is_python),  # the example is run by tests/integrations/test_docent.py
    Rule("docs/judging.md", "yaml schema", is_judge, "judgement"),
    Rule("docs/judging.md", "yaml *", is_judge),
    Rule("docs/models.md", "json *", is_the_model_that_it_names),
    Rule("docs/models.md", "toml", is_table_of_models),
    Rule("docs/models.md", "toml providers", shows(lambda block: set(settings_of(block).providers), {"house", "azure-eu", "anthropic"})),
    Rule("docs/python.md", "text", is_text),  # compared by tests/docs/test_examples.py
    Rule("docs/remote.md", "json Generator", is_the_model_that_it_names, "generator"),
    Rule("docs/remote.md", "json *", is_the_model_that_it_names),
    Rule("docs/suites.md", "yaml", is_value),  # read by tests/suites/test_suites.py
    Rule("docs/testing.md", "ini settings", is_value, "pytest"),
    Rule("docs/testing.md", "python fixture", is_python),  # run by tests/test_pytest_plugin.py
    Rule("docs/testing.md", "python *", is_python, "pytest"),
    Rule("docs/testing.md", "yaml", lambda block: Script.model_validate(block.value)),
    Rule("docs/tools/README.md", "python", is_python, "reply"),
    Rule("docs/tools/README.md", "yaml task", read_as_task, "reply"),
    Rule("docs/tools/README.md", "toml", is_settings_file),
    Rule("docs/tools/*.md", "python", is_signature),
    Rule("docs/tools/*.md", "yaml", is_criterion_of_the_tool),
    Rule("docs/transcripts.md", "text", is_line_about_a_format),
    Rule("docs/transcripts.md", "yaml mapping *", lambda block: Mapping.model_validate(block.value)),  # run by test_mapped_shapes.py
    Rule("docs/turns.md", "python", is_python, "two calls"),
    Rule("docs/tutorials/*.md", "text", is_text, "tutorial"),
    Rule("docs/tutorials/*.md", "sh later", names_commands),
    Rule("docs/tutorials/*.md", "yaml part", is_value),
    Rule("docs/tutorials/*.md", "sh", names_commands, "tutorial"),
    Rule("docs/tutorials/*.md", "yaml", is_value, "tutorial"),
    Rule("docs/tutorials/*.md", "js", is_text, "tutorial"),
    Rule("docs/tutorials/*.md", "ts", is_text),  # run by tests/integrations/test_mastra_scorer.py
    Rule("docs/tutorials/*.md", "python", is_python, "tutorial"),
    Rule("docs/tutorials/*.md", "json", is_value, "tutorial"),
    Rule("docs/verdicts.md", "json answer", is_accepted_by_the_rubric),
    Rule("docs/watching.md", "json *", is_the_model_that_it_names),
    Rule("docs/webhooks.md", "json *", is_the_model_that_it_names),
    Rule("docs/webhooks.md", "toml notify", shows(webhooks, {"ops": ("thread.waiting", "batch.ended")})),
    Rule(WRITING, "text", shows(lambda block: criteria_of(block.text), ["Three lines", "5-7-5 syllables", "The theme is spring"])),
    Rule(WRITING, "yaml rubric", lambda block: Rubric.model_validate(block.value)),
    Rule(WRITING, "yaml verdict", is_verdict),
    Rule(WRITING, "yaml task", shows(filled_criteria, ["Addresses Ada by name", "At most 40 words"])),
    Rule("docs/*.md", "python", is_python),
    Rule("docs/calibration.md", "json *", is_the_model_that_it_names),
    Rule("docs/agents.md", "json", is_value),
    Rule("docs/agents.md", "toml", is_value),
    Rule("*.md", "sh", names_commands),
    Rule("*.md", "bash", names_commands),
)


def rule_of(block: Block) -> Rule:
    """Return the first row that takes a block.

    Raises:
        LookupError: There is none.
    """
    for rule in RULES:
        if rule.takes(block):
            return rule
    raise LookupError(f"no rule of the table takes a block of {block.kind!r}")


def runs() -> dict[tuple[str, str], list[Block]]:
    """Return the blocks that are run together, by page and preparation."""
    found: dict[tuple[str, str], list[Block]] = {}
    for block in (block for page in PAGES for block in blocks(page)):
        if (run := rule_of(block).run) not in {"", NOT_RUN}:
            found.setdefault((block.page, run), []).append(block)
    return found
