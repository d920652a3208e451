"""The state folder: servers, workers, stores and batches of this machine's user."""

import os
from pathlib import Path

import platformdirs

from gradeloop.errors import InvalidRequest


def state_folder() -> Path:
    """Return the folder that outlives every command, made for its user alone; GRADELOOP_STATE_DIR moves it.

    Raises:
        InvalidRequest: The folder cannot be made or written.
    """
    named = os.environ.get("GRADELOOP_STATE_DIR")
    folder = (Path(named) if named else platformdirs.user_state_path("gradeloop")).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"The state folder {str(folder)!r} cannot be made ({error.strerror}); let GRADELOOP_STATE_DIR name one that can"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"The state folder {str(folder)!r} is not writable; let GRADELOOP_STATE_DIR name one that is")
    return folder
