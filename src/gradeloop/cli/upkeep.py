"""Commands of an operator: care for the store, forget a thread, a batch or a tenant, plan a fleet."""

import asyncio
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from gradeloop.admin.capacity import MEASURED, SLOTS, Workload, own_times, parse_rate, parse_seconds, plan_fleet, plan_lines
from gradeloop.admin.forgetting import ORPHAN_SECONDS, Eraser, ForgottenSubject, PayloadFolder, describe, past_moment
from gradeloop.admin.store_care import back_up, check_store, prune, prune_kinds, restore, what_is_lost
from gradeloop.cli.commands import Json, codes_help, tenant_flag
from gradeloop.cli.render.table import show_lines
from gradeloop.client.listing import LATEST
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import CAPPED
from gradeloop.settings.paths import state_folder
from gradeloop.settings.worker import is_embedded
from gradeloop.store.engine import Store, own_store, store_url
from gradeloop.store.upgrade import VERSION
from gradeloop.temporal.connect import connect, find, storage_url
from gradeloop.text import counted

app = typer.Typer(rich_markup_mode=None)
store_app = typer.Typer(
    help="Check, upgrade, back up, restore and prune the store that GRADELOOP_STORE names.",
    short_help="Check, upgrade, back up, restore and prune the store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(store_app, name="store")

KINDS = tuple(prune_kinds())

UNITS = {"d": "days", "h": "hours", "w": "weeks"}


@store_app.command()
def check(*, as_json: Json = False) -> None:
    """Show what is in the store, and whether it is whole."""
    found = check_store(_as_it_is())
    state = "this gradeloop's" if found.version == VERSION else f"this gradeloop's is {VERSION}; the first use upgrades it"
    if found.version > VERSION:
        state = f"newer than this gradeloop's, {VERSION}; install a newer gradeloop"
    lines = [f"store     {found.store}", f"version   {found.version} ({state})", f"size      {found.size / 2**20:,.1f} MiB"]
    lines += [f"rows      {rows:>9,}  {name}" for name, rows in found.rows.items()]
    lines += [f"fault     {fault}" for fault in found.faults] or ["whole     the database finds nothing wrong"]
    show_lines(found.model_dump(mode="json"), lines, as_json=as_json)
    raise typer.Exit(1 if found.faults or found.version > VERSION else 0)


@store_app.command()
def upgrade(
    to: Annotated[int, typer.Option("--to", min=1, metavar="VERSION", help="Bring it to this version.")] = VERSION,
) -> None:
    """Bring the store's tables to this gradeloop's version."""
    if to > VERSION:
        raise InvalidRequest(f"--to is {to}, and this gradeloop knows versions up to {VERSION}; install a newer one")
    store = _as_it_is()
    if to < (found := check_store(store).version) <= VERSION:
        raise InvalidRequest(f"the store is of version {found}, and --to is {to}; `gradeloop store downgrade --to {to}` takes it down")
    before = store.move(to)
    said = f"it is of version {to} already" if before == to else f"version {before} is now {to}"
    typer.echo(f"{store.name}: {said}")


@store_app.command()
def downgrade(
    to: Annotated[int, typer.Option("--to", min=1, metavar="VERSION", help="The version that it is to have.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Lose what the older tables have no place for.")] = False,
) -> None:
    """Bring the store's tables to an older version, before a rollback."""
    store = _as_it_is()
    if (found := check_store(store)).version <= to:
        raise InvalidRequest(f"the store is of version {found.version}, and --to is {to}; write a lower one, or see `store upgrade`")
    if (lost := what_is_lost(store, to)) and not yes:
        raise InvalidRequest(f"version {to} has no place for {', '.join(lost)}; make a copy with `store backup FILE`, then give --yes")
    typer.echo(f"{store.name}: version {store.move(to)} is now {to}")
    typer.echo(f"a worker or command of this gradeloop upgrades it again at its next use; start one of version {to} instead")


@store_app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Write the copy to this file; it is a SQLite database.")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
) -> None:
    """Copy the store as it is now into a file."""
    _say(back_up(own_store(), file, overwrite=overwrite), f"to {file}")


@store_app.command("restore")
def restore_backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `store backup` wrote.")]) -> None:
    """Copy a backup into a store that is empty."""
    store = own_store()
    _say(restore(file, store), f"from {file} to {store.name}")


@store_app.command("prune")
def prune_store(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Delete what is older: 90d, 12h, 4w; needed without --payloads.")
    ] = None,
    *,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Delete what is older than this date, 2026-01-31; UTC.")] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Delete large payloads that no history names any more, and nothing else.")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help=f"Only these: {', '.join(KINDS)}; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Delete old batches, verdicts, judgements; or stray payloads."""
    if unknown := [name for name in kind or () if name not in KINDS]:
        raise InvalidRequest(f"--kind is {unknown[0]!r}; write one of {', '.join(KINDS)}")
    if payloads:
        if before is not None or kind:
            raise InvalidRequest("--payloads goes by what histories name; leave --before and --kind out")
        asyncio.run(_sweep(ORPHAN_SECONDS if older_than is None else age(older_than).total_seconds(), dry_run=dry_run))
        return
    if (older_than is None) == (before is None):
        raise InvalidRequest("say how old: give either --older-than, for example 90d, or --before, for example 2026-01-31")
    moment = past_moment(before) if before is not None else datetime.now(UTC) - age(older_than or "")
    pruned = prune(own_store(), moment, kind or KINDS, dry_run=dry_run)
    word = "would be deleted" if dry_run else "deleted"
    lines = [f"{rows:>9,}  {name}" for name, rows in pruned.rows.items()]
    show_lines(pruned.model_dump(mode="json"), [f"{word}, as of before {pruned.before:%Y-%m-%d %H:%M} UTC:", *lines], as_json=as_json)


async def _sweep(older_than: float, *, dry_run: bool) -> None:
    connection = await find()
    url = storage_url(connection)
    folder = PayloadFolder.of(url)
    if folder is None:
        where = f"{url} is not a folder" if url else "there is no storage of large payloads"
        raise InvalidRequest(f"{where}; let a lifecycle rule of the bucket delete its objects after the namespace's retention")
    count = await folder.sweep(await connect(connection), older_than, dry_run=dry_run)
    typer.echo(f"{'would be deleted' if dry_run else 'deleted'}: {counted(count, 'large payload')} that no history names")


def _as_it_is() -> Store:
    """Return the store, which is not upgraded when it is opened."""
    return Store(store_url(embedded=is_embedded()), upgrade=False)


def age(text: str, flag: str = "--older-than") -> timedelta:
    """Read how long ago something was, as `90d`."""
    found = re.fullmatch(r"(\d{1,5})([dhw])", text)
    if found is None:
        raise InvalidRequest(f"{flag} is {text!r}; write a number with d, h or w, for example 90d")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def _say(copied: Mapping[str, int], where: str) -> None:
    parts = [f"{rows:,} {name}" for name, rows in copied.items() if rows]
    typer.echo(f"copied {counted(sum(copied.values()), 'row')} {where}: {', '.join(parts) or 'nothing'}")


@app.command("forget", epilog=codes_help("forget"))
def forget(  # noqa: PLR0913 - one argument a flag
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="Forget this thread or judgement, by its id.")] = None,
    *,
    batch: Annotated[str | None, typer.Option(metavar="BATCH", help="Forget this batch and its cases.")] = None,
    tenant: Annotated[str | None, typer.Option(parser=tenant_flag, metavar="TENANT", help="Forget everything of this tenant.")] = None,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Forget what ended before this date, 2026-01-31; UTC.")] = None,
    terminate: Annotated[bool, typer.Option("--terminate", help="Terminate workflows that still run, first.")] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Show what would be removed, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove histories, rows, verdicts and payloads for good."""
    subject = ForgottenSubject(thread=thread, batch=batch, tenant=tenant, before=None if before is None else past_moment(before))
    if LATEST in (thread, batch):
        raise InvalidRequest("`latest` may be another one by the time you confirm; name the id")
    asyncio.run(_forget(subject, terminate=terminate, preview=preview, yes=yes, as_json=as_json))


async def _forget(subject: ForgottenSubject, *, terminate: bool, preview: bool, yes: bool, as_json: bool) -> None:
    connection = await find()
    store = own_store()
    file = state_folder() / "server.db"
    database = Store(f"sqlite:///{file}", upgrade=False) if is_embedded() and file.exists() else None
    eraser = Eraser(await connect(connection), store, storage_url(connection), reports=file.with_name("reports"), database=database)
    if preview or not yes:
        plan = await eraser.plan(subject)
        if preview or not as_json:
            show_lines(plan.model_dump(mode="json"), describe(plan, done=False), as_json=as_json)
        if preview:
            return
        if not sys.stdin.isatty():
            raise InvalidRequest("nobody can be asked here; give --yes to remove it, or --preview to look")
        typer.confirm("Remove it for good?", abort=True)
    done = await eraser.forget(subject, terminate=terminate)
    show_lines(done.model_dump(mode="json"), describe(done, done=True), as_json=as_json)
    if done.left:
        raise typer.Exit(CAPPED)


@app.command("plan")
def plan(
    rate: Annotated[str, typer.Option(metavar="RATE", help="Calls of models: 50/s, 3000/min, 1000000/day.")],
    latency: Annotated[str, typer.Option(metavar="TIME", help="What a call takes at the provider, in the mean: 800ms, 5s.")],
    *,
    work: Annotated[Workload, typer.Option(help="Grade finished outputs, or drive threads.")] = Workload.BATCH,
    slots: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Calls in flight of a worker at most.")] = SLOTS,
    time: Annotated[list[str] | None, typer.Option(metavar="NAME=MS", help="A service time that you measured; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Show the workers, slots and connections that a load needs."""
    times = own_times(MEASURED[work], time or ())
    planned = plan_fleet(parse_rate(rate), parse_seconds(latency), work, times, slots)
    show_lines(planned.model_dump(mode="json"), plan_lines(planned, times), as_json=as_json)
