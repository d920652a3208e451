"""The commands that explain: a page of a run, a batch or judgements, and how two batches differ."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradeloop.cli_threads import Json, show_lines
from gradeloop.comparisons.gate import Gate
from gradeloop.departure import NO_VERDICT

report_app = typer.Typer(rich_markup_mode=None)

Kind = Literal["thread", "batch", "judgements"]


@report_app.command()
def report(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A thread, a batch, judgements, a file of them; `latest`.")] = "latest",
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page is written.")] = Path("report.html"),
    kind: Annotated[Kind | None, typer.Option(help="What it is, where its name may stand for several.")] = None,
    runs: Annotated[list[str] | None, typer.Option(help="A file of the runs that were judged; repeatable.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one HTML page that explains every verdict."""
    from gradeloop.reports.page_file import checked_page, write_page
    from gradeloop.reports.subject import Subject

    checked_page(output)
    size = write_page(output, asyncio.run(Subject(what, kind, tuple(runs or ())).page()))
    typer.echo(f"wrote {output} ({size})")
    if show:
        typer.launch(output.resolve().as_uri())


@report_app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A batch, `latest~1`, or a file that eval wrote.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other; `latest` by default.")] = "latest",
    *,
    fail_on: Annotated[list[Gate] | None, typer.Option(help="Exit 1 where there are any; repeatable.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page there: diff.html.")] = None,
    as_json: Json = False,
) -> None:
    """Say what got worse and what better from batch A to batch B."""
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
        typer.echo("no case has a verdict in both batches; nothing was compared", err=True)
    raise typer.Exit(code)
