"""Where the live page shows what: ids hold any character, and stand percent-encoded as one segment of a path."""

from urllib.parse import quote, unquote


def thread_path(thread_id: str) -> str:
    """Return the path of a thread's page."""
    return f"/threads/{_segment(thread_id)}"


def batch_path(batch_id: str) -> str:
    """Return the path of a batch's page."""
    return f"/batches/{_segment(batch_id)}"


def case_path(batch_id: str, case_id: str) -> str:
    """Return the path of a case's page."""
    return f"{batch_path(batch_id)}/cases/{_segment(case_id)}"


def read_id(encoded: str) -> str:
    """Return the id that a stretch of a path stands for; decoded once, so that `%2525` is the id `%25`."""
    text = unquote(encoded)
    return text.removeprefix("=")


def _segment(text: str) -> str:
    """Return an id as one segment; `.` and `..` would be steps to a browser, whatever their spelling."""
    plain = text.strip(".") and not text.startswith("=")
    return quote(text if plain else f"={text}", safe="")
