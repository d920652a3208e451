"""Evidence: what a tool returns or raises reaches the grader bounded, and a check decides its criterion alone."""

import asyncio
import concurrent.futures
import hashlib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import Client

from activities.tools.base import Tool, call_in_thread, tool_of
from activities.tools.registry import ToolRegistry
from gradeloop.contract.evaluation import EVIDENCE_BYTES, CriterionRow, build_evidence, parse_check_outcome
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.tables import over
from tests.rig.threads import draft, grade, request, row, serving, story, wants


async def heard(client: Client, tool: Callable[..., Any], **arguments: Any) -> str:
    """Return what the grader is told of a tool call."""
    argument = request("- x")
    argument["grader"]["tools"] = [tool.__name__]
    call = {"name": tool.__name__, "arguments": arguments}
    async with serving(client, draft(text="the draft"), wants("grader", call), grade(step=1), tools=[tool]) as served:
        result = await asyncio.wait_for(served.run(argument), 240)
    assert result.status == "satisfied"
    return served.models.requests_of("grader")[1].messages[-1].content


async def checked(client: Client, check: object, tool: Callable[..., Any], text: str = "the draft") -> tuple[RunResult, int]:
    """Return the result of a thread whose only criterion is a check, and how often its tool was called."""
    rubric = {"criteria": [{"description": "it holds", "check": check}]}
    async with serving(client, draft(text=text), tools=[tool]) as served:
        thread = await served.start(request(rubric, max_iterations=1, grader=None))
        result = await thread.result()
        events = (await thread.fetch_history()).events
    assert served.models.requests_of("grader") == []
    attempts = [event.activity_task_started_event_attributes.attempt for event in events]
    return result, max(attempts)


def decided(result: RunResult) -> CriterionRow:
    """Return the one row of the one evaluation."""
    return result.evaluations[0].criteria[0]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.slow
async def test_a_value_is_json_and_a_text_is_itself(client: Client) -> None:
    async def facts(at: str) -> dict[str, object]:
        """Tell facts."""
        return {"at": at, "found": [1, True, None]}

    assert json.loads(await heard(client, facts, at="é")) == {"at": "é", "found": [1, True, None]}
    assert build_evidence("1", "a text").text == "a text"
    assert await heard(client, add, a=2) == "3"


async def test_a_tool_that_raises_becomes_text(client: Client) -> None:
    def broken() -> str:
        """Raise."""
        raise FileNotFoundError("no such table: users")

    assert await heard(client, broken) == "FileNotFoundError: no such table: users"


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), StopIteration("x"), KeyboardInterrupt(), asyncio.CancelledError(), concurrent.futures.CancelledError()],
    ids=repr,
)
async def test_a_tool_that_exits_or_cancels_itself_is_a_tool_that_raised(client: Client, raised: BaseException) -> None:
    def leaves() -> str:
        """Leave."""
        raise raised

    assert await heard(client, leaves) == f"RuntimeError: {raised!r}"


async def test_a_tools_own_time_out_is_told_as_its_own(client: Client) -> None:
    def slow() -> str:
        """Raise."""
        raise TimeoutError("the database took 3 s")

    assert await heard(client, slow) == "TimeoutError: the database took 3 s"


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_tool_that_never_returns_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    monkeypatch.setattr("activities.tool_call.TOOL_SECONDS", 0.2)
    ended = concurrent.futures.Future[None]()

    async def waits() -> None:
        """Wait."""
        await asyncio.sleep(60)

    def sleeps() -> None:
        """Sleep."""
        ended.result(timeout=240)

    tool = waits if asynchronous else sleeps
    answer = await heard(client, tool)
    ended.set_result(None)

    assert answer == f"{tool.__name__} took more than 0.2 seconds"


async def test_arguments_that_do_not_fit_are_told_with_field_and_value(client: Client) -> None:
    assert await heard(client, add, a="two") == (
        "the arguments do not fit: a: Input should be a valid integer, unable to parse string as an integer, got 'two'"
    )
    assert "c: is not known here" in await heard(client, add, a=1, c=2)


async def test_a_value_that_is_no_json_is_told(client: Client) -> None:
    def handle() -> object:
        """Return something."""
        return object()

    assert (await heard(client, handle)).startswith("TypeError: the tool returned object, which is not JSON: ")


async def test_a_tool_with_a_draft_parameter_is_given_the_draft_and_the_model_does_not_see_it(client: Client) -> None:
    def count(word: str, draft: str) -> int:
        """Count a word in the draft."""
        return draft.split().count(word)

    assert await heard(client, count, word="draft") == "1"
    assert list(tool_of(count).spec.parameters["properties"]) == ["word"]  # type: ignore[arg-type]  # an object's properties


async def test_a_mebibyte_comes_back_as_head_and_tail_with_size_and_sha256(client: Client) -> None:
    whole = "HEAD" + "é" * 524_284 + "TAIL"

    def dump() -> str:
        """Dump."""
        return whole

    answer = await heard(client, dump)

    assert len(answer.encode()) <= EVIDENCE_BYTES
    assert answer.startswith("HEADéé")
    assert answer.endswith("ééTAIL")
    assert "\n[… the middle of 1048576 bytes left out …]\n" in answer
    evidence = build_evidence("1", whole)
    assert (evidence.bytes, evidence.sha256) == (1_048_576, hashlib.sha256(whole.encode()).hexdigest())


def test_64_kib_are_kept_whole_and_one_byte_more_is_cut() -> None:
    assert build_evidence("1", "x" * EVIDENCE_BYTES).bytes is None
    assert build_evidence("1", "x" * (EVIDENCE_BYTES + 1)).bytes == EVIDENCE_BYTES + 1


def test_half_a_surrogate_pair_does_not_break_the_evidence() -> None:
    assert build_evidence("1", "a\ud800b").text == "a?b"


@pytest.mark.slow
@over(
    ("value", "passed", "gap"),
    [
        (True, True, None),
        (False, False, "the check returned false"),
        ({"ok": True, "note": "fine"}, True, None),
        ({"ok": False, "failed": ["test_unhashable"], "why": "TypeError"}, False, 'failed: ["test_unhashable"]; why: TypeError'),
        ({"ok": False}, False, "the check returned false"),
    ],
)
async def test_a_check_decides_its_criterion_without_a_model(client: Client, value: object, passed: bool, gap: str | None) -> None:
    def check(draft: str) -> object:
        """Check."""
        return value

    result, _ = await checked(client, "check", check)

    answer = decided(result)
    assert (answer.passed, answer.gap, answer.by, answer.reason) == (passed, gap, "tool", "check passed" if passed else "check failed")
    assert (result.status, result.evaluations[0].grader) == ("satisfied" if passed else "max_iterations_reached", None)
    assert result.evaluations[0].explanation == f"{int(passed)} of 1 checks pass."


@over("value", [None, "yes", 1, 0, {"ok": "true"}, {"ok": 1}, {"passed": True}, {}, [True]])
def test_what_is_neither_true_false_nor_ok_is_the_checkers_error(value: object) -> None:
    with pytest.raises(TypeError, match="a check returns true, false or an object with 'ok'"):
        parse_check_outcome(value)


@pytest.mark.slow
async def test_a_check_that_raises_times_out_or_says_nothing_is_retried_and_then_a_grader_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.tool_call.TOOL_SECONDS", 0.3)

    def raises(draft: str) -> bool:
        """Raise."""
        raise ConnectionError("the test database is down")

    async def hangs(draft: str) -> bool:
        """Hang."""
        await asyncio.sleep(60)
        return True

    def shrugs(draft: str) -> None:
        """Say nothing."""

    outcomes = await asyncio.gather(*(checked(client, tool.__name__, tool) for tool in (raises, hangs, shrugs)))

    for (result, attempts), name, words in zip(
        outcomes,
        ("raises", "hangs", "shrugs"),
        ("ConnectionError: the test database is down", "hangs took more than 0.3 seconds", "None"),
        strict=True,
    ):
        evaluation = result.evaluations[0]
        assert (result.status, evaluation.result, evaluation.criteria, evaluation.score) == ("grader_error", "grader_error", (), None)
        assert evaluation.explanation.startswith(f"the check {name} of c1 could not decide: checker_error: ")
        assert words in evaluation.explanation
        assert attempts == 4


async def test_a_check_that_fails_once_and_then_decides_is_no_error(client: Client) -> None:
    tries: list[int] = []

    def flaky(draft: str) -> bool:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("blip")
        return True

    result, _ = await checked(client, "flaky", flaky)

    assert (result.status, len(tries)) == ("satisfied", 2)


@over(("extract", "given"), [("text", "Here:\n```python\nx = 1\n```\nDone."), ("code", "x = 1\n")])
async def test_a_check_is_given_the_draft_or_its_code(client: Client, extract: str, given: str) -> None:
    seen: list[str] = []

    def check(source: str, strict: bool = False) -> bool:
        """Check."""
        seen.append(source)
        return True

    await checked(client, {"tool": "check", "extract": extract}, check, "Here:\n```python\nx = 1\n```\nDone.")

    assert seen == [given]


async def test_checks_run_first_and_their_ids_are_not_asked_of_the_model(client: Client) -> None:
    def run_tests(draft: str) -> dict[str, object]:
        """Fail."""
        return {"ok": False, "failed": "test_unhashable"}

    criteria = [{"id": "tests", "description": "tests pass", "check": "run_tests"}, {"id": "clear", "description": "readable"}]
    rubric = {"criteria": criteria, "show_checks": True}
    async with serving(client, draft(), grade(0, row("clear")), tools=[run_tests]) as served:
        thread = await served.start(request(rubric, max_iterations=1))
        result = await thread.result()
        activities = await story(thread)

    asked = served.models.requests_of("grader")[0]
    assert [activity.type for activity in activities] == ["generate", "tool.run_tests", "grade"]
    assert asked.messages[1].content.endswith("Judge the draft against these criteria of the rubric: k1.")
    assert '{"check": "tests pass", "passed": false, "text": "failed: test_unhashable"}' in asked.messages[1].content
    assert "- (decided by a tool) tests pass\n- [k1] readable" in asked.system
    assert [(criterion.id, criterion.passed, criterion.by) for criterion in result.evaluations[0].criteria] == [
        ("tests", False, "tool"),
        ("clear", True, "model"),
    ]


async def test_a_model_that_answers_for_a_check_cannot_overrule_it(client: Client) -> None:
    def fails(draft: str) -> bool:
        """Fail."""
        return False

    rubric = {"criteria": [{"description": "tests pass", "check": "fails"}, "readable"]}
    async with serving(client, draft(), grade(0, row("c1"), row("c2")), tools=[fails]) as served:
        result = await served.run(request(rubric, max_iterations=1))

    (evaluation,) = result.evaluations
    assert evaluation.result == "needs_revision"
    assert [(criterion.id, criterion.passed, criterion.by) for criterion in evaluation.criteria] == [
        ("c1", False, "tool"),
        ("c2", True, "model"),
    ]
    assert evaluation.explanation == "so it is (Rows that nobody asked for were dropped: 'k2'.)"


@pytest.mark.slow
async def test_run_python_answers_a_grader_from_the_sandbox(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["run_python"]
    codes = ["print('hi'); 6 * 7", "1 / 0", "import os; os.listdir('/')"]
    calls = [{"name": "run_python", "arguments": {"code": code}} for code in codes]
    async with serving(client, draft(), wants("grader", *calls), grade(step=1)) as served:
        await served.run(argument)

    lines = [json.loads(message.content) for message in served.models.requests_of("grader")[1].messages[-3:]]
    assert lines[0] == {"status": "ok", "stdout": "hi\n", "value": 42}
    assert (lines[1]["status"], lines[1]["error"]) == ("raised", "ZeroDivisionError: division by zero")
    assert lines[2]["status"] != "ok"


def test_a_tools_schema_comes_from_its_signature_and_docstring() -> None:
    spec = tool_of(add).spec

    assert (spec.name, spec.description) == ("add", "Add two numbers.")
    assert spec.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}
    assert (spec.parameters["required"], spec.parameters["additionalProperties"]) == (["a"], False)


def bare(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - what is refused
    """Take anything."""


def many(*names: str) -> None:
    """Take many."""


def odd(at: concurrent.futures.Future[None]) -> None:
    """Take a promise."""


def run_python(code: str) -> str:
    """Shadow the built-in."""
    return code


def read_transcript(record: int) -> str:
    """Shadow the grader's own."""
    return str(record)


@over(
    ("function", "why"),
    [
        (bare, "the tool 'bare': parameter 'x' needs a type annotation and a name of its own"),
        (many, "the tool 'many': parameter 'names' needs a type annotation"),
        (odd, "the tool 'odd' has a parameter without a JSON Schema"),
        (run_python, "the tool name 'run_python' is taken; rename the function"),
        (read_transcript, "the tool name 'read_transcript' is taken; rename the function"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        ToolRegistry([function])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "does not exist"),
        ("import nothing_of_that_name\n", "does not import: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def broken(:\n", "does not import: SyntaxError: "),
        ("raise SystemExit(1)\n", "does not import: SystemExit: 1"),
        ("_hidden = 1\n", "has no public function"),
        ("from json import dumps\n", "has no public function"),
    ],
)
def test_a_tools_file_that_offers_nothing_is_refused_with_its_name(tmp_path: Any, content: str | None, why: str) -> None:
    file = tmp_path / "tools.py"
    if content is not None:
        file.write_text(content)

    with pytest.raises(InvalidRequest) as caught:
        ToolRegistry.load([file])

    assert str(caught.value).startswith(f"the tools file {str(file)!r} ")
    assert why in str(caught.value)
    sys.modules.pop("gradeloop_tools_tools", None)


def test_the_public_functions_of_a_file_are_tools(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text('import json\n\ndef one(a: int) -> int:\n    "One."\n    return a\n\ndef _two() -> int:\n    return 2\n')

    tools: dict[str, Tool] = {tool.spec.name: tool for tool in ToolRegistry.load([file])}
    sys.modules.pop("gradeloop_tools_mine", None)

    assert {"one", "run_python"} <= set(tools)
    assert not any(name.startswith("_") for name in tools)


@pytest.mark.slow
async def test_fifty_megabytes_come_back_as_head_and_tail(client: Client) -> None:
    def dump() -> str:
        """Dump."""
        return "HEAD" + "x" * 50_000_000 + "TAIL"

    answer = await heard(client, dump)

    assert answer.startswith("HEADxx")
    assert answer.endswith("xxTAIL")
    assert "the middle of 50000008 bytes left out" in answer


@pytest.mark.parametrize("value", [b"\x89PNG", {"image": b"\x89PNG"}, [bytearray(4)]], ids=["bytes", "in a dict", "in a list"])
async def test_bytes_are_refused(client: Client, value: object) -> None:
    def shoot() -> object:
        """Shoot."""
        return value

    assert await heard(client, shoot) == "TypeError: the tool returned 4 bytes of binary data; return text, or JSON"


async def test_tools_that_never_return_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.tools.base.CONCURRENT_CALLS", 4)
    ended = threading.Event()

    def hangs() -> None:
        ended.wait(30)

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call_in_thread(hangs, {}), 0.2)

    await asyncio.gather(*(given_up() for _ in range(20)))
    value = await asyncio.wait_for(call_in_thread(lambda: "alive", {}), 240)
    ended.set()

    assert value == "alive"
