"""What several tests of batches need."""

import pytest

from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import local_code_sandbox


@pytest.fixture(scope="module")
def sandboxes() -> SandboxChoice:
    """Return this machine's sandboxes."""
    choice = local_code_sandbox().choice()
    if choice.programs is None:
        pytest.skip(f"no sandbox for programs works here: {choice.why_not()}")
    return choice
