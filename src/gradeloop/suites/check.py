"""What of a suite's file would be taken, without a call and without a server."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from gradeloop.errors import InvalidRequest
from gradeloop.suites.findings import FindingGroup, Findings, Unsupported, describe_group
from gradeloop.suites.load import read_suite
from gradeloop.suites.plan import Suite, SuiteFlags
from gradeloop.text import counted

Verdict = Literal["whole", "in part", "refused"]
"""`in part`: with `--skip-unsupported` some of it runs, and the rest is not judged."""


@dataclass(frozen=True)
class CheckedSuite:
    """A suite's file, and what of it is taken."""

    path: Path
    verdict: Verdict
    cases: int
    """The cases that run, whole or in part."""
    not_whole: int
    """The cases of which something is left out, the ones that do not run included."""
    asks_nothing: int
    """The cases that nothing is asked of."""
    refusal: str | None
    """Why nothing of it runs; None where some of it does."""
    findings: tuple[FindingGroup, ...]

    def lines(self) -> list[str]:
        """Return the report as text: the verdict, and a line for each kind of finding."""
        counts = [counted(self.cases, "case")]
        counts += [f"{self.not_whole:,} not judged whole"] if self.not_whole else []
        counts += [f"{self.asks_nothing:,} without assertions"] if self.asks_nothing else []
        found = [f"  {describe_group(group)}" for group in self.findings]
        if self.refusal is not None:
            return [f"{self.path}: refused: {self.refusal}", *found]
        return [f"{self.path}: taken {'whole' if self.verdict == 'whole' else 'in part'}: {', '.join(counts)}", *found]

    def as_json(self) -> dict[str, object]:
        """Return the report as an object for programs."""
        return asdict(self) | {"path": str(self.path)}


def check_suite(
    path: Path, flags: SuiteFlags, outside: Sequence[Path] = (), refuse: Callable[[Suite], None] = lambda _: None
) -> CheckedSuite:
    """Read a suite's file with all its tests, and return what of it is taken; `refuse` raises InvalidRequest where no worker takes it."""
    findings = Findings(skips=True)
    try:
        suite = read_suite(path, replace(flags, check=True), outside, findings)
        cases = not_whole = asks_nothing = 0
        for case in suite.cases():
            cases += case.runs
            not_whole += bool(case.left_out)
            asks_nothing += case.asks_nothing and not case.left_out
        refuse(suite)
    except InvalidRequest as error:
        refused = Unsupported(str(error), "refused")
        others = tuple(group for group in findings.groups() if group.effect != "no effect")
        return CheckedSuite(path, "refused", 0, 0, 0, refused.message, others)
    whole = findings.is_whole and not not_whole
    return CheckedSuite(path, "whole" if whole else "in part", cases, not_whole, asks_nothing, None, findings.groups())
