"""Stories of runs, for tests of their pages."""

from typing import Any

from gradeloop.batches.pages.judgement_page import JudgementSource, judgement_head, judgement_page
from gradeloop.contract.evaluation import (
    CriterionRow,
    DraftInQuestion,
    DraftPiece,
    Evaluation,
    Event,
    Override,
    PendingCall,
    Quote,
    Vote,
    WaitingCriterion,
    WaitingFor,
)
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message, ToolCall, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import Citation
from gradeloop.judges.contract import PassGate
from gradeloop.reports.model import Passage, RunReport, SchemaVerdict, ToolEvidence, Verdict

USAGE = Usage(input=1200, cached=300, output=90, calls=2, attempts=2, seconds=3.25, cost_usd=0.0123)

FIRST = "Dear customer,\n\nwe are sorry. Your chain is gone.\n\nKind regards"
SECOND = "Dear customer,\n\nwe are sorry. Bring the bike on Monday between 9 and 18; the new chain costs nothing.\n\nKind regards"


def row(name: str, *, passed: bool = True, **facts: Any) -> CriterionRow:
    """Return a criterion's verdict."""
    fields = {
        "id": name,
        "name": f"the text of {name}",
        "passed": passed,
        "reason": f"Why of {name}.",
        "gap": None if passed else f"no {name}",
    }
    return CriterionRow.model_validate(fields | facts)


def quote(text: str, record: int, *, found: bool | None = True) -> Quote:
    """Return a quote."""
    return Quote(record=record, quote=text, quote_verified=found)


def mended() -> RunReport:
    """Return a thread whose second draft mends what the first one lacked, with something of everything."""
    rubric = Rubric.model_validate(
        {
            "criteria": [
                {"id": "step", "description": "It names a next step", "quotes": True},
                {"id": "short", "description": "It is short", "check": "word_count"},
                {"id": "tone", "description": "It sounds friendly", "required": False, "votes": 3},
            ]
        }
    )
    votes = tuple(Vote(grader="openai:gpt-5-mini", passed=passed) for passed in (True, True, False))
    tone = row("tone", contested=True, votes=votes)
    nothing = row("step", passed=False, quotes=(quote("Your chain  is gone.", 1),))
    named = row("step", quotes=(quote("Bring the bike on Monday", 3), quote("call us at any time of the day", 3, found=False)))
    short = row("short", by="tool")
    override = Override(passed=False, why="It is cold.", by="Ada", time="2026-11-22T10:00:00.123456+00:00")
    passes = (
        Evaluation(
            grading_run_id="run-1",
            iteration=0,
            result="needs_revision",
            status="running",
            explanation="No step is named.",
            criteria=(nothing, short, tone),
            score=2 / 3,
            draft=1,
            usage=USAGE,
            grader="openai:gpt-5-mini",
        ),
        Evaluation(
            grading_run_id="run-1",
            iteration=1,
            result="satisfied",
            status="satisfied",
            explanation="It names a step.",
            criteria=(named, short, tone.model_copy(update={"override": override})),
            score=1.0,
            draft=3,
            usage=USAGE,
            grader="openai:gpt-5-mini",
            overridden_result="satisfied",
        ),
    )
    evidence = {"grading_run_id": "run-1", "seconds": 0.25}
    return RunReport(
        name="reply-1",
        kind="thread",
        verdict="passed",
        word="satisfied",
        thread_id="reply-1",
        about={"generator": "anthropic:claude-haiku-4-5", "started": "2026-11-22T09:59:00Z"},
        score=1.0,
        rubric=rubric,
        messages=(
            Message(role="user", content="The chain of my new bike has snapped. What now?"),
            Message(role="assistant", content=FIRST),
            Message(role="user", content="step: no step", name=FEEDBACK_SOURCE, source=FEEDBACK_SOURCE),
            Message(role="assistant", content=SECOND),
        ),
        evaluations=passes,
        tools=(
            ToolEvidence(tool="word_count", role="check", iteration=0, criterion="short", output="passed", **evidence),
            ToolEvidence(tool="opening_hours", role="grader", iteration=1, arguments={"day": "Monday"}, output="9 to 18", **evidence),
        ),
        events=(Event(seq=1, type="run_started", time="2026-11-22T09:59:00Z", grading_run_id="run-1", iteration=0),),
        usage=USAGE,
        best=3,
        overridden=True,
    )


def judged() -> RunReport:
    """Return a judgement by a schema, with a citation that was found and one that was not."""
    text = "The agent looked first [T0B1:<RANGE>grep -r main</RANGE>] and then guessed [T0B9]."
    first, second = text.index("[T0B1"), text.index("[T0B9")
    found = Citation(
        path="explanation",
        start=first,
        end=text.index("</RANGE>]") + 9,
        kind="block",
        target="T0B1",
        quote="grep -r main",
        verified=True,
        block_start=6,
        block_end=18,
    )
    lost = Citation(
        path="explanation", start=second, end=second + 6, kind="block", target="T0B9", verified=False, problem="there is no block T0B9"
    )
    return RunReport(
        name="run-7",
        kind="judgement",
        verdict="none",
        word="judged",
        about={"judge": "careful, version 2"},
        judged=SchemaVerdict(
            rubric_id="careful",
            rubric_version=2,
            output={"label": "match", "explanation": text},
            citations=(found, lost),
            metadata={"ties": ["label"], "rollouts": [{"output": {"label": "match"}}]},
        ),
        passages=(
            Passage(label="T0B0", role="user", text="Find the bug."),
            Passage(label="T0B1", role="assistant", text="I ran grep -r main first."),
        ),
        usage=USAGE,
    )


def gated_page(pass_rate: float | None = 0.8) -> str:
    """Return the page of three judgements, of which one passes and two do not; without a rate nothing says what passes."""
    gate = PassGate(pass_if={"label": "match"}, pass_rate=pass_rate) if pass_rate is not None else None
    reports = []
    for number, label in enumerate(("no match", "match", "no match")):
        verdict: Verdict = "none" if gate is None else "passed" if label == "match" else "failed"
        word = {"none": "judged", "passed": "passed", "failed": "not passed"}[verdict]
        said = judged().judged
        assert said is not None
        unmet = ("label is no match",) if verdict == "failed" else ()
        output = said.output | {"label": label}
        told = said.model_copy(update={"output": output, "labels": ("label",), "unmet": unmet})
        reports.append(judged().model_copy(update={"name": f"run-{number}", "verdict": verdict, "word": word, "judged": told}))
    source = JudgementSource("results.jsonl", is_file=True, gate=gate)
    head = judgement_head("careful, version 2", reports, {"judgements": "3"}, question="Does it look first?", source=source)
    return judgement_page(head, reports)


def hostile(text: str) -> RunReport:
    """Return a story that says one thing in every field that anybody but us writes."""
    arguments: dict[str, Any] = {text: text, "deep": [{text: [text]}]}
    given = CriterionRow(
        id=text,
        name=text,
        passed=False,
        reason=text,
        gap=text,
        contested=True,
        quotes=(
            Quote(record=0, quote=text, quote_verified=True),
            Quote(record=7, quote=text, quote_verified=False),
            Quote(record=0, quote=text, quote_verified=False, quote_match="near", quote_nearest=f"{text} and {text}"),
        ),
        votes=(Vote(grader=text, passed=None),),
        metadata=arguments,
        grader=text,
        override=Override(passed=True, why=text, by=text, time=text),
    )
    evaluation = Evaluation(
        grading_run_id=text,
        iteration=0,
        result="needs_revision",
        status="running",
        explanation=text,
        criteria=(given, row("c2").model_copy(update={"name": text})),
        draft=1,
        grader=text,
    )
    again = evaluation.model_copy(update={"iteration": 1, "draft": 4})
    lost = evaluation.model_copy(update={"iteration": 2, "draft": 99})
    tools = (
        ToolEvidence(
            tool=text, role="check", grading_run_id=text, iteration=0, criterion=text, arguments=arguments, output=text, failed=True
        ),
        ToolEvidence(tool=text, role="grader", grading_run_id=text, iteration=1, arguments=arguments, output=text, bytes=9),
        ToolEvidence(tool=text, role="grader", output=text),
    )
    call = ToolCall(id=text, name=text, arguments=arguments)
    messages = (
        Message(role="user", content=f"{text}.", name=text, source=text),
        Message(role="assistant", content=f"{text} one"),
        Message(role="assistant", tool_calls=(call, ToolCall(id="x", name=text, invalid=text))),
        Message(role="tool", content=text, name=text, tool_call_id=text),
        Message(role="assistant", content=f"{text} two"),
    )
    event = Event(seq=1, type="rubric_rejected", time=text, grading_run_id=text, criterion=text, tool=text, why=text, result=text)
    cited = Citation(
        path=text, start=0, end=1, kind="block", target=text, quote=text, verified=True, problem=text, block_start=0, block_end=1
    )
    return RunReport(
        name=text,
        kind="thread",
        verdict="failed",
        word=text,
        thread_id=text,
        about={text: text, "variable": text},
        error=text,
        rubric=Rubric.model_validate({"criteria": [{"id": "c2", "description": f"x{text}"}]}),
        messages=messages,
        evaluations=(evaluation, again, lost),
        tools=tools,
        events=(event,),
        waiting_for=WaitingFor(
            grading_run_id=text,
            iteration=0,
            criteria=(WaitingCriterion(id=text, name=text),),
            calls=(PendingCall(call=text, tool=text, arguments=arguments, role="grader"),),
            draft=DraftInQuestion(index=4, text=text, rows=(given,), previous=1, changes=(DraftPiece(kind="added", text=text),)),
        ),
        judged=SchemaVerdict(
            rubric_id=text, rubric_version=1, output={text: text, "x": [text]}, reason=f"{text}!", citations=(cited,), metadata=arguments
        ),
        passages=(Passage(label=text, role=text, name=text, text=text),),
        notes=(text,),
    )
