"""promptfoo, run as its own process on a suite: 200 outputs of its `echo` provider, each judged by one `llm-rubric`."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.peer.watched import Watched, watched
from rig.node_peers import PROMPTFOO, Peer, peer

QUIET = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_SHARING": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_CACHE_ENABLED": "false",
    "NODE_NO_WARNINGS": "1",
}
"""Nothing leaves this machine, and no reply comes from the cache."""

FLAGS = ("--no-cache", "--no-table", "--no-progress-bar", "--no-share")
FAILED = 100
"""Its exit code where a test fails."""

_GRADER = "openai:chat:gpt-5-mini"


@dataclass(frozen=True)
class Evaluated:
    """What promptfoo made of a suite."""

    process: Watched
    results: tuple[dict[str, Any], ...]
    """Its own, in the order of its output file."""

    @property
    def failed(self) -> int:
        """Tests that did not pass."""
        return sum(not result["success"] for result in self.results)


@dataclass(frozen=True)
class Promptfoo:
    """An installed promptfoo, the judge that it asks, and a folder that holds everything that it keeps."""

    peer: Peer
    judge: str
    folder: Path

    def evaluate(self, config: Path, *more: str) -> Evaluated:
        """Run a suite.

        Raises:
            RuntimeError: It ended otherwise than with passes and failures.
        """
        output = self.folder / "results.json"
        output.unlink(missing_ok=True)
        entry = self.peer.modules / "promptfoo" / "dist" / "src" / "entrypoint.js"
        command = [str(self.peer.node), str(entry), "eval", "--config", str(config), "--output", str(output), *FLAGS, *more]
        process = watched(command, self._environment(), config.parent).must(0, FAILED)
        return Evaluated(process, tuple(json.loads(output.read_text())["results"]["results"]))

    def _environment(self) -> dict[str, str]:
        own = {"PROMPTFOO_CONFIG_DIR": str(self.folder / "kept"), "OPENAI_BASE_URL": f"{self.judge}/v1", "OPENAI_API_KEY": "sk-mock"}
        return self.peer.environment({**os.environ, **QUIET, **own})


def promptfoo(judge: str, folder: Path) -> Promptfoo:
    """Return promptfoo, which is installed now if it is not.

    Raises:
        SystemExit: It cannot be had.
    """
    return Promptfoo(peer(PROMPTFOO), judge, folder)


def suite(folder: Path, outputs: list[str], rubric: str) -> Path:
    """Write a suite that judges these outputs, and return its configuration."""
    config = {
        "description": "Outputs that are there already, each judged by one criterion",
        "prompts": ["{{run}}"],
        "providers": ["echo"],
        "defaultTest": {"options": {"provider": _GRADER}, "assert": [{"type": "llm-rubric", "value": rubric}]},
        "tests": [{"vars": {"run": output}} for output in outputs],
    }
    path = folder / f"suite-{len(outputs)}.json"
    path.write_text(json.dumps(config))
    return path
