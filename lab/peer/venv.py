"""A peer's venv, made once by pip in the user's cache folder: it must not enter our own dependencies."""

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs

DEEPAGENTS = ("temporalio-deepagents==0.0.3", "deepagents==0.7.32", f"temporalio=={version('temporalio')}")
"""With our own version of Temporal's SDK."""

MIDDLEWARE = (*DEEPAGENTS, "langchain-openai==1.7.4")
"""With a model behind an address."""

DOCENT = ("--no-deps", "--requirement", str(Path(__file__).parent / "docent.lock"))
"""All that it runs with: pip resolves its requirements for minutes, to nothing."""


def peer_python(pins: tuple[str, ...] = DEEPAGENTS) -> Path:
    """Return the Python of a peer's venv, which is made now if there is none."""
    locked = "".join(Path(pin).read_text() for pin in pins if pin.endswith(".lock"))
    name = f"{hashlib.sha256((' '.join(pins) + locked).encode()).hexdigest()[:16]}-py3{sys.version_info.minor}"
    folder = platformdirs.user_cache_path("gradeloop") / "benchmarks" / name
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        print(f"making the peer's venv in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins], check=True)
        made.touch()
    return python
