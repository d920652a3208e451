"""The folders that files are read from: no path, link or name leads out of them."""

import base64
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

from gradeloop.contract.messages import IMAGE_BYTES
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.text import clip

SYSTEM_FOLDERS = (Path("/proc"), Path("/sys"), Path("/dev"))
"""Folders of the kernel: what looks like a file in them is a process's environment, a setting or a device."""

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}
"""The types of images and of files that models read, by the suffix of their names."""

CURE = "move it there, or allow its folder with --allow-outside"


@dataclass(frozen=True)
class Roots:
    """Folders by name. Every path is walked from its root, part by part, and no link is followed."""

    folders: dict[str, Path]

    def split(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Return the root of a path, and its further parts; raise ValueError where it leads out of the roots."""
        parts = PurePosixPath(path).parts
        if not parts or parts[0] not in self.folders:
            raise ValueError(f"{path!r} is under no root; paths begin with one of: {', '.join(sorted(self.folders))}")
        if ".." in parts or "\0" in path:
            raise ValueError(f"{path!r} leads out of its root; give it without '..'")
        return self.folders[parts[0]], parts[1:]

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Open what a path names, a file or a folder."""
        root, parts = self.split(path)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        for part in parts:
            descriptor = _open_part(descriptor, part, path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def contain(self, path: Path) -> bool:
        """Return whether a real path, one without links, lies below a root; what the kernel makes up lies below none."""
        if path.is_relative_to("/proc"):
            return False
        system = next((folder for folder in SYSTEM_FOLDERS if path.is_relative_to(folder)), Path("/"))
        return any(path.is_relative_to(root) and root.is_relative_to(system) for root in self.folders.values())


def _open_part(folder: int, part: str, path: str) -> int:
    """Open a part of a folder, which is closed in any case."""
    try:
        # The walk goes by descriptors, since a path that was checked and then opened by name could be swapped
        # for a link in between. Without O_NONBLOCK the opening of a pipe would wait for a writer that never
        # comes.
        return os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        problem = "it is or goes through a link" if error.errno == errno.ELOOP else error.strerror
        raise ValueError(f"{path!r} cannot be read: {problem}") from None
    finally:
        os.close(folder)


@dataclass(frozen=True)
class FileScope:
    """The files that a file may name: those below its own folder, and below the folders that its user allows besides."""

    folder: Path
    """The folder that names are relative to."""
    roots: Roots

    @classmethod
    def of(cls, file: Path, outside: Sequence[Path] = ()) -> Self:
        """Return what a file that a user named may name in turn; `outside` are the folders that are allowed besides its own."""
        return cls(file.parent, Roots({str(root): root for root in (folder.resolve() for folder in (file.parent, *outside))}))

    def beside(self, file: Path) -> Self:
        """Return the scope of a file that was named here: names are relative to its folder, and stay below the same roots."""
        return replace(self, folder=file.parent)

    def find(self, name: str, where: Location | str) -> Path:
        """Return the path of a name, which need not exist; raise InvalidRequest for one out of the roots, a device, a pipe or a socket."""
        return self.check(self.folder / name, name, where)

    def check(self, path: Path, name: str, where: Location | str) -> Path:
        """Return a path, after the checks of `find`; `name` is what the message calls it."""
        try:
            real, kind = path.resolve(), stat.S_IFREG
            with suppress(FileNotFoundError, NotADirectoryError):
                kind = real.stat().st_mode
        except (OSError, RuntimeError, ValueError) as error:
            raise InvalidRequest(
                f"{where}: {clip(name)} cannot be read: {getattr(error, 'strerror', None) or error}; name another"
            ) from None
        if not self.roots.contain(real):
            raise InvalidRequest(f"{where}: {clip(name)} lies outside of the folder {clip(str(self.folder.resolve()), 200)}; {CURE}")
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise InvalidRequest(f"{where}: {clip(name)} is a device, a pipe or a socket; name a regular file")
        return path


def data_url(path: Path, where: Location | str) -> str:
    """Return the file of an image or a PDF as a `data:` URL. Raise InvalidRequest where it is neither, cannot be read, or is too large."""
    if (media := MEDIA_TYPES.get(path.suffix.lower())) is None:
        raise InvalidRequest(f"{where}: {clip(str(path))} is neither an image nor a PDF; its name may end in {', '.join(MEDIA_TYPES)}")
    try:
        with path.open("rb") as file:
            raw = file.read(IMAGE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {error.strerror}; name another") from None
    if len(raw) > IMAGE_BYTES:
        raise InvalidRequest(f"{where}: the file {clip(str(path))} has more than {IMAGE_BYTES} bytes; shrink it, or give its address")
    return f"data:{media};base64,{base64.b64encode(raw).decode()}"
