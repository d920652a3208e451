"""The laws of the house: what imports what, what a workflow may not touch, how long things are, which versions agree."""

import ast
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from temporalio import workflow
from temporalio.common import RawValue

from gradeloop.batches.contract import GradingBatch, StoreCases
from gradeloop.contract.thread import GradingThread
from gradeloop.judges.contract import Judging
from tests.house_counts import arrows, counts, grown, modules, outdated, records, trees
from tests.rig.locks import pins

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
VENDORS = ("anthropic", "openai", "google.genai")
APPLICATION = ("workflows", "activities", "worker")
TOP = {
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "requirements-dev.lock", "requirements-demo.lock", "worker.py"),
    *("action.yml", "CONTRIBUTING.md", "SECURITY.md"),
    *("workflows", "activities", "src", "tests", "deploy", "examples", "lab", "rig", "docs"),
}
LOCK = ROOT / "requirements-dev.lock"
LOCKS = (LOCK, ROOT / "requirements-demo.lock", ROOT / "deploy/image.lock", ROOT / "deploy/build.lock")
SITE_LOCK = ROOT / "deploy/site/requirements.lock"
RELEASE_LOCK = ROOT / "deploy/release/requirements.lock"
RIG_LOCKS = (ROOT / "rig/real_model.lock", ROOT / "rig/helm.lock")
MODULE_LINES, FUNCTION_LINES = 650, 60

NAMES = {"told", "held", "each"}
"""Names that say nothing of the thing that they name."""

WIRE_NAMES = {"gradeloop.batches.contract": {"held"}, "workflows.batches.grading_batch": {"held"}}
"""Those that are keys of the wire, and stay."""

DOORS = {"gradeloop.integrations.docent"}
"""Modules whose classes have the names of the program that they stand in for."""

SAME_FILE_NAMES = {
    "__init__",
    "base",
    "cases",
    "client",
    "contract",
    "docent",
    "langchain",
    "errors",
    "extension",
    "live",
    "plugin",
    "schemas",
    "tables",
    "judge",
    "registry",
    "rubric",
    "sources",
    "text",
    "thread",
    "worker",
}
"""Files of one name in several rooms, where the name means the same role in each."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

OFFENCES = {
    "clock": "import time\n\nNOW = time.time()\n",
    "sleep": "from time import sleep\n\nsleep(1)\n",
    "now": "from datetime import UTC, datetime\n\nNOW = datetime.now(UTC)\n",
    "utcnow": "import datetime\n\nNOW = datetime.datetime.utcnow()\n",
    "today": "import datetime\n\nNOW = datetime.date.today()\n",
    "random": "import random\n\nDRAWN = random.random()\n",
    "secrets": "import secrets\n\nDRAWN = secrets.token_hex()\n",
    "uuid1": "from uuid import uuid1\n\nDRAWN = uuid1()\n",
    "uuid4": "import uuid\n\nDRAWN = uuid.uuid4()\n",
    "environ": "import os\n\nHOME = os.environ['HOME']\n",
    "getenv": "from os import getenv\n\nHOME = getenv('HOME')\n",
    "socket": "import socket\n\nHOST = socket.gethostname()\n",
    "requests": "import requests\n\nPAGE = requests.get('http://example.com', timeout=1)\n",
    "httpx": "from httpx import AsyncClient\n\nCLIENT = AsyncClient()\n",
    "httpx2": "import httpx2\n\nCLIENT = httpx2.AsyncClient()\n",
    "urllib": "from urllib.request import urlopen\n\nPAGE = urlopen('http://example.com')\n",
    "vendor": "import anthropic\n\nCLIENT = anthropic.AsyncAnthropic()\n",
    "subprocess": "import subprocess\n\nsubprocess.run(['true'], check=True)\n",
    "threading": "import threading\n\nLOCK = threading.Lock()\n",
    "executor": "from concurrent.futures import ThreadPoolExecutor\n\nPOOL = ThreadPoolExecutor()\n",
    "to_thread": "import asyncio\n\nWAITING = asyncio.to_thread(len, '')\n",
    "wait": "import asyncio\n\nWAITING = asyncio.wait([])\n",
    "as_completed": "from asyncio import as_completed\n\nWAITING = as_completed([])\n",
    "open": "TEXT = open('notes.txt').read()\n",
    "pathlib": "from pathlib import Path\n\nTEXT = Path('notes.txt').read_text()\n",
    "print": "print('a replay says this again')\n",
    "logging": "import logging\n\nlogging.warning('a replay says this again')\n",
}


def functions(path: Path) -> Iterator[Function]:
    """Yield the functions of a module, inner ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def loaded_by(*command: str) -> set[str]:
    """Return the modules that a fresh interpreter loads while it runs the command in the project's root."""
    done = subprocess.run([sys.executable, "-X", "importtime", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    rest = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(rest)
    return {line.rpartition("|")[2].strip() for line in lines}


def project() -> dict[str, object]:
    """Return the `project` table of pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def of_packages(names: tuple[str, ...], loaded: set[str]) -> set[str]:
    """Return those loaded modules that are, or are inside, one of the named packages."""
    return {module for module in loaded if any(module == name or module.startswith(f"{name}.") for name in names)}


def test_importing_gradeloop_loads_no_provider_and_nothing_of_the_application() -> None:
    loaded = loaded_by("-c", "import gradeloop")

    assert "gradeloop" in loaded
    assert not of_packages((*VENDORS, *APPLICATION), loaded)


def test_the_help_of_the_command_line_loads_no_provider_and_nothing_of_the_application() -> None:
    loaded = loaded_by(str(BIN / "gradeloop"), "--help")

    assert "gradeloop.cli.main" in loaded
    assert not of_packages((*VENDORS, *APPLICATION), loaded)


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("run", ("jinja2", "jsonschema", "sqlalchemy", "temporalio.worker", "gradeloop.batches", "gradeloop.judges", "gradeloop.suites")),
        ("demo", ("jinja2", "jsonschema", "sqlalchemy", "temporalio.worker", "gradeloop.batches", "gradeloop.judges", "gradeloop.suites")),
        ("eval", ("jinja2", "jsonschema", "sqlalchemy", "temporalio.worker")),
        ("judge", ("jinja2", "jsonschema", "temporalio.worker")),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_use(command: str, unused: tuple[str, ...]) -> None:
    loaded = loaded_by(str(BIN / "gradeloop"), command, "--help")

    assert "temporalio.client" in loaded
    assert not of_packages((*VENDORS, *APPLICATION, *unused), loaded)


def test_importing_every_workflow_loads_no_vendor_sdk_and_no_database() -> None:
    names = [f"workflows.{path.stem}" for path in (ROOT / "workflows").glob("[!_]*.py")]
    loaded = loaded_by("-c", "import " + ", ".join(["workflows", *names]))

    assert {"workflows", *names} <= loaded
    assert not of_packages((*VENDORS, "sqlalchemy"), loaded)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return, for each offending snippet, the rules that it breaks as a module of `workflows/`."""
    root = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "workflows").mkdir()
    shutil.copy(ROOT / "workflows/ruff.toml", root / "workflows")
    for name, text in OFFENCES.items():
        (root / "workflows" / f"{name}_.py").write_text(text)
    command = [str(BIN / "ruff"), "check", "--no-cache", "--output-format=json", "workflows"]
    found = json.loads(subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout)
    return {name: {row["code"] for row in found if Path(row["filename"]).stem == f"{name}_"} for name in OFFENCES}


@pytest.mark.parametrize("name", OFFENCES)
def test_a_workflow_that_touches_the_world_is_refused(verdicts: dict[str, set[str]], name: str) -> None:
    assert verdicts[name] & {"TID251", "T201", "PTH123"}


def test_the_bans_hold_in_workflows_alone(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "clock.py").write_text(OFFENCES["clock"])

    command = [str(BIN / "ruff"), "check", "--no-cache", "--select=TID251", "clock.py"]

    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_the_projects_own_workflows_break_no_rule() -> None:
    done = subprocess.run([str(BIN / "ruff"), "check", "--no-cache", "workflows"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_the_house_has_not_grown() -> None:
    found = "\n".join(grown(counts(), records()))

    assert not found, f"make something shorter, or run python -m tests.house_counts --write --because 'REASON':\n{found}"


def test_the_records_of_the_house_are_those_of_today() -> None:
    found = "\n".join(outdated(counts(), records()))

    assert not found, f"record them by python -m tests.house_counts --write:\n{found}"


def test_no_module_is_longer_than_one_thought() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules().values()}

    assert not {path: length for path, length in lengths.items() if length > MODULE_LINES}


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in modules().values()
        for function in functions(path)
    }

    assert lengths
    assert not {name: length for name, length in lengths.items() if length > FUNCTION_LINES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = arrows(trees())

    assert sum(map(len, found.values())) > len(found)
    TopologicalSorter(found).prepare()  # raises CycleError, which names the circle


def test_a_class_name_means_one_thing() -> None:
    ours = [tree for name, tree in trees().items() if name not in DOORS]
    classes = Counter(node.name for tree in ours for node in tree.body if isinstance(node, ast.ClassDef))

    assert not {name for name, times in classes.items() if times > 1 and not name.startswith("_")}


def test_a_file_name_means_one_role() -> None:
    stems = Counter(path.stem for path in modules().values())

    assert {stem for stem, times in stems.items() if times > 1} <= SAME_FILE_NAMES


def names_bound(tree: ast.AST) -> Iterator[str]:
    """Yield what a module calls its variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name.strip("_")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name.strip("_")
            case ast.alias(asname=str(name)):
                yield name.strip("_")


def test_every_name_names_the_thing() -> None:
    used = {name: NAMES & set(names_bound(tree)) - WIRE_NAMES.get(name, set()) for name, tree in trees().items()}

    assert not {name: found for name, found in used.items() if found}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every docstring with its line: of the module, its classes and functions, and below attributes and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                yield statement.lineno, statement.value.value


def test_every_docstring_stands_alone() -> None:
    fragments = [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, tree in trees().items()
        for line, text in docstrings(tree)
        if re.match(r"\s*(Of|By|For|In|From)\b", text)
    ]

    assert not fragments


def packages_imported(path: Path) -> Iterator[str]:
    """Yield the first part of the name of each module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


@pytest.mark.parametrize(("folder", "others"), [("tests", {"lab"}), ("lab", {"tests"}), ("rig", {"lab", "tests"})])
def test_tests_and_lab_import_nothing_of_each_other_and_rig_nothing_of_both(folder: str, others: set[str]) -> None:
    found = {path: others & set(packages_imported(path)) for path in (ROOT / folder).rglob("*.py")}

    assert found
    assert not {str(path.relative_to(ROOT)): names for path, names in found.items() if names}


def test_nothing_stands_at_the_top_that_has_no_place_there() -> None:
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}

    assert {name for name in found if not any(fnmatch(name, pattern) for pattern in ignored)} <= TOP


def handlers(cls: type) -> dict[str, Callable[..., object]]:
    """Return what a workflow class answers to, by kind and name, validators too."""
    definition = workflow._Definition.must_from_class(cls)
    found: dict[str, Callable[..., object]] = {"run": definition.run_fn}
    found |= {f"query {name}": query.fn for name, query in definition.queries.items()}
    found |= {f"signal {name}": signal.fn for name, signal in definition.signals.items()}
    found |= {f"update {name}": update.fn for name, update in definition.updates.items()}
    return found | {f"validator of {name}": update.validator for name, update in definition.updates.items() if update.validator}


def agrees(handler: Callable[..., object], promise: Callable[..., object]) -> bool:
    """Say whether a handler takes and returns what was promised, or takes anything, even nothing, to refuse it in its own words."""
    kept, promised = inspect.signature(handler), inspect.signature(promise)
    pairs = zip(kept.parameters.values(), promised.parameters.values(), strict=False)
    return (
        kept.return_annotation == promised.return_annotation
        and list(kept.parameters) == list(promised.parameters)
        and all(
            ours.annotation is RawValue or (ours.default == theirs.default and ours.annotation in (theirs.annotation, Any))
            for ours, theirs in pairs
        )
    )


@pytest.mark.parametrize(
    ("door", "module"),
    [
        (GradingThread, "grading_thread"),
        (Judging, "batches.judging"),
        (GradingBatch, "batches.grading_batch"),
        (StoreCases, "batches.grading_batch"),
    ],
)
def test_every_handler_of_the_contract_is_overridden_with_its_own_signature(door: type, module: str) -> None:
    written = getattr(importlib.import_module(f"workflows.{module}"), f"{door.__name__}Workflow")
    promised, kept = handlers(door), handlers(written)

    assert issubclass(written, door)
    assert workflow._Definition.must_from_class(written).name == workflow._Definition.must_from_class(door).name
    assert promised.keys() <= kept.keys()
    assert "run" in promised
    for name, promise in promised.items():
        assert kept[name] is not promise, f"{name} is inherited, so it does nothing"
        assert agrees(kept[name], promise), f"{name} does not take or return what the contract says"


def test_the_installed_version_is_the_projects_and_the_changelogs_newest() -> None:
    written = re.findall(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert project()["version"] == version("gradeloop") == written[0]


@pytest.mark.parametrize("lock", [*LOCKS, SITE_LOCK, RELEASE_LOCK, *RIG_LOCKS], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_lock_file_names_no_place_and_fixes_every_version_with_its_hashes(lock: Path) -> None:
    written = lock.read_text().replace("\\\n", "")
    lines = [line for line in written.splitlines() if not line.startswith("#")]

    fixed = r"[a-z0-9][a-z0-9-]*==[0-9][\w.]*( ; [^@/]+?)?(\s+--hash=sha256:[0-9a-f]{64})+"

    assert not [line for line in lines if not re.fullmatch(fixed, line)]
    assert not re.search(r"https?:|file:|index|links|/", written)


def test_what_demo_and_image_install_are_versions_that_the_tests_ran_with() -> None:
    tested, others = pins(LOCK), [pins(lock) for lock in LOCKS if lock != LOCK]

    assert not [(name, version) for other in others for name, version in other.items() if tested.get(name) != version]


def test_whatever_is_installed_from_a_lock_file_is_compared_with_its_hashes() -> None:
    commands = (ROOT / "Makefile").read_text() + (ROOT / "deploy/Dockerfile").read_text()
    installs = re.findall(r"(?:pip|PIP\)|UV_INSTALL\)).*--requirement .*", commands)

    assert len(installs) == len([*LOCKS, SITE_LOCK, RELEASE_LOCK]) + 2  # the image's once more, for the SBOM, and uv itself
    assert all("--require-hashes" in line and "--no-deps" in line for line in installs)


def test_the_lock_file_answers_every_requirement_of_the_project() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    stated = [*(extras[name] for name in ("anthropic", "openai", "google", "embedded", "dev")), project()["dependencies"]]
    wanted = [Requirement(text) for texts in stated for text in texts if not text.startswith("gradeloop[")]
    locked = pins(LOCK)

    assert not [str(need) for need in wanted if not need.specifier.contains(locked.get(need.name.lower().replace(".", "-"), "0"))]


def test_the_lock_file_has_whatever_its_own_packages_need() -> None:
    locked = pins(LOCK)
    wanted = [
        need
        for name in locked
        for need in map(Requirement, distribution(name).requires or ())
        if need.marker is None or need.marker.evaluate({"extra": ""})
    ]

    assert not {str(need) for need in wanted if not need.specifier.contains(locked.get(canonicalize_name(need.name), "0"))}


def test_the_readmes_two_commands_are_targets_and_ci_runs_its_test_command() -> None:
    blocks = "\n".join(re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL))
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    steps = re.findall(r"\bmake [a-z-]+", (ROOT / ".ci/run").read_text())

    assert re.search(r"^(\$ )?make demo\b", blocks, flags=re.MULTILINE)
    assert re.search(r"^(\$ )?make test\b", blocks, flags=re.MULTILINE)
    assert {"demo", "test", "test-slow", "test-real", "storm", "check", "bench"} <= set(targets)
    assert (ROOT / "lab/overhead.py").is_file()
    assert steps == ["make check", "make test", "make test-real", "make test-slow"]


def test_make_says_what_is_missing_where_there_is_no_python(tmp_path: Path) -> None:
    command = [shutil.which("make") or "make", "demo", f"VENV={tmp_path / 'environment'}"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "gradeloop needs Python 3.11 or newer" in done.stderr


def test_no_test_waits_only_seconds_for_what_a_slow_host_takes_longer_for() -> None:
    wait = re.compile(r"(?:\btimeout=|asyncio\.timeout\(|mark\.timeout\()(?:[1-9]|[1-4]\d)(?:\.0)?[,)]")
    meant = {
        "tests/client/test_watch.py": 1,  # a caller's own limit, which has to pass
        "tests/rig/cli.py": 1,  # a stream that is held open has nothing more to say
        "tests/web/test_open_ports.py": 1,  # a port that waits for more is one of the answers
        "tests/workflows/test_tools_elsewhere.py": 1,  # a key that is refused
    }
    files = [path for folder in ("tests", "lab/tests", "rig") for path in (ROOT / folder).rglob("*.py") if path.name != "test_house.py"]
    found = {str(path.relative_to(ROOT)): len(wait.findall(path.read_text())) for path in files}

    assert {name: count for name, count in found.items() if count} == meant
