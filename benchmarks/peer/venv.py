"""A peer's venv, made once from PyPI in the user's cache folder: it must not enter our own dependencies."""

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs

DEEPAGENTS = ("temporalio-deepagents==0.0.3", "deepagents==0.7.32", f"temporalio=={version('temporalio')}")
"""With our own version of Temporal's SDK."""

_TRACING = ("anthropic", "bedrock", "google-generativeai", "langchain", "openai")
DOCENT = (
    "docent==0.1.88",
    "openai==3.52.0",
    "opentelemetry-semantic-conventions-ai==0.5.1",
    *(f"opentelemetry-instrumentation-{name}==0.54.0" for name in _TRACING),
)
"""The pins beside Docent's own are what pip finds after minutes of trying."""


def peer_python(pins: tuple[str, ...] = DEEPAGENTS) -> Path:
    """Return the Python of a peer's venv, which is made now if there is none."""
    told = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:8]
    name = f"{pins[0].replace('==', '-')}-{told}-py3{sys.version_info.minor}"
    folder = platformdirs.user_cache_path("gradeloop") / "benchmarks" / name
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        print(f"making the peer's venv in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins], check=True)
        made.touch()
    return python
