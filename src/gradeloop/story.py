"""A run as lines for a terminal: its events, verdicts and result."""

import json
from collections.abc import Iterator

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gradeloop.contracts import RunResult
from gradeloop.evaluation import Evaluation, InterruptReason
from gradeloop.event import Event
from gradeloop.printable import counted, one_line, printable
from gradeloop.terminal_table import Column, Line, criterion_line, id_width, mark, table, usage_line
from gradeloop.transcript import Message
from gradeloop.waiting_for import WaitingFor

STYLES = {"satisfied": "bold green", "max_iterations_reached": "bold yellow", "interrupted": "bold yellow", "waiting": "bold yellow"}

WHY_INTERRUPTED: dict[InterruptReason | None, str] = {
    "budget": ": the budget is used up; resume with a larger one",
    "failure": ": the generator failed",
}

COLUMNS = 10
"""Up to this many criteria are listed one by one; of more, the passing ones are only counted."""

FIXED_COLUMNS = 35
"""The width of iteration, result and score."""


def opening(thread_id: str, ui: str | None) -> Text:
    """Return the first line of a run."""
    where = f"  {ui}/namespaces/default/workflows/{thread_id}" if ui else ""
    return Text("Thread ", "dim").append(thread_id, "bold").append(where, "dim")


def event_line(event: Event, message: Message | None, evaluation: Evaluation | None) -> Text | None:
    """Return an event as a line; None if it needs none."""
    number = "" if event.iteration is None else f"iteration {event.iteration + 1}: "
    if event.type == "message" and message is not None and message.role == "assistant" and not message.tool_calls:
        return Text(f"{number}draft, {counted(len(message.content), 'character')}")
    if event.type == "tool_called":
        who = "the check" if event.role == "check" else f"the {event.role} calls"
        return Text(f"{number}{who} ", "dim").append(printable(event.tool or ""), "cyan")
    if event.type == "rubric_evaluation_end" and evaluation is not None:
        passed = f", {sum(row.passed for row in evaluation.criteria)} of {len(evaluation.criteria)} pass" if evaluation.criteria else ""
        line = Text(number).append(evaluation.result, STYLES.get(evaluation.result, "bold red")).append(passed)
        return line.append(f"  {one_line(evaluation.explanation)}", "dim")
    return _line_of_a_pause(event, number)


def _line_of_a_pause(event: Event, number: str) -> Text | None:
    """Return a person's decision, a pause or a resumption as a line."""
    if event.type in {"approved", "denied"}:
        return Text(f"{number}{event.type} by a person: ").append(printable(event.tool or ""), "cyan")
    if event.type in {"decided", "overridden"}:
        return Text(f"{number}{event.type} by a person: ").append(printable(event.criterion or ""), "cyan")
    why = WHY_INTERRUPTED.get(event.reason, "")
    lines = {
        "waiting": Text("waiting for a person", "bold yellow"),
        "interrupted": Text("interrupted", "bold yellow").append(why, "default"),
        "resumed": Text("resumed"),
    }
    return lines.get(event.type)


def phase_line(event: Event) -> Text | None:
    """Return the phase that the event begins; None if it begins none."""
    number = "" if event.iteration is None else f"iteration {event.iteration + 1}: "
    if event.type == "tool_called":
        doing = "drafting" if event.role == "generator" else "grading"
        return Text(f"{number}{doing}, with {printable(event.tool or '')}")
    if event.type == "rubric_evaluation_end":
        continues = event.status == "running" and event.iteration is not None
        return Text(f"iteration {(event.iteration or 0) + 2}: revising" if continues else f"{number}graded")
    phases = {"run_started": "drafting", "rubric_evaluation_start": "grading", "resumed": "resuming", "interrupted": "interrupted"}
    return Text(f"{number}{phases[event.type]}") if event.type in phases else None


def row_lines(evaluation: Evaluation) -> Iterator[Line]:
    """Yield the verdict on each criterion; of many criteria, those that pass share one line."""
    many = len(evaluation.criteria) > COLUMNS
    passed = sum(row.passed for row in evaluation.criteria)
    width = id_width(row.id for row in evaluation.criteria)
    yield from (criterion_line(row, width) for row in evaluation.criteria if not (many and row.passed))
    if many and passed:
        others = "all" if passed == len(evaluation.criteria) else "the other"
        yield Line(Text("✓ ", "green"), Text(f"{others} {passed} criteria pass" if passed > 1 else f"{others} criterion passes"))


def summary(result: RunResult, width: int) -> Iterator[Text | Rule | Table]:
    """Yield the best draft, the evaluations as a table, and the status, for a terminal of that width."""
    if result.output is not None:
        which = "answer" if result.best_iteration is None else f"best draft, iteration {result.best_iteration + 1}"
        yield Rule(which, style="dim")
        yield Text(printable(result.output).rstrip())
        yield Rule(style="dim")
    if result.evaluations:
        yield evaluations_table(result, width)
    status = result.status or "ungraded"
    line = Text().append(status, STYLES.get(status, "bold" if result.status is None else "bold red"))
    line.append(f" after {counted(result.iterations, 'iteration')}" if result.status else "")
    yield line.append(f"  {usage_line(result.usage)}", "dim")
    if result.overridden_result:
        yield Text(f"with overrides: {result.overridden_result}", "bold")
    if result.error:
        yield Text(printable(result.error), "red")
    if result.waiting_for:
        yield from asked(result.thread_id, result.waiting_for)


def asked(thread_id: str, waiting: WaitingFor) -> Iterator[Text]:
    """Yield the commands by which a person decides."""
    for criterion in waiting.criteria:
        yield Text(f"gradeloop decide {thread_id} {criterion.id} --pass", "bold").append(
            f"   or --fail: {one_line(criterion.name)}", "default"
        )
    for call in waiting.calls:
        arguments = one_line(json.dumps(call.arguments, ensure_ascii=False))
        yield Text(f"the {call.role} asks to call {printable(call.tool)} {arguments}")
        which = f" {call.call}" if len(waiting.calls) > 1 else ""
        yield Text(f"gradeloop approve {thread_id}{which}", "bold").append("   or deny, with --why", "default")


def evaluations_table(result: RunResult, width: int) -> Table:
    """Return a row per iteration, with a column per criterion if all of them fit the width."""
    ids = list(dict.fromkeys(row.id for evaluation in result.evaluations for row in evaluation.criteria))
    fits = len(ids) <= COLUMNS and sum(len(name) + 2 for name in ids) <= width - FIXED_COLUMNS
    rows = [_marks(evaluation, ids) if fits else _counts(evaluation) for evaluation in result.evaluations]
    headings = ids if fits else ["passed", "not passed"]
    return table(
        [
            Column("iteration", [str(evaluation.iteration + 1) for evaluation in result.evaluations]),
            Column("result", [Text(evaluation.result, STYLES.get(evaluation.result, "red")) for evaluation in result.evaluations]),
            *(Column(heading, cells, wraps=True) for heading, cells in zip(headings, zip(*rows, strict=True), strict=True)),
            Column("score", ["-" if evaluation.score is None else f"{evaluation.score:.2f}" for evaluation in result.evaluations]),
        ]
    )


def _marks(evaluation: Evaluation, ids: list[str]) -> list[Text]:
    rows = {row.id: mark(row) for row in evaluation.criteria}
    return [Text(*rows.get(name, ("-", "dim"))) for name in ids]


def _counts(evaluation: Evaluation) -> list[Text]:
    failing = [row.id for row in evaluation.criteria if not row.passed]
    more = f" and {len(failing) - COLUMNS} more" if len(failing) > COLUMNS else ""
    passed = f"{len(evaluation.criteria) - len(failing)} of {len(evaluation.criteria)}"
    return [Text(passed), Text(" ".join(failing[:COLUMNS]) + more, "red")]
