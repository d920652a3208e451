"""What the rollouts of a schema judge come to, as a result tells it."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from gradeloop.judges.citations import Citation
from gradeloop.judges.consensus import Consensus, consensus
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.judges.schema_shape import keys_of, value_at
from gradeloop.strict import Recorded, Sparse

ROLLOUTS_BYTES = 512 * 1024
"""Of all outputs that a result tells beside its own; beyond, only what was voted on is told of each."""

RAW_CHARACTERS = 20_000
"""What is kept of an answer that is none."""


class Rollout(Recorded):
    """One of several answers to the same question, or why there is none."""

    index: int
    output: dict[str, JsonValue] | None = None
    citations: tuple[Citation, ...] = ()
    repairs: int = 0
    """Turns in which it was asked to mend its answer."""
    invalid: Sparse[str | None] = None
    """What was wrong with its answer, after its repairs."""
    raw_text: Sparse[str | None] = None
    """Of an invalid answer."""
    unavailable: Sparse[str | None] = None
    """Why nobody answered."""
    prompt_sha256: Sparse[str | None] = None


class Summary(Recorded):
    """An output and what is known of it."""

    output: dict[str, JsonValue]
    metadata: dict[str, JsonValue]


def shortened_raw(text: str) -> str:
    """Return what is kept of an answer that is none."""
    return text if len(text) <= RAW_CHARACTERS else f"{text[:RAW_CHARACTERS]}… ({len(text)} characters)"


def summary(judge: SchemaJudge, rollouts: Sequence[Rollout], reflections: Sequence[Rollout] = ()) -> Summary:
    """Return what rollouts come to, in their order; reflections over them count instead where there are any.

    Args:
        judge: By whose schema they are compared.
        rollouts: All of them, at least one with an output.
        reflections: Those of a second round.
    """
    answered = [each for each in reflections if each.output is not None] or [each for each in rollouts if each.output is not None]
    agreed = consensus(judge.output_schema, [each.output for each in answered if each.output is not None])
    chosen = answered[agreed.from_rollout]
    told: dict[str, Any] = _agreement(agreed, chosen) | {
        "variant": judge.judge_variant,
        "rollouts": _told(judge, rollouts),
        "citations": [each.model_dump(mode="json") for each in chosen.citations],
        "citation_counts": {"cited": len(chosen.citations), "verified": sum(each.verified for each in chosen.citations)},
    }
    if reflections:
        first = consensus(judge.output_schema, [each.output for each in rollouts if each.output is not None])
        told |= {"reflections": _told(judge, reflections), "before_reflection": _agreement(first)}
    return Summary(output=agreed.output, metadata=told)


def _agreement(agreed: Consensus, chosen: Rollout | None = None) -> dict[str, Any]:
    keys = {name: each.model_dump(mode="json") for name, each in agreed.keys.items()}
    told: dict[str, Any] = {"keys": keys, "ties": list(agreed.ties)} | ({"composed": True} if agreed.composed else {})
    return told | ({"from_rollout": chosen.index} if chosen else {})


def _told(judge: SchemaJudge, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return the rollouts as they are told, without citations; of many long outputs, what was voted on alone."""
    told = [each.model_dump(mode="json", exclude={"citations", "prompt_sha256"}) for each in rollouts]
    if sum(len(json.dumps(each)) for each in told) <= ROLLOUTS_BYTES:
        return told
    keys = keys_of(judge.output_schema)
    brief = [{key.name: value_at(each.output, key.path) for key in keys} if each.output is not None else None for each in rollouts]
    raw = {"raw_text": ""}
    return [
        each | {"output": output, "abridged": True} | (raw if "raw_text" in each else {}) for each, output in zip(told, brief, strict=True)
    ]
