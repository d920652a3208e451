"""A checkout of gradeloop with an environment of its own, whose command line a program measures: this one, or one of an earlier version."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(sys.executable).parents[2]
"""The checkout of the environment that this runs in."""

ENDED = (0, 1, 3)
"""Exit codes of a batch that ran to its end, whatever was found."""

_TOLD = 3000


@dataclass(frozen=True)
class Checkout:
    """A checkout, and a folder for its state and files."""

    path: Path
    folder: Path
    url: str
    """The address of the model's server, which its worker may call."""

    def judged(self, suite: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a suite as a batch, and return the results of its cases.

        Raises:
            RuntimeError: The batch did not run to its end.
        """
        (self.folder / "suite.yaml").write_text(json.dumps(suite))
        self._run("eval", "suite.yaml", "-o", "results.json", "--overwrite", codes=ENDED)
        cases: list[dict[str, Any]] = json.loads((self.folder / "results.json").read_text())["cases"]
        return cases

    def stop(self) -> None:
        """End the Temporal server and the worker."""
        self._run("dev", "stop", codes=range(256))

    def _run(self, *words: str, codes: tuple[int, ...] | range) -> None:
        own = {"GRADELOOP_STATE_DIR": str(self.folder / "state"), "GRADELOOP_BASE_URLS": self.url}
        command = [str(self.path.resolve() / ".venv/bin/gradeloop"), *words]
        done = subprocess.run(command, env=os.environ | own, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-_TOLD:]}")
