"""The peer's venv, made once from PyPI in the user's cache folder: it must not enter our own dependencies."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs

PINS = ("temporalio-deepagents==0.0.3", "deepagents==0.7.32")


def peer_python() -> Path:
    """Return the Python of the peer's venv, which is made now if there is none; it has our own version of Temporal's SDK."""
    pins = [*PINS, f"temporalio=={version('temporalio')}"]
    name = "-".join([*(pin.replace("==", "-") for pin in pins), f"py3{sys.version_info.minor}"])
    folder = platformdirs.user_cache_path("gradeloop") / "benchmarks" / name
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        print(f"making the peer's venv in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins], check=True)
        made.touch()
    return python
