"""A real model for the tests of this folder; where it cannot be had they skip, or fail where `GRADELOOP_REAL_MODEL` is `required`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.real_model import NoModelError, RealModel, Tap, packages, real_model
from tests.rig.cli import CommandLine
from tests.rig.real_suites import let_call

REQUIRED = "GRADELOOP_REAL_MODEL"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests: `make test` and `make test-slow` leave them out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def wheels() -> Path:
    """Return the folder of the model's packages."""
    try:
        return packages()
    except NoModelError as error:
        if os.environ.get(REQUIRED) == "required":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def one_model(wheels: Path) -> Iterator[tuple[RealModel, Tap]]:
    """Run one model for all the tests that need no other."""
    with real_model() as running:
        yield running


@pytest.fixture
def tap(one_model: tuple[RealModel, Tap]) -> Tap:
    """Return the record of what the model is asked, which is empty."""
    one_model[1].forget()
    return one_model[1]


@pytest.fixture
def gradeloop(commands: CommandLine, one_model: tuple[RealModel, Tap]) -> CommandLine:
    """Return the command, whose worker may call the model."""
    let_call(commands, one_model[1])
    return commands
