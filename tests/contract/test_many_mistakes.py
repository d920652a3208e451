"""Large malformed requests: lists are counted before their items are validated, and validation stops at 20 mistakes."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.batches.contract import UPLOAD_CASES, parse_upload
from gradeloop.contract.base import Bounded, BoundedDict, Items
from gradeloop.contract.messages import MAX_MESSAGES
from gradeloop.contract.thread import InvokeRequest, parse_request, parse_update
from gradeloop.contract.transcript import TRANSCRIPTS
from gradeloop.errors import MISTAKES, InvalidRequest, explain
from gradeloop.judges.contract import parse_judging
from tests.rig.threads import draft, grade, refusal, request, serving, until
from workflows.thread_state import Thread

GOOD, BAD = {"role": "user", "content": "hello"}, {"role": "user", "contnt": "hello"}
MANY = 50_000
GENERATOR = {"model": "scripted:any"}


class Counter:
    """An item's validator that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, value: object) -> object:
        """Refuse what is no positive number."""
        self.asked += 1
        if not isinstance(value, int) or value < 0:
            raise ValueError("it is no positive number")
        return value


def mistakes(error: ValidationError) -> list[str]:
    """Return the mistakes that the message lists."""
    return explain(error).split("; ")


def test_a_list_is_counted_before_its_items_are_validated() -> None:
    counter = Counter()
    few = TypeAdapter(Annotated[tuple[Annotated[int, BeforeValidator(counter)], ...], Bounded(10)])

    with pytest.raises(ValidationError, match="it has 11 items, 10 at most; send fewer"):
        few.validate_python([1] * 11)
    assert counter.asked == 0


@pytest.mark.parametrize("value", [[-1] * MANY, [1] * 1000 + [-1] * MANY], ids=["all", "the later ones"])
def test_validation_stops_once_20_mistakes_are_found(value: list[int]) -> None:
    counter = Counter()

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Items[Annotated[int, BeforeValidator(counter)]]).validate_python(value)

    assert len(mistakes(caught.value)) == MISTAKES + 1
    assert mistakes(caught.value)[-1] == "and more"
    assert counter.asked <= value.count(1) + 2 * MISTAKES


def test_a_mistake_is_named_at_its_place_in_the_whole_list() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Items[Annotated[int, BeforeValidator(Counter())]]).validate_python([1] * 33 + [-1] + [1] * 33)

    assert mistakes(caught.value) == ["[33]: it is no positive number"]


def test_a_mapping_is_read_as_a_list_is() -> None:
    table = TypeAdapter(BoundedDict[Annotated[int, BeforeValidator(Counter())]])

    assert table.validate_python({str(at): at for at in range(100)}) == {str(at): at for at in range(100)}
    with pytest.raises(ValidationError) as caught:
        table.validate_python({str(at): -at for at in range(MANY)})
    assert mistakes(caught.value)[0] == "1: it is no positive number"
    assert len(mistakes(caught.value)) == MISTAKES + 1


def test_a_long_list_without_mistakes_is_read_whole() -> None:
    assert TypeAdapter(Items[int]).validate_python(list(range(1003))) == tuple(range(1003))
    assert TypeAdapter(Items[int]).validate_json("[1, 2, 3]") == (1, 2, 3)


def test_no_raw_start_lists_more_than_20_mistakes(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Callable[[object], object], dict[str, Any], str]] = [
        (parse_request, {"generator": GENERATOR, "messages": [BAD] * MANY}, f"messages: it has {MANY} items, {MAX_MESSAGES} at most"),
        (parse_request, {"generator": GENERATOR, "messages": [BAD] * MAX_MESSAGES}, "and more"),
        (parse_request, {"generator": GENERATOR, "messages": [GOOD], "rubric": {"criteria": [{}] * 16_000}}, "16000 criteria, 100 at most"),
        (parse_request, {"generator": GENERATOR | {"tools": [{}] * MANY}, "messages": [GOOD]}, "and more"),
        (parse_request, {"generator": GENERATOR, "messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}, "and more"),
        (
            lambda raw: parse_update(InvokeRequest, raw),
            {"messages": [BAD] * MANY},
            f"messages: it has {MANY} items, {MAX_MESSAGES} at most",
        ),
        (parse_judging, {"judge": "- short", "run": {"id": "a", "transcripts": [{"messages": [BAD] * MANY}]}}, "and more"),
        (
            parse_judging,
            {"judge": "- short", "run": {"id": "a", "transcripts": [{}] * MANY}},
            f"it has {MANY} items, {TRANSCRIPTS} at most",
        ),
        (parse_upload, {"batch_id": "b", "first": 0, "cases": [{}] * MANY}, f"cases: it has {MANY} items, {UPLOAD_CASES} at most"),
        (parse_upload, {"batch_id": "b", "first": 0, "cases": [{"messages": [{}] * 200}] * UPLOAD_CASES}, "and more"),
    ]
    for read, raw, says in rows:
        with subtests.test(read=read):
            with pytest.raises(InvalidRequest) as caught:
                read(raw)

            assert says in str(caught.value)
            assert len(str(caught.value).split("; ")) <= MISTAKES + 1


@pytest.mark.parametrize("key", ["log", "evaluations", "events", "queue", "outcomes", "rubrics", "verdicts"])
def test_a_checkpoint_lists_no_more_either(key: str) -> None:
    wrong = {str(at): {"a": 1} for at in range(MANY)} if key in {"rubrics", "verdicts"} else [{"a": 1}] * MANY

    with pytest.raises(ValidationError) as caught:
        Thread.model_validate({"thread_id": "t", "generator": GENERATOR, "max_iterations": 3, "log": []} | {key: wrong})

    assert caught.value.error_count() < 500
    assert mistakes(caught.value)[-1] == "and more"


async def has_failed_tasks(thread: Any) -> bool:
    """Tell whether a workflow task of the thread failed or timed out."""
    failed = {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}
    return any(event.event_type in failed for event in (await thread.fetch_history()).events)


@pytest.mark.parametrize("count", [MANY, MAX_MESSAGES])
async def test_a_start_with_50000_malformed_messages_is_refused_and_fails_no_workflow_task(client: Client, count: int) -> None:
    async with serving(client) as served:
        thread = await served.start(request() | {"messages": [BAD] * count})
        why = await refusal(thread)

        assert why.startswith("messages")
        assert not await has_failed_tasks(thread)


@pytest.mark.slow
async def test_an_update_with_50000_malformed_messages_is_refused_and_the_thread_goes_on(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request("- three lines") | {"idle_timeout": 60})
        await until(thread, "idle")
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await thread.execute_update("invoke", {"messages": [BAD] * MANY})
        await thread.signal("supply_rubric", {"criteria": [{}] * MANY})
        state = await thread.query("state")
        await thread.signal("close")
        await thread.result()

        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.type == "InvalidRequest"
        assert state["status"] == "idle"
        assert not await has_failed_tasks(thread)
