"""promptfoo's hook `afterEach` adds scores and metadata to a case that has ended, in the sandbox, and changes no verdict."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from gradeloop.batches.after_each import call_after_each, promptfoo_row
from gradeloop.batches.cli.batch_view import case_line
from gradeloop.batches.column_table import named_scores
from gradeloop.batches.contract import Case, CaseResult
from gradeloop.batches.pages.read_batch import read_case_report
from gradeloop.batches.ratings import AfterEach, remarks
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import CodeSandbox
from tests.rig.batches import batching, case, drafted, fails, passes

PATIENT: dict[str, Any] = {"sandbox": {"seconds": 60}}
"""A busy machine starts Node slowly."""


def hook(code: str, function: str = "afterEach", file: str = "h.js") -> dict[str, Any]:
    """Return a hook of a file."""
    language = "python" if file.endswith(".py") else "javascript"
    return {"language": language, "code": code, "file": file, "function": function}


ADDS = """
exports.afterEach = ({ test, result }, { hookName }) => {
  const { gradingResult, response } = result;
  result.namedScores.length = response.output.length;
  result.namedScores.none = NaN;
  result.success = !result.success;
  result.score = 0.125;
  const metadata = { hookName, team: test.metadata.team, why: gradingResult?.reason ?? null, error: result.error };
  return { result: { ...result, metadata } };
};
"""
IN_PLACE = "module.exports = (name, { result }) => { result.metadata.second = [name, result.namedScores.length, result.score]; };"
IN_PYTHON = """
def afterEach(context, options):
    scores = context["result"]["namedScores"]
    return {"result": {"namedScores": {"Tone": 0.25, "flag": True, "word": "x"}, "response": {"metadata": {"seen": sorted(scores)}}}}
"""
HOOKS = [hook(ADDS), hook(IN_PLACE, "", "all.js"), hook(IN_PYTHON, file="h.py")]
TONE = {"metrics": [{"name": "Tone", "criterion": "c1"}]}


@pytest.mark.slow
async def test_hooks_add_scores_and_metadata_and_no_verdict_changes(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    more = {"after_each": HOOKS, "metadata": {"team": "a"}, **TONE}
    cases = [case("a", "good", **more), drafted("b", **more), case("c", "broken", **more), case("d", "plain")]
    replies = [
        {"role": "generator", "text": "a longer bad draft"},
        fails("bad"),
        {"role": "grader", "when": "broken", "error": {"kind": "bad_request", "message": "no"}},
        passes(),
    ]
    async with batching(client, tmp_path, *replies, sandboxes=sandboxes, **PATIENT) as batches:
        summary, results = await batches.run(cases, at_once=2)

    assert [(one.status, one.score) for one in results] == [("passed", 1.0), ("failed", 0.0), ("error", None), ("passed", 1.0)]
    assert (summary.passed, summary.failed, summary.errors) == (2, 1, 1)
    found = [one.after_each or AfterEach() for one in results]
    assert [one.error for one in found] == [None] * 4
    assert [one.named_scores for one in found] == [
        {"length": 4, "Tone": 0.25},
        {"length": 18, "Tone": 0.25},
        {"length": 6, "Tone": 0.25},
        {},
    ]
    assert [named_scores(one) for one in results[:2]] == [{"Tone": 0.25, "length": 4}, {"Tone": 0.25, "length": 18}]
    assert [one.metadata.get("second") for one in found[:3]] == [["afterEach", 4, 1], ["afterEach", 18, 0], ["afterEach", 6, 0]]
    assert [one.metadata.get("team") for one in found] == ["a", "a", "a", None]
    assert found[1].metadata["why"] == "c1: it is not"
    assert str(found[2].metadata["error"]).startswith("error: ")
    assert found[0].response_metadata == {"seen": ["Tone", "length"]}


FAULTS: list[tuple[dict[str, Any], str]] = [
    (hook("exports.afterEach = () => { throw new Error('no disk') };"), "afterEach of h.js has failed: Error: no disk"),
    (
        hook("def afterEach(context, options):\n    return {'result': 3}\n", file="h.py"),
        "it returned '3'; return {result: {namedScores, metad",
    ),
    (hook("exports.afterEach = () => ({ result: { namedScores: [1] } });"), "it returned "),
    (hook("exports.afterEach = () => ({ result: { metadata: { a: 'x'.repeat(70000) } } });"), "what it adds has 70"),
    (hook("exports.afterEach = () => ({ result: { metadata: { a: '\\ud800' } } });"), "half of a surrogate pair"),
    (hook("exports.afterEach = () => process.exit(0);"), "afterEach of h.js has failed: "),
]


async def test_a_hook_that_fails_is_an_error_beside_the_verdict(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    adds = hook("exports.afterEach = () => ({ result: { namedScores: { first: 1 } } });", file="first.js")
    cases = [case(f"c{at}", after_each=[adds, wrong, adds], metadata={"own": 1}) for at, (wrong, _) in enumerate(FAULTS)]
    async with batching(client, tmp_path, passes(), sandboxes=sandboxes, **PATIENT) as batches:
        summary, results = await batches.run([*cases, case("fine", after_each=[adds])], at_once=2)

    assert summary.passed == len(FAULTS) + 1
    for (_, words), result in zip(FAULTS, results, strict=False):
        assert result.after_each is not None
        assert words in (result.after_each.error or "")
        assert (result.after_each.named_scores, result.after_each.metadata) == ({}, {"own": 1})
        assert (result.error, named_scores(result)) == (None, {})
    assert named_scores(results[-1]) == {"first": 1}


@pytest.mark.slow
async def test_a_hook_without_an_end_is_given_up_beside_the_verdict(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    async with batching(client, tmp_path, passes(), sandboxes=sandboxes, sandbox={"seconds": 1}) as batches:
        _, (result,) = await batches.run([case("c", after_each=[hook("exports.afterEach = () => { while (true); };")])])

    assert (result.status, result.error) == ("passed", None)
    assert result.after_each is not None
    assert "afterEach of h.js has failed: " in (result.after_each.error or "")


async def test_the_answer_is_stored_before_the_hooks_and_a_crash_there_pays_nothing_again(
    client: Client, tmp_path: Path, sandboxes: SandboxChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []

    async def breaks_once(*given: Any) -> CaseResult:
        with closing(sqlite3.connect(tmp_path / "results.db")) as store:
            stored.append(store.execute("SELECT count(*) FROM case_units").fetchone()[0])
        if len(stored) == 1:
            raise OSError("the worker was stopped")
        return await call_after_each(*given)

    monkeypatch.setattr("activities.batches.cases.call_after_each", breaks_once)
    async with batching(client, tmp_path, passes(), sandboxes=sandboxes, **PATIENT) as batches:
        summary, (result,) = await batches.run([case("a", after_each=HOOKS[2:])], cache=False)

    assert stored == [1, 1]
    assert (summary.usage.calls, summary.usage.attempts, result.usage.calls) == (1, 1, 1)
    assert (result.status, named_scores(result)) == ("passed", {"Tone": 0.25})


@pytest.mark.slow
async def test_no_hook_of_a_case_that_has_ended_is_called_when_its_batch_goes_on(
    client: Client, tmp_path: Path, sandboxes: SandboxChoice
) -> None:
    batch: dict[str, Any] = {"batch_id": "again"}
    named = hook("exports.afterEach = ({ result }) => ({ result: { metadata: { at: Date.now() } } });")
    async with batching(client, tmp_path, passes("good"), sandboxes=sandboxes, **PATIENT) as batches:
        cases = [case("a", "good", after_each=[named]), case("b", "other", after_each=[named])]
        first = await batches.run(cases, **batch)
        await (await batches.start("again", 2, again="errors")).result()
        second = list(batches.reader.results("again"))

    assert first[0].usage.calls >= 1
    assert second[0] == first[1][0]
    assert (first[1][1].attempt, second[1].attempt) == (0, 1)
    assert first[1][1].after_each != second[1].after_each


async def test_cases_that_are_compared_have_their_hooks_called_together(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    check = {"description": "the best", "check": {"tool": "comparison_check", "arguments": {"kind": "max-score"}}}
    looks = {"description": "x", "check": {"tool": "text_check", "arguments": {"kind": "contains", "value": "x"}}}
    told = hook("exports.afterEach = ({ result }) => ({ result: { metadata: { passed: result.success } } });")
    more = {"rubric": {"criteria": [looks, check], "gate": "required"}, "grader": None, "compared_with": ["a", "b"], "after_each": [told]}
    async with batching(client, tmp_path, sandboxes=sandboxes, **PATIENT) as batches:
        _, results = await batches.run([case("a", "x", **more), case("b", "y", **more)])

    assert [one.status for one in results] == ["passed", "failed"]
    assert [one.after_each and one.after_each.metadata for one in results] == [{"passed": True}, {"passed": False}]


async def test_a_hook_that_cannot_be_loaded_is_refused_before_anything_is_paid(
    client: Client, tmp_path: Path, sandboxes: SandboxChoice
) -> None:
    async with batching(client, tmp_path, sandboxes=sandboxes, **PATIENT) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("refused", [case("a", after_each=[hook("exports.other = () => 1;")])])

    assert "the case 'a': h.js cannot be loaded: Error: h.js exports no function afterEach" in str(refused.value.cause)


def hooked(**more: Any) -> CaseResult:
    """Return a result with what hooks added."""
    row = CriterionRow(id="c1", name="it is kind", passed=True, reason="it is", metadata={"trace": "t1"})
    known = {"index": 0, "id": "a", "status": "passed", "score": 1.0, "output": "x", "criteria": (row,), **TONE}
    return CaseResult.model_validate(known | {"after_each": more})


def test_a_hook_sees_the_data_of_the_grader_and_the_metric_of_each_assertion() -> None:
    (component,) = promptfoo_row(hooked())["gradingResult"]["componentResults"]

    assert component["metadata"] == {"trace": "t1"}
    assert component["assertion"] == {"type": "llm-rubric", "value": "it is kind", "metric": "Tone"}


def test_the_row_of_promptfoo_and_the_remarks_tell_what_was_added() -> None:
    result = hooked(named_scores={"Tone": 0.5, "length": 3}, metadata={"by": "hook"}, response_metadata={"r": 1})
    row = promptfoo_row(result)

    assert (row["namedScores"], row["metadata"], row["response"]["metadata"]) == ({"Tone": 0.5, "length": 3}, {"by": "hook"}, {"r": 1})
    assert (row["success"], row["score"], row["gradingResult"]["namedScores"]) == (True, 1.0, {"Tone": 1.0})
    assert remarks(result) == [
        'afterEach: scores: {"Tone":0.5,"length":3.0}',
        'afterEach: metadata: {"by":"hook"}',
        'afterEach: metadata of the response: {"r":1}',
    ]


def test_the_line_of_a_case_says_why_it_failed_and_why_its_hook_did() -> None:
    result = CaseResult(index=0, id="c", status="failed", error=None, after_each=AfterEach(error="afterEach of h.js has failed: no disk"))

    assert case_line(result).plain.endswith("afterEach of h.js has failed: no disk")
    judged = result.model_copy(update={"criteria": (CriterionRow(id="c1", name="short", passed=False, reason="", gap="too long"),)})
    assert case_line(judged).plain == "failed  c  c1: too long; afterEach of h.js has failed: no disk"


def test_an_error_of_a_hook_is_in_the_row_and_in_the_remarks() -> None:
    result = hooked(error="afterEach of h.js has failed: Error: no disk", metadata={"own": 1})

    assert promptfoo_row(result)["metadata"] == {"own": 1, "afterEachError": "afterEach of h.js has failed: Error: no disk"}
    assert remarks(result)[0] == "afterEach of h.js has failed: Error: no disk"
    assert read_case_report(result).notes[-2:] == tuple(remarks(result))
    assert case_line(result).plain == "passed  a  afterEach of h.js has failed: Error: no disk"


async def test_no_hook_begins_once_those_before_it_took_their_minute(sandboxes: SandboxChoice) -> None:
    code = CodeSandbox(lambda: sandboxes)
    late = await call_after_each(Case.model_validate(case("a", after_each=[HOOKS[0]])), hooked(), code, time.monotonic() - 61)

    assert late.after_each == AfterEach(error="afterEach of h.js has failed: the hooks before it took 60 seconds")
