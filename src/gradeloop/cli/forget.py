"""The command that forgets a thread, a batch, a tenant, or whatever is older than a date."""

import asyncio
import sys
from typing import Annotated

import typer

from gradeloop.admin.forgetting import Eraser, ForgottenSubject, describe, past_moment
from gradeloop.cli.commands import Json
from gradeloop.cli.render.table import show_lines
from gradeloop.client.listing import LATEST
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find, storage_url

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("forget")
def forget(  # noqa: PLR0913 - one argument a flag
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="Forget this thread or judgement, by its id.")] = None,
    *,
    batch: Annotated[str | None, typer.Option(metavar="BATCH", help="Forget this batch and its cases.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="Forget everything of this tenant.")] = None,
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
    eraser = Eraser(await connect(connection), store, storage_url(connection))
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
