"""The commands `report` and `diff`: a page that explains verdicts, and what changed between two batches."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from gradeloop.cli_help import codes_help
from gradeloop.cli_threads import Json, show_lines
from gradeloop.comparisons.gate import Gate
from gradeloop.departure import NO_VERDICT

report_app = typer.Typer(rich_markup_mode=None)

Kind = Literal["thread", "batch", "judgements"]


@report_app.command()
def report(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A thread, a batch or judgements: an id, a file, or `latest`.")] = "latest",
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the page to this file.")] = Path("report.html"),
    kind: Annotated[Kind | None, typer.Option(help="Say what WHAT is, when its name fits several.")] = None,
    runs: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Show the judged runs of this file; repeatable.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write an HTML page that explains every verdict."""
    from gradeloop.reports.page_file import checked_page, write_page
    from gradeloop.reports.subject import Subject

    checked_page(output)
    size = write_page(output, asyncio.run(Subject(what, kind, tuple(runs or ())).page()))
    typer.echo(f"wrote {output} ({size})")
    if show:
        typer.launch(output.resolve().as_uri())


@report_app.command(epilog=codes_help("diff"))
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The batch before: an id, `latest~1`, or a file that eval wrote.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The batch after.")] = "latest",
    *,
    fail_on: Annotated[
        list[Gate] | None, typer.Option(metavar="|".join(get_args(Gate)), help="Exit 1 if there are any of these; repeatable.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write an HTML page to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show what regressed and improved from batch A to batch B."""
    import shutil

    from gradeloop.batches.json_files import as_json as told_as_json
    from gradeloop.comparisons.comparison_lines import comparison_lines
    from gradeloop.comparisons.comparison_wording import gate_line
    from gradeloop.comparisons.diff_command import code_of, comparison_of
    from gradeloop.reports.page_file import checked_page

    checked_page(output)
    found = comparison_of(a, b)
    if output is not None:
        from gradeloop.comparisons.comparison_page import comparison_page
        from gradeloop.reports.page_file import write_page

        write_page(output, comparison_page(found))
    if as_json:
        typer.echo(told_as_json(found))
    else:
        show_lines(None, comparison_lines(found, shutil.get_terminal_size().columns), as_json=False)
    for each in fail_on or ():
        if found.hits(each):
            typer.echo(gate_line(found, each), err=True)
    code = code_of(found, fail_on or ())
    if code == NO_VERDICT:
        typer.echo("no case has a verdict in both batches, so nothing was compared", err=True)
    raise typer.Exit(code)
