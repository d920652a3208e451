"""What makes `gradeloop diff` end with the exit code 1."""

from enum import StrEnum


class Gate(StrEnum):
    """Findings that fail the comparison."""

    REGRESSIONS = "regressions"
    """Cases that regressed."""
    ERRORS = "errors"
    """Cases with more errors in B than in A."""
    CRITERIA = "criteria"
    """Criteria that regressed in at least one case, whatever its verdict."""
    ANY = "any"
    """All of these, and cases missing from B."""
