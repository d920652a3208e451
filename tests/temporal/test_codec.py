"""Encrypted payloads: nothing of a run is plain on the server, keys rotate, and a key that is missing is named in a sentence."""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowFailureError,
)
from temporalio.common import RawValue
from temporalio.converter import WorkflowSerializationContext

from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest, PayloadUnreadable
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.temporal.codec import EncryptionCodec, KeyRing, load_ring, read_keys
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from tests.rig.tables import over
from tests.rig.threads import a_thread, answering, ended, replay, request, serving, start

SECRET = "osprey-4711"

KEY = base64.b64encode(bytes(range(32))).decode()


def key_line(key_id: str) -> str:
    return f"{key_id} {base64.b64encode(os.urandom(32)).decode()}\n"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of keys that the environment names, with one key."""
    file = tmp_path / "keys"
    file.write_text("# the keys of the tests\n\n" + key_line("k1"))
    monkeypatch.setenv("GRADELOOP_ENCRYPTION_KEYS", str(file))
    return file


@asynccontextmanager
async def connected(server: ServerInfo) -> AsyncIterator[Client]:
    yield await connect(Connection(server.address, "default", embedded=False))


def codec() -> EncryptionCodec:
    ring = load_ring()
    assert ring is not None
    return EncryptionCodec(ring)


async def raw_of(client: Client, thread: str) -> bytes:
    """Return all that the server has of a thread: its history, and what lists and descriptions show."""
    history = await client.get_workflow_handle(thread).fetch_history()
    request = DescribeWorkflowExecutionRequest(namespace=client.namespace)
    request.execution.workflow_id = thread
    described = await client.workflow_service.describe_workflow_execution(request)
    return b"".join(event.SerializeToString() for event in history.events) + described.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["", "required"])
async def test_the_server_has_nothing_of_an_encrypted_thread(
    temporal_server: ServerInfo, keys: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv("GRADELOOP_ENCRYPTION", policy)
    async with connected(temporal_server) as client:
        models = answering()
        models.answers["generator"] = lambda _, number: f"draft {number} of {SECRET}"
        async with serving(client, models=models) as served:
            thread = a_thread()
            result = await served.client.invoke(
                thread, f"write about the {SECRET}", start=start(vars={"topic": SECRET}), rubric=f"- it names the {SECRET}"
            )
            raw = await raw_of(client, thread)
            listed = await served.client.state(thread)
            story = await read_thread_report(GradingClient(client, task_queue=served.task_queue), thread)
            await replay(client, thread)
            await client.get_workflow_handle(thread).signal("close")
            await ended(client, thread)
            again = await served.client.invoke(thread, "write again")

    assert (result.status, SECRET in (result.output or "")) == ("satisfied", True)
    assert again.status == "satisfied"
    assert SECRET.encode() not in raw
    assert b"binary/encrypted" in raw
    assert listed.status == "idle"
    assert SECRET in repr(story)


async def test_a_failure_says_nothing_to_the_server_either(temporal_server: ServerInfo, keys: Path) -> None:
    async with connected(temporal_server) as client:
        models = answering()
        models.answers["grader"] = lambda _, __: f"no verdict, only {SECRET}"
        async with serving(client, models=models) as served:
            thread = a_thread()
            result = await served.client.invoke(thread, "write", start=start(), rubric="- it is good")
            raw = await raw_of(client, thread)

    assert result.status == "grader_error"
    assert SECRET.encode() not in raw


async def test_a_query_that_is_refused_says_why(temporal_server: ServerInfo, keys: Path) -> None:
    async with connected(temporal_server) as client, serving(client, models=answering()) as served:
        refused = await served.start(request("- it is good", max_iterations=0))
        with pytest.raises(WorkflowFailureError):
            await refused.result()
        with pytest.raises(InvalidRequest, match="max_iterations"):
            await served.client.messages(refused.id)


async def test_what_was_plain_is_read_by_those_who_have_keys(client: Client, temporal_server: ServerInfo, keys: Path) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, f"write about the {SECRET}", start=start(), rubric="- it is good")
        assert SECRET.encode() in await raw_of(client, thread)
        keys.write_text("plain\n" + key_line("k1"))  # the first step of a team that begins to encrypt
        async with connected(temporal_server) as with_keys:
            story = await read_thread_report(GradingClient(with_keys, task_queue=served.task_queue), thread)

    assert SECRET in repr(story)


async def test_with_plain_in_the_first_line_keys_are_there_to_read(keys: Path) -> None:
    running, payload = codec(), Payload(data=b"x")
    (sealed,) = await running.encode([payload])
    keys.write_text("plain\n" + keys.read_text())

    assert await running.encode([payload]) == [payload]
    assert await running.decode([sealed, payload]) == [payload, payload]


async def test_a_payload_comes_back_and_no_two_look_alike(keys: Path) -> None:
    payloads = [Payload(metadata={"encoding": b"json/plain"}, data=b'"the same"')] * 2

    one, other = await codec().encode(payloads)

    assert one.data != other.data
    assert await codec().decode([one, other]) == payloads
    assert dict(one.metadata) == {"encoding": b"binary/encrypted", "encryption-cipher": b"AES-256-GCM", "encryption-key-id": b"k1"}


async def test_keys_rotate_without_a_restart_and_old_ones_stay_readable(keys: Path) -> None:
    running, payload = codec(), Payload(data=b"x")
    (old,) = await running.encode([payload])

    keys.write_text(key_line("k2") + keys.read_text())
    (new,) = await running.encode([payload])

    assert [sealed.metadata["encryption-key-id"] for sealed in (old, new)] == [b"k1", b"k2"]
    assert await running.decode([old, new]) == [payload, payload]
    assert await codec().decode([old, new]) == [payload, payload]


async def test_a_reader_learns_of_a_key_that_came_after_it_started(keys: Path) -> None:
    reader = codec()
    keys.write_text(key_line("k2") + keys.read_text())
    (new,) = await codec().encode([Payload(data=b"x")])

    assert await reader.decode([new]) == [Payload(data=b"x")]


async def test_a_file_that_is_broken_while_workers_run_changes_nothing(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = codec()
    keys.write_text("k2 not-base64!\n")
    (sealed,) = await running.encode([Payload(data=b"x")])

    assert sealed.metadata["encryption-key-id"] == b"k1"
    assert "the keys stay as they were" in caplog.text
    assert "not-base64" not in caplog.text


async def test_an_unknown_key_is_a_sentence(
    temporal_server: ServerInfo, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(temporal_server) as client, serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.result(await served.client.start(request("- it is good", idle_timeout=0), thread_id=thread))
        others = tmp_path / "others"
        others.write_text(key_line("k9"))
        monkeypatch.setenv("GRADELOOP_ENCRYPTION_KEYS", str(others))
        async with connected(temporal_server) as other:
            reader = GradingClient(other, task_queue=served.task_queue)
            with pytest.raises(PayloadUnreadable, match=r"encrypted with the key 'k1', which .*others does not have \(k9\); add that key"):
                await reader.result(thread)
            with pytest.raises(InvalidRequest, match="the worker may have other keys; give both the same"):
                await reader.messages(thread)


def context(workflow_id: str) -> WorkflowSerializationContext:
    return WorkflowSerializationContext(namespace="default", workflow_id=workflow_id)


async def test_a_payload_is_read_in_its_own_workflow_alone(keys: Path) -> None:
    (sealed,) = await codec().with_context(context("mine")).encode([Payload(data=b"x")])

    for reader in ("mine", "mine-2026-11-26T17:59:34Z"):  # Temporal runs a schedule's workflow under such a name
        assert await codec().with_context(context(reader)).decode([sealed]) == [Payload(data=b"x")]
    assert await codec().decode([sealed]) == [Payload(data=b"x")]
    for other in ("another", "mine2", "min", "mine-2026"):
        with pytest.raises(PayloadUnreadable, match=r"a payload of the workflow 'mine' stands in '.*'; it was moved"):
            await codec().with_context(context(other)).decode([sealed])
    sealed.metadata["encryption-workflow"] = b"another"
    with pytest.raises(PayloadUnreadable, match="does not open with the key 'k1'"):
        await codec().with_context(context("another")).decode([sealed])


async def test_what_is_plain_or_names_no_workflow_is_read_unless_encryption_is_required(keys: Path) -> None:
    ring = load_ring()
    assert ring is not None
    strict = EncryptionCodec(ring, required=True).with_context(context("mine"))
    plain, (nameless,) = Payload(data=b"x"), await codec().encode([Payload(data=b"x")])

    assert await codec().with_context(context("mine")).decode([plain, nameless]) == [plain, plain]
    with pytest.raises(PayloadUnreadable, match="a payload is plain and GRADELOOP_ENCRYPTION is required; encrypt it where it is written"):
        await strict.decode([plain])
    with pytest.raises(PayloadUnreadable, match="a payload of no workflow stands in 'mine'"):
        await strict.decode([nameless])
    keys.write_text("plain\n" + keys.read_text())
    with pytest.raises(PayloadUnreadable, match="required and the keys begin with 'plain'; take that line out"):
        await strict.encode([plain])


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        (
            {"GRADELOOP_ENCRYPTION": "required"},
            "GRADELOOP_ENCRYPTION is required and GRADELOOP_ENCRYPTION_KEYS names no keys; name the file",
        ),
        ({"GRADELOOP_ENCRYPTION": "on"}, "GRADELOOP_ENCRYPTION is 'on'; write required, or unset it"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(environ: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        load_ring(environ)


@pytest.mark.parametrize("kind", ["plain", "moved"])
async def test_a_thread_takes_no_payload_that_is_plain_or_of_another_thread(
    temporal_server: ServerInfo, keys: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("GRADELOOP_ENCRYPTION", "required")
    async with connected(temporal_server) as client, serving(client, models=answering()) as served:
        first = a_thread()
        await served.client.result(await served.client.start(request("- it is good", idle_timeout=0), thread_id=first))
        (started, *_) = (await client.get_workflow_handle(first).fetch_history()).events
        given = started.workflow_execution_started_event_attributes.input.payloads[0]
        without_keys = await Client.connect(temporal_server.address)
        argument: object = RawValue(given) if kind == "moved" else request("- it is good")
        forged = await without_keys.start_workflow("GradingThread", argument, id=a_thread(), task_queue=served.task_queue)
        failed = ""
        async for event in forged.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_task_failed_event_attributes"):
                failed = str(await client.data_converter.decode_failure(event.workflow_task_failed_event_attributes.failure))
                break
        await forged.terminate()

    assert ("stands in" if kind == "moved" else "a payload is plain") in failed
    assert len(served.models.requests_of("generator")) == 1


async def test_a_schedule_starts_a_workflow_that_reads_its_argument(
    temporal_server: ServerInfo, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADELOOP_ENCRYPTION", "required")
    async with connected(temporal_server) as client, serving(client, models=answering()) as served:
        name = a_thread()
        action = ScheduleActionStartWorkflow(
            "GradingThread", request("- it is good", idle_timeout=0), id=name, task_queue=served.task_queue
        )
        schedule = await client.create_schedule(name, Schedule(action=action, spec=ScheduleSpec()))
        await schedule.trigger()
        while not (actions := (await schedule.describe()).info.recent_actions):
            await asyncio.sleep(0.1)
        started = actions[0].action
        assert isinstance(started, ScheduleActionExecutionStartWorkflow)
        result = await client.get_workflow_handle(started.workflow_id, result_type=RunResult).result()
        await schedule.delete()

    assert started.workflow_id != name
    assert result.status == "satisfied"


@pytest.mark.parametrize("change", ["data", "key"])
async def test_a_payload_that_was_changed_or_has_another_key_does_not_open(keys: Path, change: str) -> None:
    (sealed,) = await codec().encode([Payload(data=b"x")])
    if change == "data":
        sealed.data = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
    else:
        keys.write_text(key_line("k1"))

    with pytest.raises(PayloadUnreadable, match="does not open with the key 'k1'"):
        await codec().decode([sealed])


@over(
    ("content", "why"),
    [
        ("", "has no key"),
        ("k1\n", ":1 is not 'ID KEY'"),
        ("k1 !!!\n", ":1: the key 'k1' is not base64"),
        ("k1 c2hvcnQ=\n", "the key k1 has not 32 bytes"),
        (f"k1 {KEY}\nk1 {KEY}\n", ":2 names the key 'k1' again"),
        (f"k=1 {KEY}\n", "'k=1' is not an id of a key"),
    ],
)
def test_a_file_of_keys_that_is_none_is_refused_by_line(keys: Path, content: str, why: str) -> None:
    keys.write_text(content)

    with pytest.raises(InvalidRequest) as refused:
        load_ring()

    assert why in str(refused.value)
    assert not any(part in str(refused.value) for line in content.splitlines() for part in line.split()[1:] if len(part) > 4)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"which cannot be read \(No such file or directory\)"):
        read_keys(tmp_path / "none")


async def test_keys_come_from_a_function_of_a_key_service(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("our_kms")
    module.keys = lambda: {"arn:aws:kms/key-1": bytes(32)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "our_kms", module)
    ring = load_ring({"GRADELOOP_ENCRYPTION_KEYS": "python:our_kms:keys"})

    assert ring is not None
    assert ring.ids == ("arn:aws:kms/key-1",)
    (sealed,) = await EncryptionCodec(ring).encode([Payload(data=b"x")])
    assert await EncryptionCodec(ring).decode([sealed]) == [Payload(data=b"x")]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("python:our_kms", "names no function; write python:package.module:function"),
        ("python:no_such_module:keys", "gave no keys (ModuleNotFoundError: "),
        ("python:os:getcwd", "returned no mapping of ids to keys"),
    ],
)
def test_a_function_that_gives_no_keys_is_a_sentence(named: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_ring({"GRADELOOP_ENCRYPTION_KEYS": named})

    assert why in str(refused.value)


def test_no_keys_are_asked_for_where_none_are_named() -> None:
    assert load_ring({}) is None


async def test_a_missing_key_is_looked_for_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def load() -> dict[str, bytes]:
        looks.append(1)
        return {"k1": bytes(32)}

    ring = KeyRing(load, "the tests")
    for _ in range(5):
        with pytest.raises(PayloadUnreadable):
            ring.cipher("k2")

    assert len(looks) == 2
