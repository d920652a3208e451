"""The logs of a thread, a page at a time, for a worker that lacks them."""

from temporalio import workflow

from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.page import Page, page_of
    from gradeloop.transcript import Log, Message

MESSAGES = "messages"
"""The key of a thread's own messages, beside those of its conversations with graders."""


def page_of_log(thread: Thread, key: str, after: int, limit: int) -> Page[Message]:
    """Return messages of the thread, or of the conversation with a grader whose key it is."""
    grading = thread.run.grading if thread.run else None
    held = grading.conversations.get("/".join(key.split("/")[-2:])) if grading else None
    log = thread.log if key == MESSAGES else held.log if held else Log()
    return Page[Message](**page_of(log.slice(0), after, limit))
