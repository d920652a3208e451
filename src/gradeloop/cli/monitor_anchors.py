"""The anchors of a monitor as its flags name them: labelled runs of files."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from gradeloop.calibration.labels import read_labels
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.grading.checks import canonical_json
from gradeloop.judges.contract import CriteriaJudge, SchemaJudge
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.schema import value_at
from gradeloop.monitors.anchor_runs import LABEL_KEY, Anchor, anchors_of
from gradeloop.text import clip
from gradeloop.transcripts.readers import read_run_file

_WORDS = {"passed": True, "pass": True, "true": True, "failed": False, "fail": False, "false": False}


def read_anchors(runs: Path, labels: Path | None, judge: CriteriaJudge | SchemaJudge, passes: tuple[str, ...]) -> tuple[Anchor, ...]:
    """Read labelled runs as the anchors of a monitor.

    Args:
        runs: The runs, in any format that is read.
        labels: What people say, as `gradeloop agreement` takes it; by default each run's metadata has a `label`, passed or failed.
        judge: The judge that is watched.
        passes: What passes a judgement by a schema, and so a label.

    Raises:
        InvalidRequest: A file cannot be read, or a run has no label that passes or fails it.
    """
    if not runs.is_file():
        raise InvalidRequest(f"--anchors {clip(str(runs))} is no file; name one with labelled runs")
    found = read_run_file(runs)
    return anchors_of(judge, _by_metadata(runs, found) if labels is None else _by_labels(found, labels, judge, passes))


def _by_metadata(path: Path, runs: Iterator[AgentRun]) -> Iterator[tuple[AgentRun, bool]]:
    for run in runs:
        said = run.metadata.get(LABEL_KEY)
        passed = _WORDS.get(said.strip().lower()) if isinstance(said, str) else said
        if not isinstance(passed, bool):
            has = "no label" if said is None else f"the label {clip(canonical_json(said))}"
            cure = "write passed or failed as `label` into its metadata, or name a file of labels with --anchor-labels"
            raise InvalidRequest(f"{path}: the run {clip(run.id)} has {has}; {cure}")
        yield run, passed


def _by_labels(
    runs: Iterator[AgentRun], path: Path, judge: CriteriaJudge | SchemaJudge, passes: tuple[str, ...]
) -> Iterator[tuple[AgentRun, bool]]:
    """Yield the runs with what most people say of them; a run of whom they say nothing is left out."""
    votes: dict[str, list[bool]] = {}
    wanted = PassRule(judge, passes).wanted
    for label in read_labels(path, judge).labels:
        values: list[tuple[JsonValue, JsonValue]] = [(value_at(dict(label.label_value), at), value) for at, value in wanted]
        if all(said is not None for said, _ in values):
            passed = all(canonical_json(said) == canonical_json(value) for said, value in values)
            votes.setdefault(label.agent_run_id, []).append(passed)
    for run in runs:
        said = votes.get(run.id, [])
        if 2 * sum(said) != len(said):
            yield run, 2 * sum(said) > len(said)
