"""Judgements as `gradeloop judge` kept them in the store, under their judge."""

from dataclasses import dataclass

from gradeloop.errors import InvalidRequest
from gradeloop.judges.config import JudgeConfig
from gradeloop.judges.judge_result import JudgeResult


@dataclass(frozen=True)
class KeptJudgements:
    """What a judge came to, as the store has it."""

    name: str
    """The judge's: its id and version."""
    judge: JudgeConfig
    results: tuple[JudgeResult, ...]
    """By run, then by repeat."""


async def judgements_named(name: str) -> KeptJudgements:
    """Return the judgements that the store has of `COLLECTION/RUBRIC[@VERSION]`, or of the judge in a file.

    Raises:
        InvalidRequest: There is no such judge, or nothing that it judged was kept.
        StoreUnavailable: The store cannot be opened.
    """
    from gradeloop.judges.registry import Registry
    from gradeloop.judges.run_sources import judge_named
    from gradeloop.store import own_store

    store = own_store()
    try:
        registry = Registry(store)
        judge = await judge_named(name, registry)
        results = await registry.judgements(judge)
    finally:
        store.close()
    if not results:
        raise InvalidRequest(f"the store has no judgements by {name!r}; judge some runs first: gradeloop judge {name} RUNS")
    return KeptJudgements(f"{judge.rubric_id}, version {judge.version}", judge, tuple(results))
