"""The site is built, its links hold, and its own search engine finds what newcomers ask for."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

ASKED = {
    "install": "tutorials/first-run",
    "api key": "environment",
    "local model": "small-models",
    "how much does it cost": "models",
    "write a rubric": "writing-rubrics",
    "add a check": "tools/index",
    "use my own agent": "generators",
    "judge transcripts": "judging",
    "trust a judge": "calibration",
    "why is a verdict refused": "judging",
    "rate limit": "batches",
    "worker crashes": "reliability",
    "deploy": "operating",
    "resume a run": "batches",
    "human approval": "tutorials/person",
    "github action": "ci",
    "exit code 3": "cli",
    "compare two models": "reports",
    "from promptfoo": "tutorials/from-promptfoo",
    "delete tenant": "operating",
}
"""What newcomers type, and the page with the answer."""

FIRST = 3
"""As many answers somebody looks at."""


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site, which is strict about links; skip where its packages cannot be had."""
    made = subprocess.run(["make", "--no-print-directory", "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    if not (ROOT / "build/site-venv/bin/zensical").exists():
        pytest.skip(f"the site's packages cannot be installed: {made.stderr[-200:]}")
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build/docs/site"


def reached(site: Path, places: list[str]) -> set[str]:
    """Return the pages of these places, and those that a short answer among them links."""
    pages = {place.partition("#")[0] for place in places}
    for anchor in (place.removeprefix("questions.html#") for place in places if place.startswith("questions.html#")):
        answer = (site / "questions.html").read_text().partition(f'id="{anchor}"')[2].partition("<h2")[0]
        pages |= set(re.findall(r'href="([^"#]+)', answer))
    return pages


@pytest.mark.slow
def test_the_search_finds_the_page_that_answers_or_a_short_answer_that_leads_to_it(site: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node runs the site's search, and is not installed")
    asked = ["node", str(Path(__file__).with_name("ask_search.mjs")), str(site), *ASKED]
    found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    looked_at = {question: places[:FIRST] for question, places in zip(ASKED, found, strict=True)}

    assert {question: places for question, places in looked_at.items() if f"{ASKED[question]}.html" not in reached(site, places)} == {}


def test_every_page_of_the_site_is_behind_one_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "deploy/site"), *sys.path])
    program = runpy.run_path(str(ROOT / "deploy/site/build_site.py"))
    pages = [page for names in program["DOORS"].values() for page in names]
    for page in (*pages, "new.md"):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).touch()
    sources = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}

    assert len(pages) == len(set(pages))
    assert set(pages) <= sources | {"index.md", "api.md"}
    (doors,) = tomllib.loads(program["navigation"](tmp_path)).values()
    assert [name for door in doors for name in door] == ["Start", "Service", "Terminal", "CI", "Operator", "More"]
    assert doors[-1] == {"More": ["new.md"]}
