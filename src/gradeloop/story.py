"""What happens in a run, in words: events, verdicts and results as lines for a terminal."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gradeloop.contracts import RunResult
from gradeloop.evaluation import CriterionRow, Evaluation, InterruptReason
from gradeloop.event import Event
from gradeloop.printable import cost, counted, one_line, printable
from gradeloop.transcript import Message
from gradeloop.waiting_for import WaitingFor

STYLES = {"satisfied": "bold green", "max_iterations_reached": "bold yellow", "interrupted": "bold yellow", "waiting": "bold yellow"}
MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}

WHY_INTERRUPTED: dict[InterruptReason | None, str] = {
    "budget": ": the budget is used up; resume with a larger one",
    "failure": ": the generator failed",
}

COLUMNS = 10
"""Criteria that are shown one by one in every evaluation; of more than these, the passing ones are only counted."""

FIXED_COLUMNS = 35
"""The width of iteration, result and score."""

ID_WIDTH = 24
"""Ids up to this long line up."""


class Line(NamedTuple):
    """A line in two parts: where it wraps, it goes on below the body."""

    head: Text
    body: Text


def opening(thread_id: str, ui: str | None) -> Text:
    """Return the first line of a run."""
    where = f"  {ui}/namespaces/default/workflows/{thread_id}" if ui else ""
    return Text("Thread ", "dim").append(thread_id, "bold").append(where, "dim")


def id_width(ids: Iterable[str]) -> int:
    """Return the width at which ids line up."""
    return min(max((len(name) for name in ids), default=0), ID_WIDTH)


def told_line(event: Event, message: Message | None, evaluation: Evaluation | None) -> Text | None:
    """Return an event as a line, or None where it needs none."""
    number = "" if event.iteration is None else f"iteration {event.iteration + 1}: "
    if event.type == "message" and message is not None and message.role == "assistant" and not message.tool_calls:
        return Text(f"{number}draft, {counted(len(message.content), 'character')}")
    if event.type == "tool_called":
        who = "the check" if event.role == "check" else f"the {event.role} calls"
        return Text(f"{number}{who} ", "dim").append(printable(event.tool or ""), "cyan")
    if event.type == "rubric_evaluation_end" and evaluation is not None:
        passed = f", {sum(row.passed for row in evaluation.criteria)} of {len(evaluation.criteria)} pass" if evaluation.criteria else ""
        told = Text(number).append(evaluation.result, STYLES.get(evaluation.result, "bold red")).append(passed)
        return told.append(f"  {one_line(evaluation.explanation)}", "dim")
    return _turning_point(event, number)


def _turning_point(event: Event, number: str) -> Text | None:
    """Return an event that people make, or that waits for them, as a line."""
    if event.type in {"approved", "denied"}:
        return Text(f"{number}{event.type} by a person: ").append(printable(event.tool or ""), "cyan")
    if event.type in {"decided", "overridden"}:
        return Text(f"{number}{event.type} by a person: ").append(printable(event.criterion or ""), "cyan")
    why = WHY_INTERRUPTED.get(event.reason, "")
    told = {
        "waiting": Text("waiting for a person", "bold yellow"),
        "interrupted": Text("interrupted", "bold yellow").append(why, "default"),
        "resumed": Text("resumed"),
    }
    return told.get(event.type)


def phase_line(event: Event) -> Text | None:
    """Return what goes on after the event, or None where it goes on as before."""
    number = "" if event.iteration is None else f"iteration {event.iteration + 1}: "
    if event.type == "tool_called":
        doing = "drafting" if event.role == "generator" else "grading"
        return Text(f"{number}{doing}, with {printable(event.tool or '')}")
    if event.type == "rubric_evaluation_end":
        going_on = event.status == "running" and event.iteration is not None
        return Text(f"iteration {(event.iteration or 0) + 2}: revising" if going_on else f"{number}graded")
    phases = {"run_started": "drafting", "rubric_evaluation_start": "grading", "resumed": "going on", "interrupted": "interrupted"}
    return Text(f"{number}{phases[event.type]}") if event.type in phases else None


def row_lines(evaluation: Evaluation) -> Iterator[Line]:
    """Yield the verdict on each criterion; where they are many, those that pass as one line."""
    many = len(evaluation.criteria) > COLUMNS
    passed = sum(row.passed for row in evaluation.criteria)
    width = id_width(row.id for row in evaluation.criteria)
    yield from (row_line(row, width) for row in evaluation.criteria if not (many and row.passed))
    if many and passed:
        others = "all" if passed == len(evaluation.criteria) else "the other"
        yield Line(Text("✓ ", "green"), Text(f"{others} {passed} criteria pass" if passed > 1 else f"{others} criterion passes"))


def row_line(row: CriterionRow, width: int = 0) -> Line:
    """Return a criterion's verdict as a line."""
    mark, style = MARKS[None if row.unverified else row.passed]
    told = Text(one_line(row.name)).append(_beside(row), "dim")
    return Line(Text(f"{mark} {row.id:{width}}  ", style), told.append(f": {one_line(row.gap)}", style) if row.gap else told)


def _beside(row: CriterionRow) -> str:
    """Return what else is known of a verdict."""
    told = {
        f"  (score {row.score:g})" if row.score is not None else "": row.score is not None,
        f"  ({sum(bool(vote.passed) for vote in row.votes)} of {len(row.votes)} votes)": bool(row.votes),
        "  (judged before)": row.by == "cached",
        f"  (overridden by {one_line(row.override.by) if row.override else ''})": row.override is not None,
    }
    return "".join(words for words, holds in told.items() if holds)


def summary(result: RunResult, width: int) -> Iterator[Text | Rule | Table]:
    """Yield the draft that stands, the evaluations as a table, and the status, for a terminal of that width."""
    if result.output is not None:
        which = "the answer" if result.best_iteration is None else f"the draft that stands, of iteration {result.best_iteration + 1}"
        yield Rule(which, style="dim")
        yield Text(printable(result.output).rstrip())
        yield Rule(style="dim")
    if result.evaluations:
        yield evaluations_table(result, width)
    status = result.status or "ungraded"
    told = Text().append(status, STYLES.get(status, "bold" if result.status is None else "bold red"))
    told.append(f" after {counted(result.iterations, 'iteration')}" if result.status else "")
    usage = result.usage
    tokens = f"{usage.input:,} tokens in, {usage.output:,} out"
    yield told.append(f"  {counted(usage.calls, 'model call')}, {tokens}{cost(usage.cost_usd)}", "dim")
    if result.overridden_result:
        yield Text(f"with what people say: {result.overridden_result}", "bold")
    if result.error:
        yield Text(printable(result.error), "red")
    if result.waiting_for:
        yield from asked(result.thread_id, result.waiting_for)


def asked(thread_id: str, waiting: WaitingFor) -> Iterator[Text]:
    """Yield what a person can say, as commands to type."""
    for each in waiting.criteria:
        yield Text(f"gradeloop decide {thread_id} {each.id} --pass", "bold").append(f"   or --fail: {one_line(each.name)}", "default")
    for call in waiting.calls:
        arguments = one_line(json.dumps(call.arguments, ensure_ascii=False))
        yield Text(f"the {call.role} wants {printable(call.tool)} {arguments}")
        which = f" {call.call}" if len(waiting.calls) > 1 else ""
        yield Text(f"gradeloop approve {thread_id}{which}", "bold").append("   or deny, with --why", "default")


def evaluations_table(result: RunResult, width: int) -> Table:
    """Return a row an iteration, with a column a criterion where that fits the width."""
    ids = list(dict.fromkeys(row.id for each in result.evaluations for row in each.criteria))
    fits = len(ids) <= COLUMNS and sum(len(name) + 2 for name in ids) <= width - FIXED_COLUMNS
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("iteration", "result", *(ids if fits else ["passed", "not passed"]), "score"):
        table.add_column(heading)
    for each in result.evaluations:
        cells = _marks(each, ids) if fits else _counts(each)
        score = "-" if each.score is None else f"{each.score:.2f}"
        table.add_row(str(each.iteration + 1), Text(each.result, STYLES.get(each.result, "red")), *cells, score)
    return table


def _marks(evaluation: Evaluation, ids: list[str]) -> list[Text]:
    rows = {row.id: MARKS[None if row.unverified else row.passed] for row in evaluation.criteria}
    return [Text(*rows.get(name, ("-", "dim"))) for name in ids]


def _counts(evaluation: Evaluation) -> list[Text]:
    failing = [row.id for row in evaluation.criteria if not row.passed]
    more = f" and {len(failing) - COLUMNS} more" if len(failing) > COLUMNS else ""
    passed = f"{len(evaluation.criteria) - len(failing)} of {len(evaluation.criteria)}"
    return [Text(passed), Text(" ".join(failing[:COLUMNS]) + more, "red")]
