"""The image, step by step without an engine: its file's commands in a clean folder, then its worker as its user, with a read-only home."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ScriptedModels
from rig.postgresql import Postgresql

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
USER = 10001
QUEUE = "image"

SUITE = f"""
prompts: ["Answer: {{{{ question }}}}"]
generators: ["{MODEL}"]
grader: "{MODEL}"
rubric: "- it answers"
tests:
  - {{id: one, vars: {{question: One?}}}}
  - {{id: two, vars: {{question: Two?}}}}
  - {{id: three, vars: {{question: Three?}}}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def as_user() -> dict[str, object]:
    """Return how a process becomes the image's user, where this one may do that."""
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with what follows them, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", (ROOT / "deploy/Dockerfile").read_text()).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines) if re.fullmatch("[A-Z]+", name)]


def python() -> str:
    """Return a Python that the image's user may run, or skip."""
    base = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    for found in (base, "/usr/bin/python3"):
        try:
            done = subprocess.run([found, "-c", "import ensurepip"], cwd="/", capture_output=True, check=False, **as_user())  # type: ignore[call-overload]  # by name
        except OSError:
            continue
        if done.returncode == 0:
            return found
    pytest.skip(f"no Python with ensurepip that user {USER} may run")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that the image's user can enter: pytest's own are closed to others, also by a run that begins meanwhile."""
    with tempfile.TemporaryDirectory(prefix="image-") as found:
        Path(found).chmod(0o755)
        yield Path(found)


@pytest.fixture(scope="module")
def installed(folder: Path) -> Path:
    """Run the build's steps, each with the image's folders moved below one of ours; return where the application is."""
    source, base = folder / "source", folder / "base"
    source.mkdir()
    subprocess.run([python(), "-m", "venv", str(base)], check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "GRADELOOP"))}
    environment |= {"PATH": f"{base / 'bin'}:/usr/bin:/bin"}
    steps = instructions()
    build = steps[: [number for number, (name, _) in enumerate(steps) if name == "FROM"][1]]
    for name, rest in build:
        if name == "COPY":
            *sources, target = rest.split()
            for path in sources:
                copied = source / (Path(path).name if target == "./" else target)
                shutil.copytree(ROOT / path, copied) if (ROOT / path).is_dir() else shutil.copy(ROOT / path, copied)
        elif name == "RUN":
            step = rest.replace("/opt/gradeloop", str(folder / "opt")).replace("/wheels", str(folder / "wheels"))
            done = subprocess.run(["/bin/sh", "-euc", step], cwd=source, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "COPY --from=build /opt/gradeloop /opt/gradeloop" in {" ".join(step) for step in steps}
    return folder / "opt"


@pytest.fixture
def home(folder: Path) -> Iterator[Path]:
    """Return a home that its user cannot write."""
    made = folder / "home"
    made.mkdir(mode=0o555)
    yield made
    made.rmdir()


def environment(installed: Path, home: Path, **more: str) -> dict[str, str]:
    """Return the environment that the image gives its command."""
    path = next(rest for name, rest in instructions() if name == "ENV")
    assert path.startswith("PATH=/opt/gradeloop/bin:$PATH")
    return {"PATH": f"{installed / 'bin'}:/usr/bin:/bin", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}


def test_a_batch_on_postgresql_is_judged_by_the_images_worker_with_a_read_only_home(
    installed: Path, home: Path, postgresql: Postgresql, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    store = postgresql.create("image")
    shared = {"TEMPORAL_ADDRESS": temporal_server.address, "GRADELOOP_STORE": store, "GRADELOOP_TASK_QUEUE": QUEUE}
    command = json.loads(next(rest for name, rest in instructions() if name == "CMD"))
    (tmp_path / "suite.yaml").write_text(SUITE)
    with ScriptedModels() as models, (tmp_path / "log").open("wb") as log:
        given = environment(installed, home, **shared, OPENAI_BASE_URL=models.url)
        worker = subprocess.Popen(command, cwd=home, env=given, stdout=log, stderr=log, **as_user())  # type: ignore[call-overload]  # by name
        try:
            done = subprocess.run(
                [str(BIN / "gradeloop"), "eval", "suite.yaml", "--json"],
                cwd=tmp_path,
                env=os.environ | shared | {"GRADELOOP_STATE_DIR": str(tmp_path)},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        finally:
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(60)
    said = (tmp_path / "log").read_text()
    results = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, f"{done.stderr}\n{said}"
    assert sorted((result["id"], result["status"]) for result in results if "id" in result) == [
        (name, "passed") for name in ("one", "three", "two")
    ]
    assert code == 0, said
    assert not list(home.iterdir())


def test_without_a_server_a_home_that_cannot_be_written_is_named(installed: Path, home: Path) -> None:
    done = subprocess.run(
        ["gradeloop", "list"],
        cwd=home,
        env=environment(installed, home),
        capture_output=True,
        text=True,
        check=False,
        **as_user(),  # type: ignore[call-overload]  # by name
    )

    assert done.returncode == 2
    assert f"The state folder '{home}/.local/state/gradeloop' cannot be made" in done.stderr
    assert "Temporal" not in done.stderr
