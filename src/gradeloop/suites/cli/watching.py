"""`gradeloop eval --watch`: a suite is run again whenever a file beside it changes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.exit_codes import STOPPED
from gradeloop.files.output import is_written_by_us
from gradeloop.settings.paths import state_folder
from gradeloop.suites.cli.eval_options import EvalOptions
from gradeloop.text import printable

INPUT_SUFFIXES = {
    *(".yaml", ".yml", ".json", ".jsonl", ".csv", ".txt", ".md", ".j2", ".xml", ".html", ".toml"),
    *(".py", ".js", ".cjs", ".mjs", ".ts"),
}
"""The suffixes of files that a suite may name."""

POLL_MILLISECONDS = 250


def run_again_on_changes(options: EvalOptions, run: Callable[[], int]) -> int:
    """Run a suite now and whenever a file of its folder changes, and return the exit code once Ctrl-C ends that.

    A suite that is refused is run again when it has been corrected. What gradeloop itself wrote is no change.

    Raises:
        InvalidRequest: The package that watches files is missing.
    """
    files = (options.suite, options.flags.scripted, *options.flags.overrides.files, *options.flags.tools)
    changes = _changes({path.resolve().parent for path in files if path is not None})
    next(changes)  # the watch begins before the first run, so that no change is missed
    while _run(run) != STOPPED:
        print("waiting for changes; Ctrl-C ends the watch", file=sys.stderr)  # noqa: T201 - stdout has the results alone
        changed: set[Path] = set()
        while not changed:
            try:
                changed = next(changes)
            except (KeyboardInterrupt, StopIteration):
                return STOPPED
        names = ", ".join(sorted(path.name for path in changed))
        print(f"changed: {printable(names)}", file=sys.stderr)  # noqa: T201 - as above
    return STOPPED


def _run(run: Callable[[], int]) -> int:
    try:
        return run()
    except GradeloopError as error:
        print(f"gradeloop: {printable(str(error))}", file=sys.stderr)  # noqa: T201 - as above
        return 0


def _changes(folders: set[Path]) -> Iterator[set[Path]]:
    """Yield the inputs that have changed since the last time, none of them after a while without changes."""
    try:
        from watchfiles import DefaultFilter, watch
    except ImportError:
        raise InvalidRequest("--watch needs the package watchfiles; install it with: pip install 'gradeloop[watch]'") from None
    own = state_folder().resolve()
    watched = watch(*folders, watch_filter=DefaultFilter(), yield_on_timeout=True, rust_timeout=POLL_MILLISECONDS, raise_interrupt=True)
    for changes in watched:
        paths = {Path(name) for _, name in changes}
        yield {
            path for path in paths if path.suffix.lower() in INPUT_SUFFIXES and not path.is_relative_to(own) and not is_written_by_us(path)
        }
