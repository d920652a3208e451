"""The package of docs/extensions.md, installed as anybody's: its protocol, format, check and command work like gradeloop's own."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.docs.runner import blocks

PAGE = "docs/extensions.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


class Acme(BaseHTTPRequestHandler):
    """Acme's server: it whispers first, and shouts once it was told that it whispers."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = any("whispers" in said["text"] for said in asked["said"])
        answer = json.dumps({"text": "HELLO" if told else "hello", "read": 7, "written": 1}).encode()
        self.send_response(200 if self.headers["x-acme-key"] == "s3cret" and asked["model"] == "loud" else 401)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve Acme's models."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Acme)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the page's package, beside what this one has."""
    folder = tmp_path_factory.mktemp("acme")
    for block in blocks(PAGE):
        if "." in block.about:
            path = folder / "source" / block.about
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    venv.create(folder / "environment")
    (own,) = folder.glob("environment/lib/python*/site-packages")
    (own / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "--target", str(own), str(folder / "source")], check=True, capture_output=True)
    (folder / "environment/bin/temporal").symlink_to(Path(sysconfig.get_path("scripts")) / "temporal")
    return folder / "environment/bin/python"


class Terminal:
    """Runs `gradeloop` in a folder, with the package installed."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self._python = folder, python
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GRADELOOP_", "OPENAI_", "ANTHROPIC_"))},
            "ACME_KEY": "s3cret",
            "GRADELOOP_STATE_DIR": str(folder / "state"),
            "GRADELOOP_TRUST": "true",
            "COLUMNS": "200",
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._python), "-c", "from gradeloop.cli.main import main; main()", *arguments]
        return subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, text=True, check=False)

    def write(self, name: str, content: object) -> None:
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture(scope="module")
def gradeloop(package: Path, address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Return a command line whose worker knows Acme's endpoint."""
    terminal = Terminal(tmp_path_factory.mktemp("project"), package)
    (endpoint,) = (block.text for block in blocks(PAGE) if block.kind == "toml providers")
    terminal.write("gradeloop.toml", endpoint.replace("http://127.0.0.1:8080", address))
    yield terminal
    terminal("dev", "stop")


SHOUTS = {"description": "it shouts", "check": {"tool": "text_check", "arguments": {"kind": "shouts"}}}


def test_help_lists_its_command_which_runs(gradeloop: Terminal) -> None:
    assert "Say which models Acme has." in gradeloop("--help").stdout.partition("Acme:")[2]
    assert gradeloop("acme").stdout == "acme:loud\n"


def test_run_drafts_by_its_protocol_and_checks_by_its_check(gradeloop: Terminal) -> None:
    gradeloop.write("task.yaml", {"prompt": "Greet us.", "generator": {"model": "acme:loud"}, "rubric": {"criteria": [SHOUTS]}})

    done = gradeloop("run", "task.yaml", "--json")

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["output"], result["iterations"]) == ("satisfied", "HELLO", 2)
    assert (result["usage"]["input"], result["usage"]["calls"]) == (14, 2)


def test_an_error_of_its_http_client_is_read_as_any_providers(gradeloop: Terminal) -> None:
    gradeloop.write("locked.yaml", {"prompt": "Greet us.", "generator": {"model": "acme:locked"}, "rubric": {"criteria": [SHOUTS]}})

    done = gradeloop("run", "locked.yaml")

    assert done.returncode == 3, done.stderr
    assert "HTTP 401, acme:locked" in done.stdout
    assert "correct ACME_KEY, or name another model" in done.stdout


def test_judge_reads_its_format(gradeloop: Terminal) -> None:
    gradeloop.write("judge.json", {"rubric": {"criteria": [SHOUTS]}})
    gradeloop.write("loud.json", {"acme_turns": [{"who": "user", "text": "Greet us."}, {"who": "assistant", "text": "HELLO"}]})
    gradeloop.write("odd.json", {"acme_turns": "HELLO"})

    done, odd = gradeloop("judge", "judge.json", "loud.json"), gradeloop("judge", "judge.json", "odd.json")

    assert done.returncode == 0, done.stderr
    assert "read as Acme log (an object with acme_turns)" in done.stdout
    assert "1 judged, 1 passed (100%), 0 failures" in done.stdout
    assert (odd.returncode, "'HELLO' is not a list of objects; write one" in odd.stderr) == (2, True)


def test_eval_knows_its_assertion_and_its_provider(gradeloop: Terminal) -> None:
    gradeloop.write("suite.yaml", {"prompts": ["Greet us."], "generators": ["acme:loud"], "tests": [{"assert": [{"type": "shouts"}]}]})

    done = gradeloop("eval", "suite.yaml", "-o", "results.json")

    assert done.returncode == 1, done.stderr
    (case,) = json.loads((gradeloop.folder / "results.json").read_text())["cases"]
    assert (case["status"], case["output"]) == ("failed", "hello")
    assert "it whispers" in json.dumps(case)


def test_a_misspelled_check_is_refused_with_what_is_meant(gradeloop: Terminal) -> None:
    misspelled = {"description": "it shouts", "check": {"tool": "text_check", "arguments": {"kind": "shout"}}}
    gradeloop.write("wrong.yaml", {"prompt": "Greet us.", "generator": {"model": "acme:loud"}, "rubric": {"criteria": [misspelled]}})

    done = gradeloop("validate", "wrong.yaml")

    assert (done.returncode, "or 'shouts', got 'shout'" in done.stderr) == (2, True), done.stderr


def test_doctor_shows_the_package_and_its_endpoint(gradeloop: Terminal, address: str) -> None:
    shown = gradeloop("doctor").stdout

    assert "acme (acme-gradeloop 1.0)" in shown
    assert f"not checked: no list of models at {address}" in shown
