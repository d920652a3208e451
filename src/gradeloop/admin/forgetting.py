"""Forgetting: everything that Temporal, the store and the folder of large payloads keep of a thread, a batch, a tenant or a time goes."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote as quote_word
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from temporalio.api.enums.v1 import ArchivalState
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from gradeloop.admin.store_care import erase_freed
from gradeloop.client.client import GradingClient
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import parts
from gradeloop.settings.paths import view_file
from gradeloop.store.engine import Store
from gradeloop.store.postgres import take_time
from gradeloop.store.tables import prune_by_age, table
from gradeloop.store.upgrade import require_known
from gradeloop.temporal.codec import payload_file, payload_owner
from gradeloop.temporal.histories import (
    OURS,
    WorkflowRun,
    delete_runs,
    end_run,
    find_runs,
    read_payloads,
    runs_below,
    runs_of,
    runs_of_tenant,
    runs_still,
)
from gradeloop.text import counted

if TYPE_CHECKING:  # commands that need no store do not load SQLAlchemy
    from sqlalchemy import Connection

ORPHAN_SECONDS = 600.0
"""Seconds after which a large payload that no history names is nobody's, as the answer of a query is: a call in flight names it sooner."""

S3 = "s3://"
LIFECYCLE = "let a lifecycle rule of the bucket delete them after the namespace's retention"

ELSEWHERE = (
    "reports, exports, recordings, logs and traces that were written elsewhere, and backups of them, of the store and of the server",
    "freed pages and logs of a server's database that is not the embedded one, until it writes them anew",
)
"""Copies that may remain where no command sees them."""

UNREAD = "give the keys in GRADELOOP_ENCRYPTION_KEYS and run the command again"

SHOWN = 3
"""Open workflows that a refusal names."""


@dataclass(frozen=True)
class ForgottenSubject:
    """The subject that is to be forgotten: exactly one of these."""

    thread: str | None = None
    batch: str | None = None
    tenant: str | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        if [self.thread, self.batch, self.tenant, self.before].count(None) != 3:  # noqa: PLR2004 - all but one
            raise InvalidRequest("name one thing to forget: THREAD, --batch, --tenant or --before")
        if "" in (self.thread, self.batch, self.tenant):  # what has no tenant is indexed under the empty name
            raise InvalidRequest("the name of what to forget is empty; is a variable not set?")


@dataclass(frozen=True)
class OwnedData:
    """Data of subjects that an extension keeps, and removes."""

    remove: Callable[["Connection", ForgottenSubject, Sequence[str]], Mapping[str, int]]
    """Deletes the rows of a subject, whose batches are given by their ids, and returns how many by table."""
    roots: Callable[["Connection | None", ForgottenSubject, Iterable[WorkflowRun]], list[str]] = lambda *_: []
    """Returns the ids of the workflows that began what a subject has in the store, of a tenant its batches: given the store where there
    is one, and the subject's runs at the server. What the store knows as another tenant's is left out."""
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
    require_known(connection, entirely=True)
    take_time(connection)
    rows = Counter[str]()
    for owned in owned_data():
        rows.update(owned.remove(connection, subject, batches))
    if dry_run:
        connection.rollback()
    return dict(rows)


def past_moment(text: str) -> datetime:
    """Read a date or a time, in UTC where it does not say otherwise; raise InvalidRequest where it is none, or is yet to come."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--before is {text!r}; write a date, for example 2026-01-31") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment > datetime.now(UTC):  # everything is older
        raise InvalidRequest(f"--before is {moment.isoformat()}, which is yet to come; name a moment that is past")
    return moment


class ForgetPlan(Strict):
    """All that would be removed, or was."""

    workflows: int
    """Runs of workflows, whose histories go."""
    open: tuple[str, ...] = ()
    """Ids of the workflows that still run."""
    rows: dict[str, int]
    """Rows of the store by table."""
    payloads: int
    """Files of large payloads that nothing else names, and of reports that `gradeloop view` wrote."""
    left: tuple[str, ...] = ()
    """Data known to remain, each with what to do about it; with any of it the command ends with 1."""


@dataclass(frozen=True)
class SubjectData:
    """Everything that belongs to a subject."""

    runs: tuple[WorkflowRun, ...]
    batches: tuple[str, ...]
    files: frozenset[Path]
    """Files of large payloads, and of reports that `gradeloop view` wrote."""
    stray: int = 0
    """Files of payloads that no workflow owns and no history names."""
    unread: int = 0
    """Workflows whose request cannot be decoded here, so that their tenant is known only by their calls."""


class PayloadFolder:
    """The files of a folder of large payloads: each workflow's in a folder of its own, and those of older releases, which all share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, url: str | None) -> "PayloadFolder | None":
        """Return the folder that a storage's URL names; None for a bucket, and where there is no storage."""
        parts = urlsplit(url or "")
        return cls(Path(unquote(parts.path))) if parts.scheme == "file" else None

    async def sweep(self, client: Client, older: float, *, dry_run: bool = False) -> int:
        """Remove the payloads that no history names any more, and return how many there are.

        Args:
            client: Connected to the only namespace whose workflows use the folder.
            older: Seconds for which a file has not been written or used again: a call in flight may name it soon.
            dry_run: Whether the files stay.

        Raises:
            InvalidRequest: A file cannot be removed.
        """
        # The moment is taken before the histories are read: a file that is written meanwhile is younger than
        # it, and stays although no history that was read names it.
        before, named = time.time() - older, await self.named(client, await find_runs(client, ""))
        files = [file for file in {*self.folder.glob("??/*"), *self.folder.glob("??/*/*")} - named if file.is_file()]
        removed, left = remove_files(files, before, dry_run=dry_run)
        if left:
            raise InvalidRequest("; ".join(left))
        return removed

    async def named(self, client: Client, runs: Iterable[WorkflowRun]) -> set[Path]:
        """Return the files that the histories of some runs name."""
        return {self.folder / file for run in runs for file in await read_payloads(client, run)}

    async def owned(self, client: Client, runs: Iterable[WorkflowRun]) -> tuple[set[Path], int]:
        """Return the files that go with some runs, and how many there are that no history names.

        A workflow's own go with it, but for what other runs of it name. Those of older releases have no owner: every history is read.
        """
        going, files = {(run.workflow_id, run.run_id) for run in runs}, set[Path]()
        for workflow_id in {workflow_id for workflow_id, _ in going}:
            # Several runs of one workflow may name a payload. What a run that stays names stays, too.
            if own := set(self.folder.glob(f"{payload_file('*', payload_owner(client.namespace, workflow_id))}")):
                stays = [run for run in await runs_of(client, workflow_id) if (workflow_id, run.run_id) not in going]
                files |= own - await self.named(client, stays)
        if shared := {file for file in self.folder.glob("??/*") if file.is_file()}:
            others = [run for run in await find_runs(client, "") if (run.workflow_id, run.run_id) not in going]
            free, own = shared - await self.named(client, others), await self.named(client, runs)
            return files | free & own, len(free - own)
        return files, 0


def remove_files(files: Iterable[Path], before: float = math.inf, *, dry_run: bool = False) -> tuple[int, list[str]]:
    """Remove files and return how many, and which could not be, with the reason; those written or used again since `before` stay."""
    removed, kept = 0, list[str]()
    for file in files:
        try:
            if file.stat().st_mtime < before:
                removed += 1
                None if dry_run else file.unlink()
        except FileNotFoundError:  # another command removed it
            continue
        except OSError as error:
            kept.append(f"{file}, which cannot be removed ({error.strerror}): remove it, or run the command again")
    return removed, kept


class Eraser:
    """Finds and removes what belongs to a subject; whatever was removed before a crash is simply not found again.

    Args:
        client: Connected to the namespace.
        store: The store of results; None where there is none.
        storage: The URL of the storage of large payloads.
        reports: The folder of the pages that `gradeloop view` writes.
        database: The embedded server's database; None for other servers.
    """

    def __init__(
        self, client: Client, store: Store | None, storage: str | None, *, reports: Path | None = None, database: Store | None = None
    ) -> None:
        self._client = client
        self._store = store
        self._storage = storage
        self._folder = PayloadFolder.of(storage)
        self._reports = reports
        self._database = database

    async def plan(self, subject: ForgottenSubject) -> ForgetPlan:
        """Return what would be removed."""
        return await self._report(subject, await self._find(subject))

    # The order makes a crash harmless: first whatever would begin anew, then the runs, then files that
    # histories name, then the histories, and the store's rows last. Each step is found by what a later one
    # removes, so a second try finds all that is left; with the rows removed first, nobody would know any more
    # which workflows were the subject's.
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
        found = await self._find(subject)
        running = sorted({run.workflow_id for run in found.runs if run.is_open and not terminate and await runs_still(self._client, run)})
        if running:
            more = f" and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
            names = ", ".join(repr(name) for name in running[:SHOWN])
            raise InvalidRequest(f"{names}{more} still run; wait for their end, or give --terminate")
        for run in found.runs:
            await end_run(self._client, run)
        report = await self._report(subject, found)
        _, left = remove_files(found.files)
        if self._storage is not None and self._storage.startswith(S3) and not subject.before:
            left += await asyncio.to_thread(_remove_objects, self._storage, self._client.namespace, found.runs)
        await delete_runs(self._client, found.runs)
        if self._store is not None:
            removed = await self._store.write(lambda connection: remove_rows(connection, subject, found.batches, dry_run=False))
            left += erase_freed(self._store, [name for name, rows in removed.items() if rows])
            report = report.model_copy(update={"rows": removed})
        if self._database is not None:
            left += erase_freed(self._database, [])
        return report.model_copy(update={"open": (), "left": (*report.left, *left)})

    async def _find(self, subject: ForgottenSubject) -> SubjectData:
        below = [part for owned in owned_data() for part in owned.below]
        runs: set[WorkflowRun] = set()
        unread = 0
        if subject.thread is not None:
            runs |= {*await runs_of(self._client, subject.thread), *await runs_below(self._client, f"{subject.thread}/")}
        if subject.before is not None:
            runs |= set(await find_runs(self._client, f"{OURS} AND CloseTime < '{subject.before.astimezone(UTC).isoformat()}'"))
        if subject.tenant is not None:
            found, unread = await runs_of_tenant(self._client, subject.tenant)
            runs |= set(found)

        def roots(connection: "Connection | None") -> list[str]:
            return [root for owned in owned_data() for root in owned.roots(connection, subject, runs)]

        batches = roots(None) if self._store is None else await self._store.read(roots)
        # By age, each workflow is found by its own end, those below a batch too. To look for them by their names
        # would take in ones that ended later.
        for batch in dict.fromkeys(batches) if subject.before is None else ():
            runs |= {*await runs_of(self._client, batch), *await runs_below(self._client, *(f"{part}{batch}/" for part in below))}
        files, stray = await self._folder.owned(self._client, runs) if self._folder is not None else (set[Path](), 0)
        for name in {"latest", *(run.workflow_id for run in runs)} if self._reports is not None and runs else ():
            files |= {page} if self._reports and (page := view_file(self._reports, name)).is_file() else set()
        return SubjectData(tuple(sorted(runs)), tuple(dict.fromkeys(batches)), frozenset(files), stray, unread)

    async def _report(self, subject: ForgottenSubject, found: SubjectData) -> ForgetPlan:
        rows: dict[str, int] = {}
        if self._store is not None:
            rows = await self._store.read(lambda connection: remove_rows(connection, subject, found.batches, dry_run=True))
        return ForgetPlan(
            workflows=len(found.runs),
            open=tuple(sorted({run.workflow_id for run in found.runs if run.is_open})),
            rows=rows,
            payloads=len(found.files),
            left=tuple([what async for what in self._left_behind(subject, found)]),
        )

    async def _left_behind(self, subject: ForgottenSubject, found: SubjectData) -> AsyncIterator[str]:
        """Yield what is out of reach."""
        if found.unread:
            yield f"{counted(found.unread, 'workflow')} whose request cannot be decoded here, unless a call names the tenant: {UNREAD}"
        if found.stray:
            yield f"{counted(found.stray, 'old large payload')} that no history names: run `gradeloop store prune --payloads`"
        if self._storage and self._folder is None and (subject.before or not self._storage.startswith(S3)):
            yield f"large payloads in {self._storage}: {LIFECYCLE}"
        for fork in await self._forks_of(subject.thread) if subject.thread else ():
            yield f"the fork {fork}, which has the conversation up to its draft: gradeloop forget {quote_word(fork)}"
        if self._store is None:
            yield "rows of a store: none is named here; set GRADELOOP_STORE"
        described = await self._client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=self._client.namespace))
        if described.config.history_archival_state == ArchivalState.ARCHIVAL_STATE_ENABLED:
            yield f"histories that Temporal has archived in {described.config.history_archival_uri}: delete them there"

    async def _forks_of(self, thread: str) -> list[str]:
        """Return a thread's forks, and theirs, which have its conversation, too."""
        client, found = GradingClient(self._client), [thread]
        for one in found:  # it grows meanwhile
            found += [fork for fork in await client.forks(one) if fork not in found]
        return found[1:]


def _remove_objects(url: str, namespace: str, runs: Iterable[WorkflowRun]) -> list[str]:
    """Remove what the workflows of some runs have in an S3 bucket, by the beginnings of its keys; return what could not be, in words."""
    try:
        import boto3  # type: ignore[import-untyped,import-not-found,unused-ignore]  # an optional package without types

        objects, problems = boto3.resource("s3").Bucket(url.removeprefix(S3)).objects, list[str]()
        for names in {(namespace, kind, run.workflow_id) for run in runs for kind in (run.type, "null")}:
            prefix = "v0/ns/{}/wt/{}/wi/{}/".format(*(quote(name, safe="!*'()").replace("~", "%7E") for name in names))
            problems += [error["Message"] for answer in objects.filter(Prefix=prefix).delete() for error in answer.get("Errors", ())]
    except Exception as error:  # noqa: BLE001 - boto3 makes its errors as it meets them
        problems = [f"{type(error).__name__}: {error}"]
    return [f"large payloads in {url} ({problems[0]}): run the command again, or {LIFECYCLE}"] if problems else []


def describe(plan: ForgetPlan, *, done: bool) -> list[str]:
    """Return what was removed, or would be, in lines."""
    lines = ["removed:" if done else "would be removed:", f"{plan.workflows:>9,}  histories of workflows"]
    lines += [f"{rows:>9,}  rows of {name}" for name, rows in plan.rows.items() if rows]
    lines += [f"{plan.payloads:>9,}  files of large payloads and reports"]
    if plan.open:
        lines.append(f"{counted(len(plan.open), 'workflow')} still run; --terminate ends them first")
    lines += ["stays:", *(f"  {what}" for what in plan.left)] if plan.left else []
    return [*lines, "may stay, out of reach of this command:", *(f"  {what}" for what in ELSEWHERE)]
