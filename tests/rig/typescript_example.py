"""Examples in TypeScript, built by npm in a folder of the user's cache."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SECONDS = 240.0


def build_example(example: Path, files: Sequence[Path]) -> Path:
    """Build an example and return its folder; its test is skipped where Node, npm or the packages cannot be had.

    Args:
        example: The example's folder, with its `package.json` and `tsconfig.json`.
        files: What else is built.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed, and the example is TypeScript")
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gradeloop-tests" / example.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in (example / "package.json", example / "tsconfig.json", *files):
        shutil.copy(file, folder)
    try:
        if not (folder / "node_modules" / "typescript").is_dir():
            command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm cannot install the example's packages here: {error}")
    built = subprocess.run([npm, "run", "build"], cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert built.returncode == 0, built.stdout
    return folder
