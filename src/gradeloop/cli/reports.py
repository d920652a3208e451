"""Commands that write reports."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from gradeloop.cli.commands import Overwrite, share_flag
from gradeloop.files.output import PAGE
from gradeloop.reports.html import checked_page, write_page
from gradeloop.reports.subject import SUBJECTS, ReportOptions, report_page
from gradeloop.settings.paths import state_folder, view_file

app = typer.Typer(rich_markup_mode=None)

KINDS = f"[{'|'.join(SUBJECTS.rows)}]"

MARKDOWN = ".md"

OUTPUT_HELP = "Write the page to this file; of judgements a summary, too, where it ends in .md."
WANTED_HELP = "Count a judgement as passed when its KEY is VALUE; repeatable."
RATE_HELP = "Say that judgements failed when a smaller share passes."


@app.command()
def report(  # noqa: PLR0913 - one parameter a flag
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A thread, a batch or judgements: an id, a file, or `latest`.")] = "latest",
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help=OUTPUT_HELP)] = Path("report.html"),
    kind: Annotated[str | None, typer.Option(metavar=KINDS, help="Say what WHAT is, when its name fits several.")] = None,
    runs: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Show the judged runs of this file; repeatable.")] = None,
    mapping: Annotated[Path | None, typer.Option(metavar="FILE", help="Read runs of any shape as this mapping file says.")] = None,
    passes: Annotated[list[str] | None, typer.Option("--pass", metavar="KEY=VALUE", help=WANTED_HELP)] = None,
    pass_rate: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=RATE_HELP)] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write an HTML page that explains every verdict."""
    checked_page(output, overwrite=overwrite, suffixes=(PAGE, MARKDOWN))
    options = ReportOptions(tuple(runs or ()), tuple(passes or ()), pass_rate, markdown=output.suffix.lower() == MARKDOWN, mapping=mapping)
    size = write_page(output, asyncio.run(report_page(what, kind, options)))
    typer.echo(f"wrote {output} ({size})")
    if show:
        typer.launch(output.resolve().as_uri())


@app.command(hidden=True)
def view(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A thread, a batch or judgements: an id, a file, or `latest`.")] = "latest",
    *,
    yes: Annotated[bool, typer.Option("--yes/--no", "-y/-n", help="Open the page in the browser, or only print its name.")] = True,
) -> None:
    """Open the page that `report` writes in the browser."""
    page = asyncio.run(report_page(what))
    folder = state_folder() / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    path = view_file(folder, what)
    size = write_page(path, page)
    typer.echo(f"wrote {path} ({size})")
    if yes:
        typer.launch(path.as_uri())
