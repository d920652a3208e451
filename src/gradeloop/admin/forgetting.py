"""Forgetting: everything that Temporal, the store and the folder of large payloads keep of a thread, a batch, a tenant or a time goes."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from temporalio.client import Client

from gradeloop.admin.store_care import erase_freed
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import parts
from gradeloop.store.engine import Store
from gradeloop.store.tables import prune_by_age, table
from gradeloop.temporal.histories import (
    WorkflowRun,
    closed_before,
    delete_runs,
    end_run,
    find_runs,
    our_runs,
    read_names,
    runs_below,
    runs_of,
    runs_still,
)
from gradeloop.text import counted

if TYPE_CHECKING:  # commands that need no store do not load SQLAlchemy
    from sqlalchemy import Connection

ORPHAN_SECONDS = 600.0
"""Seconds after which a large payload that no history names is nobody's, as the answer of a query is: a call in flight names it sooner."""

YOUNG = " that no history names yet, of calls in flight or answers of queries: run `gradeloop store prune --payloads` in ten minutes"

UNREAD = "give the keys in GRADELOOP_ENCRYPTION_KEYS and run the command again"

SHOWN = 3
"""Open workflows that a refusal names."""


@dataclass(frozen=True)
class ForgottenSubject:
    """What is to be forgotten: exactly one of these."""

    thread: str | None = None
    batch: str | None = None
    tenant: str | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        if [self.thread, self.batch, self.tenant, self.before].count(None) != 3:  # noqa: PLR2004 - all but one
            raise InvalidRequest("name one thing to forget: THREAD, --batch, --tenant or --before")
        if self.before is not None:
            refuse_future(self.before)


@dataclass(frozen=True)
class OwnedData:
    """Data of subjects that an extension keeps, and removes."""

    remove: Callable[["Connection", ForgottenSubject, Sequence[str]], Mapping[str, int]]
    """Deletes the rows of a subject, whose batches are given by their ids, and returns how many by table."""
    roots: Callable[["Connection", ForgottenSubject], list[str]] = lambda _connection, _subject: []
    """Returns the ids of the workflows that began what a subject has in the store: of a batch itself, of a tenant its batches."""
    root_type: str = ""
    """The type of these workflows."""
    below: tuple[str, ...] = ()
    """The beginnings of the ids of the workflows that belong to one, before its own id and a slash."""
    stop: Callable[[Client, "Store", ForgottenSubject], Awaitable[None]] | None = None
    """Ends what would begin anew for the subject, such as a schedule."""


def owned_data() -> tuple[OwnedData, ...]:
    """Return what the core and every extension keeps of subjects."""
    return (OwnedData(_remove_budgets), *parts(lambda extension: extension.erases))


def _remove_budgets(connection: "Connection", subject: ForgottenSubject, _: Sequence[str]) -> Mapping[str, int]:
    """Delete what a tenant has used, or what anybody had before a moment."""
    if subject.before is not None:
        return prune_by_age("tenant_days")(connection, subject.before)
    days = table("tenant_days")
    return {"tenant_days": connection.execute(days.delete().where(days.c.tenant == subject.tenant)).rowcount} if subject.tenant else {}


def remove_rows(connection: "Connection", subject: ForgottenSubject, batches: Sequence[str], *, dry_run: bool) -> dict[str, int]:
    """Delete a subject's rows, or count them, and return how many by table."""
    rows = Counter[str]()
    for owned in owned_data():
        rows.update(owned.remove(connection, subject, batches))
    if dry_run:
        connection.rollback()
    return dict(rows)


def refuse_future(moment: datetime) -> None:
    """Refuse a moment that is yet to come: everything is older.

    Raises:
        InvalidRequest: It is.
    """
    if moment > datetime.now(UTC):
        raise InvalidRequest(f"--before is {moment.isoformat()}, which is yet to come; name a moment that is past")


def past_moment(text: str) -> datetime:
    """Read a date or a time, in UTC where it does not say otherwise.

    Raises:
        InvalidRequest: It is none, or is yet to come.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--before is {text!r}; write a date, for example 2026-01-31") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    refuse_future(moment)
    return moment


class ForgetPlan(Strict):
    """What would be removed, or was."""

    workflows: int
    """Runs of workflows, whose histories go."""
    open: tuple[str, ...] = ()
    """Ids of the workflows that still run."""
    rows: dict[str, int]
    """Rows of the store by table."""
    payloads: int
    """Files of large payloads that nothing else names."""
    left: tuple[str, ...] = ()
    """What is not removed, and what to do about it."""


@dataclass(frozen=True)
class SubjectData:
    """Everything that belongs to a subject."""

    runs: tuple[WorkflowRun, ...]
    batches: tuple[str, ...]
    payloads: frozenset[str]
    unread: int = 0
    """Histories whose request cannot be decoded here, so that their tenant is known by their calls alone."""


class PayloadFolder:
    """The files of a folder of large payloads, each named by its sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, url: str | None) -> "PayloadFolder | None":
        """Return the folder that a storage's URL names; None for a bucket, and where there is no storage."""
        parts = urlsplit(url or "")
        return cls(Path(unquote(parts.path))) if parts.scheme == "file" else None

    def find(self, names: Iterable[str]) -> list[Path]:
        """Return the files of these payloads that are there."""
        files = (self.folder / name[:2] / name for name in sorted(names))
        return [file for file in files if file.is_file()]

    def unnamed(self, named: frozenset[str], older_than: float) -> Iterator[Path]:
        """Yield the files that no history names, written so many seconds ago or earlier, drafts of a writer that died too."""
        before = time.time() - older_than
        for file in sorted(self.folder.glob("??/*")):
            if file.name not in named and file.is_file() and file.stat().st_mtime <= before:
                yield file

    @staticmethod
    def remove(files: Iterable[Path], before: float | None = None) -> int:
        """Remove files and return how many; those written or used again since `before` stay."""
        removed = 0
        for file in files:
            if before is None or (file.is_file() and file.stat().st_mtime < before):
                file.unlink(missing_ok=True)
                removed += 1
        return removed


class Eraser:
    """Finds and removes what belongs to a subject; whatever was removed before a crash is simply not found again.

    Args:
        client: Connected to the namespace.
        store: The store of results; None where there is none.
        storage: The URL of the storage of large payloads.
    """

    def __init__(self, client: Client, store: Store | None, storage: str | None) -> None:
        self._client = client
        self._store = store
        self._storage = storage
        self._folder = PayloadFolder.of(storage)

    async def plan(self, subject: ForgottenSubject) -> ForgetPlan:
        """Return what would be removed."""
        found = await self._find(subject)
        others = await self._named_by_others(found)
        return await self._report(subject, found, found.payloads - others)

    async def forget(self, subject: ForgottenSubject, *, terminate: bool = False) -> ForgetPlan:
        """Remove everything, the store's rows last: they name what a second try has to find.

        Raises:
            InvalidRequest: A workflow runs, and `terminate` is not given.
            ServerUnreachable: The server does not answer, or does not delete.
            StoreUnavailable: The store cannot be written.
        """
        for owned in owned_data():
            if owned.stop is not None and self._store is not None:
                await owned.stop(self._client, self._store, subject)
        found, began = await self._find(subject), time.time()
        running = sorted({run.workflow_id for run in found.runs if run.is_open and not terminate and await runs_still(self._client, run)})
        if running:
            more = f" and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
            names = ", ".join(repr(name) for name in running[:SHOWN])
            raise InvalidRequest(f"{names}{more} still run; wait for their end, or give --terminate")
        for run in found.runs:
            await end_run(self._client, run)
        others = await self._named_by_others(found)
        own = found.payloads - others
        report = await self._report(subject, found, own)
        if self._folder is not None:
            self._folder.remove(self._folder.find(own), before=began)
            self._folder.remove(self._folder.unnamed(others, ORPHAN_SECONDS), before=began)
            if young := len(list(self._folder.unnamed(others, 0))):
                report = report.model_copy(update={"left": (*report.left, f"{counted(young, 'large payload')}{YOUNG}")})
        await delete_runs(self._client, found.runs)
        if self._store is not None:
            removed = await self._store.write(lambda connection: remove_rows(connection, subject, found.batches, dry_run=False))
            problem = erase_freed(self._store, [name for name, rows in removed.items() if rows])
            report = report.model_copy(update={"rows": removed, "left": (*report.left, *problem)})
        return report.model_copy(update={"open": ()})

    async def _find(self, subject: ForgottenSubject) -> SubjectData:
        owners, batches = owned_data(), list[str]()
        if self._store is not None:
            batches = await self._store.read(lambda connection: [root for owned in owners for root in owned.roots(connection, subject)])
        runs: set[WorkflowRun] = set()
        payloads: set[str] = set()
        unread = 0
        if subject.thread is not None:
            runs |= {*await runs_of(self._client, subject.thread), *await runs_below(self._client, f"{subject.thread}/")}
        if subject.before is not None:
            runs |= set(await closed_before(self._client, subject.before))
        if subject.tenant is not None:
            for run in await our_runs(self._client):
                names = await read_names(self._client, run)
                unread += not names.is_readable
                if subject.tenant in names.tenants:
                    runs.add(run)
                    batches += [run.workflow_id] if any(run.type == owned.root_type for owned in owners) else []
        below = [part for owned in owners for part in owned.below]
        for batch in dict.fromkeys(batches) if subject.before is None else ():
            runs |= {*await runs_of(self._client, batch), *await runs_below(self._client, *(f"{part}{batch}/" for part in below))}
        for run in runs if self._folder is not None else ():
            payloads |= (await read_names(self._client, run)).payloads
        return SubjectData(tuple(sorted(runs)), tuple(dict.fromkeys(batches)), frozenset(payloads), unread)

    async def _named_by_others(self, found: SubjectData) -> frozenset[str]:
        """Return the payloads that the histories name which stay."""
        going, named = {(run.workflow_id, run.run_id) for run in found.runs}, set[str]()
        for run in await find_runs(self._client, "") if self._folder is not None else ():
            if (run.workflow_id, run.run_id) not in going:
                named |= (await read_names(self._client, run)).payloads
        return frozenset(named)

    async def _report(self, subject: ForgottenSubject, found: SubjectData, names: frozenset[str]) -> ForgetPlan:
        rows: dict[str, int] = {}
        if self._store is not None:
            rows = await self._store.read(lambda connection: remove_rows(connection, subject, found.batches, dry_run=True))
        return ForgetPlan(
            workflows=len(found.runs),
            open=tuple(sorted({run.workflow_id for run in found.runs if run.is_open})),
            rows=rows,
            payloads=len(self._folder.find(names)) if self._folder is not None else 0,
            left=tuple(self._left_behind(found.unread)),
        )

    def _left_behind(self, unread: int) -> Iterable[str]:
        """Yield what is out of reach."""
        if unread:
            yield f"{counted(unread, 'workflow')} whose request cannot be decoded here, unless a call names the tenant: {UNREAD}"
        if self._storage and self._folder is None:
            yield f"large payloads in {self._storage}: let a lifecycle rule of the bucket delete them after the namespace's retention"
        if self._store is None:
            yield "rows of a store: none is named here; set GRADELOOP_STORE"
        yield "reports, exports, recordings, logs, traces and backups that were written elsewhere: delete those yourself"


async def sweep(client: Client, folder: PayloadFolder, older_than: float, *, dry_run: bool = False) -> int:
    """Remove the large payloads that no history names any more, and return how many there are.

    Args:
        client: Connected to the only namespace whose workflows use the folder.
        folder: The folder.
        older_than: Seconds for which a file has not been written or used again: a call in flight may name it soon.
        dry_run: Whether the files stay.
    """
    named: set[str] = set()
    began = time.time()
    for run in await find_runs(client, ""):
        named |= (await read_names(client, run)).payloads
    files = list(folder.unnamed(frozenset(named), older_than))
    return len(files) if dry_run else folder.remove(files, before=began)


def describe(plan: ForgetPlan, *, done: bool) -> list[str]:
    """Return what was removed, or would be, in lines."""
    lines = ["removed:" if done else "would be removed:", f"{plan.workflows:>9,}  histories of workflows"]
    lines += [f"{rows:>9,}  rows of {name}" for name, rows in plan.rows.items() if rows]
    lines += [f"{plan.payloads:>9,}  large payloads"]
    if plan.open:
        lines.append(f"{counted(len(plan.open), 'workflow')} still run; --terminate ends them first")
    return [*lines, "stays:", *(f"  {what}" for what in plan.left)]
