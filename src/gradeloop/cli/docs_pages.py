"""The command `docs`: the pages of the documentation, which the wheel carries."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradeloop.cli.render.table import Terminal
from gradeloop.errors import InvalidRequest
from gradeloop.temporal.connect import application_folder
from gradeloop.text import clip, did_you_mean

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("docs")
def docs(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", help="Show this page; all are listed without one.")] = None,
    *,
    path: Annotated[bool, typer.Option("--path", help="Print where the page is on this machine instead.")] = False,
) -> None:
    """Show a page of the documentation, or list them."""
    pages = find_pages()
    if page is None:
        width = max(map(len, pages))
        typer.echo("\n".join(f"{name.ljust(width)}  {file if path else title_of(file)}" for name, file in pages.items()))
        return
    file = pages.get(page.removesuffix(".md").lower())
    if file is None:
        raise InvalidRequest(f"there is no page {clip(page)}.{did_you_mean(page, sorted(pages))} All pages: gradeloop docs")
    if path:
        typer.echo(str(file))
    elif sys.stdout.isatty():
        from rich.markdown import Markdown  # loads Pygments

        Terminal().print(Markdown(file.read_text(encoding="utf-8")))
    else:
        typer.echo(file.read_text(encoding="utf-8"), nl=False)


def find_pages() -> dict[str, Path]:
    """Return the pages by name, those of a folder below it as `tools/run_python`.

    Raises:
        InvalidRequest: This installation has none.
    """
    folder = application_folder() / "docs"
    found = {file.relative_to(folder).with_suffix("").as_posix().lower(): file for file in sorted(folder.rglob("*.md"))}
    pages = {name.removesuffix("/readme"): file for name, file in found.items()}
    if not pages:
        raise InvalidRequest(f"this installation has no pages at {str(folder)!r}; pip install --force-reinstall gradeloop")
    return dict(sorted(pages.items(), key=lambda row: ("/" in row[0], row[0])))


def title_of(file: Path) -> str:
    """Return a page's heading."""
    with file.open(encoding="utf-8") as lines:
        return next(lines, "").removeprefix("#").strip()
