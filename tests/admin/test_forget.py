"""Forgetting, on the real server with both kinds of store: nothing of what goes is left in any file that is ours."""

import asyncio
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import ExternalStorage, StorageDriverClaim, StorageDriverStoreContext

from gradeloop.admin.forgetting import Eraser, ForgottenSubject, PayloadFolder, past_moment
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest, Case
from gradeloop.client.listing import threads
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.thread import Priority
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.settings.paths import view_file
from gradeloop.store.engine import Store
from gradeloop.temporal import histories as histories_module
from gradeloop.temporal.codec import EncryptionCodec, KeyRing, LocalFolder, build_converter, payload_file, payload_owner
from gradeloop.temporal.histories import delete_runs, find_runs, request_deletion, runs_of
from tests.rig.batches import Batches, batching, case, passes
from tests.rig.threads import a_namespace, request, row, serving, verdict

ACME: dict[str, Any] = {"priority": {"level": 4, "tenant": "acme's %_\\ ä"}}
TENANT: str = ACME["priority"]["tenant"]


def marked(marker: str) -> dict[str, Any]:
    """Return a judge's pass whose evidence and words hold a text."""
    return {"role": "grader", "when": marker, "verdict": verdict(row("c1"), summary=f"{marker} is said well")}


def files_with(marker: str, folder: Path, *, apart_from: str = "\0") -> list[str]:
    """Return the files below a folder whose bytes hold a text, in whatever page."""
    files = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return [str(file) for file in files if apart_from not in str(file) and marker.encode() in file.read_bytes()]


def data_folder(store: Store) -> Path:
    """Return the folder of a database, whatever is written by now."""
    if store.file is not None:
        return store.file.parent
    with_pages = store.do(lambda connection: connection.execute(text("SHOW data_directory")).scalar_one())
    with store._opened().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CHECKPOINT")
    return Path(with_pages)


async def ended(batches: Batches, name: str, marker: str, **more: Any) -> None:
    """Run a batch with a marker in a prompt, an output and a verdict."""
    said = [{"role": "user", "content": f"Write of {marker}."}]
    cases = [case("a", f"{marker} is an output.", messages=said), case("b", "nothing special")]
    summary, results = await batches.run(cases, batch_id=name, **more)

    assert summary.passed == 2
    assert any(marker in str(result) for result in results)


async def histories(client: Client, part: str) -> list[str]:
    """Return the ids of workflows that hold a text."""
    return sorted({found.id async for found in client.list_workflows("") if part in found.id})


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
async def test_a_tenant_is_forgotten_down_to_the_pages_of_the_database_and_others_stay(client: Client, tmp_path: Path, url: str) -> None:
    mine, theirs, own = (f"MARK{uuid4().hex}" for _ in range(3))
    gone, stays = f"gone-{uuid4()}", f"stays-{uuid4()}"
    replies = (marked(mine), marked(theirs), passes(), {"role": "generator", "text": "a draft"})
    async with batching(client, tmp_path, *replies, url=url, tenant_budgets={TENANT: Budget(max_tokens=10**9)}) as batches:
        await ended(batches, gone, mine, **ACME)
        await ended(batches, stays, theirs, priority={"tenant": "beta"})
        thread = await batches.served.start(request(None, {"role": "user", "content": own}, **ACME))
        await thread.result()
        eraser = Eraser(client, batches.store, None)
        folder = data_folder(batches.store)
        before = files_with(mine, folder)
        plan = await eraser.plan(ForgottenSubject(tenant=TENANT))
        assert await histories(client, gone)
        done = await eraser.forget(ForgottenSubject(tenant=TENANT))
        again = await eraser.forget(ForgottenSubject(tenant=TENANT))
        left = files_with(mine, data_folder(batches.store), apart_from="pg_wal")
        kept = list(batches.reader.results(stays))

    assert before
    assert left == []
    assert (plan.workflows, plan.rows) == (done.workflows, done.rows)
    assert done.rows["cases"] == 2
    assert (done.rows["verdicts"], done.rows["tenant_days"]) == (2, 1)
    assert (again.workflows, set(again.rows.values())) == (0, {0})
    assert await histories(client, gone) == []
    assert await histories(client, thread.id) == []
    assert await histories(client, stays)
    assert any(theirs in str(result) for result in kept)


async def test_what_runs_is_refused_unless_it_is_terminated(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), {"role": "generator", "text": "a draft"}) as batches:
        thread = await batches.served.start(request(None, {"role": "user", "content": "hi"}, idle_timeout=1000))
        eraser = Eraser(client, batches.store, None)
        with pytest.raises(InvalidRequest, match="still run; wait for their end, or give --terminate"):
            await eraser.forget(ForgottenSubject(thread=thread.id))
        both = await asyncio.gather(*(eraser.forget(ForgottenSubject(thread=thread.id), terminate=True) for _ in range(2)))

    assert await histories(client, thread.id) == []
    assert sorted({0, *(done.workflows for done in both)}) == [0, 1], "the second may come when the first is done"


@pytest.mark.slow
async def test_a_second_try_ends_what_a_killed_one_began(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"cut-{uuid4()}"
    async with batching(client, tmp_path, passes()) as batches:
        await batches.run([case("a")], batch_id=name, **ACME)
        eraser, deleted = Eraser(client, batches.store, None), 0
        really = request_deletion

        async def dies(client: Client, *run: str) -> None:
            nonlocal deleted
            deleted += 1
            if deleted == 2:
                raise RuntimeError("killed")
            await really(client, *run)

        monkeypatch.setattr(histories_module, "request_deletion", dies)
        with pytest.raises(RuntimeError, match="killed"):
            await eraser.forget(ForgottenSubject(batch=name))
        monkeypatch.undo()
        half = await histories(client, name)
        done = await eraser.forget(ForgottenSubject(batch=name))

    assert half
    assert done.rows["batches"] == 1
    assert await histories(client, name) == []


async def test_a_history_of_a_key_that_is_not_here_goes_by_its_calls(client: Client, tmp_path: Path) -> None:
    ring = KeyRing(lambda: {"k1": bytes(range(32))}, "this test")
    with_keys = Client(**client.config() | {"data_converter": replace(client.data_converter, payload_codec=EncryptionCodec(ring))})
    async with serving(with_keys, passes(), {"role": "generator", "text": "a draft"}, attributes=False) as served:
        mine = await served.start(request(None, {"role": "user", "content": "hi"}, **ACME))
        theirs = await served.start(request(None, {"role": "user", "content": "hi"}, priority={"tenant": "beta"}))
        await asyncio.gather(mine.result(), theirs.result())
        done = await Eraser(client, None, None).forget(ForgottenSubject(tenant=TENANT))

    assert await histories(client, mine.id) == []
    assert await histories(client, theirs.id)
    assert re.search(r"\d+ workflows? whose request cannot be decoded here, .* GRADELOOP_ENCRYPTION_KEYS", done.left[0])


async def test_histories_without_the_attribute_are_found_by_their_first_event_and_those_with_it_by_the_index(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, really = set[str](), histories_module._events
    mine, theirs = ACME["priority"] | {"tenant": f"acme-{uuid4()}"}, {"tenant": "beta"}

    def events(client: Client, run: Any, page_size: int | None = None) -> Any:
        read.add(run.workflow_id)
        return really(client, run, page_size)

    monkeypatch.setattr(histories_module, "_events", events)
    told = {"role": "generator", "text": "a draft"}
    started: dict[bool, list[str]] = {}
    for attributes in (True, False):
        async with serving(client, passes(), told, attributes=attributes) as served:
            threads = [await served.start(request(**more)) for more in ({"priority": mine}, {"priority": theirs}, {})]
            await asyncio.gather(*(thread.result() for thread in threads))
            started[attributes] = [thread.id for thread in threads]
    done = await Eraser(client, None, None).forget(ForgottenSubject(tenant=mine["tenant"]))

    assert done.workflows == 2
    assert read.isdisjoint(started[True])
    assert read >= set(started[False])
    for attributes, (own, other, nobody) in started.items():
        assert await histories(client, own) == [], attributes
        assert await histories(client, other)
        assert await histories(client, nobody)


async def test_a_namespace_without_the_attribute_is_read(client: Client) -> None:
    older, queue = await a_namespace(client), f"queue-{uuid4()}"
    for more in (ACME, {"priority": {"tenant": "beta"}}):
        await older.start_workflow("GradingThread", request(**more), id=str(more), task_queue=queue)
    async with asyncio.timeout(240):
        while len(await find_runs(older, "")) < 2:
            await asyncio.sleep(0.1)
    with pytest.raises(ServerUnreachable, match="GradeloopTenant; the namespace gets it with the first worker of this release"):
        await anext(threads(older, tenant=TENANT))
    done = await Eraser(older, None, None).forget(ForgottenSubject(tenant=TENANT), terminate=True)
    left = [run.workflow_id for run in await find_runs(older, "")]

    assert done.workflows == 1
    assert set(left) == {str({"priority": {"tenant": "beta"}}), "first"}


@pytest.mark.slow
async def test_what_was_uploaded_for_a_batch_that_never_began_goes_and_no_batch_of_another_does(client: Client, tmp_path: Path) -> None:
    mine, theirs = f"MARK{uuid4().hex}", f"theirs-{uuid4()}"
    async with batching(client, tmp_path, passes()) as batches:
        known = BatchClient(client, batches.served.task_queue)
        await batches.run([case("a")], batch_id=theirs, priority={"tenant": "beta"})
        await known.upload("never", [Case.model_validate(case("a", mine))], tenant=TENANT)
        await known.upload(theirs, [Case.model_validate(case("a"))], tenant=TENANT)  # which is stored already
        await known.start(BatchRequest(batch_id=theirs, total=1, priority=Priority(tenant=TENANT)))
        with pytest.raises(InvalidRequest, match="is another tenant's"):
            await known.result(theirs)
        await Eraser(client, batches.store, None).forget(ForgottenSubject(tenant=TENANT))
        kept, left = list(batches.reader.results(theirs)), files_with(mine, data_folder(batches.store))

    assert [result.status for result in kept] == ["passed"]
    assert left == []
    assert await histories(client, theirs)


async def test_pages_go_and_what_cannot_be_removed_is_said(client: Client, tmp_path: Path) -> None:
    folder, pages = tmp_path / "payloads", tmp_path / "reports"
    stored = Client(**client.config() | {"data_converter": await build_converter(folder.as_uri())})
    pages.mkdir()
    async with serving(stored, passes(), {"role": "generator", "text": "a draft"}) as served:
        thread = await served.start(request(None, {"role": "user", "content": "x" * 300_000}, **ACME))
        await thread.result()
        for name in (thread.id, "latest", "other"):
            view_file(pages, name).write_text("a page")
        own = folder / payload_file("stuck", payload_owner(stored.namespace, thread.id))
        own.mkdir()  # a folder in the place of a file
        eraser = Eraser(stored, None, folder.as_uri(), reports=pages)
        done = await eraser.forget(ForgottenSubject(tenant=TENANT))

    assert [page.name for page in pages.iterdir()] == ["other.html"]
    assert [file for file in folder.rglob("*") if file.is_file()] == []
    assert any(f"{own}, which cannot be removed" in what for what in done.left)


async def test_objects_of_a_bucket_go_by_the_beginnings_of_their_keys(client: Client, s3: Any) -> None:
    external = ExternalStorage(drivers=[S3StorageDriver(_Objects(s3), "runs")], payload_size_threshold=256 * 1024)
    stored = Client(**client.config() | {"data_converter": replace(pydantic_data_converter, external_storage=external)})
    async with serving(stored, passes(), {"role": "generator", "text": "a draft"}) as served:
        threads = [
            await served.start(
                request(None, {"role": "user", "content": "x" * 300_000}, priority={"tenant": tenant}), id=f"{tenant}~ä/{uuid4()}"
            )
            for tenant in ("acme", "beta")
        ]
        await asyncio.gather(*(thread.result() for thread in threads))
        before = keys(s3)
        done = await Eraser(stored, None, "s3://runs").forget(ForgottenSubject(thread=threads[0].id))
        missing = await Eraser(stored, None, "s3://nowhere").forget(ForgottenSubject(thread=threads[1].id))

    assert {key.split("/")[6].partition("%")[0] for key in before} == {"acme", "beta"}
    assert {key.split("/")[6].partition("%")[0] for key in keys(s3)} == {"beta"}
    assert not any("s3://" in what for what in done.left)
    assert any(what.startswith("large payloads in s3://nowhere (NoSuchBucket") for what in missing.left)


def keys(s3: Any) -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket="runs").get("Contents", ())]


class _Objects(S3StorageDriverClient):
    """The bucket of a client that is not asynchronous."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._s3.put_object, Bucket=bucket, Key=key, Body=data)

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        return key in await asyncio.to_thread(keys, self._s3)

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        found = await asyncio.to_thread(self._s3.get_object, Bucket=bucket, Key=key)
        return bytes(found["Body"].read())


@pytest.mark.slow
async def test_a_large_payload_goes_with_the_last_history_that_names_it(client: Client, tmp_path: Path) -> None:
    mark, shared = f"MARK{uuid4().hex}", f"MARK{uuid4().hex}"
    folder = tmp_path / "payloads"
    converter = await build_converter(folder.as_uri())
    stored = Client(**client.config() | {"data_converter": converter})
    async with serving(stored, passes(), {"role": "generator", "text": "a draft"}) as served:
        first, second, third = [
            await served.start(request(None, {"role": "user", "content": f"{mark if at < 2 else shared} {'x' * 300_000}"}, **ACME))
            for at in (0, 1, 2)
        ]
        for thread in (first, second, third):
            await thread.result()
        eraser = Eraser(stored, None, folder.as_uri())
        one = await eraser.forget(ForgottenSubject(thread=first.id))
        between = files_with(mark, folder)
        for file in folder.glob("??/*"):  # written an hour ago
            os.utime(file, (time.time() - 3600, time.time() - 3600))
        two = await eraser.forget(ForgottenSubject(thread=second.id))
        after = files_with(mark, folder)
        await delete_runs(stored, await runs_of(stored, third.id))
        orphans, spared = [await PayloadFolder(folder).sweep(stored, older, dry_run=True) for older in (-60, 7200)]
        swept = await PayloadFolder(folder).sweep(stored, -60)

    assert between
    assert (after, files_with(mark, folder)) == ([], [])
    assert two.payloads > 0
    assert orphans == swept > 0
    assert spared == 0
    assert files_with(shared, folder) == []
    assert one.left


class _Shared(LocalFolder):
    """The folder as older releases filled it: each payload lies there once, for all workflows."""

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return await super().store(StorageDriverStoreContext(), payloads)


async def test_a_payload_of_an_older_release_stays_as_long_as_another_history_names_it(client: Client, tmp_path: Path) -> None:
    mark, folder = f"MARK{uuid4().hex}", tmp_path / "payloads"
    external = ExternalStorage(drivers=[_Shared(folder)], payload_size_threshold=256 * 1024)
    older = await a_namespace(client)  # in which each look at all histories reads few
    stored = Client(**older.config() | {"data_converter": replace(pydantic_data_converter, external_storage=external)})
    async with serving(stored, passes(), {"role": "generator", "text": "a draft"}, attributes=False) as served:
        asked = request(None, {"role": "user", "content": f"{mark} {'x' * 300_000}"}, **ACME)
        first, second = [await served.start(asked) for _ in range(2)]
        await asyncio.gather(first.result(), second.result())
        eraser, (started,) = Eraser(stored, None, folder.as_uri()), files_with(mark, folder)[:1]
        stray = folder / payload_file("0" * 64)
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("the answer of a query")
        one = await eraser.forget(ForgottenSubject(thread=first.id))
        between = files_with(mark, folder)
        two = await eraser.forget(ForgottenSubject(thread=second.id))
        spared = stray.exists()
        await PayloadFolder(folder).sweep(stored, -60)

    assert started in between
    assert files_with(mark, folder) == []
    assert two.payloads > 0
    assert any(re.match(r"\d+ old large payloads? that no history names: run `gradeloop store prune", what) for what in one.left)
    assert (spared, stray.exists()) == (True, False)


@pytest.mark.parametrize("kind", ["thread", "batch", "tenant"])
def test_an_empty_name_is_no_subject(kind: str) -> None:
    """All that belongs to no tenant is indexed under the empty one."""
    given: Any = {kind: ""}

    with pytest.raises(InvalidRequest, match="the name of what to forget is empty; is a variable not set"):
        ForgottenSubject(**given)


async def test_a_moment_yet_to_come_and_two_subjects_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="which is yet to come"):
        past_moment((datetime.now(UTC) + timedelta(days=1)).isoformat())
    with pytest.raises(InvalidRequest, match="name one thing to forget"):
        ForgottenSubject(thread="a", tenant="b")
    with pytest.raises(InvalidRequest, match="name one thing to forget"):
        ForgottenSubject()
