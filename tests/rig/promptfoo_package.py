"""promptfoo's own package, installed by npm in a folder of the user's cache."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SECONDS = 540.0


class Promptfoo:
    """The command of the package, with a home of its own that tells nobody of it."""

    def __init__(self, command: Path, home: Path) -> None:
        self._command = command
        quiet = ("PROMPTFOO_DISABLE_TELEMETRY", "PROMPTFOO_DISABLE_UPDATE", "PROMPTFOO_DISABLE_REMOTE_GENERATION")
        self._environment = os.environ | {"PROMPTFOO_CONFIG_DIR": str(home)} | dict.fromkeys(quiet, "1")

    def __call__(self, *arguments: str | Path) -> str:
        """Run the command, and return what it printed; it must end well."""
        call = [str(self._command), *map(str, arguments)]
        ended = subprocess.run(call, env=self._environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr


def installed_promptfoo(home: Path) -> Promptfoo:
    """Return the newest package that npm has for this Node; its test is skipped where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed; install them to run promptfoo's own package")
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gradeloop-tests" / "promptfoo"
    command = folder / "node_modules" / ".bin" / "promptfoo"
    try:
        if not command.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text('{"private": true}')
            subprocess.run([npm, "install", "--no-audit", "--no-fund", "promptfoo"], cwd=folder, check=True, timeout=SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm cannot install promptfoo here: {error}; run it where npm reaches its registry")
    return Promptfoo(command, home)
