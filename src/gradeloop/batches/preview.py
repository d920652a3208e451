"""Estimated cost of judgements: the calls that the cache of verdicts lacks, and their price."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradeloop.batches.cases import count_units, units_of
from gradeloop.batches.contract import Case
from gradeloop.batches.judged import judging_case, records_of, rollout_key, vote_key
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import run_as_messages
from gradeloop.grading.answer_form import FULL
from gradeloop.grading.cache_key import key_of_tenant
from gradeloop.grading.prompts import JudgedDraft, build_grader_prompt
from gradeloop.grading.scoring import call_groups
from gradeloop.judges.contract import CriteriaJudge, JudgingRequest, SchemaJudge
from gradeloop.judges.prompt import build_judge_prompt
from gradeloop.settings.answer_forms import form_of
from gradeloop.settings.catalog import PRICES, load_prices

CHARACTERS_PER_TOKEN = 4
"""Characters of a prompt that are counted as a token: about what English has with today's tokenizers."""

OUTPUT_TOKENS = 500
"""Tokens that an answer is counted as: a verdict on a few criteria, or an explanation of some sentences."""

NONCE = "0" * 32
"""Stands for the random code of a prompt that is only measured."""


class JudgingPreview(Strict):
    """Preview of a `gradeloop judge`, made without a call."""

    judgements: int
    """The judgements that were asked for."""
    judged: int
    """Those that are in the store with a result, so that nothing of them is asked."""
    calls: int
    """Calls to models that are to be made, without repairs."""
    cached: int
    """Calls whose answer is in the cache of verdicts."""
    to_escalate: int = 0
    """Judgements in the store that are unsure, and of which the escalation judge is to be asked; its calls are counted."""
    cost_usd: float | None
    """An estimate of the calls to be made, at today's prices; None where a model's price is unknown."""


@dataclass(frozen=True)
class _Call:
    """A call that a judgement needs."""

    model: ModelSpec | None
    key: str | None
    """Its key in the cache of verdicts; None where its answer cannot be there."""
    characters: int
    """The length of the prompt."""


async def preview_judgements(
    requests: Sequence[tuple[str, Sequence[JudgingRequest]]],
    judged: set[str],
    default: ModelSpec | None,
    reader: BatchReader | None,
    *,
    escalated: Sequence[Sequence[JudgingRequest]] = (),
) -> JudgingPreview:
    """Return what judgements would cost.

    Args:
        requests: The judgements, by their ids: each one request, or one for each part of its run and the last.
        judged: The ids of those that have a result.
        default: The model that judges where a judge names none.
        reader: The store with the cache of verdicts; None for none.
        escalated: The requests of judgements that the escalation judge is to make.
    """
    wanted = {name: made for name, made in requests if name not in judged}
    calls = [call for made in (*wanted.values(), *escalated) for request in made for call in _calls(request, default)]
    known = await reader.cached_verdicts([call.key for call in calls if call.key]) if reader is not None else frozenset()
    due = [call for call in calls if call.key not in known]
    return JudgingPreview(
        judgements=len(requests),
        judged=sum(name in judged for name, _ in requests),
        calls=len(due),
        cached=len(calls) - len(due),
        to_escalate=len(escalated),
        cost_usd=_cost(due),
    )


def _calls(request: JudgingRequest, default: ModelSpec | None) -> Iterator[_Call]:
    """Yield the calls that a judgement needs, without repairs and tool calls."""
    case = judging_case(request)
    tenant = request.priority.tenant if request.priority else None
    if isinstance(request.judge, SchemaJudge):
        calls = _rollouts(request, request.judge, default, cacheable=case is not None)
    else:
        calls = _votes(request, request.judge, case, default)
    yield from (replace(call, key=call.key and key_of_tenant(call.key, tenant)) for call in calls)


def _rollouts(request: JudgingRequest, judge: SchemaJudge, default: ModelSpec | None, *, cacheable: bool) -> Iterator[_Call]:
    prompt = build_judge_prompt(judge, request.run, NONCE)
    characters = len(prompt.system) + sum(len(message.content) for message in prompt.messages)
    rounds = 2 if judge.judge_variant == "multi-reflect" and judge.rollout_count > 1 else 1
    for at in range(judge.rollout_count * rounds):
        rollout = at % judge.rollout_count
        model = judge.model_at(rollout) or default
        key = rollout_key(judge, request.run, model, judge.sample_at(rollout), request.repeat) if cacheable and model else None
        yield _Call(model, key, characters)


def _votes(request: JudgingRequest, judge: CriteriaJudge, case: Case | None, default: ModelSpec | None) -> Iterator[_Call]:
    own = judge.grader.model if judge.grader and judge.grader.model else default
    if case is None:
        characters = len(json.dumps(judge.rubric.canonical())) + sum(len(message.content) for message in run_as_messages(request.run))
        for group in call_groups(judge.rubric):
            yield from (_Call(model if isinstance(model, ModelSpec) else own, None, characters) for model in group.judges)
        return
    records = records_of(case, "")
    judged = JudgedDraft(records.messages, records.request, records.draft, {}, NONCE)
    for group, sample in units_of(case)[: count_units(case)]:
        named = group.judges[sample]
        model = named if isinstance(named, ModelSpec) else own
        instructions = judge.grader.system_prompt if judge.grader else None
        form = form_of(model, judge.grader or Grader()) if model else FULL
        prompt = build_grader_prompt(judge.rubric, group, judged, instructions=instructions, form=form)
        characters = len(prompt.system or "") + sum(len(message.content) for message in prompt.messages)
        yield _Call(model, vote_key(case, group, sample, model, records, {}, form) if model else None, characters)


def _cost(calls: Sequence[_Call]) -> float | None:
    """Return what calls cost by the prices that the environment names; None where one is unknown."""
    own = os.environ.get(PRICES, "").strip()
    table = load_prices(Path(own) if own else None)
    usages = [(call.model, Usage(calls=1, input=call.characters // CHARACTERS_PER_TOKEN, output=OUTPUT_TOKENS)) for call in calls]
    costs = [None if model is None else table.cost(model, usage) for model, usage in usages]
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), 6) if len(known) == len(costs) else None
