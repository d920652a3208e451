"""What is shipped: built through the sdist, installed into an empty environment beside llama-index-workflows, and run there."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.rig.locks import pins

ROOT = Path(__file__).parent.parent
NEIGHBOUR = "llama-index-workflows>=2.11,<3"
"""A package that many have and that owns the name `workflows` in site-packages."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and the wheel that it builds: without a kind named, `build` makes the one from the other."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Return the wheel."""
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def content(wheel: Path) -> set[str]:
    """Return the names of the wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an otherwise empty environment with the wheel, its embedded server and the neighbour in it."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment", with_pip=True)
    pip = (folder / "environment/bin/pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins(ROOT / "requirements-dev.lock").items()))
    run(*pip, "--constraint", constraints, f"gradeloop[embedded] @ {wheel.as_uri()}", NEIGHBOUR, cwd=folder)
    return folder / "environment"


@pytest.fixture
def clean(environment: Path) -> dict[str, str]:
    """Return this process's environment with nothing in it that would lead Python back to the checkout."""
    python = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in python} | {"GRADELOOP_STATE_DIR": str(environment)}


def test_the_sdist_carries_the_tests_with_their_rig_and_not_the_lab(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}

    assert {"src", "workflows", "activities", "docs", "tests", "rig"} <= folders
    assert "lab" not in folders


def test_the_wheel_lays_nothing_but_gradeloop_into_site_packages(content: set[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert {name.split("/")[0] for name in content} == {"gradeloop", f"gradeloop-{version}.dist-info"}


def test_the_wheel_carries_the_application_the_prompts_the_migrations_and_its_types(content: set[str]) -> None:
    application = {
        f"gradeloop/_app/{path.relative_to(ROOT).as_posix()}"
        for path in [ROOT / "worker.py", *(path for folder in ("workflows", "activities") for path in (ROOT / folder).rglob("*.py"))]
    }
    prompts = {f"gradeloop/grading/texts/{path.name}" for path in (ROOT / "src/gradeloop/grading/texts").iterdir() if path.is_file()}

    migrations = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/gradeloop/store/migrations").rglob("*.py")}

    assert {"gradeloop/py.typed", "gradeloop/cli/main.py", "gradeloop/store/migrations/env.py"} <= content
    assert prompts
    assert not (application | prompts | migrations) - content


def test_the_wheel_carries_no_tests_and_nothing_compiled(content: set[str]) -> None:
    assert not [name for name in content if "/tests/" in name or name.endswith(("conftest.py", ".pyc"))]


def test_the_demo_runs_from_the_wheel_beside_a_package_that_owns_the_name_workflows(
    installed: Path, clean: dict[str, str], tmp_path: Path
) -> None:
    neighbour = run(installed / "bin/python", "-c", "import workflows; print(workflows.__file__)", cwd=tmp_path, env=clean)
    try:
        text = run(installed / "bin/gradeloop", "demo", cwd=tmp_path, env=clean)
    finally:
        subprocess.run([str(installed / "bin/gradeloop"), "dev", "stop"], cwd=tmp_path, env=clean, capture_output=True, check=False)

    assert "site-packages/workflows/" in neighbour
    assert "test_unhashable" in text
    assert "satisfied" in text


def test_the_installed_command_line_needs_no_provider(installed: Path, clean: dict[str, str], tmp_path: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('anthropic', 'openai', 'google.genai') if u.find_spec(n)])"

    assert run(installed / "bin/python", "-c", code, cwd=tmp_path, env=clean).strip() == "[]"
    assert "demo" in run(installed / "bin/gradeloop", "--help", cwd=tmp_path, env=clean)
