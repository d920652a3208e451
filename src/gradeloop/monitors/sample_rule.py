"""Which runs a monitor judges: a share by their content, so that every monitor with the same share judges the same ones."""

import json

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, ErrorPart
from gradeloop.monitors.contract import AlwaysRule, MonitorDefinition, Why

WHOLE = 2**64
"""The number of places on which a run may fall."""


def place_of(run_sha256: str) -> float:
    """Return the place of a run between 0 and 1, which its content alone decides."""
    return int(run_sha256[:16], 16) / WHOLE


def stratum_of(definition: MonitorDefinition, run: AgentRun) -> str | None:
    """Return the stratum of a run; None where the monitor tells none apart, or the run does not say."""
    value = None if definition.stratum is None else run.metadata.get(definition.stratum)
    return None if value is None else _text(value)[:200]


def choose(definition: MonitorDefinition, run: AgentRun, run_sha256: str) -> Why:
    """Return whether a run is judged, and why; a run of the sample counts as such although a rule would take it, too."""
    if _is_sampled(definition, run_sha256, stratum_of(definition, run)):
        return "sampled"
    return "always" if any(_takes(rule, run) for rule in definition.always) else "left out"


def why_of(definition: MonitorDefinition, run_sha256: str, stratum: str | None) -> Why:
    """Return why a run was chosen that is known to be."""
    return "sampled" if _is_sampled(definition, run_sha256, stratum) else "always"


def _is_sampled(definition: MonitorDefinition, run_sha256: str, stratum: str | None) -> bool:
    return place_of(run_sha256) < definition.strata.get(stratum or "", definition.sample)


def _takes(rule: AlwaysRule, run: AgentRun) -> bool:
    value = run.metadata.get(rule.key)
    if rule.value is not None:
        return value is not None and _text(value) == _text(rule.value)
    return bool(value) or (rule.key == "error" and _has_error(run))


def _has_error(run: AgentRun) -> bool:
    messages = (message for transcript in run.transcripts for message in transcript.messages)
    return any(message.is_error or any(isinstance(part, ErrorPart) for part in message.parts) for message in messages)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
