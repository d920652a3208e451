"""The text of PDF files that a suite's variables name."""

from pathlib import Path

from gradeloop.contract.messages import MESSAGE_BYTES
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.text import clip

PDF_BYTES = 32 * 1024 * 1024
"""The largest file that is read."""

PDF_PAGES = 1_000
"""The most pages that are read: a small file may claim millions."""


def pdf_text(path: Path, where: Location) -> str:
    """Return the text of a PDF's pages, with an empty line between them.

    Raises:
        InvalidRequest: It cannot be read, has no text, or is too long; or no package reads it here.
    """
    try:
        from pypdf import PdfReader
    except ModuleNotFoundError:
        raise InvalidRequest(f"{where}: {clip(path.name)} is a PDF, which needs pypdf; run: pip install 'gradeloop[pdf]'") from None
    try:
        size = path.stat().st_size
        reader = PdfReader(path) if size <= PDF_BYTES else None
        pages = reader.pages[: PDF_PAGES + 1] if reader else []
        text = "\n\n".join(page.extract_text().strip() for page in pages[:PDF_PAGES]).strip()
    except OSError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {error.strerror or error}; name another") from None
    except Exception as error:  # noqa: BLE001 - whatever a broken file leads its reader to
        raise InvalidRequest(f"{where}: the file {str(path)!r} is no PDF that can be read: {clip(str(error), 100)}; name another") from None
    if size > PDF_BYTES or len(pages) > PDF_PAGES:
        problem = f"has more than {PDF_BYTES} bytes or {PDF_PAGES} pages; save its text as a file, and name that"
        raise InvalidRequest(f"{where}: the file {str(path)!r} {problem}")
    if not text:
        raise InvalidRequest(f"{where}: the file {str(path)!r} has no text, as scans have none; write it out")
    if len(text.encode(errors="replace")) > MESSAGE_BYTES:
        raise InvalidRequest(f"{where}: the text of {str(path)!r} has more than {MESSAGE_BYTES} bytes; name a part of it")
    return text
