"""The judgements that count for a measurement, and how often the same judgement, made again, says something else."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from pydantic import JsonValue

from gradeloop.contract.base import Strict
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import JUDGEMENTS_SCHEMA, JudgeConfig, JudgeResult, judging_id
from gradeloop.judges.labels import ComparedKey, comparable, comparable_value
from gradeloop.judges.schema import value_at
from gradeloop.stats.intervals import Estimate
from gradeloop.stats.votes import flip_rate
from gradeloop.text import clip, counted, one_line


@dataclass(frozen=True)
class Judgements:
    """The judge's results by the run's id: the first of a run's results is its verdict, the others are repetitions."""

    by_run: Mapping[str, tuple[JudgeResult, ...]]
    stale: tuple[str, ...] = field(default=())
    """Runs of which the judge spoke when they had another content, and which are therefore left out."""

    def verdict(self, run: str) -> JudgeResult | None:
        """Return the verdict on a run; None where it was not judged, or without an answer."""
        first = next(iter(self.by_run.get(run, ())), None)
        return None if first is None or first.failed else first


def select_judgements(judge: JudgeConfig, results: Sequence[JudgeResult], runs: Sequence[AgentRun] | None = None) -> Judgements:
    """Return the results that count for a judge: of these very runs by their content, and where no runs are given, of the newest content.

    Args:
        judge: The judge.
        results: Its results, the newest first.
        runs: The runs that are meant; None for whatever run has a label's id.
    """
    grouped: dict[str, list[JudgeResult]] = {}
    for result in {result.id: result for result in reversed(results)}.values():
        grouped.setdefault(result.agent_run_id, []).insert(0, result)
    if runs is None:
        return Judgements({run: _newest(found) for run, found in grouped.items()})
    kept: dict[str, tuple[JudgeResult, ...]] = {}
    stale: list[str] = []
    for run in runs:
        found = grouped.get(run.id, [])
        mine = _of_content(judge, run, found)
        if mine:
            kept[run.id] = mine
        elif found:
            stale.append(run.id)
    return Judgements(kept, tuple(stale))


REPEATS = 1000
"""The most repeats of one judgement that are looked for, as many as `--repeat` allows."""


def _of_content(judge: JudgeConfig, run: AgentRun, results: Sequence[JudgeResult]) -> tuple[JudgeResult, ...]:
    """Return the results of this judge and this run by their content, in the order of their repeats."""
    sha256, by = run.sha256(), judge.sha256()
    known = {result.id: result for result in results if (result.run_sha256, result.judge_sha256) == (sha256, by)}
    ids = takewhile(lambda _: known, (judging_id(judge, sha256, repeat) for repeat in range(REPEATS)))
    found = [known.pop(name) for name in ids if name in known]
    return (*found, *known.values())


def _newest(results: Sequence[JudgeResult]) -> tuple[JudgeResult, ...]:
    """Return the results of the run's content that was judged last."""
    return tuple(result for result in results if result.run_sha256 == results[0].run_sha256)


def read_results(path: Path) -> list[JudgeResult]:
    """Read the judgements in a file that `gradeloop judge -o` or `--json` wrote, as JSON or JSON lines, in the order of the file.

    Raises:
        InvalidRequest: The file cannot be read, or holds none; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the results {str(path)!r} cannot be read: {error}") from None
    if is_document(text):
        return _read_document(path, text)
    results = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with explained(f"{path}, line {number}: this is no judgement: "):
                results.append(JudgeResult.model_validate_json(line))
    if not results:
        raise InvalidRequest(f"{path} holds no judgements; write some with `gradeloop judge JUDGE RUNS -o {path.name}`")
    return results


_DOCUMENT = re.compile(r'\s*\{\s*"schema"\s*:\s*"gradeloop\.judgements/')


def is_document(text: str) -> bool:
    """Return whether a text begins as a JSON document of judgements, rather than as lines of them."""
    return _DOCUMENT.match(text) is not None


def _read_document(path: Path, text: str) -> list[JudgeResult]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is cut off, or no JSON: {error}; write it again with gradeloop judge -o") from None
    if found["schema"] != JUDGEMENTS_SCHEMA:
        raise InvalidRequest(f"{path}: the schema is {clip(str(found['schema']))}, and this gradeloop reads {JUDGEMENTS_SCHEMA}")
    rows = found.get("judgements") or []
    if not isinstance(rows, list):
        raise InvalidRequest(f"{path}: judgements is {clip(str(rows))}; write a list, as gradeloop judge -o does")
    results = []
    for number, row in enumerate(rows, 1):
        with explained(f"{path}, judgement {number}: "):
            results.append(JudgeResult.model_validate(row))
    if not results:
        raise InvalidRequest(f"{path} holds no judgements")
    return results


def refuse_foreign_results(path: Path, judge: JudgeConfig, results: Sequence[JudgeResult]) -> None:
    """Raise InvalidRequest where a file has results of another judge, or of another version of this one."""
    own = f"{clip(judge.rubric_id)} version {judge.version}, judge_sha256 {judge.sha256()}"
    for number, result in enumerate(results, 1):
        by = f"{clip(result.rubric_id)} version {result.rubric_version}, judge_sha256 {result.judge_sha256}"
        if by != own:
            raise InvalidRequest(
                f"{path}, judgement {number}: {result.agent_run_id!r} was judged by {by}, and this judge is {own}; "
                "name the judge that wrote it, with its --grader if it had one"
            )


FLIPPING = 10
"""The most runs that are named as flipping."""


class FlipRate(Strict):
    """A run on which a judge does not say the same again."""

    agent_run_id: str
    rate: float
    values: tuple[JsonValue, ...]
    """The judge's values, repeat by repeat."""


class Stability(Strict):
    """The flip rate of repeated judgements of the same runs, for one key."""

    key: str
    runs: int
    """The number of runs that were judged at least twice."""
    judgements: int
    flip_rate: Estimate
    """The probability that two judgements of the same run differ; 1 minus it is the judge's agreement with itself."""
    flipping: tuple[FlipRate, ...]
    """The runs that flip most."""


def measure_stability(judge: JudgeConfig, judgements: Judgements, keys: Sequence[ComparedKey]) -> tuple[Stability, ...]:
    """Return how often repeated judgements differ, for each key; empty where no run was judged twice."""
    return tuple(found for key in keys if (found := _stability(judge, judgements, key)) is not None)


def _stability(judge: JudgeConfig, judgements: Judgements, key: ComparedKey) -> Stability | None:
    rows: list[FlipRate] = []
    total = 0
    for run, results in judgements.by_run.items():
        values = [value_at(comparable(judge, result.output), key.path) for result in results if not result.failed]
        given = [value for value in values if value is not None]
        rate = flip_rate([comparable_value(key.kind, value) for value in given])
        if rate is not None:
            rows.append(FlipRate(agent_run_id=run, rate=rate, values=tuple(given)))
            total += len(given)
    if not rows:
        return None
    worst = sorted((row for row in rows if row.rate), key=lambda row: -row.rate)[:FLIPPING]
    return Stability(
        key=key.name,
        runs=len(rows),
        judgements=total,
        flip_rate=Estimate.share(sum(row.rate for row in rows), len(rows)),
        flipping=tuple(worst),
    )


SHOWN = 3
"""The most runs that flip on a terminal."""


def stability_lines(row: Stability) -> Iterator[str]:
    """Yield how often a judge does not say the same again."""
    value, interval = row.flip_rate.texts()
    yield f"{row.key}: two judgements of one run differ in {value} ({interval}); {counted(row.runs, 'run')} judged repeatedly"
    for run in row.flipping[:SHOWN]:
        yield f"  {one_line(run.agent_run_id)} flips in {run.rate:.0%}: {clip(json.dumps(list(run.values), ensure_ascii=False))}"
