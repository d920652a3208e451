"""Builds the site of the documentation: `python deploy/site/build_site.py FOLDER`, then `zensical build --strict` in that folder.

The pages are copied: a fence's second word, by which our tests know an example, and links to files that are no page are nothing to a site.
"""

import json
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from api_reference import reference

ROOT = Path(__file__).parents[2]
TOP = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""The pages of the repository's root, and their names on the site."""

DOORS = {
    "Start": ["index.md", "tutorials/first-run.md", "questions.md", "cookbook.md"],
    "Service": [
        *(
            "contract.md",
            "turns.md",
            "verdicts.md",
            "models.md",
            "remote.md",
            "watching.md",
            "webhooks.md",
            "python.md",
            "api.md",
            "reference.md",
        ),
        *("generators.md", "testing.md", "agents.md", "rewards.md", "extensions.md", "from-deepagents.md"),
    ],
    "Terminal": [
        *("writing-rubrics.md", "tools/README.md", "judging.md", "transcripts.md", "calibration.md", "backtest.md", "reports.md"),
        *("small-models.md", "cli.md", *(f"tutorials/{name}.md" for name in ("rubric", "production", "person", "from-mastra"))),
    ],
    "CI": ["ci.md", "suites.md", "batches.md", "tutorials/suite-in-ci.md", "tutorials/from-promptfoo.md"],
    "Operator": [
        "operating.md",
        "monitors.md",
        "reliability.md",
        "environment.md",
        "encryption.md",
        "threat-model.md",
        "benchmarks.md",
        "tutorials/cluster.md",
    ],
}
"""The pages by who comes for them, in the order of reading; all others stand behind these."""

_FENCE = re.compile(r"^( *```\w+) .+$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def copy_pages(folder: Path) -> list[Path]:
    """Copy all pages and images into a folder, and return the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = {ROOT / name: folder / new for name, new in TOP.items()}
    sources |= {path: folder / path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))}
    for source, target in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_as_page(source, target, sources))
    shutil.copytree(ROOT / "docs" / "images", folder / "images", dirs_exist_ok=True)
    shutil.copy(ROOT / "docs" / "contract.d.ts", folder)
    (folder / "api.md").write_text(reference())
    return list(sources.values())


def _as_page(source: Path, target: Path, pages: dict[Path, Path]) -> str:
    def relinked(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        if not path or "://" in path:
            return link[0]
        meant = (source.parent / path).resolve()
        if meant in pages:
            return f"[{text}]({_relative(pages[meant], target.parent)}{anchor})"
        return link[0] if meant.is_relative_to(ROOT / "docs") and meant.is_file() else text

    text = _LINK.sub(relinked, _FENCE.sub(r"\1", source.read_text()))
    return text.replace("](docs/images/", "](images/")


def _relative(page: Path, folder: Path) -> str:
    ups = 0
    while not page.is_relative_to(folder):
        folder, ups = folder.parent, ups + 1
    return "../" * ups + page.relative_to(folder).as_posix()


def navigation(pages: Path) -> str:
    """Return the setting that lists all pages by their doors; a list of JSON is one of TOML."""
    named = {page for names in DOORS.values() for page in names}
    others = sorted(page for path in pages.rglob("*.md") if (page := path.relative_to(pages).as_posix()) not in named)
    doors = (f"{{{json.dumps(door)} = {json.dumps(names)}}}" for door, names in (DOORS | {"More": others}).items())
    return f"nav = [{', '.join(doors)}]\n"


if __name__ == "__main__":
    site = Path(sys.argv[1])
    copy_pages(site / "pages")
    settings = Path(__file__).with_name("zensical.toml").read_text()
    (site / "zensical.toml").write_text(settings.replace("[project]\n", f"[project]\n{navigation(site / 'pages')}", 1))
