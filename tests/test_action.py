"""The GitHub Action: its steps, run with bash in a clean folder as the runner would, beside a `gh` that has the base branch's results."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GH = """#!/usr/bin/env bash
if [ "$2" = list ]; then if [ -d "$BASE_RESULTS" ]; then echo 17; fi; exit 0; fi
while [ "$1" != --dir ]; do shift; done
mkdir -p "$2" && cp "$BASE_RESULTS"/* "$2"
"""


@dataclass
class Job:
    """One job of a workflow that uses the action."""

    folder: Path
    base: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    def __post_init__(self) -> None:
        for name in ("temp", "bin", "checkout"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "bin/gh").write_text(GH)
        (self.folder / "bin/gh").chmod(0o755)
        shutil.copytree(ROOT / "examples/suite", self.folder / "checkout/suite")

    def filled(self, text: str) -> str:
        """Fill the expressions that the action uses."""
        values = {
            "github.token": "none", "github.base_ref": "main", "github.workflow": "ci", "runner.temp": str(self.folder / "temp"),
            **{f"inputs.{name}": self.inputs.get(name, str(of["default"])) for name, of in ACTION["inputs"].items()},
            **{f"steps.{step}.outputs.{key}": value for step, found in self.outputs.items() for key, value in found.items()},
        }  # fmt: skip
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: values[found[1]], text)

    def run(self) -> int:
        """Run the steps, and return the code of the first one that fails."""
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if "run" in step and (code := self._step(step, self.folder / f"output-{number}")):
                return code
        return 0

    def _step(self, step: dict[str, Any], output: Path) -> int:
        output.touch()
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_REPOSITORY": "somebody/shop",
            "BASE_RESULTS": str(self.base),
            **{name: self.filled(str(value)) for name, value in step.get("env", {}).items()},
        }
        cwd = self.folder / "checkout" / self.filled(step.get("working-directory", "."))
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200)
        self.log += done.stdout + done.stderr
        lines = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs[step.get("id", "")] = {name: value for name, _, value in lines}
        return done.returncode


async def test_a_suite_is_a_gate_that_is_compared_with_the_base_branch(tmp_path: Path) -> None:
    given = {"install": "", "suite": "suite/suite.yaml"}
    first = Job(tmp_path / "first", tmp_path / "nothing", given)
    passed = await asyncio.to_thread(first.run)
    results = tmp_path / "first/temp/gradeloop/out"

    second = Job(tmp_path / "second", results, given | {"arguments": "--pass-rate '0.99'", "fail-on": "regressions"})
    failed = await asyncio.to_thread(second.run)

    assert passed == 0, first.log
    assert {file.name for file in results.iterdir()} == {"results.json", "summary.md", "junit.xml", "report.html"}
    assert "there are no results of main to compare with yet" in first.log
    assert re.search(r"^::error title=gradeloop%3A \S+ failed::c[12]%?:", first.log, re.MULTILINE), first.log
    assert "support answers" in (tmp_path / "first/summary.md").read_text()
    assert failed == 1, second.log
    assert second.outputs["compare"] == {"code": "0"}
    assert "Compared with the base branch" in (tmp_path / "second/summary.md").read_text()


def test_no_step_has_an_expression_in_its_script() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]

    assert not [script for script in scripts if "${{" in script]
