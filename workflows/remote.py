"""Remote generators and graders, which run on a worker that is not ours."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ChildWorkflowError
from temporalio.workflow import ChildWorkflowCancellationType

from activities.tool_call import ToolRequest
from gradeloop.contract.base import Bounded
from gradeloop.contract.evaluation import Verdict
from gradeloop.contract.messages import FEEDBACK_SOURCE, MAX_MESSAGES, MESSAGE_BYTES, Message
from gradeloop.contract.model_spec import RemoteGrader
from gradeloop.errors import explain
from gradeloop.grading.scoring import CallGroup
from gradeloop.grading.verdicts import parse_remote_verdict
from workflows.activity_calls import FIND_WORKER, REMOTE_CALL, REMOTE_SECONDS, ActivityCalls, GraderFailed, Interrupted, describe_error
from workflows.raw_arguments import UnreadableResult, decode_result
from workflows.stop_rule import Arrived, CallEnd, Failed, NotDone
from workflows.thread_state import Thread
from workflows.tool_calls import ToolCalls

_MESSAGES = TypeAdapter(Annotated[list[Message], Bounded(MAX_MESSAGES)])


class RemoteGeneratorFailed(Exception):
    """The generator gave no draft; the message says which one and why."""


async def remote_draft(thread: Thread, calls: ActivityCalls) -> list[Message]:
    """Ask the generator for its next draft and return the messages that it adds, the draft last.

    Raises:
        RemoteGeneratorFailed: It failed, no worker serves it, or it returned something else.
        Interrupted: The thread is stopping.
    """
    generator = thread.generator
    name = generator.activity or generator.workflow or ""
    iteration = thread.run.iteration if thread.run else 0
    last = thread.log[len(thread.log) - 1]
    argument = {
        "messages": [message.model_dump(mode="json") for message in thread.log.slice(0)],
        "iteration": iteration,
        "feedback": last.content if last.source == FEEDBACK_SOURCE else None,
    }
    try:
        if generator.activity is not None:
            options = REMOTE_CALL | {"task_queue": generator.task_queue}
            if generator.heartbeat_timeout is not None:
                options |= {"heartbeat_timeout": timedelta(seconds=generator.heartbeat_timeout)}
            raw = await calls.make(generator.activity, argument, options, summary=f"generate #{iteration + 1}", result=RawValue)
        else:
            raw = await _run_child(thread, name, argument, calls)
        value = decode_result(raw)
    except UnreadableResult as error:
        raise RemoteGeneratorFailed(f"the generator {name!r} on {generator.task_queue!r}: {error}") from None
    except (ActivityError, ChildWorkflowError) as error:
        raise RemoteGeneratorFailed(f"the generator {name!r} on {generator.task_queue!r}: {describe_error(error)}") from None
    return _parse_draft(value, name)


async def _run_child(thread: Thread, name: str, argument: dict[str, Any], calls: ActivityCalls) -> RawValue:
    task_queue, workflow_id = thread.generator.task_queue or "", f"{thread.thread_id}/{thread.seq}"
    # A child workflow cannot say how long it may wait for its first worker, and on a queue without one it
    # would hold up the turn for two hours. So the turn looks for a worker first, and fails within a minute if
    # there is none.
    await calls.make("find_worker", task_queue, FIND_WORKER, summary=f"find {task_queue}", result=type(None))
    if thread.stopping is not None:
        raise Interrupted
    handle = await workflow.start_child_workflow(
        name,
        argument,
        id=workflow_id,
        task_queue=task_queue,
        result_type=RawValue,
        execution_timeout=REMOTE_SECONDS,
        cancellation_type=ChildWorkflowCancellationType.TRY_CANCEL,
    )
    end: CallEnd[RawValue] = await calls.classify_end(handle)
    match end:
        case Arrived(returned):
            return returned
        case NotDone():
            raise Interrupted
        case Failed(error):
            raise error


def _parse_draft(value: object, name: str) -> list[Message]:
    raw = [{"role": "assistant", "content": value}] if isinstance(value, str) else value
    if isinstance(raw, dict) and set(raw) == {"messages"}:
        raw = raw["messages"]
    try:
        messages = _MESSAGES.validate_python(raw)
    except ValidationError as error:
        raise RemoteGeneratorFailed(f"the generator {name!r} returned no text and no {{messages}}: {explain(error)}") from None
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise RemoteGeneratorFailed(f"the generator {name!r} returned no draft; its last message must be an answer of role 'assistant'")
    if any(message.role == "user" for message in messages):
        raise RemoteGeneratorFailed(f"the generator {name!r} returned a message of role 'user'; it may add 'assistant' and 'tool' messages")
    if (large := max(message.size() for message in messages)) > MESSAGE_BYTES:
        raise RemoteGeneratorFailed(f"the generator {name!r} returned a message of {large} bytes, {MESSAGE_BYTES} at most")
    return messages


async def remote_verdict(
    grader: RemoteGrader, group: CallGroup, question: dict[str, Any], step: str, calls: ActivityCalls, tools: ToolCalls
) -> Verdict:
    """Return the verdict of a remote grader on a call group.

    Raises:
        GraderFailed: It failed, no worker serves it, or it returned something else.
        Interrupted: The thread is stopping.
    """
    number = question["iteration"] + 1
    try:
        if grader.activity:
            options = REMOTE_CALL | {"task_queue": grader.task_queue}
            raw = await calls.make(grader.activity, question, options, summary=f"grade #{number} {grader.activity}", result=RawValue)
            value = decode_result(raw)
        else:
            request = ToolRequest(call="", arguments=question, draft=question["draft"], grader=True, operation_id=tools.operation(step))
            evidence = await tools.call_own(grader.function or "", request, summary=f"grade #{number} {grader.function}")
            value = evidence.value
    except UnreadableResult as error:
        raise GraderFailed(f"malformed_verdict: the grader {grader.id!r}: {error}") from None
    except ActivityError as error:
        raise GraderFailed(f"the grader {grader.id!r}: {describe_error(error)}") from None
    verdict = parse_remote_verdict(value, group)
    if not isinstance(verdict, Verdict):
        raise GraderFailed(f"malformed_verdict: the grader {grader.id!r}: {'; '.join(verdict.problems)}")
    return verdict
