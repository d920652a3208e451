"""The state folder: servers, workers, stores and batches of this machine's user, closed to all others."""

import getpass
import logging
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from gradeloop.errors import InvalidRequest

STATE_CURE = "let GRADELOOP_STATE_DIR name a folder of your own, which is made if it does not exist"

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of all users but the owner."""

NOT_IN_NAMES = r"[^\w.~-]+"
"""Characters that the name of a batch, thread or file may have and that of a page's file has not."""

OWN_NAMES = frozenset({"server.json", "server.db", "results.db", "trust.json", "workers", "payloads"})
"""Names in a folder by which it is known as a state folder, so that its permissions may be changed."""

logger = logging.getLogger("gradeloop.settings")


def user_name() -> str:
    """Return the name of this machine's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown user"


def state_folder() -> Path:
    """Return the folder that outlives every command, made only for its user; GRADELOOP_STATE_DIR moves it.

    Raises:
        InvalidRequest: The folder cannot be made or written, or others can read or write it.
    """
    folder = _named_state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"The state folder {str(folder)!r} cannot be made ({error.strerror}); let GRADELOOP_STATE_DIR name one that can"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"The state folder {str(folder)!r} is not writable; let GRADELOOP_STATE_DIR name one that is")
    if folder.stat().st_mode & OTHERS and not _is_state_folder(folder):
        raise InvalidRequest(f"The state folder {str(folder)!r} is open to others and has files that are not gradeloop's; {STATE_CURE}")
    close_to_others(folder, "The state folder", STATE_CURE)
    return folder


def _named_state_folder() -> Path:
    named = os.environ.get("GRADELOOP_STATE_DIR")
    return (Path(named) if named else platformdirs.user_state_path("gradeloop")).absolute()


def holds_private(folder: Path) -> bool:
    """Return whether the user's home, state or temporary folder is this folder, or lies in it where no dot at its top hides it."""
    private = (path.resolve() for path in (Path.home(), _named_state_folder(), Path(tempfile.gettempdir())))
    below = [path.relative_to(folder.resolve()).parts for path in private if path.is_relative_to(folder.resolve())]
    return any(not parts or not parts[0].startswith(".") for parts in below)


def _is_state_folder(folder: Path) -> bool:
    """Return whether a folder is empty or has files of ours, and is not a common one, such as /tmp."""
    names = {path.name for path in folder.iterdir()}
    return not folder.stat().st_mode & stat.S_ISVTX and (not names or not names.isdisjoint(OWN_NAMES))


def view_file(folder: Path, what: str) -> Path:
    """Return the page that `gradeloop view` writes into a folder, of what a name means."""
    return folder / f"{re.sub(NOT_IN_NAMES, '-', Path(what).name) or 'report'}.html"


def close_to_others(path: Path, what: str, cure: str) -> None:
    """Close a file or folder to other users, as `what` in messages; raise InvalidRequest where another owns it, or that fails."""
    facts = path.stat()
    if facts.st_uid != os.geteuid():
        raise InvalidRequest(f"{what} {str(path)!r} belongs to another user (uid {facts.st_uid}), who can read and change it; {cure}")
    mode = stat.S_IMODE(facts.st_mode)
    if not mode & OTHERS:
        return
    try:
        path.chmod(mode & ~OTHERS)
        closed = not path.stat().st_mode & OTHERS  # some file systems have no permissions, and say nothing
    except OSError:
        closed = False
    if not closed:
        raise InvalidRequest(f"{what} {str(path)!r} is open to others (mode {mode:03o}) and cannot be closed to them; {cure}")
    logger.warning("%s %r was open to other users (mode %03o); it is closed to them now", what, str(path), mode)


def close_database(file: Path, cure: str) -> None:
    """Make an SQLite database's file where there is none, and close it, with the files beside it, to all users but its owner.

    Raises:
        InvalidRequest: It belongs to another user, cannot be closed, or others can replace it.
        OSError: It cannot be made.
    """
    # SQLite itself would make the file with the rights of the umask, readable by others until it is closed
    # to them. So it is made here with the right mode first. A folder that everybody can write is refused, as
    # whoever can replace the file reads what is written next; with the sticky bit only its owner can replace
    # it.
    mode = file.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise InvalidRequest(f"The database {str(file)!r} is in a folder that everybody can write, who can replace it; {cure}")
    os.close(os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    close_to_others(file, "The database", cure)
    for suffix in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):  # another process that opens the database removes them as it goes
            close_to_others(file.with_name(f"{file.name}{suffix}"), "The database", cure)
