"""What several tests of batches need."""

import pytest

from gradeloop.sandbox.choice import SandboxChoice, choose_sandboxes


@pytest.fixture(scope="module")
def sandboxes() -> SandboxChoice:
    """Return this machine's sandboxes."""
    choice = choose_sandboxes()
    if choice.programs is None:
        pytest.skip(f"no sandbox for programs works here: {choice.why_not()}")
    return choice
