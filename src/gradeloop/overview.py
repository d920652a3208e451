"""Threads at a glance: where one stands, and a list of them."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from gradeloop.contracts import ThreadState
from gradeloop.listing import Listed
from gradeloop.printable import cost, one_line
from gradeloop.story import STYLES, asked


def state_lines(thread_id: str, state: ThreadState) -> Iterator[Text]:
    """Yield where a thread stands, a line each."""
    phase = f", {state.phase}" if state.phase else ""
    yield Text(thread_id, "bold").append(f"  {state.status}{phase}", STYLES.get(state.status, "default"))
    if state.grading_run_id:
        yield Text(f"  grading run {state.grading_run_id}, iteration {(state.iteration or 0) + 1}")
    if state.rubric and state.rubric_sha256:
        yield Text(f"  rubric of {len(state.rubric.criteria)} criteria, sha256 {state.rubric_sha256[:12]}")
    usage = state.usage
    tokens = f"{usage.input:,} tokens in, {usage.output:,} out"
    yield Text(f"  {usage.calls} model calls, {tokens}{cost(usage.cost_usd)}; {state.queued} queued", "dim")
    if state.reason == "budget" and state.budget:
        yield Text(f"  stopped by its budget: {state.budget.overrun(usage)}; resume with a larger one", "bold yellow")
    if state.waiting_for:
        yield from asked(thread_id, state.waiting_for)


def listing(threads: Sequence[Listed]) -> Iterator[Table | Text]:
    """Yield a row a thread."""
    if not threads:
        yield Text("no threads")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("thread", "status", "", "started", "rubric"):
        table.add_column(heading, no_wrap=heading != "thread")
    for each in threads:
        started = each.started.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        status = Text(each.status, STYLES.get(each.status, "default"))
        table.add_row(one_line(each.thread_id), status, "open" if each.open else "", started, (each.rubric_sha256 or "")[:12])
    yield table
