"""Runs that are too long to be shown at once: parts that overlap, lose nothing, and keep the numbers of the whole run."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradeloop.contract.evaluation import Quote, Verdict, VerdictRow
from gradeloop.contract.transcript import AgentRun, run_as_messages
from gradeloop.grading.prompts import is_elided
from gradeloop.grading.quotes import verify_quotes
from gradeloop.judges.chunks import chunked_id, findings_run, is_too_long, judge_of_findings, judge_of_parts, parts_of, whole_run
from gradeloop.judges.citations import citations_of
from gradeloop.judges.contract import JudgeResult, judging_id, parse_judge
from gradeloop.judges.prompt import blocks_of, build_judge_prompt, is_cut, render_run

SCHEMA = parse_judge({"rubric_text": "The agent names Paris.", "judge_model": "scripted:judge"})
CRITERIA = parse_judge({"criteria": [{"description": "names Paris", "quotes": True}]})


def long_run(count: int = 40, size: int = 40_000) -> AgentRun:
    """Return a run of more than a judge is shown, in two transcripts."""
    messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": f"message {at} " + "x" * size} for at in range(count)]
    return AgentRun.model_validate({"id": "long", "transcripts": [{"messages": messages[:15]}, {"messages": messages[15:]}]})


def judged(output: dict[str, object], **metadata: object) -> JudgeResult:
    """Return the judgement of a part."""
    facts = {"id": "judging-1", "agent_run_id": "long", "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
    return JudgeResult.model_validate(facts | {"output": output, "result_metadata": metadata})


def test_parts_hold_every_message_overlap_and_are_shown_whole() -> None:
    run = long_run()

    parts = parts_of(SCHEMA, run)

    assert is_too_long(run)
    assert len(parts) > 2
    assert {place for part in parts for place, _, _ in part.run.placed()} == {place for place, _, _ in run.placed()}
    assert not any(is_cut(part.run) or is_elided(run_as_messages(part.run)) for part in parts)
    assert all(later.first <= earlier.last for earlier, later in pairwise(parts))
    assert whole_run([part.run for part in parts]) == run.model_copy(update={"excerpt": None})


def test_every_part_has_the_first_request_and_the_last_answer_unless_they_are_very_long() -> None:
    run = AgentRun.model_validate(
        {
            "id": "r",
            "transcripts": [
                {
                    "messages": [
                        {"role": "user", "content": "the request"},
                        *({"role": "tool", "content": "x" * 100_000, "tool_call_id": f"c{at}"} for at in range(12)),
                        {"role": "assistant", "content": "the answer"},
                    ]
                }
            ],
        }
    )

    labels = [{place.label for place, _, _ in part.run.placed()} for part in parts_of(SCHEMA, run)]

    assert all({"T0B0", "T0B13"} <= found for found in labels)


def test_blocks_of_a_part_have_the_numbers_of_the_whole_run_and_citations_are_found_there() -> None:
    run = long_run()
    part = parts_of(SCHEMA, run)[-1]
    whole = {block.label: block.text for block in blocks_of(run)}

    shown = {block.label: block.text for block in blocks_of(part.run)}
    found = citations_of([("e", "[T1B23: message 38] [T0B5: message 5] [T1B3-T1B24: message 39]")], part.run)

    assert shown.items() <= whole.items()
    assert [citation.verified for citation in found] == [True, False, False]
    assert found[0].target == "T1B23"
    assert found[0] == citations_of([("e", "[T1B23: message 38]")], run)[0]
    assert '{"part": ' in render_run(part.run, "n" * 32)


def test_the_last_call_sees_findings_and_what_they_cite_and_not_the_whole_run() -> None:
    run = long_run()
    parts = parts_of(SCHEMA, run)
    cited = {"kind": "block", "target": "T0B7", "verified": True}
    results = [
        judged({"label": "match", "explanation": f"part {at} says <|it|>"}, citations=[cited] if at == 0 else [])
        for at in range(len(parts))
    ]

    shown = findings_run(SCHEMA, run, parts, results)
    prompt = build_judge_prompt(judge_of_findings(SCHEMA), shown, "n" * 32)  # type: ignore[arg-type]  # a schema's
    text = prompt.messages[0].content

    assert [block.label for block in blocks_of(shown)] == ["T0B7", "T1B23", "T1B24"]  # what is cited, the request and the answer
    assert text.count('"type": "finding"') == len(parts)
    assert f'"first": "{parts[1].first.label}"' in text
    assert not is_cut(shown)
    assert citations_of([("e", "[T0B7: message 7] [T0B8]")], shown)[1].verified is False


def test_a_finding_is_no_evidence_and_no_message_of_a_run_can_be_one() -> None:
    run = long_run()
    parts = parts_of(CRITERIA, run)
    shown = findings_run(CRITERIA, run, parts, [judged({"criteria": [{"id": "c1", "reason": "it names Paris"}]})] * len(parts))
    messages = run_as_messages(shown)
    at = next(number for number, message in enumerate(messages) if message.kind == "finding")
    row = VerdictRow(id="c1", reason="r", passed=True, gap=None, quotes=(Quote(record=at, quote="it names Paris"),))

    found = verify_quotes(Verdict(criteria=(row,), explanation="e", result="satisfied"), messages)

    assert isinstance(found, Verdict)
    assert [quote.quote_verified for quote in found.criteria[0].quotes or ()] == [False]
    with pytest.raises(ValueError, match="finding"):
        AgentRun.model_validate({"id": "r", "transcripts": [{"messages": [{"role": "user", "parts": [{"type": "finding", "text": "t"}]}]}]})


def test_a_run_in_parts_is_another_judgement_than_the_run_cut_to_fit() -> None:
    assert chunked_id(SCHEMA, "sha") != judging_id(SCHEMA, "sha")
    assert chunked_id(SCHEMA, "sha", 1) != chunked_id(SCHEMA, "sha")
    assert judge_of_parts(SCHEMA).sha256() != judge_of_findings(SCHEMA).sha256() != SCHEMA.sha256()


def test_findings_of_many_parts_are_cut_to_fit() -> None:
    run = long_run(400)
    parts = parts_of(SCHEMA, run)
    results = [judged({"label": "match", "explanation": "y" * 60_000}) for _ in parts]

    shown = findings_run(SCHEMA, run, parts, results)

    assert shown.excerpt is not None
    assert len(parts) > 20
    assert sum(len(finding.text) for finding in shown.excerpt.findings) < 160_000


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 900_000), min_size=3, max_size=12))
def test_runs_of_any_shape_come_apart_and_together_again(sizes: list[int]) -> None:
    messages = [{"role": "assistant", "content": "x" * size} for size in sizes]
    run = AgentRun.model_validate({"id": "r", "transcripts": [{"messages": messages}]})
    assume(is_too_long(run))

    parts = parts_of(SCHEMA, run)

    assert all(part.first <= part.last for part in parts)
    assert all(later.last > earlier.last for earlier, later in pairwise(parts))
    assert whole_run([part.run for part in parts]) == run
    assert all(is_cut(part.run) <= any(size > 300_000 for size in sizes) for part in parts)
