"""Generated tests on promptfoo and on `gradeloop eval`, before the same scripted judge, verdict by verdict: `make beside-promptfoo`.

A case is a test in a column. promptfoo writes a test's columns as they happen to end; here they stand in its table's order: the tests, in
each the providers, for each the prompts. Ours are put beside theirs by the test and the column's labels, in whatever order they come.
A test stands once for each value of a variable that is a list.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from gradeloop.temporal.server import stop_server
from lab.mock_judge import judging
from lab.peer.promptfoo_suite import Promptfoo, promptfoo
from lab.promptfoo_differences import KINDS
from lab.promptfoo_tests import COUNT, SEED, GeneratedSuite, suites

GRADELOOP = Path(sys.executable).parent / "gradeloop"
SECONDS = 300.0
"""For one suite of ours; a judge that is down for good is asked again for a while."""

REFUSED = 2
"""Our exit code for a suite that cannot be run as it is."""

_ERROR = 2
"""promptfoo's `failureReason` where the provider or an assertion broke."""
_CLOSE = 1e-3
_TOLD = 200


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    about: str
    """The test's description; of several columns also which."""
    status: str
    """passed, failed, error; refused where the suite was not run; missing where there is no such case."""
    score: float | None = None

    def __str__(self) -> str:
        return self.status if self.score is None else f"{self.status} {self.score:.3g}"


MISSING = Verdict("", "missing")


@dataclass(frozen=True)
class Row:
    """A case on both sides."""

    suite: str
    theirs: Verdict
    ours: Verdict | None
    """None where ours was not run."""
    differs: str = ""
    """The kind of difference that is expected."""

    @property
    def outcome(self) -> str:
        """`same`, the name of a known difference, or DIFFERS."""
        if self.ours is None:
            return ""
        if self.theirs.status == self.ours.status and _same(self.theirs.score, self.ours.score):
            return "same"
        same = self.theirs.status == self.ours.status  # and the scores are not, which only comparisons and code under `not-` may be
        expected = self.differs and self.ours.status in KINDS[self.differs].ours and (self.differs != "compared" or same)
        return self.differs if expected else "DIFFERS"


def _same(one: float | None, other: float | None) -> bool:
    return one is None or other is None or abs(one - other) < _CLOSE


def theirs(peer: Promptfoo, config: Path) -> list[Verdict]:
    """Return promptfoo's verdicts, in the order of its table."""
    results = sorted(peer.evaluate(config).results, key=lambda result: (result["testIdx"], result["promptIdx"]))
    columns = len({result["promptIdx"] for result in results})
    found = []
    for result in results:
        column = f" | {result['provider'].get('label') or result['provider']['id']} | {result['prompt']['label']}" if columns > 1 else ""
        failed = "error" if result["failureReason"] == _ERROR else "failed"
        status = "passed" if result["success"] else failed
        found.append(Verdict(f"{result['testCase'].get('description') or result['testIdx']}{column}", status, result["score"]))
    return found


def ours(judge: str, config: Path, folder: Path, *outputs: Path) -> list[Verdict]:
    """Return gradeloop's verdicts, in the order of its cases, and write `outputs`; one that is `refused` where the suite was not run.

    Raises:
        RuntimeError: It ended without results and without a refusal.
    """
    output = folder / f"{config.parent.name}.json"
    environment = os.environ | {"OPENAI_BASE_URL": f"{judge}/v1", "GRADELOOP_BASE_URLS": judge, "OPENAI_API_KEY": "sk-mock"}
    command = [str(GRADELOOP), "eval", str(config), "--allow-code", "--skip-unsupported"]
    command += [part for file in (output, *outputs) for part in ("--output", str(file))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode == REFUSED:
        return [Verdict(" ".join((done.stderr or done.stdout).split())[-_TOLD:], "refused")]
    if not output.exists():
        raise RuntimeError(f"{config.name} ended with {done.returncode} and no results, and says:\n{done.stderr or done.stdout}")
    cases = sorted(json.loads(output.read_text())["cases"], key=lambda each: int(each["index"]))
    labels = [(case.get("label"), case.get("prompt")) for case in cases]
    columns = [f" | {label} | {prompt}" if len(set(labels)) > 1 else "" for label, prompt in labels]
    return [
        Verdict(f"{each.get('description') or each['id']}{column}", each["status"], each.get("score"))
        for each, column in zip(cases, columns, strict=True)
    ]


def paired(there: Sequence[Verdict], here: Sequence[Verdict]) -> list[Verdict]:
    """Return ours in their order, where both sides name the same cases; those of one name stay in theirs."""
    if Counter(each.about for each in there) != Counter(each.about for each in here):
        return list(here)
    left = {name: iter([each for each in here if each.about == name]) for name in {each.about for each in here}}
    return [next(left[each.about]) for each in there]


def rows(suite: GeneratedSuite, there: Sequence[Verdict], here: Sequence[Verdict] | None) -> Iterator[Row]:
    """Yield the cases of a suite; one that was refused is refused case by case."""
    expected = {test.name: test.differs for test in suite.tests}
    if here is not None and [each.status for each in here] == ["refused"]:
        here = list(here) * len(there)
    for one, other in zip_longest(there, paired(there, here or ()), fillvalue=MISSING):
        yield Row(suite.name, one, other if here is not None else None, expected.get(one.about.partition(" | ")[0], ""))


def table(found: Sequence[Row]) -> Table:
    """Return all cases, side by side."""
    shown = Table("suite", "test", "promptfoo", "gradeloop", "", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for each in found:
        style = {"same": "green", "DIFFERS": "bold red", "": ""}.get(each.outcome, "yellow")
        shown.add_row(each.suite, each.theirs.about, str(each.theirs), str(each.ours or ""), each.outcome, style=style)
    return shown


def legend(found: Sequence[Row]) -> Iterator[str]:
    """Yield how often each outcome was, the reasons of those that are known, and the words of a refusal."""
    told = {name: difference.why for name, difference in KINDS.items()}
    for outcome, count in Counter(each.outcome for each in found if each.ours).most_common():
        yield f"{count:4d}  {outcome}" + (f": {told[outcome]}" if outcome in told else "")
    yield from dict.fromkeys(f"      {each.suite}: {each.ours.about}" for each in found if each.ours and each.ours.status == "refused")


async def beside(chosen: Sequence[GeneratedSuite], folder: Path, *, alone: bool = False) -> list[Row]:
    """Run every suite on both sides, each before a judge of its own."""
    os.environ["GRADELOOP_STATE_DIR"] = str(folder / "state")
    found: list[Row] = []
    with judging(0) as first, judging(0) as second:
        peer = promptfoo(first, folder)
        try:
            for suite in chosen:
                config = suite.write(folder)
                there = await asyncio.to_thread(theirs, peer, config)
                here = None if alone else await asyncio.to_thread(ours, second, config, folder)
                found += rows(suite, there, here)
        finally:
            if not alone:
                await stop_server()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each case that is not the same; 1 where one differs and it is not known why."""
    parser = argparse.ArgumentParser(prog="python -m lab.beside_promptfoo", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT, help="the number of tests; those of the fixed kinds are always made")
    parser.add_argument("--all", action="store_true", help="print the cases that are the same, too")
    parser.add_argument("--alone", action="store_true", help="promptfoo only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gradeloop-beside-") as folder:
        found = asyncio.run(beside(suites(chosen.seed, chosen.count), Path(folder), alone=chosen.alone))
    console = Console(highlight=False, width=150)
    console.print(
        table([row for row in found if chosen.all or row.outcome != "same"]), "", *legend(found), sep="\n", markup=False, soft_wrap=True
    )
    return int(any(each.outcome == "DIFFERS" for each in found))


if __name__ == "__main__":
    leave(main())
