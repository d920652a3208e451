"""Commands that convert the files of other tools: to a rubric, and to a suite."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gradeloop.cli.commands import AllowOutside
from gradeloop.cli.folder import own_outside_roots
from gradeloop.errors import InvalidRequest
from gradeloop.files.output import replacing
from gradeloop.suites.convert import as_yaml, convert_configuration, convert_file

app = typer.Typer(rich_markup_mode=None, add_completion=False)
rubric_app = typer.Typer(rich_markup_mode=None, add_completion=False)


@rubric_app.command("convert")
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A promptfoo configuration, test or assertions, or Mastra's scorers.")],
    *,
    source: Annotated[
        Literal["promptfoo", "mastra"] | None, typer.Option("--from", help="Read the file as this tool's; detected by default.")
    ] = None,
    test: Annotated[
        int, typer.Option(min=0, metavar="N", help="Convert this test of a configuration, counted from 0 once lists are fanned out.")
    ] = 0,
    allow_outside: AllowOutside = None,
) -> None:
    """Convert promptfoo's or Mastra's file to a rubric."""
    rubric = convert_file(file, source, test, own_outside_roots(allow_outside), lambda text: typer.echo(text, err=True))
    typer.echo(as_yaml(rubric), nl=False)


@app.command("convert")
def convert_suite(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration of promptfoo.")] = Path("promptfooconfig.yaml"),
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the suite to this file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    allow_outside: AllowOutside = None,
) -> None:
    """Convert promptfoo's configuration to a suite of ours."""
    if output is not None and output.exists() and not overwrite:
        raise InvalidRequest(f"--output: {str(output)!r} exists; name another file, or replace it with --overwrite")
    text = convert_configuration(file, own_outside_roots(allow_outside))
    if output is None:
        typer.echo(text, nl=False)
        return
    with replacing(output.resolve()) as written:
        written.write(text)
    typer.echo(f"wrote {output}; run it with: gradeloop eval {output}")
