"""A thread small enough to be carried to another run of the workflow."""

from temporalio import workflow

from workflows.thread_state import Conversation, Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.transcript import Log


def portable(thread: Thread) -> Thread:
    """Return the thread, without the grader's conversation in flight where both do not fit: that pass is then judged from its start."""
    grading = thread.run.grading if thread.run else None
    if thread.run is None or grading is None or thread.bytes() + grading.conversation.log.bytes <= thread.limit:
        return thread
    begun_anew = grading.model_copy(update={"conversation": Conversation(log=Log())})
    return thread.model_copy(update={"run": thread.run.model_copy(update={"grading": begun_anew})})
