"""What makes `gradeloop diff` end with the exit code 1."""

from enum import StrEnum


class Gate(StrEnum):
    """What is held against B."""

    REGRESSIONS = "regressions"
    """Cases that regressed."""
    ERRORS = "errors"
    """Cases of which more runs have no verdict than in A."""
    CRITERIA = "criteria"
    """Criteria that regressed in some case, whatever the case came to."""
    ANY = "any"
    """All of it, and cases that B lacks."""
