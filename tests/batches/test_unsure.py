"""Cases on which votes disagree: neither passed nor failed, counted apart, and decided by an escalation model where the suite names one."""

import csv
import json
import random
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError

from gradeloop.batches.answer import answer_of, failure_reason, gate_exit_code, results_line
from gradeloop.batches.case_checks import CheckedOutput
from gradeloop.batches.cases import CaseConversation, result_of_answers, units_of
from gradeloop.batches.contract import Case, CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import stored_batch_page
from gradeloop.batches.unsure import unsure_batches
from gradeloop.contract.evaluation import Verdict, VerdictRow
from gradeloop.stats.reliability import choose_band
from tests.rig.batch_results import case as result_in
from tests.rig.batch_results import summary_of
from tests.rig.batches import batching, breaks, case, drafted
from tests.rig.threads import Reply, row, verdict

VOTED: dict[str, Any] = {"criteria": [{"description": "it is good", "votes": 3}]}


def votes(*passed: bool, when: str | None = None, **more: Any) -> list[Reply]:
    """Return the votes of a grader on one criterion."""
    told = {"when": when} if when else {}
    said = [verdict(row("c1", None if passes else "it is not")) for passes in passed]
    return [{"role": "grader", "sample": at, "verdict": one, **told, **more} for at, one in enumerate(said)]


def unsure(name: str = "a", **more: Any) -> dict[str, Any]:
    """Return a case of which two of three votes do not decide."""
    return case(name, **{"rubric": VOTED, "abstain": 0.8, **more})


@pytest.mark.slow
async def test_a_case_whose_votes_disagree_neither_passes_nor_fails_and_is_in_every_file(client: Client, tmp_path: Path) -> None:
    said = [*votes(True, True, False, when="of a."), *votes(True, True, True)]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([unsure("a"), unsure("b")], pass_rate=0.6)
        page = await stored_batch_page(batches.reader, summary.batch_id)
    files = [tmp_path / f"results{suffix}" for suffix in (".xml", ".md", ".json", ".csv", ".jsonl", ".txt")]
    outputs = Outputs(files)
    for result in results:
        outputs.finished(result)
    outputs.close(summary, lambda: results)
    suite = ET.fromstring(files[0].read_text()).find("testsuite")
    assert suite is not None
    found = json.loads(files[2].read_text())

    assert [(result.status, result.score, result.unsure) for result in results] == [("unsure", None, ("c1",)), ("passed", 1.0, ())]
    assert (summary.passed, summary.failed, summary.unsure, summary.errors, summary.open) == (1, 0, 1, 0, 0)
    assert (gate_exit_code(summary), answer_of(summary).text) == (3, "INCONCLUSIVE: 1 unsure")
    assert results_line(summary).startswith("Results: 1 passed, 1 unsure of 2 (100% of 1 judged, 60% wanted)")
    assert failure_reason(results[0]) == "unsure of c1: 2 of 3 votes pass it"
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")
    assert [skipped.get("message") for skipped in suite.iter("skipped")] == ["unsure of c1: 2 of 3 votes pass it"]
    assert "| unsure |" in files[1].read_text()
    assert found["summary"]["unsure"] == 1
    assert found["cases"][0]["unsure"] == ["c1"]
    assert found["rate"] == 1.0
    assert next(iter(csv.DictReader(StringIO(files[3].read_text()))))["status"] == "unsure"
    assert "unsure  a" in files[5].read_text()
    assert "Unsure of c1: 2 of 3 votes pass it" in page


@pytest.mark.slow
async def test_the_newest_batch_of_a_suite_leaves_its_unsure_cases_to_people(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *votes(True, True, False, when="of a."), *votes(True, True, True)) as batches:
        await batches.run([unsure("a"), unsure("b")], name="asked twice")
        again, _ = await batches.run([unsure("a"), unsure("b")], name="asked twice")
        other, _ = await batches.run([unsure("b")], name="decided")
        found = [batch for batch in await unsure_batches(batches.reader) if batch.summary.batch_id in {again.batch_id, other.batch_id}]
        names = [batch.summary.name for batch in await unsure_batches(batches.reader)]

    assert [(batch.summary.batch_id, batch.summary.unsure) for batch in found] == [(again.batch_id, 1)]
    assert [(case.id, failure_reason(case)) for case in found[0].cases] == [("a", "unsure of c1: 2 of 3 votes pass it")]
    assert names.count("asked twice") == 1


@pytest.mark.parametrize(
    ("counts", "rate", "code", "word"),
    [
        ((9, 0, 1), 0.9, 0, "PASSED"),
        ((9, 0, 1), 0.95, 3, "INCONCLUSIVE"),
        ((9, 0, 1), 1.0, 3, "INCONCLUSIVE"),
        ((5, 4, 1), 0.9, 1, "FAILED"),
        ((0, 0, 3), 0.9, 3, "INCONCLUSIVE"),
        ((0, 0, 3), 0.0, 3, "INCONCLUSIVE"),
    ],
)
def test_a_gate_that_hangs_on_unsure_cases_is_inconclusive(counts: tuple[int, int, int], rate: float, code: int, word: str) -> None:
    statuses = [name for name, count in zip(("passed", "failed", "unsure"), counts, strict=True) for _ in range(count)]
    summary = summary_of([result_in(at, status) for at, status in enumerate(statuses)], pass_rate=rate)

    assert gate_exit_code(summary) == code
    assert answer_of(summary).word == word


def test_errors_that_are_allowed_leave_the_reason_to_the_unsure_cases() -> None:
    statuses = ["passed", "passed", "error", "unsure"]
    summary = summary_of([result_in(at, status) for at, status in enumerate(statuses)], pass_rate=0.9, allow_errors=0.5)

    assert (gate_exit_code(summary), answer_of(summary).text) == (3, "INCONCLUSIVE: 1 unsure")


async def test_a_criterion_on_which_nothing_hangs_leaves_the_case_decided(client: Client, tmp_path: Path) -> None:
    rubric = {"criteria": [{"description": "it is good", "votes": 3}, {"description": "it names Paris", "votes": 3}]}
    said = [verdict(row("c1", None if at else "dull"), row("c2", "it names Lyon")) for at in range(3)]
    replies = [{"role": "grader", "sample": at, "verdict": one} for at, one in enumerate(said)]
    async with batching(client, tmp_path, *replies) as batches:
        _, results = await batches.run([unsure("a", rubric=rubric), unsure("b", rubric=rubric, abstain={"c2": 0.9})])

    assert [(result.status, result.unsure) for result in results] == [("failed", ()), ("failed", ())]


@pytest.mark.slow
async def test_an_escalation_model_decides_what_the_votes_do_not(client: Client, tmp_path: Path) -> None:
    dear: Reply = {"role": "grader", "model": "dear", "verdict": verdict(row("c1", "it is dull"))}
    said = [dear, *votes(True, True, False, when="of a."), *votes(True, True, True)]
    cases = [unsure("a", escalate="scripted:dear"), unsure("b", escalate="scripted:dear")]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run(cases)
        asked = [request.spec.id for request in batches.served.models.requests_of("grader")]
        again, _ = await batches.run(cases)

    assert [(result.status, result.unsure, result.escalated_from, result.grader) for result in results] == [
        ("failed", (), "scripted:judge", "scripted:dear"),
        ("passed", (), None, "scripted:judge"),
    ]
    assert results[0].criteria[0].gap == "it is dull"
    assert results[0].criteria[0].grader == "scripted:dear"
    assert (summary.failed, summary.unsure, summary.usage.calls, results[0].usage.calls) == (1, 0, 7, 4)
    assert asked.count("scripted:dear") == 1
    assert (again.failed, again.usage.calls) == (1, 0)


async def test_no_tenant_profits_from_what_an_escalation_model_told_another(client: Client, tmp_path: Path) -> None:
    dear: Reply = {"role": "grader", "model": "dear", "verdict": verdict(row("c1", "it is dull"))}
    async with batching(client, tmp_path, dear, *votes(True, True, False)) as batches:
        found = [
            (await batches.run([unsure("a", escalate="scripted:dear")], priority={"level": 4, "tenant": tenant}))[0].usage.calls
            for tenant in ("acme", "beta", "acme")
        ]

    assert found == [4, 4, 0]


@pytest.mark.slow
async def test_a_case_stays_unsure_where_the_escalation_model_fails_and_says_why(client: Client, tmp_path: Path) -> None:
    said = [breaks(model="dear"), *votes(True, False, True)]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([unsure("a", escalate="scripted:dear")])

    assert (summary.status, summary.unsure, results[0].status) == ("finished", 1, "unsure")
    assert results[0].error == "not escalated: auth: scripted:dear: as it was told to"
    assert failure_reason(results[0]) == f"unsure of c1: 2 of 3 votes pass it ({results[0].error})"


async def test_an_escalation_model_that_is_away_pauses_the_batch_and_is_asked_once_when_it_is_back(client: Client, tmp_path: Path) -> None:
    away = [breaks(kind="connection", model="dear"), *votes(True, False, True)]
    cases = [unsure("a", escalate="scripted:dear")]
    async with batching(client, tmp_path, *away, outage_timeout=0.3) as batches:
        paused, _ = await batches.run(cases, batch_id="dear-away")
    dear: Reply = {"role": "grader", "model": "dear", "verdict": verdict(row("c1"))}
    async with batching(client, tmp_path, dear, *votes(True, False, True)) as batches:
        resumed = await (await batches.start("dear-away", 1)).result()
        asked = [request.spec.id for request in batches.served.models.requests_of("grader")]

    assert (paused.status, paused.unsure, paused.open) == ("paused", 0, 1)
    assert (resumed.status, resumed.passed, resumed.unsure) == ("finished", 1, 0)
    assert asked == ["scripted:dear"]


@pytest.mark.slow
async def test_a_retry_of_failures_asks_about_unsure_cases_anew(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *votes(True, True, False)) as batches:
        first, _ = await batches.run([unsure()], batch_id="unsure-again")
    async with batching(client, tmp_path, *votes(True, True, True)) as batches:
        again = await (await batches.start("unsure-again", 1, again="failures")).result()

    assert (first.unsure, again.unsure, again.passed) == (1, 0, 1)


async def test_an_escalation_model_that_the_worker_cannot_call_is_refused_before_any_call(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *votes(True, True, True)) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("unservable", [unsure("a"), unsure("b", escalate="anthropic:claude-of-nobody")])

    assert "the case 'b': ANTHROPIC_API_KEY is not set" in str(refused.value.cause)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"abstain": None, "escalate": "scripted:dear"}, "add abstain: SHARE"),
        ({"abstain": {"c2": 0.8}}, "'c2' is not a criterion with several votes; give the criterion votes or a panel"),
        ({"rubric": "it is good"}, "abstain: no criterion has several votes"),
        ({"abstain": 0}, "greater than 0"),
        ({"abstain": 1.5}, "not a share from 0 to 1"),
        (drafted("a", loop=True) | {"output": None}, "leave abstain, or loop and comparisons, out"),
        ({"escalate": "scripted:dear", "grader": {"model": "scripted:judge", "tools": ["read_file"]}}, "leave escalate out"),
    ],
)
def test_abstention_that_could_do_nothing_is_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Case.model_validate(unsure() | more)


RISK, VOTERS, LABELS, FRESH = 0.1, 5, 200, 200


@pytest.mark.slow
def test_the_error_of_what_is_decided_stays_at_the_risk_in_simulation() -> None:
    """The share is chosen on labelled cases; of 300 judges, the true error of what they then decide is above the risk in 5 % at most."""
    chance, missed, chosen, raw = random.Random(21), 0, 0, 0.0
    results = {passing: decided(passing, None) for passing in range(VOTERS + 1)}
    for _ in range(300):
        error_rates = [chance.uniform(0.05, 0.25), chance.uniform(0.4, 0.6)]
        labelled = [draw(chance, error_rates) for _ in range(LABELS)]
        band = choose_band([(max(passing, VOTERS - passing) / VOTERS, (passing > VOTERS / 2) == good) for good, passing in labelled], RISK)
        if band is None:
            continue
        chosen += 1
        banded = {passing: decided(passing, band.threshold) for passing in range(VOTERS + 1)}
        met = [
            (good, banded[passing].status, results[passing].status) for good, passing in (draw(chance, error_rates) for _ in range(2000))
        ]
        sure = [(status == "passed") == good for good, status, _ in met if status != "unsure"]
        raw += sum((status == "passed") != good for good, _, status in met) / len(met)
        missed += 1 - sum(sure) / len(sure) > RISK + 0.01

    assert chosen > 100
    assert raw / chosen > RISK
    assert missed / chosen <= 0.05


def draw(chance: random.Random, error_rates: Sequence[float]) -> tuple[bool, int]:
    """Return whether an output is good, and how many votes pass it: of hard outputs most votes are guesses."""
    good, wrong = chance.random() < 0.5, error_rates[chance.random() < 0.3]
    return good, sum((chance.random() >= wrong) == good for _ in range(VOTERS))


def decided(passing: int, abstain: float | None) -> CaseResult:
    """Return the result of a case that so many votes pass."""
    rubric = {"criteria": [{"description": "it is good", "votes": VOTERS}]}
    judged = Case.model_validate(case("a", rubric=rubric, abstain=abstain))
    rows = [VerdictRow(id="c1", reason="r", passed=at < passing, gap=None if at < passing else "no") for at in range(VOTERS)]
    said = [Verdict(criteria=(row,), explanation="e", result="satisfied" if row.passed else "needs_revision") for row in rows]
    conversations = [CaseConversation(verdict=one, judge="scripted:judge", unit=at) for at, one in enumerate(said)]
    assert len(units_of(judged)) == VOTERS
    return result_of_answers(judged, CheckedOutput("the answer"), conversations)
