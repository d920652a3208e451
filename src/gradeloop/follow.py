"""Follow a thread to the end of its turn, onto a screen."""

from gradeloop.client import GradingClient
from gradeloop.contracts import RunResult
from gradeloop.evaluation import Evaluation
from gradeloop.event import Event
from gradeloop.screen import LiveScreen, Screen
from gradeloop.transcript import Message

ENDS = {"interrupted", "waiting", "run_ended"}
"""Events after which a turn may be over."""

PAID = {"message", "tool_called", "rubric_evaluation_end"}
"""Events after which more tokens are spent than before."""


async def follow(client: GradingClient, thread_id: str, screen: Screen, *, after: int = 0) -> RunResult | None:
    """Show the thread's events; return its result, or None where it was interrupted and waits.

    Raises:
        GradeloopError: The thread was refused, cancelled or terminated.
    """
    async for event in client.watch(thread_id, after=after):
        screen.happened(event, *await _details(client, thread_id, event))
        if isinstance(screen, LiveScreen) and event.type in PAID:
            screen.spent((await client.state(thread_id)).usage)
        if event.type in ENDS and _stands((await client.state(thread_id)).status, event.type):
            return None if event.type == "interrupted" else await client.last_result(thread_id)
    return await client.result(thread_id)


def _stands(status: str, event: str) -> bool:
    """True where what the event tells of is still so: it may be long past, and the thread have gone on."""
    return status != "running" if event == "run_ended" else status == event


async def _details(client: GradingClient, thread_id: str, event: Event) -> tuple[Message | None, Evaluation | None]:
    """Fetch what the event refers to."""
    if event.index is None:
        return None, None
    if event.type == "message":
        return next(iter((await client.messages(thread_id, after=event.index, limit=1)).items), None), None
    if event.type == "rubric_evaluation_end":
        return None, next(iter((await client.evaluations(thread_id, after=event.index, limit=1)).items), None)
    return None, None
