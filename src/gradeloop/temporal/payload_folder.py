"""The folder of large payloads: which files no history names any more, and their end."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit


class PayloadFolder:
    """The files of a folder of large payloads, each named by its sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, url: str | None) -> "PayloadFolder | None":
        """Return the folder that a storage's URL names; None for a bucket, and where there is no storage."""
        parts = urlsplit(url or "")
        return cls(Path(unquote(parts.path))) if parts.scheme == "file" else None

    def find(self, names: Iterable[str]) -> list[Path]:
        """Return the files of these payloads that are there."""
        files = (self.folder / name[:2] / name for name in sorted(names))
        return [file for file in files if file.is_file()]

    def unnamed(self, named: frozenset[str], older_than: float) -> Iterator[Path]:
        """Yield the files that no history names, written so many seconds ago or earlier, drafts of a writer that died too."""
        before = time.time() - older_than
        for file in sorted(self.folder.glob("??/*")):
            if file.name not in named and file.is_file() and file.stat().st_mtime <= before:
                yield file

    @staticmethod
    def remove(files: Iterable[Path], before: float | None = None) -> int:
        """Remove files and return how many; those written or used again since `before` stay."""
        removed = 0
        for file in files:
            if before is None or (file.is_file() and file.stat().st_mtime < before):
                file.unlink(missing_ok=True)
                removed += 1
        return removed
