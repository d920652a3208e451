"""Packages that few tests need and that are large: a lock's wheels in a folder of the user's cache, installed once."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

INSTALL_SECONDS = 300


class NoWheelsError(Exception):
    """The wheels cannot be had here; the message says why."""


def cached_wheels(lock: Path, name: str, *, install: bool = True) -> Path:
    """Return the folder with the packages of a lock, by its name below the user's cache.

    Args:
        lock: Names of packages with their versions and hashes.
        name: The parent folder's name.
        install: Whether they are installed where they are not yet.

    Raises:
        NoWheelsError: They are not there, and cannot or shall not be installed.
    """
    version = f"{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}-py3{sys.version_info.minor}"
    folder = platformdirs.user_cache_path("gradeloop") / name / version
    if folder.exists():
        return folder
    if not install:
        raise NoWheelsError(f"the wheels of {lock.name} are not installed yet")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=folder.parent))
    flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(fresh), "--requirement", str(lock)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        with suppress(OSError):  # another process was first
            fresh.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        told = getattr(error, "stderr", None) or error
        raise NoWheelsError(f"the wheels of {lock.name} cannot be installed here: {str(told).strip()[-500:]}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder
