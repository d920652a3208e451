"""The flags that say what of a suite's file is taken: `--check` and `--skip-unsupported`."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from gradeloop.cli.eval_options import choose_suite
from gradeloop.cli.folder import own_config_file
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import BAD_INPUT, CAPPED, SATISFIED
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import find_outside_roots
from gradeloop.suites.check import check_suite
from gradeloop.suites.plan import Suite, SuiteFlags
from gradeloop.temporal.worker import WorkerSpec, refuse_unservable_here
from gradeloop.text import json_without_commands, printable

CHECK_HELP = "Say what of the files would be taken, and run nothing: exit 0 where all are taken whole, 1 in part, 2 where one is refused."
SKIP_HELP = "Leave out what has no counterpart and run the rest; what is left out is not judged, and no such case passes."


def one_suite(suites: Sequence[Path] | None, config: Path | None, check: bool) -> Path | None:
    """Return the one suite that a command runs, or the first that it looks at; None where none is named.

    Raises:
        InvalidRequest: Several are named.
    """
    named = suites or ()
    if len(named) > 1 and not check:
        raise InvalidRequest(f"{len(named)} suites are named, and one runs at a time; run each by itself, or look at all with --check")
    return choose_suite(named[0] if named else None, config)


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
