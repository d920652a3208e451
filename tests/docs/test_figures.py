"""What the pages quote from the code, figures, names, limits, flags and exit codes, is what the code has."""

import ast
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import get_args
from unittest.mock import MagicMock

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML
from temporalio import workflow

import worker
from activities import errors as failures
from activities import tool_call
from activities.calls import attempts
from activities.providers import base, http
from activities.providers.environment import Environment
from activities.tools import code, file_tools, mcp, registry, web
from activities.tools.registry import READ_TRANSCRIPT, ToolRegistry
from gradeloop import errors, text
from gradeloop.batches import contract as batch_contract
from gradeloop.batches import outputs, reader, store
from gradeloop.batches.compare.comparison import OUTCOMES, ComparisonGate
from gradeloop.batches.contract import BatchRequest, CaseStatus
from gradeloop.batches.pages import TEMPLATES, collection_page, read_batch
from gradeloop.cli.task_file import TaskFile
from gradeloop.client.client import GradingClient
from gradeloop.client.watch import PATIENCE_SECONDS
from gradeloop.contract import base as contract_base
from gradeloop.contract import messages, model_spec, rubric, thread, transcript
from gradeloop.contract.evaluation import EVIDENCE_BYTES, Event, RunStatus
from gradeloop.contract.messages import RecordKind
from gradeloop.contract.model_spec import PROVIDERS
from gradeloop.contract.notice import ALL_KINDS
from gradeloop.contract.thread import Generator
from gradeloop.errors import InvalidRequest
from gradeloop.grading import json_schema, text_checks
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET
from gradeloop.grading.templates import VARS_BYTES
from gradeloop.grading.verdicts import METADATA_BYTES, REPAIRS
from gradeloop.judges import answers
from gradeloop.judges import contract as judge_contract
from gradeloop.judges import schema as output_schema
from gradeloop.reports.run_page import MARKS
from gradeloop.sandbox import monty, suite_runner, usage
from gradeloop.settings.endpoints import DEFAULTS, preset_variables, presets_by_name
from gradeloop.settings.worker import FetchSettings, SandboxSettings, WorkerSettings
from gradeloop.temporal import codec
from gradeloop.transcripts.registry import FORMATS
from gradeloop.web.guard import DEFAULT, VARIABLE
from tests.conftest import ROOT
from tests.docs.runner import codes, commands, flags, rows, section, text_of, tools, variables
from tests.rig.attacks import HOSTILE, INTERPRETER
from workflows import activity_calls, grading_thread, thread_rules, thread_state, tool_calls
from workflows.batches import grading_batch

ARCHITECTURE, BATCHES, CONTRACT, JUDGING, REPORTS = (
    f"docs/{name}.md" for name in ("architecture", "batches", "contract", "judging", "reports")
)
ENCRYPTION, ENVIRONMENT, MODELS, PYTHON, REMOTE, TURNS, WATCHING, WEBHOOKS = (
    f"docs/{name}.md" for name in ("encryption", "environment", "models", "python", "remote", "turns", "watching", "webhooks")
)
TOOLS = "docs/tools/README.md"
KIB, MIB = 1024, 1024**2


def most(model: type[BaseModel], field: str) -> int:
    """Return the upper bound of a number, or of a text's length."""
    schema = model.model_json_schema()["properties"][field]
    bounds = (bound for choice in schema.get("anyOf", [schema]) for name, bound in choice.items() if name in {"maximum", "maxLength"})
    return int(next(bounds))


def seconds(duration: timedelta | None) -> int:
    """Return the seconds of a duration that is set."""
    assert duration is not None
    return int(duration.total_seconds())


def foreign_limits() -> str:
    """Write what somebody else's generator may take."""
    waited, once, policy = CALL["schedule_to_start_timeout"], CALL["start_to_close_timeout"], CALL["retry_policy"]
    assert policy is not None
    in_all = f"{seconds(waited)} s until a worker takes it, {seconds(activity_calls.REMOTE_SECONDS) // 3600} hours in all"
    return f"{in_all}; of an activity {seconds(once) // 60} minutes a call, {policy.maximum_attempts} calls"


CALL, BATCH = activity_calls.REMOTE_CALL, BatchRequest(batch_id="x", total=1)
BEAT = activity_calls.MODEL_CALL["heartbeat_timeout"]

LIMITS = {
    BATCHES: {
        "cases of a batch": f"{batch_contract.MAX_CASES:,}",
        "a case, as JSON": f"{batch_contract.CASE_BYTES // MIB} MiB",
        "cases of a shard": f"{store.SHARD_CASES}",
        "calls in flight": f"{BatchRequest.model_fields['at_once'].metadata[1].le:,}",
        "threads and judgements of cases, open at once in a shard": f"{grading_batch.CHILDREN}, those that wait for people too",
        "a shard's history": f"{grading_batch.HISTORY_BYTES // MIB} MiB, {grading_batch.HISTORY_EVENTS:,} events",
    },
    CONTRACT: {
        "a rubric": f"{rubric.RUBRIC_BYTES // KIB} KiB, {rubric.MAX_CRITERIA} criteria",
        "`vars`": f"{VARS_BYTES // KIB} KiB",
        "a row's `metadata`": f"{METADATA_BYTES // KIB} KiB",
        "a message, as JSON": f"{messages.MESSAGE_BYTES // KIB:,} KiB",
        "an image or file inside of a message; in one message": f"{messages.IMAGE_BYTES // KIB} KiB; {messages.IMAGES}",
        "messages sent at once": f"{messages.MAX_MESSAGES:,}",
        "a thread's messages and evaluations": f"{thread.STATE_BYTES // KIB:,} KiB",
        "the same with external storage": f"{thread.STORED_STATE_BYTES // MIB} MiB, {thread.STATE_BYTES // KIB:,} KiB at the start",
        "turns that wait": f"{thread.QUEUED}",
        "keys remembered": f"{thread_state.OUTCOMES_KEPT}",
        "tool calls of one conversation": (
            f"{model_spec.TOOL_CALLS}; with `max_tool_calls` 1 to {most(Generator, 'max_tool_calls')}, {model_spec.TOOL_CALLS} in one turn"
        ),
        "turns of one conversation": f"{model_spec.TURNS}; with `max_turns` 1 to {most(Generator, 'max_turns')}",
        "turns to repair a verdict": f"{REPAIRS}",
        "a tool's output": f"{EVIDENCE_BYTES // KIB} KiB",
        "the arguments of a call that a person approves": f"{tool_calls.APPROVED_BYTES // KIB} KiB",
        "a tool's time": f"{tool_call.TOOL_SECONDS:.0f} s",
        "a generator of your own": foreign_limits(),
        "events kept": f"{thread_state.EVENTS_KEPT:,}",
    },
    MODELS: {
        "one model call": f"{model_spec.CALL_SECONDS:.0f} s",
        "a `timeout`, a `call_timeout`": f"{model_spec.LONGEST_TIMEOUT // 3600} hours",
        "a stream without data": f"{base.IDLE_TIMEOUT:.0f} s",
        "an event of a local server's stream, once the reply has begun": f"{base.QUIET_SECONDS:.0f} s",
        "a reply that repeats itself": f"{base.LOOP_CHARACTERS:,} characters of a verdict, {8 * base.LOOP_CHARACTERS:,} of a draft",
        "a reply": f"{http.BODY_BYTES // MIB} MiB, unpacked",
    },
    JUDGING: {
        "a run, as JSON": f"{transcript.RUN_BYTES // KIB:,} KiB; {transcript.STORED_RUN_BYTES // MIB} MiB with external storage",
        "messages of a transcript, transcripts of a run": f"{transcript.RUN_MESSAGES:,}, {transcript.TRANSCRIPTS:,}",
        "what a judge is shown of it": f"{TRANSCRIPT_BUDGET:,} characters",
        "a `rubric_text`, an `output_schema`": f"{rubric.RUBRIC_BYTES // KIB} KiB each",
        "all `prompt_templates`": f"{judge_contract.TEMPLATE_CHARACTERS:,} characters",
        "an answer, as JSON": f"{answers.ANSWER_BYTES // KIB} KiB",
    },
}


@pytest.mark.parametrize("page", LIMITS)
def test_the_limits_of_a_page_are_the_codes(page: str) -> None:
    assert {row[0]: row[1] for row in rows(page, "Limits")} == LIMITS[page]


def test_limits_that_share_a_figure_are_equal() -> None:
    assert output_schema.SCHEMA_BYTES == rubric.RUBRIC_BYTES
    assert Generator.model_fields["system_prompt"].annotation == thread.SystemPrompt | None
    assert contract_base.PAGE_BYTES == MIB
    assert (CALL["schedule_to_close_timeout"], activity_calls.FIND_WORKER["schedule_to_close_timeout"]) == (
        activity_calls.REMOTE_SECONDS,
        CALL["schedule_to_start_timeout"],
    )
    assert BATCH.max_error_rate == 0.5
    assert WorkerSettings().max_concurrent_activities * grading_batch.SHARE > BATCH.at_once
    assert attempts.HEARTBEAT_SECONDS == 1
    assert collection_page.PACKED_BYTES + collection_page.TABLE_BYTES < 20_000_000


SENTENCES = {
    ARCHITECTURE: (
        f"from {codec.THRESHOLD // KIB} KiB on",
        f"is missed within {seconds(BEAT)},",
        f"gives its calls {WorkerSettings().drain_seconds:.0f} seconds",
    ),
    BATCHES: (
        f"{grading_batch.SHARE:.0%}",
        f"when more than half of the finished cases are errors, counted from the {reader.ERROR_RATE_FROM}th on",
        f"the priority {batch_contract.BATCH_PRIORITY.level}, behind those of threads (3)",
        f"with `{grading_batch.SHARD_LOST}` where a shard is lost {['', '', '', 'three', 'four'][grading_batch.LOST + 1]} times",
    ),
    CONTRACT: (
        f"{thread.RESULT_MESSAGES_BYTES // KIB} KiB",
        f"has the key `{thread_rules.START_KEY}`",
        f"{grading_thread.FIRST_TURN_SECONDS:.0f} seconds (or `idle_timeout`, if longer)",
        f"`{thread.WORKFLOW}` on the task queue `{thread.TASK_QUEUE}`",
        *(f"`{name}`" for name in (*failures.RETRYABLE, *failures.PERMANENT)),
        *(f"`{status}`" for status in set(get_args(RunStatus)) - {"running"}),
    ),
    ENCRYPTION: (f"from {codec.THRESHOLD // KIB} KiB on",),
    MODELS: tuple(f"`{name}`" for name in PROVIDERS),
    WATCHING: tuple(f"`{name}`" for name in (*thread.SEARCH_ATTRIBUTES, *Event.model_json_schema()["properties"]["type"]["enum"])),
    JUDGING: tuple(f"`<{name}>`" for name in judge_contract.REASONING),
    "docs/testing.md": tuple(f"`{name}`" for name in ("JudgeFailed", "AssertionError", "tools", "scripted")),
    REPORTS: (f"{read_batch.THREADS:,} at most", f"port {DEFAULT}, or `{VARIABLE}`", *MARKS.values()),
    TOOLS: (f'`_meta["{mcp.OPERATION_META}"]`',),
    "docs/threat-model.md": (f"{len(HOSTILE)} hostile programs and {len(INTERPRETER)} attacks",),
    "docs/transcripts.md": (f"`{transcript.EMPTY_MESSAGE}`",),
}


@pytest.mark.parametrize("page", SENTENCES)
def test_the_sentences_of_a_page_have_the_codes_figures_and_names(page: str) -> None:
    text = text_of(page).replace("\n", " ")

    assert [sentence for sentence in SENTENCES[page] if sentence not in text] == []


def test_a_worker_sends_heartbeats_as_often_as_the_architecture_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, timedelta] = {}
    monkeypatch.setattr("worker.Worker", lambda *_, **settings: made.update(settings))
    worker.build(MagicMock(), MagicMock(), ToolRegistry())
    beat = made["max_heartbeat_throttle_interval"].total_seconds()

    assert f"a call pulses every second, and the worker sends a heartbeat every {beat:.0f} seconds at most" in text_of(ARCHITECTURE)


DOOR = workflow._Definition.must_from_class(thread.GradingThread)
CODES = (
    (PYTHON, "The client", {name for name in vars(GradingClient) if not name.startswith("_")}),
    (BATCHES, "Status of a case", set(get_args(CaseStatus))),
)


@pytest.mark.parametrize(("page", "heading", "names"), CODES, ids=[heading for _, heading, _ in CODES])
def test_a_table_names_all_that_the_code_has(page: str, heading: str, names: set[str]) -> None:
    assert codes(page, heading) == names


def test_tables_are_in_the_codes_order() -> None:
    graders = [(tuple(re.findall(r"`(\w+)`", row[0])), row[1].strip("`")) for row in rows(MODELS, "The default grader")]
    records = [re.findall(r"`(\w+)`", row[0])[0] for row in rows("docs/transcripts.md", "Records")]

    assert graders == [(row.variables, row.model) for row in DEFAULTS]
    assert records == list(get_args(RecordKind))
    assert [row[0].strip("` ") for row in rows(WEBHOOKS, "Notices")] == list(ALL_KINDS)
    formats = [re.sub(r" \(.*?\)", "", name) for row in rows("docs/transcripts.md", "Formats") for name in row[1].split("; ")]
    assert sorted(formats) == sorted(known.name for known in FORMATS)


def test_the_contracts_handlers_refusals_and_errors_are_the_codes() -> None:
    for kind, handlers in {"signal": DOOR.signals, "query": DOOR.queries, "update": DOOR.updates}.items():
        named = [row[0] for row in rows(CONTRACT, "Read and steer a thread") if kind in row[1].split(", ")]
        assert {name for row in named for name in re.findall(r"`(\w+)", row)} == set(handlers), kind
    source = "".join(path.read_text() for path in (ROOT / "workflows").glob("*.py"))
    (refusals,) = (row[1] for row in rows(CONTRACT, "Errors") if row[0] == "a turn or a resumption that cannot be taken")
    assert set(re.findall(r"`(\w+)`", refusals)) == {"ThreadTooLarge", *re.findall(r'type="([A-Z]\w+)"', source)}
    raised = re.findall(r"`([A-Z]\w+)`", section(PYTHON, "The client").split("They raise")[1])
    assert all(issubclass(getattr(errors, name), errors.GradeloopError) for name in raised)
    assert f"waits {PATIENCE_SECONDS:.0f} s" in section(PYTHON, "The client")
    (other,) = re.findall(r'`(\{"workflow": .*?\})`', text_of(REMOTE))
    assert Generator.model_validate_json(other).workflow


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket"])
async def test_what_external_storage_needs_is_what_the_documents_say(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("aioboto3", "gcloud", "gcloud.aio", "gcloud.aio.storage"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidRequest) as refused:
        await codec.build_converter(url)

    (package,) = re.findall(r"pip install ([\w-]+)", str(refused.value))
    assert f"`{url}`" in text_of(ENCRYPTION)
    assert f"`pip install {package}`" in text_of(ENCRYPTION)
    assert f"{package}`" in text_of("deploy/README.md")


def test_every_line_that_the_example_task_offers_is_one_that_a_task_takes() -> None:
    example = (ROOT / "src/gradeloop/cli/task_example.yaml").read_text()
    offered = re.findall(r"^# (?=(\w+): )", example, flags=re.MULTILINE)
    whole = YAML(typ="safe").load(re.sub(r"^# (?=\w+: )", "", example, flags=re.MULTILINE))

    assert {"generator", "grader", "tools", "thread", "idle_timeout"} == set(offered)
    assert set(offered) <= set(TaskFile.model_validate(whole).model_fields_set)


def test_the_variables_of_the_environment_are_the_ones_that_are_read() -> None:
    pages = text_of(ENVIRONMENT) + text_of(MODELS) + section("docs/reference.md", "Endpoints with names")
    named = set(re.findall(r"(?:`|\$\{)(GRADELOOP_\w+|\w+_API_KEY|\w+_BASE_URL)(?:`|\}|:-)", pages))
    nested = {name for name in named if "__" in name}

    assert {name for name in named if name.startswith("GRADELOOP_")} - nested == variables()
    assert {name for name in named if not name.startswith(("GRADELOOP_", "TEMPORAL_"))} == provider_variables()


def provider_variables() -> set[str]:
    """Return the variables that change which server a worker calls, or with which key."""
    vendors = ("ANTHROPIC", "OPENAI", "OPENROUTER", "GOOGLE", "GEMINI", "PALM", "GOOGLE_GEMINI", "MISTRAL", "AZURE_OPENAI")
    of_presets = [name for name in preset_variables() if name.endswith(("_API_KEY", "_BASE_URL"))]
    names = [*(f"{vendor}_{kind}" for vendor in vendors for kind in ("API_KEY", "BASE_URL")), *of_presets]
    beside = {"AZURE_OPENAI_ENDPOINT": "https://example.com"}

    def called(**environ: str) -> tuple[Environment, frozenset[str]]:
        environment = Environment.read(environ | beside)
        return environment, environment.secrets

    return {name for name in names if called(**{name: "https://example.com/v1"}) != called()}


def test_the_protocols_of_endpoints_are_the_codes() -> None:
    other = {name for name, preset in presets_by_name().items() if name not in PROVIDERS and preset.protocol != "openai_chat"}

    assert other == {"bedrock", "vertex"}
    assert "Chat Completions (`openai_chat`), except `bedrock` and `vertex` (`anthropic`)" in text_of(MODELS)


def test_the_keywords_and_formats_of_output_schemas_are_the_codes() -> None:
    text = text_of(JUDGING).split("### Output schemas")[1].split("### ")[0]
    keywords = {f"`{name}" for keys in output_schema.TYPES.values() for name in keys}
    names = {f"`{name}`" for name in (*output_schema.FORMATS, *output_schema.TYPES)}

    assert [name for name in keywords | names | {f"up to {output_schema.DEPTH} deep"} if name not in text] == []


def test_the_commands_and_flags_of_pages_are_the_command_lines() -> None:
    of_report, of_diff = (set(re.findall(r"(--[a-z][a-z-]*)", part)) for part in text_of(REPORTS).split("## The page as it changes"))

    assert of_report <= flags("report")
    assert of_diff <= flags("diff")
    assert set(re.findall(r"`(?:gradeloop )?(batches \w+)", text_of(BATCHES))) == {
        name for name in commands() if name.startswith("batches ")
    }
    assert codes(BATCHES, "Results in files", r"^`(.+)`$") == set(outputs.renderers_by_suffix())


def test_the_gates_outcomes_marks_and_keys_of_reports_are_the_codes() -> None:
    table = rows(REPORTS, "Comparing two batches")
    gates = re.findall(r"`(\w+)`", section(REPORTS, "Comparing two batches").split("`--fail-on` takes")[1].split(".")[0])
    script = (TEMPLATES / "cases.js").read_text()
    keys = [key for line in text_of(REPORTS).split("Keys: ")[1:] for key in re.findall(r"`(.)`", line.split("\n")[0])]

    assert gates == [gate.value for gate in ComparisonGate]
    assert {name for row in table for name in re.findall(r"`(\w+)`", row[0]) if not row[0].startswith("`-")} == set(OUTCOMES)
    assert "".join(MARKS.values()) == "✓✗?"
    assert keys
    assert [key for key in keys if f'"{key}"' not in script] == []


def tool_limits(name: str) -> dict[str, str]:
    """Return the table of limits of a tool's page."""
    found = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text_of(f"docs/tools/{name}.md"), flags=re.MULTILINE)
    return {row[0]: row[1] for row in found if row[0] != "limit" and not row[0].startswith("---")}


def test_every_tool_has_a_page_and_every_page_a_tool() -> None:
    pages = {path.stem for path in (ROOT / "docs/tools").glob("*.md")} - {"README"}
    listed = set(re.findall(r"\[`(\w+)`\]\(\1\.md\)", text_of(TOOLS)))

    assert pages == {*registry.TOOLS.rows, READ_TRANSCRIPT.name} == listed
    assert set(tools()) == set(registry.TOOLS.rows)


def test_the_limits_of_the_tools_are_the_codes() -> None:
    box, fetch = SandboxSettings(), FetchSettings()

    assert (box.seconds, box.program_seconds, box.memory_mib, box.disk_mib, box.output_kib, box.processes) == (5, 60, 512, 64, 1024, 32)
    assert tool_limits("run_python") == {
        "time": "`sandbox.seconds`, 5; in monty as much again asleep",
        "memory": f"{monty.MEMORY_BYTES // MIB} MiB in monty, else `sandbox.memory_mib`, {box.memory_mib}",
        "output": f"`sandbox.output_kib`, {box.output_kib}; 64 KiB reach the grader",
    }
    assert tool_limits("run_pytest")["the suite"] == f"{code.SUITE_BYTES // MIB} MiB"
    assert tool_limits("run_pytest")["reported"] == f"{code.FAILURES_SHOWN} failed tests, {suite_runner.CHARACTERS:,} characters each"
    assert tool_limits("run_command")["processes"] == f"`sandbox.processes`, {box.processes}, and {usage.THREADS} threads beside them"
    assert tool_limits("read_file")["per call"].startswith(f"{file_tools.STRETCH_BYTES // KIB} KiB")
    assert tool_limits("list_files")["files"] == f"{file_tools.LISTED:,}"
    assert tool_limits("search_files") == {
        "matches": f"{file_tools.MATCHES}, {file_tools.LINE_CHARACTERS} characters of each line",
        "a file": f"{file_tools.SEARCHED_BYTES // MIB} MiB; larger and binary files are skipped",
        "time": f"{file_tools.SEARCH_SECONDS:.0f} s",
    }
    assert tool_limits("fetch_page") == {
        "time": f"`fetch.seconds`, {fetch.seconds:.0f}",
        "a page": f"`fetch.max_kib`, {fetch.max_kib}; 64 KiB reach the grader",
        "redirections": f"{web.REDIRECTS}",
    }
    assert tool_limits("json_schema_check") == {
        "the draft's JSON": f"{text.JSON_BYTES // MIB} MiB, nested {text.JSON_DEPTH} deep",
        "steps": f"{json_schema.STEPS:,}",
        "reported": f"{json_schema.ERRORS} errors",
    }
    assert tool_limits("text_check") == {
        "a pattern": f"{json_schema.PATTERN_CHARACTERS:,} characters",
        "JSON": f"{text.JSON_BYTES // MIB} MiB, nested {text.JSON_DEPTH} deep; {text_checks.BEGINNINGS:,} starts tried",
    }
    assert tool_limits("regex_check")["a pattern"] == f"{json_schema.PATTERN_CHARACTERS:,} characters"
    assert tool_limits("read_transcript")["per call"] == f"{tool_call.PAGE_CHARACTERS:,} characters"


def definitions(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    """Yield the names of classes and functions, those of a class behind it."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{node.name}::")


def test_every_threat_names_a_test_that_is_there() -> None:
    named: dict[str, set[str]] = {}
    for file, name in re.findall(r"`(tests/[\w/]+\.py)((?:::\w+)*)`", text_of("docs/threat-model.md")):
        named.setdefault(file, set()).add(name.removeprefix("::"))

    assert sum(map(len, named.values())) > 25
    missing = {file: names - {""} - set(definitions(ast.parse((ROOT / file).read_text()).body)) for file, names in named.items()}
    assert {file: names for file, names in missing.items() if names} == {}
