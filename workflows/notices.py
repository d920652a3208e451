"""Notices: asked for in the background, so that no webhook holds up the work."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityConfig

from gradeloop.contract.evaluation import WaitingFor
from gradeloop.contract.notice import (
    CONTENT_CHARACTERS,
    NOTIFY,
    TITLE_CHARACTERS,
    AskedOfPerson,
    Notice,
    NoticeBatch,
    NoticeCall,
    NoticeContent,
    NoticeKind,
    wanted_by,
)
from gradeloop.text import counted, one_line, shortened
from workflows.activity_calls import ActivityCalls, Interrupted
from workflows.thread_state import Thread, waiting_for

WORKFLOW = "Notices"
"""The workflow that delivers the notices of what ends meanwhile."""

LAST_SECONDS = 10.0
"""The seconds for which a thread that goes on in a new run of its workflow waits for its notices."""

NOTICE_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(days=1),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=10)),
)


class ThreadNotices:
    """The notices of one thread, in one run of its workflow."""

    def __init__(self, thread: Thread, calls: ActivityCalls) -> None:
        self._thread = thread
        self._calls = calls
        self._under_way: set[asyncio.Task[None]] = set()

    def waiting(self) -> None:
        """Say that the thread waits for a person."""
        asked = waiting_for(self._thread)
        if asked is not None:
            numbers = {"question": len(asked.criteria), "tool call": len(asked.calls)}
            wanted = ", ".join(counted(number, noun) for noun, number in numbers.items() if number)
            self._begin("thread.waiting", f"WAITING for a person: {wanted}", asked)

    def over_budget(self, why: str) -> None:
        """Say that the thread's budget is used up."""
        self._begin("thread.over_budget", f"INTERRUPTED {one_line(why)}")

    def withdraw(self) -> None:
        """Send no notice any more that has not arrived: what it says is over."""
        # A notice may be tried for a day. Once the person has answered, or the turn goes on, it asks for
        # something that nobody waits for any more.
        for task in self._under_way:
            task.cancel()

    async def finish(self) -> None:
        """Wait a moment for the notices on their way."""
        if self._under_way:
            await workflow.wait(list(self._under_way), timeout=LAST_SECONDS)

    def _begin(self, kind: NoticeKind, answer: str, asked: WaitingFor | None = None) -> None:
        thread, offered = self._thread, self._calls.capabilities
        if offered is not None and not wanted_by(offered.webhooks, kind):
            return
        notice = Notice(
            id=f"{thread.thread_id}/{thread.seq}",
            type=kind,
            time=workflow.now().isoformat(timespec="seconds"),
            title=shortened(one_line(thread.log.slice(0, 1)[0].content), TITLE_CHARACTERS) if len(thread.log) else "",
            answer=answer,
            thread_id=thread.thread_id,
            grading_run_id=thread.run.grading_run_id if thread.run else None,
            questions=_questions(asked) if asked else (),
            content=_content(asked) if asked else None,
        )
        task = asyncio.create_task(self._send(notice))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _send(self, notice: Notice) -> None:
        try:
            offered = await self._calls.find_capabilities()
        except Interrupted:  # the thread is stopping
            return
        names = wanted_by(offered.webhooks, notice.type) if offered else []
        await asyncio.gather(*(deliver(NoticeCall(webhook=name, notice=notice)) for name in names))


async def deliver(call: NoticeCall) -> None:
    """Have a worker post a notice; where the webhook never takes it, the history says so and nothing else happens."""
    try:
        await workflow.execute_activity(  # type: ignore[call-overload]  # no overload takes a config
            NOTIFY, call, summary=f"notify {call.webhook}", **NOTICE_CALL
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            return
        workflow.logger.warning("a notice to the webhook %r was not delivered: %s", call.webhook, error.cause or error)


def _questions(asked: WaitingFor) -> tuple[AskedOfPerson, ...]:
    criteria = [AskedOfPerson(kind="criterion", id=criterion.id) for criterion in asked.criteria]
    return (*criteria, *(AskedOfPerson(kind="call", id=call.call) for call in asked.calls))


def _content(asked: WaitingFor) -> NoticeContent:
    draft = asked.draft.text if asked.draft else None
    questions = (*(criterion.name for criterion in asked.criteria), *(f"the tool {call.tool}" for call in asked.calls))
    return NoticeContent(questions=questions, draft=None if draft is None else shortened(draft, CONTENT_CHARACTERS))


@workflow.defn(name=WORKFLOW)
class NoticesWorkflow:
    """The delivery of notices, which outlasts whatever they are of."""

    @workflow.run
    async def run(self, request: NoticeBatch) -> None:
        """Deliver each notice; one that is never taken does not fail the others."""
        await asyncio.gather(*map(deliver, request.calls))
