"""Pages as files."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from gradeloop.errors import InvalidRequest
from gradeloop.strict import clip

PAGE = ".html"
MEGABYTE = 1_000_000


def checked_page(path: Path | None) -> None:
    """Refuse an output that is no page, before anything is read.

    Raises:
        InvalidRequest: Its suffix is another one, or it has no folder.
    """
    if path is not None and path.suffix.lower() != PAGE:
        raise InvalidRequest(f"the output {clip(str(path))}: pages are HTML; name one, such as report{PAGE}")
    if path is not None and not path.absolute().parent.is_dir():
        raise InvalidRequest(f"the output {clip(str(path))}: there is no folder {clip(str(path.parent))}; make it first")


def write_page(path: Path, page: str) -> str:
    """Write a page in one step, so that nobody finds half of it, and return its size in words.

    Raises:
        OSError: It cannot be written.
    """
    content = page.encode(errors="replace")
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content)
    try:
        Path(file.name).chmod(0o666 & ~_umask())
        Path(file.name).replace(path)
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        raise
    return f"{len(content) / MEGABYTE:.1f} MB" if len(content) >= MEGABYTE else f"{max(len(content) // 1000, 1)} KB"


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
