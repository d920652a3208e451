"""Pages as files."""

from pathlib import Path

from gradeloop.output_file import PAGE, replacing, writable

MEGABYTE = 1_000_000


def checked_page(path: Path | None) -> None:
    """Refuse an output that is no page, or could not be written, before anything is read."""
    if path is not None:
        writable(path, (PAGE,))


def write_page(path: Path, page: str) -> str:
    """Write a page in one step, so that nobody finds half of it, and return its size in words."""
    content = page.encode(errors="replace")
    with replacing(path) as file:
        file.write(content.decode())
    return f"{len(content) / MEGABYTE:.1f} MB" if len(content) >= MEGABYTE else f"{max(len(content) // 1000, 1)} KB"
