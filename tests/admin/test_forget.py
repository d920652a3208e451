"""Forgetting, on the real server with both kinds of store: nothing of what goes is left in any file that is ours."""

import asyncio
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject, PayloadFolder, sweep
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Store
from gradeloop.temporal import histories as histories_module
from gradeloop.temporal.codec import EncryptionCodec, KeyRing, build_converter
from gradeloop.temporal.histories import delete_runs, request_deletion, runs_of
from tests.rig.batches import Batches, batching, case, passes
from tests.rig.threads import request, row, serving, verdict

ACME: dict[str, Any] = {"priority": {"level": 4, "tenant": "acme's %_\\ ä"}}
TENANT: str = ACME["priority"]["tenant"]


def marked(marker: str) -> dict[str, Any]:
    """Return a judge's pass whose evidence and words hold a text."""
    return {"role": "grader", "when": marker, "verdict": verdict(row("c1")) | {"explanation": f"{marker} is said well"}}


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
    assert [done.workflows for done in both] == [1, 1]


async def test_a_second_try_ends_what_a_killed_one_began(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"cut-{uuid4()}"
    async with batching(client, tmp_path, passes()) as batches:
        await batches.run([case("a")], batch_id=name, **ACME)
        eraser, deleted = Eraser(client, batches.store, None), 0
        really = request_deletion

        async def dies(client: Client, run: Any) -> None:
            nonlocal deleted
            deleted += 1
            if deleted == 2:
                raise RuntimeError("killed")
            await really(client, run)

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
    async with serving(with_keys, passes(), {"role": "generator", "text": "a draft"}) as served:
        mine = await served.start(request(None, {"role": "user", "content": "hi"}, **ACME))
        theirs = await served.start(request(None, {"role": "user", "content": "hi"}, priority={"tenant": "beta"}))
        await asyncio.gather(mine.result(), theirs.result())
        done = await Eraser(client, None, None).forget(ForgottenSubject(tenant=TENANT))

    assert await histories(client, mine.id) == []
    assert await histories(client, theirs.id)
    assert re.search(r"\d+ workflows? whose request cannot be decoded here, .* GRADELOOP_ENCRYPTION_KEYS", done.left[0])


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
        orphans, spared = [await sweep(stored, PayloadFolder(folder), older, dry_run=True) for older in (-60, 7200)]
        swept = await sweep(stored, PayloadFolder(folder), -60)

    assert between
    assert (after, files_with(mark, folder)) == ([], [])
    assert two.payloads > 0
    assert orphans == swept > 0
    assert spared == 0
    assert files_with(shared, folder) == []
    assert one.left


async def test_a_moment_yet_to_come_and_two_subjects_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="which is yet to come"):
        ForgottenSubject(before=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(InvalidRequest, match="name one thing to forget"):
        ForgottenSubject(thread="a", tenant="b")
    with pytest.raises(InvalidRequest, match="name one thing to forget"):
        ForgottenSubject()
