"""Judgements as a page: one of them with its transcript, or a table of many."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradeloop.printable import money
from gradeloop.reports.collection import Entry, Head, Tile, collection_page
from gradeloop.reports.pages import run_page
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.usage import Usage


@dataclass(frozen=True)
class JudgementReport:
    """All that a page of judgements is made of."""

    name: str
    stories: Sequence[RunStory]
    about: dict[str, str]


def judgement_page(report: JudgementReport) -> str:
    """Return the page of judgements: one HTML document that needs nothing else."""
    if len(report.stories) == 1:
        return run_page(report.stories[0])
    return collection_page(_head(report), (Entry(story, story.name) for story in report.stories))


def _head(report: JudgementReport) -> Head:
    usage = sum((story.usage for story in report.stories), Usage())
    counts = {verdict: sum(story.verdict == verdict for story in report.stories) for verdict in ("passed", "failed", "error", "none")}
    cited = [each.verified for story in report.stories if story.judged for each in story.judged.citations]
    tiles: list[tuple[str, str, Verdict | None, bool]] = [
        ("passed", f"{counts['passed']:,}", "passed", bool(counts["passed"])),
        ("failed", f"{counts['failed']:,}", "failed", bool(counts["failed"])),
        ("judged", f"{counts['none']:,}", None, bool(counts["none"])),
        ("failures", f"{counts['error']:,}", "error" if counts["error"] else None, True),
        (f"of {len(cited):,} citations found", f"{sum(cited):,}", None, bool(cited)),
        ("tokens", f"{usage.tokens:,}", None, bool(usage.tokens)),
        ("cost", money(usage.cost_usd), None, bool(usage.cost_usd)),
    ]
    return Head(
        name=report.name,
        word="",
        verdict="none",
        noun="judgement",
        tiles=tuple(Tile(label, value, kind) for label, value, kind, there in tiles if there),
        about=report.about,
    )
