"""The forms of a verdict on a real small model: `gradeloop eval` on the labelled replies, a batch for each form and each length of rubric.

The figures of a cell are of whole gradings, repairs and further attempts included: how many ended with a verdict, how many of all verdicts
that were asked for agree with the labels (one that is not there does not), calls, tokens of the prompts, and seconds of the server's
processor. `--checkout` measures another checkout of gradeloop, which has an environment of its own, for example one of an earlier version;
`--held` holds each answer to a number of tokens, for a version that has no cap of its own and raises one that was reached to four times
as many.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from lab.checkout import HERE, Checkout
from lab.labelled_replies import ASKED, COUNT, FACTS, replies
from rig.real_model import NAME, Call, NoModelError, RealModel, Tap, real_model

FORMS: dict[str, dict[str, bool]] = {"tags": {"structured_output": False}, "schema": {"structured_output": True}, "auto": {}}
"""The settings of a form; `auto` is what the server is found to take."""

PROFILES = ("full", "short")
LENGTHS = (1, 3, 10)
FOR_ROW, FOR_REST = 90, 160
"""Tokens to which answers are held for each criterion, and beside them."""


@dataclass(frozen=True)
class Cell:
    """What a form came to with a rubric of some length."""

    form: str
    profile: str
    criteria: int
    gradings: int
    verdicts: int
    """Gradings with a verdict on each criterion; an answer that says that nothing could be judged is well-formed, and none."""
    right: int
    """Rows that agree with their label."""
    calls: int
    prompt: int
    """Tokens of all prompts."""
    cached: int
    """Those of them that the server had computed before."""
    written: int
    longest: int
    """Tokens of the longest answer."""
    seconds: float
    """On the clock, which a busy machine stretches."""
    cpu: float
    """Seconds of the server's processor."""
    errors: dict[str, int]
    """The errors of gradings without a verdict, by how they begin."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        rows, each = self.gradings * self.criteria, max(self.gradings, 1)
        shares = [1 - sum(self.errors.values()) / each, self.verdicts / each, self.right / max(rows, 1)]
        figures = [f"{self.gradings}", *(f"{share:.0%}" for share in shares), f"{self.calls / each:.2f}"]
        figures += [f"{self.prompt / each:,.0f}", f"{self.cached / max(self.prompt, 1):.0%}", f"{self.written / each:,.0f}"]
        return [self.form, self.profile, f"{self.criteria}", *figures, f"{self.cpu / each:.1f}", f"{self.seconds / each:.1f}"]


HEADS = (
    *("form", "profile", "criteria", "gradings", "well-formed", "verdicts", "right by label"),
    *("calls", "prompt tokens", "cached", "written", "CPU s", "s"),
)


@dataclass(frozen=True)
class Side:
    """A checkout of gradeloop, and the record of what its graders ask."""

    checkout: Checkout
    model: RealModel
    tap: Tap
    held: bool = False

    def measure(self, form: str, profile: str, criteria: int, gradings: int) -> Cell:
        """Run one batch, and return what it came to."""
        facts, judged = list(FACTS)[:criteria], replies(gradings)
        config: dict[str, Any] = {"base_url": self.tap.url, "temperature": 0}
        if self.held:
            self.tap.most = config["max_tokens"] = FOR_REST + FOR_ROW * criteria
        grader: dict[str, Any] = {"model": {"id": f"openai_compatible:{NAME}", "config": config | FORMS[form]}}
        suite = {
            "grader": grader | ({} if self.held else {"prompt": profile}),
            "prompts": [ASKED],
            "rubric": {"criteria": [{"id": fact, "description": FACTS[fact][0]} for fact in facts]},
            "tests": [{"id": f"reply-{at}", "output": reply.text} for at, reply in enumerate(judged)],
            "concurrency": 2,
            "cache": False,
            "max_error_rate": 1,
        }
        self.tap.forget()
        began, before = time.monotonic(), self.model.cpu()
        cases = self.checkout.judged(suite)
        seconds = time.monotonic() - began
        told = [_rows(case) for case in sorted(cases, key=lambda case: int(case["index"]))]
        errors = Counter(" ".join(str(case.get("error")).split())[:60] for case in cases if _rows(case) is None)
        calls = [call for call in self.tap.calls if not _asks_about_the_server(call)]
        took = Took(seconds, self.model.cpu() - before)
        return cell_of((form, profile), facts, told, calls, took, errors)

    def warm(self) -> None:
        """Start the server and the worker, and have the model read a prompt."""
        self.measure("schema", "full", 1, 1)


def _rows(case: dict[str, Any]) -> dict[str, bool] | None:
    """Return what a case was told by criterion; None where it has no verdict."""
    if case["status"] not in {"passed", "failed"}:
        return None
    return {row["id"]: row["passed"] for row in case["criteria"] if not row.get("unverified")}


@dataclass(frozen=True)
class Took:
    """Seconds on the clock, and of the server's processor."""

    clock: float
    cpu: float


def cell_of(
    names: tuple[str, str],
    facts: list[str],
    told: Sequence[dict[str, bool] | None],
    calls: list[Call],
    took: Took,
    errors: Mapping[str, int],
) -> Cell:
    """Return what gradings came to.

    Args:
        names: The form and the profile, or the peer and its own.
        facts: The criteria.
        told: What was said of each reply by criterion, of some where others have no verdict; None without any.
        calls: What the model was asked.
        took: How long all took.
        errors: The errors of those without a verdict, by how they begin.
    """
    labels = [reply.states for reply in replies(len(told))]
    right = [fact in row and row[fact] == (fact in states) for row, states in zip(told, labels, strict=True) if row for fact in facts]
    return Cell(
        form=names[0],
        profile=names[1],
        criteria=len(facts),
        gradings=len(told),
        verdicts=sum(row is not None and set(facts) <= set(row) for row in told),
        right=sum(right),
        calls=len(calls),
        prompt=sum(call.prompt for call in calls),
        cached=sum(call.cached for call in calls),
        written=sum(call.written for call in calls),
        longest=max((call.written for call in calls), default=0),
        seconds=took.clock,
        cpu=took.cpu,
        errors=dict(errors),
    )


def _asks_about_the_server(call: Call) -> bool:
    """Return whether a call has no draft in it: it asks whether the server keeps a schema."""
    return not any("hotel" in str(message) for message in call.body["messages"])


def table(found: list[Cell]) -> Table:
    """Return the cells as a table."""
    shown = Table(title="figures of a grading; verdicts and labels of all gradings")
    for head in HEADS:
        shown.add_column(head, justify="left" if head in HEADS[:2] else "right")
    for cell in found:
        shown.add_row(*cell.row())
    return shown


def markdown(found: list[Cell]) -> str:
    """Return the cells as a table of Markdown."""
    lines = [list(HEADS), ["---"] * len(HEADS), *(cell.row() for cell in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Measure, and print the table as often as it grows."""
    parser = argparse.ArgumentParser(prog="python -m lab.forms", description=__doc__)
    parser.add_argument("--checkout", type=Path, default=HERE, help="the checkout that is measured")
    parser.add_argument("--forms", default="tags,auto", help="with commas between them")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--criteria", default=",".join(map(str, LENGTHS)), metavar="1,3,10")
    parser.add_argument("--gradings", type=int, default=COUNT, metavar=f"{COUNT}", help="of each cell")
    parser.add_argument("--held", action="store_true", help="hold each answer to 160 tokens and 90 for each criterion")
    parser.add_argument("--output", "-o", type=Path, help="a JSON file for the cells")
    given = parser.parse_args()
    found: list[Cell] = []
    try:
        with tempfile.TemporaryDirectory(prefix="gradeloop-forms-") as folder, real_model() as (model, tap):
            checkout = Checkout(given.checkout, Path(folder), tap.url)
            side = Side(checkout, model, tap, given.held)
            try:
                side.warm()
                for criteria in map(int, given.criteria.split(",")):
                    for form in given.forms.split(","):
                        for profile in given.profiles.split(","):
                            found.append(side.measure(form, profile, criteria, given.gradings))
                            print(json.dumps(asdict(found[-1])), flush=True)
            finally:
                checkout.stop()
    except NoModelError as error:
        raise SystemExit(str(error)) from None
    if given.output:
        given.output.write_text(json.dumps([asdict(cell) for cell in found], indent=1))
    Console(width=140).print(table(found))
    print(markdown(found))


if __name__ == "__main__":
    main()
    leave(0)
