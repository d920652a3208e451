"""The command that shows what a judge will see of finished runs, and the account of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gradeloop.cli.commands import Json, Limit
from gradeloop.cli.render.table import show_lines
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import NO_VERDICT
from gradeloop.judges.prompt import blocks_of, is_cut
from gradeloop.text import counted, one_line, shortened
from gradeloop.transcripts.account import KINDS, Account
from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading, read_run_file

app = typer.Typer(rich_markup_mode=None)
runs_app = typer.Typer(help="Show finished runs as a judge sees them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(runs_app, name="runs")

SHOWN = 400
"""The characters of a record that are shown in a terminal; `--json` has them all."""

PATHS = 10
"""The paths that an account lists: those with the most characters left out."""

MappingFile = Annotated[Path | None, typer.Option("--mapping", metavar="FILE", help="Read runs of any shape as this mapping file says.")]

SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out runs that cannot be read, and list them.")]


@runs_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The runs: JSON, JSONL, .eval or text.")],
    *,
    mapping: MappingFile = None,
    skip_bad: SkipBad = False,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """Show what a judge sees of runs, and what it does not."""
    if not file.is_file():
        raise InvalidRequest(f"{str(file)!r} is not a file; name one of runs")
    reading = Reading(skip_bad=skip_bad, mapping=read_mapping(mapping))
    shown: list[tuple[AgentRun, Account]] = []
    for run in read_run_file(file, reading):  # all are read, so that what cannot be read is told
        shown += [(run, reading.last_account)] if len(shown) < limit else []
    value = {
        "runs": [{"run": run.model_dump(mode="json"), "account": vars(account)} for run, account in shown],
        "total": reading.runs,
        "account": vars(reading.account),
        "left_out": reading.left_out,
    }
    show_lines(value, _lines(shown, reading), as_json=as_json)
    if reading.left_out:
        raise typer.Exit(NO_VERDICT)


def _lines(shown: list[tuple[AgentRun, Account]], reading: Reading) -> Iterator[Text]:
    yield from read_as_lines(reading)
    for run, account in shown:
        yield Text(one_line(f"run {run.id}{', of which a judge is shown a part, since it is long' if is_cut(run) else ''}"), "bold")
        for block in blocks_of(run):
            for record in block.records:
                text = shortened(block.text[record.text_start : record.end], SHOWN)
                about = (block.label, block.role, *record.fields.values())
                yield Text(f"  {one_line(' '.join(map(str, about)))}: {one_line(text)}")
        yield from account_lines(account)
    if reading.runs > len(shown):
        yield Text(f"{len(shown)} of {counted(reading.runs, 'run')}; --limit shows more. Of all:")
        yield from account_lines(reading.account)
    yield from (Text(one_line(f"left out: {text}")) for text in reading.left_out)


def read_as_lines(reading: Reading) -> Iterator[Text]:
    """Yield what each file was taken for, and why."""
    for (path, name, why), count in reading.formats.items():
        yield Text(one_line(f"{path}: read as {name} ({why}){f', {count} times' if count > 1 else ''}"), "dim")


def account_lines(account: Account, paths: int = PATHS) -> Iterator[Text]:
    """Yield what became of the values of a record, and the paths of which most is left out."""
    counts = (
        f"{kind.replace('_', ' ')} {counted(account.values[kind], 'value')} ({account.characters[kind]:,} characters)" for kind in KINDS
    )
    yield Text(f"  account: {', '.join(counts)}", "dim")
    for path, characters in account.left_out.most_common(paths):
        yield Text(f"    {characters:>9,} characters left out at {one_line(path)}", "dim")
