"""The GitHub Action: its steps, run with bash in a clean folder as the runner would, beside a `gh` that knows earlier runs."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from tests.conftest import ROOT
from tests.docs.runner import block_of

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GH = """#!/usr/bin/env bash
if [ "$1" = api ]; then printf '%s\\n' "$*" >> "$RUNS/asked"; cat "$RUNS/runs.json"; exit; fi
run="$3"
while [ "$1" != --dir ]; do shift; done
[ -d "$RUNS/$run" ] && mkdir -p "$2" && cp "$RUNS/$run"/* "$2"
"""


@dataclass
class Base:
    """What the server knows of earlier runs: their list, the newest first, and the results of those that kept some."""

    folder: Path
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, results: Path | None, conclusion: str, **changed: Any) -> None:
        """Record a run that is newer than all others."""
        run = {"id": len(self.runs) + 1, "event": "push", "head_branch": "main", "head_repository": {"full_name": "somebody/shop"}}
        self.runs.insert(0, run | {"conclusion": conclusion} | changed)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "runs.json").write_text(json.dumps({"workflow_runs": self.runs}))
        if results is not None:
            shutil.copytree(results, self.folder / str(run["id"]))


@dataclass
class Job:
    """One job of a workflow that uses the action; what its caches save goes into `kept`."""

    folder: Path
    base: Base
    inputs: dict[str, str]
    kept: Path
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""
    event: dict[str, Any] = field(default_factory=dict)
    api: str = "http://127.0.0.1:9"

    def __post_init__(self) -> None:
        for name in ("temp", "bin", "checkout"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "event.json").write_text(json.dumps(self.event))
        (self.folder / "bin/gh").write_text(GH)
        (self.folder / "bin/gh").chmod(0o755)
        shutil.copytree(ROOT / "examples/suite", self.folder / "checkout/suite")

    @property
    def results(self) -> Path:
        """The folder of the files that the job keeps as its artifact."""
        return self.folder / "temp/gradeloop/out"

    def filled(self, text: str) -> str:
        """Fill the expressions that the action uses."""
        values = {
            "github.token": "none", "github.base_ref": "main", "runner.temp": str(self.folder / "temp"), "github.ref_name": "17/merge",
            "github.run_id": "5", "github.run_attempt": "1", "github.base_ref || github.event.repository.default_branch": "main",
            **{f"inputs.{name}": self.inputs.get(name, str(of["default"])) for name, of in ACTION["inputs"].items()},
            **{f"steps.{step}.outputs.{key}": value for step, found in self.outputs.items() for key, value in found.items()},
        }  # fmt: skip
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: values.get(found[1], "") if "steps." in found[1] else values[found[1]], text)

    def run(self) -> int:
        """Run the steps as the runner does, and return the code of the first one that fails: after it, only those with `always()` run."""
        failed = 0
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if failed and step.get("if") != "always()":
                continue
            code = self._step(step, self.folder / f"output-{number}") if "run" in step else self._use(step)
            failed = failed or code
        return failed

    def _use(self, step: dict[str, Any]) -> int:
        """Do what an action of GitHub's does that moves files."""
        action, given = step["uses"].partition("@")[0], {name: self.filled(str(value)) for name, value in step.get("with", {}).items()}
        if action == "actions/cache/restore":
            self.outputs[step["id"]] = {"cache-primary-key": given["key"]}
            if self.kept.exists():
                shutil.copytree(self.kept, given["path"], dirs_exist_ok=True)
        elif action == "actions/cache/save":
            assert given["key"] == "gradeloop-17/merge-5-1"
            shutil.copytree(given["path"], self.kept, dirs_exist_ok=True)
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
            "GITHUB_WORKFLOW_REF": "somebody/shop/.github/workflows/ci.yml@refs/pull/17/merge",
            "RUNS": str(self.base.folder),
            "GITHUB_WORKSPACE": str(self.folder / "checkout"),
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_API_URL": self.api,
            **{name: self.filled(str(value)) for name, value in step.get("env", {}).items()},
        }
        cwd = self.folder / "checkout" / self.filled(step.get("working-directory", "."))
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200)
        self.log += done.stdout + done.stderr
        lines = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs[step.get("id", "")] = {name: value for name, _, value in lines}
        return done.returncode


GIVEN = {"install": "", "suite": "suite/suite.yaml"}


async def test_a_suite_is_a_gate_that_is_compared_with_the_base_branch(tmp_path: Path) -> None:
    base = Base(tmp_path / "runs")
    base.folder.mkdir()
    first = Job(tmp_path / "first", base, GIVEN, tmp_path / "kept")
    passed = await asyncio.to_thread(first.run)
    base.add(first.results, "failure")
    base.add(None, "failure")

    second = Job(tmp_path / "second", base, GIVEN | {"arguments": "--pass-rate '0.99'", "fail-on": "regressions"}, tmp_path / "kept")
    failed = await asyncio.to_thread(second.run)

    assert passed == 0, first.log
    assert {file.name for file in first.results.iterdir()} == {"results.json", "summary.md", "junit.xml", "report.html"}
    assert "there are no results of main to compare with yet" in first.log
    assert re.search(r"^::error file=suite/suite\.yaml,line=\d+,title=gradeloop%3A \S+ failed::c[12]%?:", first.log, re.MULTILINE), (
        first.log
    )
    assert "support answers" in (tmp_path / "first/summary.md").read_text()
    assert failed == 1, second.log
    assert second.outputs["compare"] == {"code": "0"}
    assert "Compared with the base branch" in (tmp_path / "second/summary.md").read_text()
    asked = "api --method GET repos/somebody/shop/actions/workflows/ci.yml/runs -f branch=main -f event=push -f status=completed"
    assert asked in (base.folder / "asked").read_text()


async def test_drafts_and_verdicts_are_kept_also_where_the_gate_fails(tmp_path: Path) -> None:
    kept, base = tmp_path / "kept", Base(tmp_path / "runs")
    first = Job(tmp_path / "first", base, GIVEN | {"arguments": "--pass-rate 1"}, kept)
    failed = await asyncio.to_thread(first.run)
    second = Job(tmp_path / "second", base, GIVEN | {"arguments": "--pass-rate 1"}, kept)
    again = await asyncio.to_thread(second.run)

    calls = [json.loads((job.results / "results.json").read_text())["summary"]["usage"]["calls"] for job in (first, second)]
    assert (failed, again) == (1, 1), first.log
    assert calls[0] > calls[1] == 0


@pytest.mark.parametrize(
    ("conclusion", "changed"),
    [
        pytest.param("cancelled", {}, id="cancelled"),
        pytest.param("success", {"head_repository": {"full_name": "stranger/shop"}}, id="fork"),
        pytest.param("success", {"event": "pull_request"}, id="pull request"),
        pytest.param("success", {"head_branch": "other"}, id="branch"),
        pytest.param("success", {"head_repository": None}, id="deleted fork"),
    ],
)
def test_only_a_whole_run_of_the_base_branch_itself_is_compared_with(tmp_path: Path, conclusion: str, changed: dict[str, Any]) -> None:
    (results := tmp_path / "results").mkdir()
    (results / "results.json").write_text("mine")
    base = Base(tmp_path / "runs")
    base.add(results, "success")
    (results / "results.json").write_text("theirs")
    base.add(results, conclusion, **changed)
    job = Job(tmp_path / "job", base, GIVEN, tmp_path / "kept")
    (tmp_path / "job/temp/gradeloop").mkdir()
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("name") == "Results of the base branch"]
    job._step(step, tmp_path / "output")

    assert (tmp_path / "job/temp/gradeloop/base/results.json").read_text() == "mine", job.log


class GitHub(BaseHTTPRequestHandler):
    """GitHub's API for the comments of one pull request."""

    comments: ClassVar[list[dict[str, Any]]]
    asked: ClassVar[list[str]]
    status: ClassVar[int]

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PATCH = do_GET  # noqa: N815 - the server's own names

    def answer(self) -> None:
        assert self.headers["Authorization"] == "Bearer none"
        self.asked.append(f"{self.command} {self.path}")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        found: Any = {"message": "Resource not accessible by integration"}
        if self.status == 200 and self.command == "POST":
            self.comments.append(found := {"id": len(self.comments), "user": {"type": "Bot"}, **body})
        elif self.status == 200 and self.command == "PATCH":
            self.comments[int(self.path.rpartition("/")[2])] |= (found := body)
        elif self.status == 200:
            page = int(self.path.rpartition("=")[2])
            found = self.comments[100 * (page - 1) : 100 * page]
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def github() -> Iterator[str]:
    """Serve the API, and yield its address; its comments are 100 of people's, one with the action's own mark."""
    GitHub.asked, GitHub.status = [], 200
    GitHub.comments = [{"id": at, "user": {"type": "User"}, "body": "<!-- gradeloop gradeloop-results -->"} for at in range(100)]
    with ThreadingHTTPServer(("127.0.0.1", 0), GitHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def commented(folder: Path, api: str, text: str, event: dict[str, Any] | None = None, **inputs: str) -> Job:
    """Run the step that comments on a pull request."""
    job = Job(
        folder,
        Base(folder.parent / "runs"),
        GIVEN | inputs,
        folder.parent / "kept",
        event=event or {"pull_request": {"number": 17}},
        api=api,
    )
    (folder / "temp/gradeloop").mkdir()
    (folder / "temp/gradeloop/comment.md").write_text(text)
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("name") == "Comment on the pull request"]
    assert job._step(step, folder / "output") == 0, job.log
    return job


def test_a_pull_request_has_one_comment_that_later_runs_update(tmp_path: Path, github: str) -> None:
    commented(tmp_path / "first", github, "1 of 2, says @somebody of #12, not of #one or it's")
    first = GitHub.comments[100]["body"]
    commented(tmp_path / "second", github, "2 of 2")
    commented(tmp_path / "other", github, "other", artifact="others")

    assert first == "<!-- gradeloop gradeloop-results -->\n1 of 2, says @\u200bsomebody of #\u200b12, not of #one or it's"
    assert [one["body"].partition("\n")[2] for one in GitHub.comments[100:]] == ["2 of 2", "other"]
    assert all(one["body"] == "<!-- gradeloop gradeloop-results -->" for one in GitHub.comments[:100])
    assert [line.partition("?")[0] for line in GitHub.asked[:3]] == [
        "GET /repos/somebody/shop/issues/17/comments",
        "GET /repos/somebody/shop/issues/17/comments",
        "POST /repos/somebody/shop/issues/17/comments",
    ]
    assert "PATCH /repos/somebody/shop/issues/comments/100" in GitHub.asked


def test_a_job_that_may_not_comment_says_what_it_needs_and_does_not_fail(tmp_path: Path, github: str) -> None:
    GitHub.status = 403
    job = commented(tmp_path / "refused", github, "1 of 2")
    away = commented(tmp_path / "away", "http://127.0.0.1:9", "1 of 2")

    assert "HTTP Error 403: Forbidden; the job needs permissions: pull-requests: write" in job.log
    assert "::notice title=gradeloop::the pull request has no comment: " in away.log


def test_nothing_is_asked_where_no_comment_is_wanted(tmp_path: Path, github: str) -> None:
    commented(tmp_path / "off", github, "1 of 2", comment="false")
    commented(tmp_path / "push", github, "1 of 2", event={"ref": "refs/heads/main"})
    commented(tmp_path / "nothing", github, "")

    assert GitHub.asked == []


def test_an_annotation_stands_at_the_line_of_its_test(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job = Job(folder, Base(tmp_path / "runs"), {"folder": "a, b", "suite": "s.yaml"}, tmp_path / "kept")
    (folder / "checkout/a, b").mkdir()
    (folder / "checkout/a, b/cases.csv").write_text("id,q\nrow,x\n")
    suite = "prompts: ['{{ q }}']\ngenerators: [scripted:one]\nrubric: '- good'\ngrader: scripted:one\nscripted: r.yaml\ntests:\n"
    (folder / "checkout/a, b/s.yaml").write_text(suite + "  - {id: own, vars: {q: a}}\n  - cases.csv\n")
    (folder / "checkout/a, b/r.yaml").write_text("replies: [{role: grader, text: x}]")
    job.results.mkdir(parents=True)
    gone = {"status": "failed", "criteria": [{"id": "c1", "passed": False, "gap": "50 %\n::error::x", "reason": ""}]}
    cases = [{"id": name, **gone} for name in ("own", "row", "unknown")]
    (job.results / "results.json").write_text(json.dumps({"cases": cases}))
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("name") == "Summary and annotations"]

    assert job._step(step, folder / "output") == 0, job.log
    assert [line for line in job.log.splitlines() if line.startswith("::")] == [
        "::error file=a%2C b/s.yaml,line=7,title=gradeloop%3A own failed::c1: 50 %25%0A::error::x",
        "::error file=a%2C b/cases.csv,line=2,title=gradeloop%3A row failed::c1: 50 %25%0A::error::x",
        "::error title=gradeloop%3A unknown failed::c1: 50 %25%0A::error::x",
    ]


def test_arguments_with_an_open_quote_fail_the_job_before_anything_runs(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", Base(tmp_path / "runs"), GIVEN | {"arguments": "--budget-usd 2 --pass-rate '0.9"}, tmp_path / "kept")

    assert job.run() == 2
    assert "::error title=gradeloop::arguments: No closing quotation; write it as a shell takes it" in job.log
    assert list(job.results.iterdir()) == []


def test_arguments_come_as_a_shell_splits_them(tmp_path: Path) -> None:
    arguments = "--name 'two words' --filter \"\" --tag 'a\nb' '$HOME' \\*"
    job = Job(tmp_path / "job", Base(tmp_path / "runs"), {"arguments": arguments}, tmp_path / "kept")
    (job.folder / "bin/gradeloop").write_text('#!/usr/bin/env bash\nprintf "<%s>" "$@" > "$RUNNER_TEMP/seen"\n')
    (job.folder / "bin/gradeloop").chmod(0o755)
    (tmp_path / "job/temp/gradeloop/out").mkdir(parents=True)
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "eval"]
    job._step(step, tmp_path / "output")

    assert (job.folder / "temp/seen").read_text().endswith("<--overwrite><--name><two words><--filter><><--tag><a\nb><$HOME><*>")


def recipe(tmp_path: Path, lines: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the lines of a recipe in a folder with a suite, as one job's shell does; gradeloop is installed already."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join(line for line in lines if "pip install" not in line)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {**os.environ, "PATH": path, **variables}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200)


async def test_the_recipes_for_gitlab_and_for_any_shell_run_as_they_stand(tmp_path: Path) -> None:
    served, folder = tmp_path / "served", tmp_path / "project"
    shutil.copytree(ROOT / "examples/suite", folder)
    shell = block_of("docs/ci.md", "sh recipe").text.splitlines()
    gitlab = block_of("docs/ci.md", "yaml", "after_script").value["suite"]
    first = await asyncio.to_thread(recipe, folder, shell)
    results = json.loads((folder / "results.json").read_text())
    for row in results["cases"]:
        row["status"], row["criteria"] = "passed", [criterion | {"passed": True} for criterion in row["criteria"]]
    (kept := served / "projects/5/jobs/artifacts/main/raw").mkdir(parents=True)
    (kept / "results.json").write_text(json.dumps(results))
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"CI_PROJECT_DIR": str(folder), "CI_PROJECT_ID": "5", "CI_JOB_TOKEN": "t"}
        given |= {"CI_API_V4_URL": f"http://127.0.0.1:{server.server_port}", "GRADELOOP_STATE_DIR": str(folder / ".gradeloop")}
        alone = await asyncio.to_thread(recipe, folder, gitlab["script"], **given, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="absent")
        compared = await asyncio.to_thread(recipe, folder, gitlab["script"], **given, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
        after = await asyncio.to_thread(recipe, folder, gitlab["after_script"], **given)
        again = await asyncio.to_thread(recipe, folder, shell)
        server.shutdown()

    assert [ended.returncode for ended in (first, alone, compared, after, again)] == [0, 0, 1, 0, 1], compared.stdout + compared.stderr
    assert "regress" in compared.stdout
    assert {"results.json", "junit.xml", "report.html", "summary.md"} <= {file.name for file in folder.iterdir()}


def test_every_action_is_pinned_by_its_commit() -> None:
    used = re.findall(r"uses: (.*)", (ROOT / "action.yml").read_text())

    assert len(used) == 4
    assert all(re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used)


def test_no_step_needs_a_newer_bash_than_that_of_macos() -> None:
    scripts = "\n".join(step["run"] for step in ACTION["runs"]["steps"] if "run" in step)

    assert not re.search(r"\b(mapfile|readarray|coproc)\b|declare -[An]|\|&|&>>|\$\{\w+(\^|,,?|@)", scripts)


def test_no_step_has_an_expression_in_its_script() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]

    assert not [script for script in scripts if "${{" in script]
