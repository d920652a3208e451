"""The state of a thread, and a list of threads, for a terminal."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from gradeloop.contracts import ThreadState
from gradeloop.listing import Listed
from gradeloop.story import STYLES, asked
from gradeloop.terminal_table import Column, table, usage_line


def state_lines(thread_id: str, state: ThreadState) -> Iterator[Text]:
    """Yield the state of a thread."""
    phase = f", {state.phase}" if state.phase else ""
    yield Text(thread_id, "bold").append(f"  {state.status}{phase}", STYLES.get(state.status, "default"))
    if state.grading_run_id:
        yield Text(f"  grading run {state.grading_run_id}, iteration {(state.iteration or 0) + 1}")
    if state.rubric and state.rubric_sha256:
        yield Text(f"  rubric of {len(state.rubric.criteria)} criteria, sha256 {state.rubric_sha256[:12]}")
    yield Text(f"  {usage_line(state.usage)}; {state.queued} queued", "dim")
    if state.reason == "budget" and state.budget:
        yield Text(f"  stopped by its budget: {state.budget.overrun(state.usage)}; resume with a larger one", "bold yellow")
    if state.waiting_for:
        yield from asked(thread_id, state.waiting_for)


def listing(threads: Sequence[Listed]) -> Iterator[Table | Text]:
    """Yield a table with a row per thread."""
    if not threads:
        yield Text("no threads")
        return
    yield table(
        [
            Column("thread", [thread.thread_id for thread in threads], wraps=True),
            Column("status", [Text(thread.status, STYLES.get(thread.status, "default")) for thread in threads]),
            Column("", ["open" if thread.open else "" for thread in threads]),
            Column("started", [thread.started.astimezone().strftime("%Y-%m-%d %H:%M:%S") for thread in threads]),
            Column("rubric", [(thread.rubric_sha256 or "")[:12] for thread in threads]),
        ]
    )
