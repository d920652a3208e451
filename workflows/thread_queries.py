"""What can be asked of a thread, at any time, also when it is closed."""

from pydantic import JsonValue
from temporalio import workflow

from workflows.audit import given_prompt
from workflows.calls import Calls
from workflows.portable import portable
from workflows.run_result import result_of, waiting_for
from workflows.thread_logs import page_of_log
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from activities.thread_view import Brief
    from gradeloop.contracts import GivenPrompt, GradingThread, RunResult, ThreadState
    from gradeloop.evaluation import Evaluation
    from gradeloop.event import Event
    from gradeloop.page import Page, page_of
    from gradeloop.transcript import Message


class ThreadQueries(GradingThread):
    """Answers from the thread's state alone."""

    _calls: Calls

    def _held(self) -> Thread:
        raise NotImplementedError

    @workflow.query
    def state(self) -> ThreadState:
        """See `gradeloop.contracts.GradingThread.state`."""
        thread = self._held()
        run, rubric = thread.run, thread.rubric_in_force
        working = thread.status == "running"
        return ThreadState(
            status=thread.status,
            grading_run_id=run.grading_run_id if run else None,
            phase=None if not working else "grading" if run and run.grading else "generating",
            iteration=run.iteration if run else None,
            rubric=rubric,
            rubric_sha256=rubric.sha256() if rubric else None,
            usage=thread.usage,
            budget=thread.budget,
            reason=thread.reason,
            queued=len(thread.queue),
            waiting_for=waiting_for(thread),
        )

    @workflow.query
    def result(self, key: str | None = None) -> RunResult | None:
        """See `gradeloop.contracts.GradingThread.result`."""
        thread = self._held()
        ended = [each for each in thread.outcomes if key in {None, each.key}]
        return result_of(thread, ended[-1]) if ended else None

    @workflow.query
    def messages(self, after: int = 0, limit: int = 1000) -> Page[Message]:
        """See `gradeloop.contracts.GradingThread.messages`."""
        return Page[Message](**page_of(self._held().log.slice(0), after, limit))

    @workflow.query
    def evaluations(self, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """See `gradeloop.contracts.GradingThread.evaluations`."""
        return Page[Evaluation](**page_of(self._held().evaluations, after, limit))

    @workflow.query
    def events(self, after: int = 0, limit: int = 1000) -> Page[Event]:
        """See `gradeloop.contracts.GradingThread.events`."""
        kept = self._held().events
        return Page[Event](**page_of(kept, after, limit, first=kept[0].seq - 1 if kept else 0))

    @workflow.query
    def prompt(self, evaluation: int, group: int = 0) -> GivenPrompt | None:
        """See `gradeloop.contracts.GradingThread.prompt`."""
        return given_prompt(self._held(), evaluation, group)

    @workflow.query
    def checkpoint(self) -> dict[str, JsonValue]:
        """See `gradeloop.contracts.GradingThread.checkpoint`."""
        return {"temporal_run_id": workflow.info().run_id, "thread": portable(self._held()).model_dump(mode="json")}

    @workflow.query
    def stopped(self) -> dict[str, int]:
        """Return the `seq` of the newest event by which a turn stopped; clients put it into their update ids."""
        kept = self._held().events
        dropped = kept[0].seq - 1 if kept else 0
        stops = (event.seq for event in reversed(kept) if event.type == "interrupted" or event.status == "interrupted")
        return {"seq": next(stops, dropped)}

    @workflow.query
    def brief(self) -> Brief | None:
        """Return what every call of the thread shares, for a worker that lacks it."""
        return self._calls.brief().brief

    @workflow.query
    def log(self, key: str, after: int, limit: int) -> Page[Message]:
        """Return messages of the thread or of a grader's conversation, for a worker that lacks them."""
        return page_of_log(self._held(), key, after, limit)
