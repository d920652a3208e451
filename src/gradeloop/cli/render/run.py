"""A run in the terminal: its events, its criteria live, its result, and lists of threads and criteria."""

import json
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gradeloop.cli.render.table import Column, Line, criterion_line, id_width, mark, table, usage_line
from gradeloop.client.call_waits import CallWait
from gradeloop.client.listing import ListedThread
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CriterionRow, Evaluation, Event, InterruptReason, Rejection, WaitingFor, rejections_of
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import GivenPrompt, RunResult, ThreadState
from gradeloop.grading.scoring import call_groups
from gradeloop.grading.verdicts import contradiction
from gradeloop.reports.model import resume_step
from gradeloop.text import counted, json_without_commands, one_line, printable

STYLES = {"satisfied": "bold green", "max_iterations_reached": "bold yellow", "interrupted": "bold yellow", "waiting": "bold yellow"}

WHY_INTERRUPTED: dict[InterruptReason | None, str] = {
    "budget": ": its budget allows no further call",
    "failure": ": the generator failed",
    "outage": ": a provider is away; resume once it answers",
}

CHANGES = {"same": ("", "", ""), "added": ("{+", "+}", "green"), "removed": ("[-", "-]", "red"), "left_out": ("\n", "\n", "dim")}
"""The signs around a piece of a comparison, those of `git diff --word-diff`, and its style."""

COLUMNS = 10
"""The most criteria that are listed one by one; if there are more, those that pass are only counted."""

FIXED_COLUMNS = 35
"""The width of the columns iteration, result and score together."""


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
        line.append(f"  {one_line(evaluation.explanation)}", "dim")
        return line.append("".join(f"\n  {one_line(note)}" for note in evaluation.notes), "yellow")
    return _pause_line(event, number)


def _pause_line(event: Event, number: str) -> Text | None:
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


def row_lines(evaluation: Evaluation, rubric: Rubric | None = None) -> Iterator[Line]:
    """Yield the verdict on each criterion, of many those that pass in one line, and the reasons that contradict their verdicts."""
    many = len(evaluation.criteria) > COLUMNS
    passed = sum(row.passed for row in evaluation.criteria)
    width = id_width(row.id for row in evaluation.criteria)
    yield from (criterion_line(row, width) for row in evaluation.criteria if not (many and row.passed))
    if many and passed:
        others = "all" if passed == len(evaluation.criteria) else "the other"
        yield Line(Text("✓ ", "green"), Text(f"{others} {passed} criteria pass" if passed > 1 else f"{others} criterion passes"))
    for row in evaluation.criteria:
        if note := contradiction(row, rubric):
            yield Line(Text(f"! {row.id:{width}}  ", "yellow"), Text(one_line(note), "yellow"))


def summary(result: RunResult, width: int) -> Iterator[Text | Rule | Table]:
    """Yield the best draft, the evaluations as a table, and the status, for a terminal of that width."""
    if result.output is not None and result.waiting_for is None:
        which = "answer" if result.best_iteration is None else f"best draft, iteration {result.best_iteration + 1}"
        yield Rule(which, style="dim")
        yield Text(printable(result.output).rstrip())
        yield Rule(style="dim")
    if result.evaluations:
        yield evaluations_table(result, width)
    status = result.status or "ungraded"
    line = Text().append(status, STYLES.get(status, "bold" if result.status is None else "bold red"))
    if result.waiting_for:
        line.append("" if result.waiting_for.iteration is None else f" in iteration {result.waiting_for.iteration + 1}")
    elif result.status:
        of_run = result.evaluations[-1].iteration + 1 if result.evaluations else 0  # more than the turn's own where it is a fork's
        line.append(f" after {counted(max(result.iterations, of_run), 'iteration')}")
    yield line.append(f"  {usage_line(result.usage)}", "dim")
    if result.overridden_result:
        yield Text(f"with overrides: {result.overridden_result}", "bold")
    unjudged = result.status == "grader_error" and result.evaluations
    if error := result.error or (result.evaluations[-1].explanation if unjudged else None):
        yield Text(printable(error), "red")
    if unjudged:
        yield Text(f"Next: correct that, then grade the draft again: gradeloop fork {shlex.quote(result.thread_id)}")
    if result.waiting_for:
        yield from question_lines(result.waiting_for, result.output)
        yield from rejection_lines(rejections_of(result.evaluations, result.waiting_for))
        yield from decision_commands(result.thread_id, result.waiting_for)


def question_lines(waiting: WaitingFor, text: str | None) -> Iterator[Text | Rule]:
    """Yield the draft about which a person is asked, what changed since they were last asked, and its verdicts.

    `text`: the draft; None where it is too long to be shown.
    """
    draft = waiting.draft
    if draft is None:
        return
    yield Rule("draft in question" if waiting.iteration is None else f"draft in question, iteration {waiting.iteration + 1}", style="dim")
    if text is None:
        yield Text(f"message {draft.index} of the thread, too long to be shown here", "dim")
    else:
        yield Text(printable(text).rstrip())
    if draft.changes is not None:
        yield Rule("changes since a person was last asked", style="dim")
        marked = Text()
        for piece in draft.changes:
            before, after, style = CHANGES[piece.kind]
            marked.append(f"{before}{printable(piece.text)}{after}", style)
        yield marked
    yield Rule(style="dim")
    width = id_width(row.id for row in draft.rows)
    for row in draft.rows:
        line = criterion_line(row, width)
        yield Text().append_text(line.head).append_text(line.body)


def rejection_lines(rejections: Iterable[Rejection]) -> Iterator[Text]:
    """Yield what people rejected of earlier drafts, a line each."""
    for rejection in rejections:
        line = Text(f"{one_line(rejection.criterion)}: ", "cyan")
        yield line.append(f"draft {rejection.iteration + 1} was rejected because: ", "yellow").append(one_line(rejection.gap))


def decision_commands(thread_id: str, waiting: WaitingFor) -> Iterator[Text]:
    """Yield the commands by which a person decides."""
    for criterion in waiting.criteria:
        yield Text(f"gradeloop decide {thread_id} {criterion.id} --pass", "bold").append(
            f"   or --fail; does this hold? {one_line(criterion.name)}", "default"
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


def rubric_lines(rubric: Rubric) -> Iterator[Line]:
    """Yield the rubric as it was read, a line per criterion."""
    named = f" {rubric.name}" if rubric.name else ""
    yield Line(Text(), Text(f"Rubric{named}: {counted(len(rubric.criteria), 'criterion')}", "bold"))
    width = id_width(criterion.id for criterion in rubric.criteria)
    for position, criterion in enumerate(rubric.criteria):
        yield from _context(rubric, position)
        text = Text(one_line(criterion.text)).append("".join(f"  ({text})" for text in _properties(rubric, criterion)), "dim")
        yield Line(Text(f"  {criterion.id:{width}}  ", "cyan"), text)
    yield from _context(rubric, len(rubric.criteria))


def _context(rubric: Rubric, position: int) -> Iterator[Line]:
    return (Line(Text("  "), Text(one_line(line.text), "italic")) for line in rubric.context if line.before == position)


def _properties(rubric: Rubric, criterion: Criterion) -> Iterator[str]:
    """Yield what is special about a criterion."""
    properties = {
        f"in {one_line(criterion.group or '')}": criterion.group is not None,
        f"check: {printable(criterion.check.tool if criterion.check else '')}": criterion.check is not None,
        "a person decides": criterion.human,
        "must not hold": criterion.negate,
        _scale(criterion): criterion.score is not None,
        f"by {one_line(criterion.grader.id if criterion.grader else '')}": criterion.grader is not None,
        f"{len(criterion.judges)} votes": len(criterion.judges) > 1,
        "quotes required" if criterion.require_quotes else "with quotes": criterion.quoted,
        f"weight {criterion.weight:g}": criterion.weight != 1,
        "optional": criterion.id in rubric.optional,
    }
    return (text for text, applies in properties.items() if applies)


def _scale(criterion: Criterion) -> str:
    scale = criterion.score
    if scale is None:
        return ""
    return f"scored {scale.min:g} to {scale.max:g}" + ("" if scale.threshold is None else f", passes from {scale.threshold:g}")


def gate_lines(rubric: Rubric) -> Iterator[Text]:
    """Yield what satisfies the rubric, and how many calls a grading pass takes."""
    if rubric.cleared:
        yield Text("The rubric is empty: nothing is graded", "dim")
        return
    needs = {
        "required": "every required criterion and group",
        "any": "one of the required criteria or groups",
    }
    met = [needs[rubric.gate]] if rubric.gate in needs else []
    met += [f"a score of {rubric.threshold:g}"] if rubric.threshold is not None else []
    yield Text(f"Satisfied by: {' and '.join(met)}", "dim")
    for group in rubric.groups:
        how = "passes by its required criteria" if group.threshold is None else f"passes from a mean of {group.threshold:g}"
        yield Text(f"  {one_line(group.group)}: {how}{'' if group.required else ', optional'}, weight {group.weight:g}", "dim")
    calls = sum(len(group.judges) for group in call_groups(rubric))
    parts = [counted(calls, "grader call"), *([counted(len(rubric.checks()), "check")] if rubric.checks() else ())]
    parts += [counted(len(rubric.asked_of_people), "human decision")] if rubric.asked_of_people else []
    yield Text(f"Grading pass: {', '.join(parts)}", "dim")


def prompt_lines(given: GivenPrompt) -> Iterable[Text]:
    """Yield the messages that a grader was sent."""
    yield Text(f"call group of {', '.join(given.criteria)}, one of {given.groups}; prompt version {given.prompt_version}", "dim")
    yield Text("system", "bold")
    yield Text(printable(given.system))
    for message in given.messages:
        yield Text(message.role, "bold")
        yield Text(printable(message.content))


def state_lines(thread_id: str, state: ThreadState, forks: Sequence[str] = ()) -> Iterator[Text | Rule]:
    """Yield the state of a thread."""
    phase = f", {state.phase}" if state.phase else ""
    yield Text(thread_id, "bold").append(f"  {state.status}{phase}", STYLES.get(state.status, "default"))
    if state.grading_run_id:
        yield Text(f"  grading run {state.grading_run_id}, iteration {(state.iteration or 0) + 1}")
    if state.rubric and state.rubric_sha256:
        yield Text(f"  rubric of {counted(len(state.rubric.criteria), 'criterion')}, sha256 {state.rubric_sha256[:12]}")
    if state.forked_from:
        yield Text(f"  forked from {state.forked_from.thread_id}, draft {state.forked_from.iteration + 1}")
    if forks:
        yield Text(f"  forks: {', '.join(forks)}")
    yield Text(f"  {usage_line(state.usage)}; {state.queued} queued", "dim")
    if state.call_wait:
        yield Text(f"  {state.call_wait}", "yellow")
    if state.reason == "budget" and state.budget:
        why = state.budget.refusal(state.usage, "resume with a larger one") or "stopped by its budget, which is larger now; resume it"
        yield Text(f"  {why}", "bold yellow")
    if state.error:
        yield Text(f"  {printable(state.error)}", "red")
    if state.status == "interrupted" and state.reason != "budget":
        step = resume_step(thread_id, state.error)
        yield Text(f"  Next: {step.words or 'resume it with:'} {step.command}")
    if state.waiting_for:
        yield from question_lines(state.waiting_for, state.waiting_for.draft.text if state.waiting_for.draft else None)
        yield from decision_commands(thread_id, state.waiting_for)


def thread_lines(threads: Sequence[ListedThread]) -> Iterator[Table | Text]:
    """Yield a table with a row per thread."""
    if not threads:
        yield Text("no threads")
        return
    yield table(
        [
            Column("thread", [thread.thread_id for thread in threads], wraps=True),
            Column("status", [Text(thread.status, STYLES.get(thread.status, "default")) for thread in threads]),
            Column("open", ["open" if thread.open else "" for thread in threads]),
            Column("started", [thread.started.astimezone().strftime("%Y-%m-%d %H:%M:%S") for thread in threads]),
            Column("rubric", [(thread.rubric_sha256 or "")[:12] for thread in threads]),
            *([Column("fork of", [thread.fork_of or "" for thread in threads], wraps=True)] if any(one.fork_of for one in threads) else ()),
        ]
    )


LINES_ABOVE = 10
"""Lines of the terminal that stay free for earlier output."""

LEAST_LINES = 3
CTRL_C = 3
"""Columns for the `^C` that a terminal writes at Ctrl-C; a line that wraps there is not erased."""

LEAST_ROOM = 20
"""The least room for a line, however narrow the terminal."""


class Screen:
    """An output that shows a run; what a kind of screen does not show, it passes over."""

    def show_thread(self, thread_id: str) -> None:
        """Show the thread's id."""

    def show_event(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """Show an event."""

    def show_wait(self, wait: CallWait | None) -> None:
        """Show what the run's call waits for, and how far its draft has come; None where that is nothing worth saying."""

    def show_result(self, result: RunResult) -> None:
        """Show the run's result."""

    def close(self) -> None:
        """Leave the terminal as it was."""


DRAFT_LINES = 4
"""The lines that are shown of a draft that is being written, its last ones."""

WAIT_SECONDS = 60.0
"""The pause after which a pipe says what is waited for, and says it again."""


class JsonScreen(Screen):
    """Prints a JSON object per line: the events, with evaluations and drafts in full, and the result last."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show_thread(self, thread_id: str) -> None:
        """See `Screen`."""
        self._line({"type": "thread", "thread_id": thread_id})

    def show_event(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        value = event.model_dump(mode="json")
        value |= {"message": message.model_dump(mode="json")} if message else {}
        value |= {"evaluation": evaluation.model_dump(mode="json")} if evaluation else {}
        self._line(value)

    def show_result(self, result: RunResult) -> None:
        """See `Screen`."""
        self._line({"type": "result", **result.model_dump(mode="json")})

    def _line(self, value: dict[str, Any]) -> None:
        ascii_only = (self._console.encoding or "").lower() not in {"utf-8", "utf8"}
        try:
            self._console.file.write(json_without_commands(json.dumps(value, ensure_ascii=ascii_only)) + "\n")
            self._console.file.flush()
        except BrokenPipeError:
            self._console.on_broken_pipe()


class PlainScreen(Screen):
    """Prints a plain line per event."""

    def __init__(self, console: Console, rubric: Rubric | None = None) -> None:
        self._console, self._rubric = console, rubric
        self._began: datetime | None = None
        self._spoke = time.monotonic()

    def show_thread(self, thread_id: str) -> None:
        """See `Screen`."""
        self._console.print(Text("Thread ", "dim").append(thread_id, "bold"), soft_wrap=True)

    def show_event(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        when, self._spoke = datetime.fromisoformat(event.time), time.monotonic()
        self._began = self._began or when
        line = event_line(event, message, evaluation)
        if line is not None:
            print_line(self._console, Line(Text(f"{(when - self._began).total_seconds():6.1f} s  ", "dim"), line))
        for row in row_lines(evaluation, self._rubric) if evaluation else ():
            print_line(self._console, Line(Text(" " * 10).append_text(row.head), row.body))

    def show_wait(self, wait: CallWait | None) -> None:
        """See `Screen`."""
        if wait is not None and time.monotonic() - self._spoke >= WAIT_SECONDS:
            self._spoke = time.monotonic()
            print_line(self._console, Line(Text(f"{self._seconds():6.1f} s  ", "dim"), Text(wait.text, "dim")))

    def _seconds(self) -> float:
        """Return for how many seconds the run has been shown."""
        return max((datetime.now(UTC) - (self._began or datetime.now(UTC))).total_seconds(), 0)

    def show_result(self, result: RunResult) -> None:
        """See `Screen`."""
        for part in summary(result, self._console.width):
            self._console.print(part, soft_wrap=isinstance(part, Text))


class LiveScreen(PlainScreen):
    """Prints the plain lines, and below them the criteria, which change colour while the run continues."""

    def __init__(self, console: Console, rubric: Rubric | None) -> None:
        super().__init__(console, rubric)
        self._criteria = rubric.criteria if rubric else ()
        self._phase = Text("drafting")
        self._wait: list[str] = []
        self._rows: dict[str, CriterionRow] = {}
        self._tokens = 0
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def show_thread(self, thread_id: str) -> None:
        """See `Screen`."""
        super().show_thread(thread_id)
        self._live.start()

    def show_event(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        super().show_event(event, message, evaluation)
        self._phase, self._wait = phase_line(event) or self._phase, []
        if evaluation is not None:
            self._rows = {row.id: row for row in evaluation.criteria}

    def show_wait(self, wait: CallWait | None) -> None:
        """See `Screen`."""
        lines = wait.draft[-DRAFT_LINES * self._console.width :].splitlines() if wait else []
        parts = [part.plain for line in lines for part in Text(one_line(line)).wrap(self._console, self._console.width - CTRL_C - 2)]
        self._wait = [wait.text, *parts[-DRAFT_LINES:]] if wait else []

    def show_tokens(self, usage: Usage) -> None:
        """Show the tokens that the thread has taken so far."""
        self._tokens = usage.tokens or 0

    def show_result(self, result: RunResult) -> None:
        """See `Screen`."""
        self.close()
        super().show_result(result)

    def close(self) -> None:
        """See `Screen`."""
        self._live.stop()

    def _render(self) -> RenderableType:
        tokens = f", {self._tokens:,} tokens" if self._tokens else ""
        self._spinner.update(text=self._phase.copy().append(f"  {self._seconds():.0f} s{tokens}", "dim"))
        waits = [Text(f"  {line}", "dim", no_wrap=True, overflow="ellipsis") for line in self._wait]
        return Group(self._spinner, *waits, *self._criterion_lines())

    def _criterion_lines(self) -> Iterator[Text]:
        """Yield as many criteria as fit the terminal, in the rubric's order; those that pass are left out first."""
        room = max(self._console.height - LINES_ABOVE - len(self._wait[1:]), LEAST_LINES)
        by_urgency = sorted(self._criteria, key=self._passes)
        shown = {criterion.id for criterion in (by_urgency[:room] if len(by_urgency) > room else by_urgency)}
        width = id_width(criterion.id for criterion in self._criteria)
        yield from (self._criterion_line(criterion, width) for criterion in self._criteria if criterion.id in shown)
        hidden = [criterion for criterion in self._criteria if criterion.id not in shown]
        if hidden:
            passing = sum(self._passes(criterion) for criterion in hidden)
            passed = f", {'all' if passing == len(hidden) else passing} of them pass" if passing else ""
            yield Text(f" … {len(hidden)} more{passed}", "dim")

    def _passes(self, criterion: Criterion) -> bool:
        row = self._rows.get(criterion.id)
        return row is not None and row.passed

    def _criterion_line(self, criterion: Criterion, width: int) -> Text:
        row = self._rows.get(criterion.id)
        sign, style = mark(row)
        head = Text(f" {sign} ", style).append(f"{criterion.id:{width}}  ", "dim")
        room = max(self._console.width - head.cell_len - CTRL_C, LEAST_ROOM)
        body, gap = Text(one_line(criterion.text), style), one_line(row.gap or "") if row else ""
        if gap:
            body.truncate(max(room // 2, room - len(gap) - 2), overflow="ellipsis")
            body.append(f": {gap}", style)
        body.truncate(room, overflow="ellipsis")
        return head.append_text(body)


def print_line(console: Console, line: Line) -> None:
    """Print a line; on a terminal it wraps between words and continues below its body, in a pipe it stays one line."""
    room = max(console.width - line.head.cell_len, LEAST_ROOM)
    parts = line.body.wrap(console, room) if console.is_terminal else [line.body]
    body = Text("\n" + " " * line.head.cell_len).join(parts)
    console.print(Text().append_text(line.head).append_text(body), soft_wrap=True)
