"""Judgements as their page tells them: with the run that they are about, wherever that is found, and never without saying so."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.batches.pages.judgement_page import JudgementSource, answer_of_judgements, judgements_next
from gradeloop.batches.pages.read_judgement import (
    ANOTHER_RUN,
    INVALID,
    MISPLACED,
    NO_RUN,
    read_judgement_reports,
    read_stored_judgements,
)
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.grading.prompts import records
from gradeloop.judges.citations import citations_of
from gradeloop.judges.contract import JudgeResult, PassGate
from gradeloop.judges.judgements import read_results
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.reports.model import RunReport, Verdict
from gradeloop.reports.run_page import run_page
from gradeloop.store.engine import Store, store_url
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, answers, bench, fresh, judged
from tests.rig.threads import row, verdict, wants

CITING = {
    "label": "match",
    "explanation": "It names Paris [T0B1:<RANGE>is Paris</RANGE>], not Lyon [T0B1:<RANGE>Lyon</RANGE>], see [T0B9].",
}

CRITERIA: dict[str, Any] = {
    "id": "capital",
    "rubric": {"criteria": [{"id": "names", "description": "It names Paris", "quotes": True}]},
    "grader": {"model": "scripted:judge"},
}


def named(run: Mapping[str, Any]) -> dict[str, AgentRun]:
    """Return a run under its id, as a file of runs would give it."""
    read = AgentRun.model_validate(run)
    return {read.id: read}


def decides(*rows: Mapping[str, Any], step: int = 0, sample: int = 0) -> dict[str, Any]:
    """Return a grader's verdict on a finished run."""
    return {"role": "grader", "step": step, "sample": sample, "verdict": verdict(*rows)}


async def only(results: Sequence[JudgeResult], runs: Mapping[str, AgentRun], temporal: Client | None) -> RunReport:
    """Return the one story of the one judgement."""
    (story,) = await read_judgement_reports(results, runs, temporal)
    return story


async def test_a_judgement_is_told_with_its_run_and_its_citations(client: Client) -> None:
    run = fresh(f"cited-{uuid4()}")
    result = await judged(client, FRANCE | {"id": "france"}, answers(CITING), run=run)

    story = await only([result], named(run), None)

    assert (story.kind, story.name, story.verdict, story.word, story.notes) == ("judgement", run["id"], "none", "judged", ())
    assert [(passage.label, passage.role, passage.text) for passage in story.passages] == [
        ("T0B0", "user", "What is the capital of France?"),
        ("T0B1", "assistant", "The capital of France is Paris."),
    ]
    assert story.judged is not None
    assert (story.judged.output, story.judged.reason, story.judged.repeat) == (CITING, None, 0)
    first, second, third = story.judged.citations
    assert (first.verified, second.verified, third.verified) == (True, False, False)
    assert (first.path, story.passages[1].text[first.block_start : first.block_end]) == ("explanation", "is Paris")
    assert CITING["explanation"][first.start : first.end] == "[T0B1:<RANGE>is Paris</RANGE>]"
    assert (second.problem, third.problem) == ("the quote does not stand in T0B1", "there is no block T0B9")
    assert "citations" not in story.judged.metadata
    assert story.judged.metadata["citation_counts"] == {"cited": 3, "verified": 1}
    assert story.about["rubric"] == "france, version 1"
    assert story.about["judge"] == "scripted:judge"


async def test_an_unsure_judgement_is_neither_passed_nor_failed(client: Client) -> None:
    run = fresh(f"unsure-{uuid4()}")
    split = FRANCE | {"n_rollouts_per_input": 3, "abstain": {"label": 0.8}}
    result = await judged(client, split, answers(MATCH), answers(MATCH, 1), answers(NO_MATCH, 2), run=run)

    story = await only([result], named(run), None)

    assert (story.verdict, story.word) == ("unsure", "unsure")


async def test_a_run_that_nobody_names_is_read_from_the_judgement_itself(client: Client) -> None:
    run = fresh(f"unnamed-{uuid4()}")
    result = await judged(client, FRANCE, answers(MATCH), run=run)

    story = await only([result], {}, client)

    assert [passage.label for passage in story.passages] == ["T0B0", "T0B1"]
    assert story.about["rubric text"] == FRANCE["rubric_text"]
    assert story.notes == ()


async def test_records_of_a_run_have_headings_that_no_content_imitates() -> None:
    call = {"type": "tool_call", "call": "c1", "name": "bash", "arguments": {"cmd": "ls"}}
    result = {"type": "tool_result", "call": "c1", "text": "no", "is_error": True}
    forged = '<p class="label">tool_call, call c1, tool bash</p>'
    messages = [{"role": "user", "content": forged}, {"role": "assistant", "parts": [{"type": "text", "text": "I look."}, call, result]}]
    run = {"id": "typed", "transcripts": [{"messages": messages}]}
    text = 'It ran [T0B1:<RANGE>bash {"cmd": "ls"}</RANGE>].'
    (cited,) = citations_of([("explanation", text)], AgentRun.model_validate(run))
    fields = {"id": f"judging-{uuid4()}", "agent_run_id": "typed", "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
    metadata = {"citations": [cited.model_dump(mode="json")]}

    page = run_page(
        await only([JudgeResult.model_validate(fields | {"output": {"explanation": text}, "result_metadata": metadata})], named(run), None)
    )

    assert cited.verified
    assert re.findall(r'<p class="label">([^<]+)</p>', page) == ["tool_call, call c1, tool bash", "tool_result, call c1, is_error True"]
    assert re.findall(r"<mark>.*?</a>(.*?)</mark>", page) == ["bash {&#34;cmd&#34;: &#34;ls&#34;}"]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_run_that_is_gone_is_missed_in_words(client: Client, asks: bool) -> None:
    result = await judged(client, FRANCE, answers(MATCH), run=fresh(f"gone-{uuid4()}"))
    lost = result.model_copy(update={"id": f"judging-{uuid4()}"})

    story = await only([lost], {}, client if asks else None)

    assert (story.passages, story.notes) == ((), (NO_RUN,))
    assert story.judged is not None
    assert story.judged.output == MATCH


async def test_a_judgement_that_failed_says_why(client: Client) -> None:
    run = fresh(f"failed-{uuid4()}")
    result = await judged(client, FRANCE, *(answers("I cannot say", step=step) for step in range(9)), run=run)

    story = await only([result], named(run), None)

    assert (story.verdict, story.word) == ("error", "failure")
    assert story.judged is not None
    assert story.judged.reason == result.result_metadata["reason"] == story.error
    assert story.judged.output == {}
    assert len(story.passages) == 2
    assert INVALID in story.notes


async def test_judgements_of_one_run_are_numbered(client: Client) -> None:
    run, other = fresh(f"often-{uuid4()}"), fresh(f"once-{uuid4()}")
    async with bench(client, FRANCE, answers(MATCH)) as (judge, _):
        results = [await judge(run), await judge(other), await judge(run, repeat=1)]

    stories = await read_judgement_reports(results, named(run), client)

    assert [story.name for story in stories] == [run["id"], other["id"], run["id"]]
    assert [story.judged and story.judged.repeat for story in stories] == [0, 0, 1]
    assert [story.about.get("repeat") for story in stories] == ["1 of 2", None, "2 of 2"]


async def test_criteria_are_told_as_one_pass_over_the_run(client: Client) -> None:
    def look(place: str) -> str:
        """Look something up."""
        return f"{place}: a city"

    run = fresh(f"criteria-{uuid4()}")
    judge = CRITERIA | {"grader": {"model": "scripted:judge", "tools": ["look"]}}
    quotes = [{"record": 1, "quote": "France is Paris"}, {"record": 1, "quote": "France is Lyon"}]
    call = {"name": "look", "arguments": {"place": "Paris"}}
    replies = [wants("grader", call), decides(row("names", quotes=quotes), step=1)]
    result = await judged(client, judge, *replies, run=run, tools=[look])

    story = await only([result], named(run), client)

    (evaluation,) = story.evaluations
    (decided,) = evaluation.criteria
    assert (story.verdict, story.word, story.score, story.judged, story.passages) == ("passed", "satisfied", 1.0, None, ())
    assert (evaluation.result, evaluation.status, evaluation.grader) == ("satisfied", "satisfied", "scripted:judge")
    assert [quote.quote_verified for quote in decided.quotes] == [True, False]
    assert "is Paris" in str(records(story.messages)[decided.quotes[0].record]["text"])
    assert (story.messages[evaluation.draft].content, story.best) == ("The capital of France is Paris.", evaluation.draft)
    assert story.rubric is not None
    assert story.rubric.sha256() == evaluation.rubric_sha256
    (use,) = story.tools
    assert (use.tool, use.role, use.criterion, use.arguments, use.output) == (
        "look",
        "grader",
        "names",
        {"place": "Paris"},
        "Paris: a city",
    )
    assert (use.grading_run_id, use.iteration) == (evaluation.grading_run_id, evaluation.iteration)


async def test_criteria_that_do_not_hold_failed(client: Client) -> None:
    run = fresh(f"criteria-{uuid4()}")
    result = await judged(client, CRITERIA, decides(row("names", "it names Lyon", quotes=[])), run=run)

    story = await only([result], {}, client)

    assert (story.verdict, story.word, story.evaluations[0].status) == ("failed", "needs_revision", "max_iterations_reached")
    assert story.evaluations[0].criteria[0].gap == "it names Lyon"
    assert len(story.messages) == 2


async def test_criteria_without_their_run_are_told_all_the_same(client: Client) -> None:
    result = await judged(client, CRITERIA, decides(row("names", quotes=[])), run=fresh(f"criteria-{uuid4()}"))

    story = await only([result], {}, None)

    assert (story.verdict, story.messages, story.best, story.notes) == ("passed", (), None, (NO_RUN,))
    assert story.evaluations[0].draft == result.result_metadata["draft"]


async def test_a_schema_with_criteria_of_its_own_is_no_rubric(client: Client) -> None:
    schema = {"type": "object", "properties": {"criteria": {"type": "array", "items": {"type": "string"}}}, "required": ["criteria"]}
    run = fresh(f"own-{uuid4()}")
    result = await judged(client, FRANCE | {"output_schema": schema}, answers({"criteria": ["names Paris"]}), run=run)

    story = await only([result.model_copy(update={"result_metadata": {}})], named(run), None)

    assert (story.word, story.evaluations) == ("judged", ())
    assert story.judged is not None
    assert story.judged.output == {"criteria": ["names Paris"]}


async def test_the_run_that_was_judged_goes_before_one_that_only_has_its_id(client: Client) -> None:
    run = fresh(f"twin-{uuid4()}")
    twin = run | {"transcripts": [{"messages": [{"role": "assistant", "content": "No."}]}]}
    result = await judged(client, FRANCE, answers(CITING), run=run)

    known = await only([result], named(twin), client)
    unknown = await only([result], named(twin), None)

    assert (len(known.passages), known.notes) == (2, (ANOTHER_RUN,))
    assert (len(unknown.passages), unknown.notes) == (1, (MISPLACED,))


async def test_an_id_of_something_else_tells_nothing_of_it(client: Client) -> None:
    mine, other = fresh(f"mine-{uuid4()}"), fresh(f"other-{uuid4()}")
    result = await judged(client, FRANCE, answers(MATCH), run=mine)
    theirs = await judged(client, FRANCE, answers(MATCH), run=other)

    story = await only([result.model_copy(update={"id": theirs.id})], {}, client)

    assert story.passages == ()
    assert story.notes == (f"the judgement of that id belongs to another run, {other['id']!r}, so its tool calls are not shown", NO_RUN)


async def test_citations_of_another_version_are_counted_as_unread(client: Client) -> None:
    run = fresh(f"later-{uuid4()}")
    result = await judged(client, FRANCE, answers(MATCH), run=run)
    citations = [*result.result_metadata["citations"], {"place": "T0B0"}]  # type: ignore[misc]  # a list
    later = result.model_copy(update={"result_metadata": result.result_metadata | {"citations": citations}})

    story = await only([later], named(run), None)

    assert story.notes == ("1 of 2 citations cannot be read",)


async def test_a_large_run_is_fetched_from_external_storage(
    temporal_server: ServerInfo, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADELOOP_STORAGE", tmp_path.as_uri())
    stored = await connect(Connection(temporal_server.address, "default", embedded=False))
    run = fresh(f"large-{uuid4()}")
    run["transcripts"] = [{"messages": [{"role": "assistant", "content": "Paris. " * 60_000}]}]
    result = await judged(stored, FRANCE, answers({"label": "match", "explanation": "Yes [T0B0]."}), run=run)

    story = await only([result], {}, stored)
    without = await only([result], {}, client)

    assert [len(passage.text) for passage in story.passages] == [420_000]
    assert without.passages == ()
    assert "the judgement's input cannot be read" in without.notes[0]
    assert without.notes[1] == NO_RUN


async def test_a_server_that_does_not_answer_is_told_as_such(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await judged(client, FRANCE, answers(MATCH), run=fresh(f"lost-{uuid4()}"))

    async def lost(*_: object, **__: object) -> None:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    monkeypatch.setattr("temporalio.client.WorkflowHistoryEventAsyncIterator.fetch_next_page", lost)

    with pytest.raises(ServerUnreachable):
        await read_judgement_reports([result], {}, client)


async def test_results_are_read_line_by_line(client: Client, tmp_path: Path) -> None:
    result = await judged(client, FRANCE, answers(MATCH), run=fresh(f"file-{uuid4()}"))
    (tmp_path / "results.jsonl").write_text(result.model_dump_json() + "\n\n" + result.model_dump_json() + "\n")

    assert read_results(tmp_path / "results.jsonl") == [result, result]


NO_JUDGEMENTS = [
    ("{}", "line 1: this is not a judgement: id: Field required"),
    ("\n[1]", "line 2: this is not a judgement"),
    ("hello", "line 1: this is not a judgement"),
    ("\n", "holds no judgements; write some with `gradeloop judge JUDGE RUNS -o results.jsonl`"),
    ('{"schema": "gradeloop.judgements/1", "judgements": [', "is cut off, or no JSON"),
    ('{"schema": "gradeloop.judgements/1", "judgements": 5}', "judgements is '5'; write a list"),
    ('{"schema": "gradeloop.judgements/1", "judgements": ["x"]}', "judgement 1: "),
    ('{"schema": "gradeloop.judgements/1"}', "holds no judgements"),
    ('{"schema": "gradeloop.judgements/9"}', "and this gradeloop reads gradeloop.judgements/1"),
]


def test_what_holds_no_judgement_is_refused_by_file_and_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, why in NO_JUDGEMENTS:
        with subtests.test(why):
            file = tmp_path / "results.jsonl"
            file.write_text(text)

            with pytest.raises(InvalidRequest) as caught:
                read_results(file)

            assert str(file) in str(caught.value)
            assert why in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_results(tmp_path / "results.jsonl")


async def test_judgements_in_the_store_are_found_by_their_judge() -> None:
    store = Store(store_url(embedded=True))
    registry = JudgeRegistry(store)
    judge = await registry.create_rubric("demo", FRANCE | {"id": "france"})
    fields = {"agent_run_id": "paris", "rubric_id": "france", "rubric_version": 1, "output": MATCH, "result_type": "DIRECT_RESULT"}
    results = [JudgeResult.model_validate(fields | {"id": f"judging-{repeat}"}) for repeat in range(2)]
    await registry.save(judge, [(result, repeat) for repeat, result in enumerate(results)])
    await registry.create_rubric("demo", FRANCE | {"id": "unused", "rubric_text": "Nobody was judged by this."})
    store.close()

    found = await read_stored_judgements("demo/france@1")

    assert (found.judge, found.results) == (judge, tuple(results))
    with pytest.raises(InvalidRequest, match="there is no rubric 'frence'"):
        await read_stored_judgements("demo/frence")
    with pytest.raises(InvalidRequest, match="the store has no judgements by 'demo/unused'"):
        await read_stored_judgements("demo/unused")


COUNTED: list[tuple[dict[Verdict, int], str, Verdict]] = [
    ({"passed": 2}, "2 OF 2 PASSED", "passed"),
    ({"passed": 1, "failed": 1, "error": 1}, "1 OF 2 PASSED, 1 error", "failed"),
    ({"passed": 1, "error": 2}, "1 OF 1 PASSED, 2 errors", "error"),
    ({"error": 3}, "INCONCLUSIVE: 3 errors", "error"),
    ({"unsure": 2}, "INCONCLUSIVE: 2 unsure", "unsure"),
    ({"passed": 2, "unsure": 1}, "2 OF 2 PASSED, 1 unsure", "passed"),
    ({"none": 5}, "5 JUDGED", "none"),
    ({"none": 5, "error": 1}, "5 JUDGED, 1 error", "error"),
]


def test_a_page_of_judgements_begins_with_how_many_passed(subtests: pytest.Subtests) -> None:
    for counts, answer, colour in COUNTED:
        with subtests.test(answer):
            assert answer_of_judgements(counts) == (answer, colour)


GATED: list[tuple[dict[Verdict, int], float, str, Verdict]] = [
    ({"passed": 3}, 0.0, "PASSED", "passed"),
    ({"passed": 9, "failed": 1}, 0.0, "PASSED 90% of 80%", "passed"),
    ({"passed": 3, "failed": 1}, 0.0, "FAILED 75% of 80%", "failed"),
    ({"passed": 3, "failed": 1, "error": 1}, 0.0, "INCONCLUSIVE: 1 error", "error"),
    ({"passed": 3, "failed": 1, "error": 1}, 0.2, "FAILED 75% of 80%", "failed"),
    ({"unsure": 2}, 0.0, "INCONCLUSIVE: 2 unsure", "error"),
]


def test_with_a_rate_a_page_of_judgements_begins_with_whether_enough_passed(subtests: pytest.Subtests) -> None:
    for counts, allowed, answer, colour in GATED:
        with subtests.test(answer):
            gate = PassGate(pass_if={"label": "match"}, pass_rate=0.8, allow_errors=allowed)

            assert answer_of_judgements(counts, gate) == (answer, colour)


@pytest.mark.parametrize(
    ("verdicts", "command"),
    [
        (("passed", "none"), "gradeloop report 'my results.jsonl' --pass KEY=VALUE"),
        (("passed", "error"), "gradeloop judge JUDGE RUNS --retry errors"),
        (("passed", "failed"), "gradeloop agreement JUDGE LABELS --results 'my results.jsonl'"),
        (("passed",), "gradeloop agreement JUDGE LABELS --results 'my results.jsonl'"),
    ],
)
def test_what_comes_next_for_judgements_is_a_command(verdicts: tuple[Verdict, ...], command: str) -> None:
    reports = [RunReport(name=name, kind="judgement", verdict=name, word=name) for name in verdicts]

    assert judgements_next(reports, JudgementSource("my results.jsonl", is_file=True, gate=None)).command == command


@pytest.mark.parametrize(
    ("verdict", "command"),
    [
        ("none", "gradeloop report 'my results.jsonl' --runs 'all runs.jsonl' --pass KEY=VALUE"),
        ("error", "gradeloop judge 'my judge.yaml' 'all runs.jsonl' thread:t1 --retry errors"),
        ("failed", "gradeloop agreement 'my judge.yaml' LABELS --results 'my results.jsonl'"),
    ],
)
def test_what_is_known_of_judge_and_runs_stands_in_the_command_quoted_for_the_shell(verdict: Verdict, command: str) -> None:
    runs = ("all runs.jsonl", "thread:t1")
    source = JudgementSource("my results.jsonl", is_file=True, gate=None, judge="my judge.yaml", runs=runs)
    report = RunReport(name="a", kind="judgement", verdict=verdict, word=verdict)

    assert judgements_next([report], source).command == command
