"""A generator that is not ours: an activity or a workflow on somebody else's worker, in any language."""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType

from workflows.calls import Calls, Interrupted, told
from workflows.options import FIND_WORKER, FOREIGN_CALL, FOREIGN_SECONDS
from workflows.raw import Unreadable, answered
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from typing import Annotated, Any

    from pydantic import TypeAdapter, ValidationError

    from gradeloop.errors import explain
    from gradeloop.strict import FirstMistakes
    from gradeloop.transcript import FEEDBACK_SOURCE, MAX_MESSAGES, MESSAGE_BYTES, Message

_MESSAGES = TypeAdapter(Annotated[list[Message], FirstMistakes(MAX_MESSAGES)])


class ForeignFailed(Exception):
    """The generator gave no draft; the message says which one and why."""


async def foreign_draft(thread: Thread, calls: Calls) -> list[Message]:
    """Ask the generator for its next draft and return the messages that it adds, the draft last.

    Raises:
        ForeignFailed: It failed, nobody serves it, or it returned something else.
        Interrupted: The thread is stopping.
    """
    generator = thread.generator
    name = generator.activity or generator.workflow or ""
    iteration = thread.run.iteration if thread.run else 0
    last = thread.log[len(thread.log) - 1]
    asked = {
        "messages": [message.model_dump(mode="json") for message in thread.log.slice(0)],
        "iteration": iteration,
        "feedback": last.content if last.source == FEEDBACK_SOURCE else None,
    }
    try:
        if generator.activity is not None:
            options = FOREIGN_CALL | {"task_queue": generator.task_queue}
            raw = await calls.make(generator.activity, asked, options, summary=f"generate #{iteration + 1}", result=RawValue)
        else:
            raw = await _child(name, asked, generator.task_queue or "", f"{thread.thread_id}/{thread.seq}", calls)
        returned = answered(raw)
    except Unreadable as error:
        raise ForeignFailed(f"the generator {name!r} on {generator.task_queue!r}: {error}") from None
    except (ActivityError, ChildWorkflowError) as error:
        if is_cancelled_exception(error):
            raise
        raise ForeignFailed(f"the generator {name!r} on {generator.task_queue!r}: {told(error)}") from None
    return _drafted(returned, name)


async def _child(name: str, asked: dict[str, Any], task_queue: str, workflow_id: str, calls: Calls) -> RawValue:
    await calls.make("find_worker", task_queue, FIND_WORKER, summary=f"find {task_queue}", result=type(None))
    if calls.stopping:
        raise Interrupted
    handle = await workflow.start_child_workflow(
        name,
        asked,
        id=workflow_id,
        task_queue=task_queue,
        result_type=RawValue,
        execution_timeout=FOREIGN_SECONDS,
        cancellation_type=ChildWorkflowCancellationType.TRY_CANCEL,
    )
    returned: RawValue = await calls.attend(handle)
    return returned


def _drafted(returned: object, name: str) -> list[Message]:
    raw = [{"role": "assistant", "content": returned}] if isinstance(returned, str) else returned
    if isinstance(raw, dict) and set(raw) == {"messages"}:
        raw = raw["messages"]
    try:
        messages = _MESSAGES.validate_python(raw)
    except ValidationError as error:
        raise ForeignFailed(f"the generator {name!r} returned no text and no {{messages}}: {explain(error)}") from None
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise ForeignFailed(f"the generator {name!r} returned no draft; its last message must be an answer of role 'assistant'")
    if any(message.role == "user" for message in messages):
        raise ForeignFailed(f"the generator {name!r} returned a message of role 'user'; it may add 'assistant' and 'tool' messages")
    if (large := max(message.size() for message in messages)) > MESSAGE_BYTES:
        raise ForeignFailed(f"the generator {name!r} returned a message of {large} bytes, {MESSAGE_BYTES} at most")
    return messages
