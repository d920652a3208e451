"""The documentation away from the repository: `gradeloop docs`, and the copy of which the site is made."""

import re
import subprocess
import sys
from pathlib import Path

from gradeloop.cli.docs_pages import find_pages
from gradeloop.temporal.worker import application_folder
from tests.conftest import ROOT
from tests.rig.cli import CommandLine


def test_the_command_lists_pages_shows_one_and_finds_its_file(commands: CommandLine) -> None:
    listed, shown = commands("docs"), commands("docs", "Suites.md")
    placed, unknown = commands("docs", "tools/run_python", "--path"), commands("docs", "suits")

    assert len(listed.out.splitlines()) == len(list((ROOT / "docs").rglob("*.md")))
    assert shown.out == (ROOT / "docs" / "suites.md").read_text()
    assert placed.out.strip() == str(ROOT / "docs" / "tools" / "run_python.md")
    assert unknown.code == 2
    assert "Did you mean 'suites'?" in unknown.err


def test_who_reads_the_readme_without_the_repository_has_its_pages_by_the_links_names() -> None:
    pages = {"docs" / file.relative_to(application_folder() / "docs") for file in find_pages().values()}

    text = (ROOT / "README.md").read_text()
    linked = {Path(path) for path in re.findall(r"\]\((docs/[^)#\s]+\.md)", text)}
    named = re.findall(r"`gradeloop docs ([a-z/-]+)`", text)
    assert len(linked) >= 15
    assert linked <= pages
    assert named
    assert set(named) <= set(find_pages())


def test_every_link_of_the_sites_pages_leads_to_a_page(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "deploy/site/build_site.py"), str(tmp_path)], check=True)
    pages = sorted((tmp_path / "pages").rglob("*.md"))

    assert {"index.md", "changelog.md", "contract.md"} <= {page.name for page in pages}
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for path in re.findall(r"\]\(([^)#\s]+)", text):
            assert "://" in path or (page.parent / path).is_file(), (page.name, path)
