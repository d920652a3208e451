"""The arguments and flags of `gradeloop eval`, as values: the suite, limits, filters by an earlier run, and `--check`."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import typer
from pydantic import JsonValue
from typer.core import TyperCommand

from gradeloop.batches.client import SpooledCases
from gradeloop.batches.compare.comparison import load_batch
from gradeloop.batches.contract import BatchRequest, CaseStatus
from gradeloop.batches.reader import BatchReader
from gradeloop.cli.folder import own_config_file
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest, explained
from gradeloop.exit_codes import BAD_INPUT, CAPPED, SATISFIED
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import find_outside_roots
from gradeloop.store.engine import own_store
from gradeloop.suites.flags import EarlierCases, SuiteFlags
from gradeloop.suites.load import check_suite
from gradeloop.suites.plan import Suite
from gradeloop.temporal.connect import WorkerSpec, refuse_unservable_here
from gradeloop.text import clip, json_without_commands, printable

Again = Literal["errors", "failures"]

NAME_CHARACTERS = 60
"""The most characters of a suite's name in a batch's id."""

CHECK_HELP = "Say what of the files would be taken, and run nothing: exit 0 where all are taken whole, 1 in part, 2 where one is refused."
SKIP_HELP = "Leave out what has no counterpart and run the rest; what is left out is not judged, and no such case passes."

WIRE_NAMES = {"concurrency": "at_once"}
"""Names in a batch request that differ from the flag's."""


@dataclass(frozen=True)
class LimitFlags:
    """Flags that override the suite's settings, and the settings that a batch was started with."""

    budget: Budget | None = None
    concurrency: int | None = None
    max_errors: int | None = None
    max_error_rate: float | None = None
    pass_rate: float | None = None
    retries: int | None = None
    delay: int | None = None
    """Milliseconds before every call."""

    def fields_of(self, values: object) -> dict[str, object]:
        """Return the limits that an object of the same fields sets, by their names in a batch request."""
        set_values = {name: getattr(values, name) for name in vars(self) if getattr(values, name) is not None}
        return {WIRE_NAMES.get(name, name): value for name, value in set_values.items()}


@dataclass(frozen=True)
class FolderFlags:
    """Flags on what may be read, run and replaced in the folders of the suite and the command."""

    outside: tuple[Path, ...] = ()
    """Folders besides its own in which the suite may name files."""
    trust: bool = False
    """Whether to trust the folder's gradeloop.toml first."""
    overwrite: bool = False
    """Whether outputs replace files that gradeloop did not write, too."""


@dataclass(frozen=True)
class Presentation:
    """What a batch is called, and how much of it is printed."""

    description: str | None = None
    """The batch's name, instead of the suite's."""
    table: bool = True
    """Whether the results are printed as a table."""
    cell_characters: int | None = None
    """The most characters of an output in the table."""
    baseline: str | None = None
    """The batch or file of results with which a summary in Markdown compares."""


@dataclass(frozen=True)
class CorrectionFlags:
    """Flags by which the pass rate is corrected for the judge's error."""

    labels: Path | None = None
    """The file of labels on outputs."""
    gate: Literal["raw", "corrected"] | None = None
    """Which rate is held against the pass rate; where it is not named, the raw one, or what was kept with the batch."""

    def refuse_mixed(self, *, detach: bool) -> None:
        """Refuse flags that exclude one another.

        Raises:
            InvalidRequest: Nothing corrects, or the command ends before there is something to correct.
        """
        if self.gate == "corrected" and self.labels is None:
            raise InvalidRequest(GATE_NEEDS)
        if self.labels is not None and detach:
            raise InvalidRequest("--labels corrects the results of a batch that has ended; leave --detach out, or name them with --attach")

    def refuse_rate(self, pass_rate: float) -> None:
        """Refuse a pass rate against which nothing can be decided.

        Raises:
            InvalidRequest: It is 1, which no interval's lower bound reaches.
        """
        if self.gate == "corrected" and pass_rate >= 1:
            raise InvalidRequest(GATE_NEEDS)


GATE_NEEDS = (
    "--gate corrected needs --labels FILE, by which it corrects, and --pass-rate SHARE below 1, or the suite's pass_rate, "
    "against which it decides"
)


@dataclass(frozen=True)
class EvalOptions:
    """The arguments and flags of one `gradeloop eval`."""

    suite: Path | None
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen
    limits: LimitFlags = LimitFlags()
    outputs: tuple[Path, ...] = ()
    attach: str | None = None
    """The batch to follow."""
    resume: str | None = None
    """The batch to resume."""
    again: Again | None = None
    allow_errors: float | None = None
    cache: bool = True
    detach: bool = False
    as_json: bool = False
    folder: FolderFlags = FolderFlags()
    presentation: Presentation = Presentation()
    correction: CorrectionFlags = CorrectionFlags()

    @property
    def names_batch(self) -> bool:
        """Whether a batch that was started before is meant."""
        return bool(self.attach or self.resume or self.again)

    @property
    def batch(self) -> str:
        """The batch that the flags name when there is no suite."""
        return self.resume or self.attach or "latest"

    @property
    def resumes(self) -> bool:
        """Whether the batch continues, instead of only being followed."""
        return self.resume is not None or self.again is not None

    def refuse_mixed(self, *, watch: bool = False) -> None:
        """Refuse flags that exclude one another.

        Raises:
            InvalidRequest: Two flags exclude one another.
        """
        known = [name for name, value in (("--attach", self.attach), ("--resume", self.resume), ("--retry", self.again)) if value]
        if self.suite is not None and known:
            raise InvalidRequest(f"{known[0]} uses a batch whose cases are stored already; leave the suite {str(self.suite)!r} out")
        if self.attach and self.resume:
            raise InvalidRequest("--attach and --resume exclude each other; keep one")
        if self.suite is None and self.flags != SuiteFlags():
            flags = "--grader, --filter..., --limit, --loop, --repeat, --prompts, --providers, --tests, --var, --tools, --scripted, "
            flags += "--allow-code and --skip-unsupported"
            raise InvalidRequest(f"{flags} need a suite; a batch keeps the ones it was started with")
        self.correction.refuse_mixed(detach=self.detach)
        if watch and (known or self.detach):
            raise InvalidRequest(f"--watch runs a suite again and again; leave {known[0] if known else '--detach'} out")

    def request(self, suite: Suite, cases: SpooledCases) -> BatchRequest:
        """Return the request that starts the suite's batch.

        Raises:
            InvalidRequest: A limit is out of range.
        """
        name, settings = self.presentation.description or suite.name or suite.path.stem, suite.settings
        given = {"batch_id": new_batch_id(name), "total": cases.total, "name": name[:200], "cache": settings.cache and self.cache}
        given |= (
            {"asks": cases.asks, "derived_metrics": settings.derived_metrics}
            | self.limits.fields_of(settings)
            | self.limits.fields_of(self.limits)
            | self.gate
        )
        with explained():
            return BatchRequest.model_validate(given | ({"at_once": 1} if given.get("delay") else {}))

    @property
    def gate(self) -> dict[str, float]:
        """The gate that flags name: what of `pass_rate` and `allow_errors` they set."""
        named = {"pass_rate": self.limits.pass_rate, "allow_errors": self.allow_errors}
        return {name: value for name, value in named.items() if value is not None}

    def resume_request(self, known: BatchRequest) -> BatchRequest:
        """Return the request that resumes a batch: the batch's own settings, overridden by the flags."""
        changed = (
            self.limits.fields_of(self.limits)
            | self.gate
            | {"again": self.again or "errors"}
            | ({"at_once": 1} if self.limits.delay else {})
        )
        return known.model_copy(update=changed | ({} if self.cache else {"cache": False}))


SUITE_NAMES = ("gradeloop.yaml", "suite.yaml", "promptfooconfig.yaml", "promptfooconfig.yml", "promptfooconfig.json")
"""The files that `gradeloop eval` looks for where it is given none, in this order."""


def choose_suite(argument: Path | None, config: Path | None) -> Path | None:
    """Return the suite that is named, as argument or by `--config`; None where neither is there.

    Raises:
        InvalidRequest: Both are there.
    """
    if argument is not None and config is not None:
        raise InvalidRequest(f"the suite is named twice, as {str(argument)!r} and with --config {str(config)!r}; keep one")
    return argument or config


def one_suite(suites: Sequence[Path] | None, config: Path | None, check: bool) -> Path | None:
    """Return the one suite that a command runs, or the first that it looks at; None where none is named.

    Raises:
        InvalidRequest: Several are named.
    """
    named = suites or ()
    if len(named) > 1 and not check:
        raise InvalidRequest(f"{len(named)} suites are named, and one runs at a time; run each by itself, or look at all with --check")
    return choose_suite(named[0] if named else None, config)


def find_suite(folder: Path, *, flags_make_one: bool = False) -> Path:
    """Return the suite in a folder that has the first of the names which `SUITE_NAMES` lists.

    Args:
        folder: The folder.
        flags_make_one: Whether the command line gives prompts and providers, so that there need be no file.

    Raises:
        InvalidRequest: There is none.
    """
    if found := next((folder / name for name in SUITE_NAMES if (folder / name).is_file()), None):
        return found
    if flags_make_one:
        return folder / "promptfooconfig.yaml"
    names = ", ".join(SUITE_NAMES)
    raise InvalidRequest(f"No suite is named, and this folder has none of {names}; name its file, or a batch with --attach or --resume")


def refuse_unservable_suite(config: ConfigFile | None, suite: Suite) -> None:
    """Refuse a suite whose cases, which have been read, the worker of this folder would refuse."""
    asked = [case.model_dump(mode="json") for case in suite.plan.models.asked.values()]
    refuse_unservable_here(WorkerSpec(suite.tools, suite.scripted, config=config), asked)


def check_suites(suites: Sequence[Path], flags: SuiteFlags, outside: Sequence[Path], *, as_json: bool) -> int:
    """Print what of each file would be taken, and return the exit code: 0 for all whole, 1 for some in part, 2 where one is refused.

    Raises:
        InvalidRequest: No file is named.
    """
    if not suites:
        raise InvalidRequest("No suite is named; give the files that are checked")
    roots = find_outside_roots(tuple(outside), config := own_config_file(trust=False))
    codes = {"whole": SATISFIED, "in part": CAPPED, "refused": BAD_INPUT}
    code = SATISFIED
    for path in suites:
        report = check_suite(path, flags, roots, partial(refuse_unservable_suite, config))
        code = max(code, codes[report.verdict])
        lines = [json_without_commands(json.dumps(report.as_json(), ensure_ascii=False))] if as_json else report.lines()
        for line in lines:
            typer.echo(line if as_json else printable(line))
    return code


FAILED: frozenset[CaseStatus] = frozenset({"failed"})
ERRORS: frozenset[CaseStatus] = frozenset({"error", "queued", "waiting"})
"""The statuses of cases without a verdict."""

THEIR_BYTES = 256 * 1024 * 1024
"""The largest file of promptfoo's results, which is read whole."""


def find_earlier(not_passed: str | None, failed: str | None, errors: str | None) -> tuple[EarlierCases, ...]:
    """Return the cases that earlier runs, each a batch or a file of results, have with these outcomes.

    Two flags select the cases that either of them names.

    Raises:
        InvalidRequest: There is no such batch or file, or it has no such case.
    """
    asked = [("--filter-failing", not_passed, FAILED | ERRORS), ("--filter-failing-only", failed, FAILED)]
    asked.append(("--filter-errors-only", errors, ERRORS))
    return tuple(_earlier_cases(flag, name, statuses) for flag, name, statuses in asked if name is not None)


def _earlier_cases(flag: str, name: str, statuses: frozenset[CaseStatus]) -> EarlierCases:
    theirs = _their_results(Path(name))
    if theirs is not None:
        found = EarlierCases(name, variables=tuple(_their_variables(theirs, statuses)))
    else:
        batch = load_batch(name, lambda: BatchReader(own_store()))
        found = EarlierCases(name, frozenset(case.id for case in batch.cases if case.status in statuses))
    if not found.ids and not found.variables:
        what = "errors" if statuses == ERRORS else "failures" if statuses == FAILED else "failures or errors"
        raise InvalidRequest(f"{flag}: {clip(name)} has no {what}, so there is nothing to run")
    return found


def _their_results(path: Path) -> list[JsonValue] | None:
    """Return the results in a JSON file that promptfoo wrote; None for anything else."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > THEIR_BYTES:
        return None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    results = value.get("results") if isinstance(value, dict) else None
    rows = results.get("results") if isinstance(results, dict) else None
    return rows if isinstance(rows, list) else None


def _their_variables(rows: list[JsonValue], statuses: frozenset[CaseStatus]) -> Iterator[dict[str, JsonValue]]:
    for row in rows:
        if not isinstance(row, dict) or row.get("success"):
            continue
        status: CaseStatus = "error" if row.get("failureReason") == 2 else "failed"  # noqa: PLR2004 - promptfoo's number of an error
        variables = row.get("vars")
        if status in statuses and isinstance(variables, dict):
            yield {name: value for name, value in variables.items() if not name.startswith("_")}  # which promptfoo adds when it runs a test


VARIADIC = {"-p": "--prompts", "--prompts": "--prompts", "-r": "--providers", "--providers": "--providers"}
"""The flags that take all values up to the next flag, as promptfoo's do."""

OUTPUT_FLAGS = {"-o", "--output"}
UNAMBIGUOUS = (".csv", ".html", ".jsonl", ".md", ".txt", ".xml")
"""Suffixes of outputs that no suite has, so that several outputs may follow one flag."""


class EvalCommandLine(TyperCommand):
    """The command `eval`, some of whose flags take several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own click has no public types
        """Parse the flags after each value of a flag that has several has got its own."""
        return super().parse_args(ctx, list(_spread(args)))


def _spread(args: list[str]) -> Iterator[str]:
    """Yield the arguments with the flag repeated before every value of it but the first."""
    flag, has_value = "", False
    for at, argument in enumerate(args):
        if argument == "--":
            yield from args[at:]
            return
        if argument.startswith("-") and argument != "-":
            flag, has_value = argument, False
        elif has_value and (flag in VARIADIC or (flag in OUTPUT_FLAGS and argument.endswith(UNAMBIGUOUS))):
            yield flag
        else:
            flag, has_value = (flag, True) if flag and not has_value else ("", False)
        yield argument


def new_batch_id(name: str) -> str:
    """Return a new batch's id: the suite's name, the time, and four random letters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:NAME_CHARACTERS] or "batch"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
