"""A release: its steps up to the signature, its SBOM, and the audit beside a database of this machine."""

import json
import os
import re
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from tests.conftest import ROOT
from tests.rig.locks import pins

FILE = ROOT / ".github/workflows/release.yml"
JOBS = yaml.safe_load(FILE.read_text())["jobs"]
TOOLS = ROOT / "build/release-venv"
LEAK = {
    "id": "PYSEC-0000-1",
    "summary": "it leaks",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.1.7"}]}],
        }
    ],
}


def bash(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as the runner does."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def script(name: str) -> str:
    """Return the script of a step."""
    (step,) = [step for step in JOBS["build"]["steps"] if step.get("name") == name]
    return str(step["run"])


@pytest.mark.parametrize(("tag", "code"), [("v0.2.0", 0), ("v0.2.1", 1), ("v0.2", 1), ("v0.2.0.dev1", 1), ("v0x2.0", 1)])
def test_a_tag_that_is_not_the_version_releases_nothing(tag: str, code: int) -> None:
    assert bash(script("The tag names the version"), GITHUB_REF_NAME=tag).returncode == code


def test_only_the_job_that_runs_no_code_of_a_package_can_sign_and_publish() -> None:
    asked = yaml.safe_load(FILE.read_text())

    assert asked["permissions"] == {}
    assert JOBS["build"]["permissions"] == {"contents": "read"}
    assert JOBS["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    assert not [step for step in JOBS["publish"]["steps"] if "run" in step]
    assert "secrets." not in FILE.read_text()


def test_what_is_published_is_attested_with_its_sbom() -> None:
    with_of = {step["uses"].partition("@")[0]: step["with"] for step in JOBS["publish"]["steps"]}

    assert with_of["actions/attest-build-provenance"]["subject-path"].split() == ["release/dist/*", "release/gradeloop.cdx.json"]
    assert with_of["actions/attest-sbom"] == {"subject-path": "release/dist/*", "sbom-path": "release/gradeloop.cdx.json"}
    assert with_of["pypa/gh-action-pypi-publish"] == {"packages-dir": "release/dist", "attestations": True}


@pytest.mark.parametrize("file", [*sorted(FILE.parent.glob("*.yml")), ROOT / "action.yml"], ids=lambda file: file.name)
def test_every_action_is_pinned_by_its_commit(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text())

    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used)


def test_a_release_whose_plain_manifests_are_not_the_charts_stops() -> None:
    step = script("The plain manifests are what the chart renders")

    assert step == "make kubernetes && git diff --exit-code deploy/kubernetes"
    assert re.search(r"^kubernetes:.*\n\t\$\(BIN\)/python -m rig\.helm$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_is_checked_in_public_is_what_is_checked_here() -> None:
    (job,) = yaml.safe_load((FILE.parent / "ci.yml").read_text())["jobs"].values()

    assert job["steps"][-1]["run"] == ".ci/run"


@pytest.fixture(scope="module")
def tools() -> Path:
    """Return the environment of the release's tools; where nobody can install it, the test is skipped."""
    made = subprocess.run(["make", "build/release-venv/.ready"], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the release's tools cannot be installed: {made.stderr[-200:]}")
    return TOOLS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_release_has_both_distributions_and_an_sbom_of_all_that_the_image_installs(tools: Path) -> None:
    done = bash(script("Distributions and their SBOM"), GITHUB_SERVER_URL="https://git.example", GITHUB_REPOSITORY="somebody/shop")

    assert done.returncode == 0, done.stderr[-2000:]
    folder = ROOT / "build/release"
    assert sorted(file.name for file in folder.iterdir()) == ["dist", "gradeloop.cdx.json"]
    assert sorted(file.name for file in (folder / "dist").iterdir()) == ["gradeloop-0.2.0-py3-none-any.whl", "gradeloop-0.2.0.tar.gz"]
    found = json.loads((folder / "gradeloop.cdx.json").read_text())
    parts = {re.sub(r"[-_.]+", "-", part["name"]).lower(): part["version"] for part in found["components"]}
    assert found["bomFormat"] == "CycloneDX"
    assert (found["metadata"]["component"]["name"], found["metadata"]["component"]["version"]) == ("gradeloop", "0.2.0")
    assert parts == pins(ROOT / "deploy/image.lock")
    assert len({row["ref"] for row in found["dependencies"]}) == len(parts) + 1
    assert str(ROOT) not in (folder / "gradeloop.cdx.json").read_text()
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        told = wheel.read("gradeloop-0.2.0.dist-info/METADATA").decode()
    assert "\nProject-URL: Documentation, https://git.example/somebody/shop/tree/v0.2.0/docs\n" in told
    assert "](https://git.example/somebody/shop/blob/v0.2.0/docs/cli.md)" in told
    assert "](https://git.example/somebody/shop/raw/v0.2.0/docs/images/report.png)" in told
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", told) == []


@contextmanager
def database(answer: dict[str, Any] | int) -> Iterator[str]:
    """Serve a database of vulnerabilities that gives one answer, or a status, to every question."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(answer).encode() if isinstance(answer, dict) else b""
            self.send_response(200 if isinstance(answer, dict) else answer)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


def audit(tools: Path, lock: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Audit a lock beside a database of the test's own."""
    cache = str(lock.parent / "cache")
    command = [tools / "bin/python", ROOT / "deploy/release/audit.py", lock, "--osv-url", address, "--cache-dir", cache]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return a lock of one package."""
    (file := tmp_path / "one.lock").write_text(f"jinja2==3.1.6 \\\n    --hash=sha256:{'0' * 64}\n")
    return file


@pytest.mark.slow
def test_a_known_vulnerability_fails_the_audit_with_its_cure(tools: Path, lock: Path) -> None:
    with database({"vulns": [LEAK]}) as address:
        found = audit(tools, lock, address)

    assert found.returncode == 1, found.stderr
    assert found.stdout.splitlines() == [
        "jinja2 3.1.6: PYSEC-0000-1: it leaks (fixed in 3.1.7; run make lock)",
        f"audit of {lock}: 1 packages, 1 known vulnerabilities",
    ]


@pytest.mark.slow
def test_packages_of_which_nothing_is_known_pass_the_audit(tools: Path, lock: Path) -> None:
    with database({}) as address:
        found = audit(tools, lock, address)

    assert (found.returncode, found.stdout) == (0, f"audit of {lock}: 1 packages, 0 known vulnerabilities\n"), found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("status", [None, 500, 403])
def test_a_database_that_cannot_be_asked_fails_nothing_and_is_told(tools: Path, lock: Path, status: int | None) -> None:
    with database(status or 500) as address:
        found = audit(tools, lock, address if status else "http://127.0.0.1:9/v1/query")

    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"audit of {lock} skipped: the database of vulnerabilities gave no answer: ")


@pytest.mark.slow
def test_a_lock_that_cannot_be_read_is_no_audit(tools: Path, tmp_path: Path) -> None:
    (bad := tmp_path / "bad.lock").write_text("jinja2==\n")
    found = audit(tools, bad, "http://127.0.0.1:9/v1/query")

    assert found.returncode == 2
    assert "bad.lock" in found.stderr
