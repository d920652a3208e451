"""The pages as a reader moves through them: links and anchors, `gradeloop docs`, and the copy of which the site is made."""

import ast
import re
import runpy
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

import gradeloop
from gradeloop.cli.dev import find_pages
from gradeloop.temporal.connect import application_folder
from tests.conftest import ROOT
from tests.docs.runner import FENCE, PAGES, text_of
from tests.rig.cli import CommandLine

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_to_a_heading_of_it() -> None:
    links = [(page, *found) for page in PAGES for found in LINK.findall(text_of(page))]
    places = [(page, (ROOT / page).parent / path if path else ROOT / page, anchor) for page, path, anchor in links]

    assert len(links) > 200
    assert [(page, str(target)) for page, target, _ in places if not target.exists()] == []
    assert [(page, str(target), anchor) for page, target, anchor in places if anchor and anchor not in anchors(target)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_every_path_that_stands_as_code_exists(page: str) -> None:
    named = re.findall(r"`((?:tests|activities|workflows)/[\w/.]+)`", text_of(page))

    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "src" / name).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").split()) <= 830


@pytest.mark.slow
def test_no_file_names_the_host_of_a_package_index() -> None:
    folders = ("lab", "rig", "deploy", "docs", "examples", "src", "tests", "workflows", "activities", ".ci")
    files = [*ROOT.glob("*.*"), ROOT / "Makefile", *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    hosts = re.compile("p[y]pi[.]|p[y]thonhosted|np[m]js|crates[.]i[o]")

    assert [str(path) for path in files if path.is_file() and hosts.search(path.read_text(errors="replace"))] == []


def test_the_command_lists_pages_shows_one_and_finds_its_file(tmp_path: Path) -> None:
    gradeloop = CommandLine(tmp_path, tmp_path, lent=True)
    listed, shown = gradeloop("docs"), gradeloop("docs", "Suites.md")
    placed, unknown = gradeloop("docs", "tools/run_python", "--path"), gradeloop("docs", "suits")

    assert len(listed.out.splitlines()) == len(list((ROOT / "docs").rglob("*.md")))
    assert shown.out == text_of("docs/suites.md")
    assert placed.out.strip() == str(ROOT / "docs" / "tools" / "run_python.md")
    assert unknown.code == 2
    assert "Did you mean 'suites'?" in unknown.err


def test_who_reads_the_readme_without_the_repository_has_its_pages_by_the_links_names() -> None:
    pages = {str("docs" / file.relative_to(application_folder() / "docs")) for file in find_pages().values()}
    linked = set(re.findall(r"\]\((docs/[^)#\s]+\.md)", text_of("README.md")))
    named = re.findall(r"`gradeloop docs ([a-z/-]+)`", text_of("README.md"))

    assert len(linked) >= 15
    assert linked <= pages
    assert named
    assert set(named) <= set(find_pages())


@pytest.mark.slow
def test_every_link_of_the_sites_pages_leads_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build_site.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "deploy/site/build_site.py"), run_name="__main__")
    pages = sorted((tmp_path / "pages").rglob("*.md"))

    assert {"index.md", "changelog.md", "contract.md"} <= {page.name for page in pages}
    assert re.findall(r"^## (\w+)$", (tmp_path / "pages/api.md").read_text(), re.MULTILINE) == sorted(gradeloop.__all__)
    for page in pages:
        for path in re.findall(r"\]\(([^)#\s]+)", FENCE.sub("", page.read_text())):
            assert "://" in path or (page.parent / path).is_file(), (page.name, path)


@cache
def sections() -> dict[str, str]:
    """Return what the page of the Python API says of each public name."""
    page = runpy.run_path(str(ROOT / "deploy/site/api_reference.py"))["reference"]()
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}


@pytest.mark.parametrize("name", gradeloop.__all__)
def test_each_public_name_has_an_example_that_reads_as_python(name: str) -> None:
    section = sections()[name]
    summary = section.split("\n| field |")[0].split("\n### ")[0].partition("`from gradeloop import")[2].partition("\n")[2]
    spans = [span for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)|```python\n(.*?)```", summary, re.DOTALL) for span in span if span]
    examples = [span for span in spans if re.search(r"[\[(=]", span)]

    assert examples
    for example in examples:
        tree = ast.parse("async def example():\n" + textwrap.indent(example, "    "))
        waits = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.comprehension) for node in ast.walk(tree))
        if not waits and example.startswith(f"{name}("):
            said = (gradeloop.RunMessage(role="user", content="Hi"),)
            assert isinstance(
                eval(example, {one: getattr(gradeloop, one) for one in gradeloop.__all__} | {"said": said}), getattr(gradeloop, name)
            )
