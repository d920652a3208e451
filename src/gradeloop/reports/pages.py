"""Pages: a run's, and the part of it that another page shows."""

from gradeloop.reports.document import Live, document, part
from gradeloop.reports.judged_view import judged_view
from gradeloop.reports.run_story import RunStory
from gradeloop.reports.run_view import run_view

LIVE_SCRIPTS, LIVE_STYLES = ("live.js",), ("live.css",)
"""Of pages that are served."""


def run_page(story: RunStory, *, live: Live | None = None) -> str:
    """Return the page of a run: one HTML document that needs nothing else."""
    scripts, styles = (LIVE_SCRIPTS, LIVE_STYLES) if live else ((), ())
    return document("run.html", title=f"{story.name} · gradeloop", scripts=scripts, styles=styles, live=live, **_context(story, "r"))


def run_part(story: RunStory, *, key: str = "r", live: Live | None = None) -> str:
    """Return what stands on a run's page; `key` begins its anchors."""
    return part("run_part.html", live=live, **_context(story, key))


def _context(story: RunStory, key: str) -> dict[str, object]:
    return {"story": story, "view": run_view(story, key), "judged_view": judged_view(story, key), "key": key}
