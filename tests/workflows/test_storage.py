"""Large threads: what Temporal cannot take is kept in a folder, and without one the thread says where it ends."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import StorageDriverClaim, StorageDriverStoreContext, StorageDriverWorkflowInfo

from gradeloop.contract.thread import STATE_BYTES
from gradeloop.errors import InvalidRequest, ThreadClosed, ThreadTooLarge
from gradeloop.temporal.codec import LocalFolder, build_converter
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from tests.rig.tables import over
from tests.rig.threads import Served, a_thread, answering, replay, serving, start

PART = "x" * (1024 * 1024 - 200)
"""All but a mebibyte, the most that one message may have."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pay loads"


@pytest.fixture
async def stored(temporal_server: ServerInfo, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Connect with external storage in a folder of the test's."""
    monkeypatch.setenv("GRADELOOP_STORAGE", f"file://{quote(str(folder))}")
    return await connect(Connection(temporal_server.address, "default", embedded=False))


@pytest.fixture
def bare(client: Client) -> Client:
    """Return a client without external storage."""
    config = client.config()
    config["data_converter"] = pydantic_data_converter
    return Client(**config)


async def grown(served: Served, thread: str, parts: int) -> None:
    """Say so many mebibytes to a thread, a turn each."""
    await served.client.invoke(thread, "hello", start=start(rubric=...))
    for number in range(parts):
        await served.client.invoke(thread, f"{number} {PART}")


@pytest.mark.slow
async def test_a_thread_of_ten_mebibytes_is_interrupted_resumed_and_started_again(stored: Client) -> None:
    models = answering()
    async with serving(stored, models=models) as served:
        thread = a_thread()
        await grown(served, thread, 10)
        models.hold("grader")
        turn = asyncio.create_task(served.client.invoke(thread, "be graded", rubric="- it is good"))
        await models.called("grader")
        await served.client.interrupt(thread)
        stopped = await turn
        task_queue = served.task_queue
    async with serving(stored, models=models, task_queue=task_queue) as served:
        models.hold("grader")
        again = asyncio.create_task(served.client.invoke(thread))
        await models.called("grader", 2)
        await served.client.cancel(thread)
        cancelled = await again
        models.release()
        result = await served.client.invoke(thread)
        checkpoint: Any = await served.client.checkpoint(thread)
        other = await served.client.result(await served.client.start(start(idle_timeout=0, rubric="- it is better", checkpoint=checkpoint)))
        history = await served.handle(thread).fetch_history()
        await replay(stored, thread)

    assert [item.status for item in (stopped, cancelled, result, other)] == ["interrupted", "interrupted", "satisfied", "satisfied"]
    assert stopped.grading_run_id == cancelled.grading_run_id == result.grading_run_id != other.grading_run_id
    assert models.count("generator") == 12
    assert sum(len(message["content"]) for message in checkpoint["thread"]["log"]) > 10_000_000
    assert sum(event.ByteSize() for event in history.events) < 100_000


@pytest.mark.slow
async def test_a_large_thread_reaches_the_models_whole(stored: Client) -> None:
    async with serving(stored, models=answering()) as served:
        await grown(served, a_thread(), 3)
        contents = [message.content for message in served.models.requests[-1].messages]

    assert [len(content) for content in contents[2::2]] == [len(PART) + 2] * 3


@pytest.mark.slow
async def test_a_conversation_of_many_pages_is_paged_whole(stored: Client) -> None:
    async with serving(stored, models=answering()) as served:
        thread = a_thread()
        await grown(served, thread, 3)
        page = await served.client.messages(thread)
        pages = [page]
        while page.next is not None:
            page = await served.client.messages(thread, after=page.next)
            pages.append(page)
        contents = [message.content for page in pages for message in page.items]

    assert len(pages) >= 3
    assert [len(content) for content in contents[2::2]] == [len(PART) + 2] * 3


async def test_a_result_leaves_out_messages_that_are_too_many(stored: Client) -> None:
    async with serving(stored, models=answering()) as served:
        result = await served.client.invoke(a_thread(), PART, start=start())

    assert (result.messages, result.messages_truncated, result.output) == (None, True, "draft 1")


@pytest.mark.slow
async def test_without_storage_a_thread_ends_at_a_mebibyte_and_a_half(bare: Client) -> None:
    async with serving(bare, models=answering()) as served:
        thread = a_thread()
        await grown(served, thread, 1)
        with pytest.raises(ThreadTooLarge, match=rf"the thread would hold \d+ bytes, {STATE_BYTES} at most; start a new thread"):
            await served.client.invoke(thread, PART)
        said = await served.contents(thread)
        small = await served.client.invoke(thread, "and a little more", rubric="- it is good")
        await served.client.cancel(thread)
        with pytest.raises(ThreadClosed):
            await served.client.result(thread)
        again = await served.client.invoke(thread, "still here")

    assert STATE_BYTES == 1_572_864
    assert len(said) == 4
    assert (small.status, again.status, again.error) == ("satisfied", "satisfied", None)


async def test_without_storage_a_draft_that_the_thread_cannot_hold_interrupts_it(bare: Client) -> None:
    models = answering()
    models.answers["generator"] = lambda _, number: "a draft" if number < 3 else PART
    async with serving(bare, models=models) as served:
        thread = a_thread()
        await grown(served, thread, 1)
        result = await served.client.invoke(thread, "more", rubric="- it is good")

    assert result.status == "interrupted"
    assert (result.error or "").startswith("ThreadTooLarge: the thread would hold ")


async def test_a_payload_is_stored_once_under_its_sha_and_read_back(folder: Path) -> None:
    driver, payload = LocalFolder(folder), Payload(data=b"a" * 1000)

    one, other = (await driver.store(StorageDriverStoreContext(), [payload]), await driver.store(StorageDriverStoreContext(), [payload]))

    assert one[0].claim_data == other[0].claim_data
    assert await driver.retrieve(None, one) == [payload]  # type: ignore[arg-type]  # not used
    assert [file.name for file in folder.rglob("*") if file.is_file()] == [one[0].claim_data["sha256"]]


async def test_each_workflow_has_a_folder_of_its_own_and_what_older_releases_stored_is_read(folder: Path) -> None:
    driver, payload = LocalFolder(folder), Payload(data=b"a" * 1000)
    targets = [StorageDriverWorkflowInfo(namespace="default", id=name) for name in ("one", "one", "other/Ä")]

    claims = [claim for target in targets for claim in await driver.store(StorageDriverStoreContext(target=target), [payload])]
    shared = await driver.store(StorageDriverStoreContext(), [payload])

    assert claims[0].claim_data == claims[1].claim_data != claims[2].claim_data
    assert await driver.retrieve(None, [*claims, *shared]) == [payload] * 4  # type: ignore[arg-type]  # not used
    assert len([file for file in folder.rglob("*") if file.is_file()]) == 3


async def test_a_damaged_payload_is_never_handed_out(folder: Path) -> None:
    driver = LocalFolder(folder)
    claims = await driver.store(StorageDriverStoreContext(), [Payload(data=b"a" * 1000)])
    file = next(file for file in folder.rglob("*") if file.is_file())
    file.write_bytes(file.read_bytes().replace(b"aaa", b"aab", 1))

    with pytest.raises(ValueError, match="is damaged"):
        await driver.retrieve(None, claims)  # type: ignore[arg-type]  # not used


@over("name", ["../../secret", "/etc/passwd", ""])
async def test_a_claim_names_no_file_outside_of_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names no stored payload"):
        await LocalFolder(folder).retrieve(None, [StorageDriverClaim(claim_data={"sha256": name})])  # type: ignore[arg-type]  # not used
    claim = StorageDriverClaim(claim_data={"sha256": "a" * 64, "owner": name or "."})
    with pytest.raises(ValueError, match="names no stored payload"):
        await LocalFolder(folder).retrieve(None, [claim])  # type: ignore[arg-type]  # not used


@over("url", ["file://relative", "file://host/folder", "ftp://bucket", "s3://", "s3://bucket/prefix", "/folder", "gs:bucket"])
async def test_a_storage_that_is_none_is_refused_with_the_forms_that_are(url: str) -> None:
    with pytest.raises(InvalidRequest, match="names no storage; write file:///folder, s3://bucket or gs://bucket"):
        await build_converter(url)


async def test_no_storage_is_what_is_used_where_none_is_named() -> None:
    assert (await build_converter(None)).external_storage is None
