"""The command line of a module's tests."""

import pytest

from tests.rig.cli import CommandLine


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command, in a folder of the module's own."""
    return commands
