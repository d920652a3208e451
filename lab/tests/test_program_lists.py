"""Every program of the laboratory is in a list of those that tests run; the slow tests run them."""

import pytest

from lab.tests.test_programs import HELPED, LAB, SERVED, SMALLEST


@pytest.mark.slow
def test_every_program_is_run_or_asked_for_its_help() -> None:
    files = {path.stem for path in LAB.glob("*.py") if '__name__ == "__main__"' in path.read_text()}

    assert files | {path.parent.name for path in LAB.glob("*/__main__.py")} == SMALLEST.keys() | HELPED | SERVED
