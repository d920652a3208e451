"""The command that comes next, as pages and the terminal say it."""

import shlex

from gradeloop.contract.base import Strict


class NextStep(Strict):
    """A command to run next, as a page shows it: `No rule says what passes. Next: say it, gradeloop report ...`."""

    command: str
    words: str = ""
    """The purpose of the command; empty where the command shows it."""
    why: str = ""
    """A sentence before it; empty where there is none."""
    after: str = ""
    """Text after the command: the values of a placeholder in it."""


def resume_step(thread_id: str, error: str | None) -> NextStep:
    """Return the command by which an interrupted run goes on, with what has to change before, as its error says."""
    command, kind = f"gradeloop resume {shlex.quote(thread_id)}", (error or "").partition(":")[0]
    if kind in {"bad_request", "not_found", "context_overflow", "refused", "truncated", "config"}:
        return NextStep(command=f"{command} --model PROVIDER:MODEL", words="resume it with another model:")
    again = "resume it once that is mended, or add --model or --grader with another model:"
    return NextStep(command=command, words=again if kind in {"auth", "quota_exhausted", "outage"} else "")
