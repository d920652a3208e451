"""A model of a provider that the worker does not know is a final error by name, wherever it stands; nothing hangs."""

import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from gradeloop.batches.judge_many import judge_many
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.client import Judge
from tests.rig.batches import batching, case
from tests.rig.judging import MATCH, answers, fresh
from tests.rig.tables import over
from tests.rig.threads import JUDGE, WRITER, draft, refusal, request, serving

UNKNOWN = "unknown provider 'antropic'. Did you mean 'anthropic'?"


@pytest.mark.slow
@over(
    "argument",
    [
        request(generator={"model": "antropic:claude"}),
        request("- x", grader={"model": "antropic:claude"}),
        request({"criteria": [{"description": "x", "grader": "antropic:claude"}]}),
        request({"criteria": [{"description": "x", "panel": [JUDGE, "antropic:claude"]}]}),
        request("- x", grader={"model": {"id": JUDGE, "fallback": ["antropic:claude"]}}),
        request("- x", generator={"activity": "write", "task_queue": "elsewhere"}, grader={"model": "antropic:claude"}),
    ],
)
async def test_a_thread_with_an_unknown_provider_is_refused_by_name(client: Client, argument: dict[str, Any]) -> None:
    async with serving(client, draft()) as served:
        thread = await served.start(argument)

        assert UNKNOWN in await refusal(thread)
        assert served.models.requests == []


async def test_a_batch_with_an_unknown_provider_is_refused_at_the_upload(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("unknown", [case("a"), case("b", grader={"model": "antropic:claude"})])

    assert UNKNOWN in str(refused.value.cause)


JUDGES: dict[str, dict[str, Any]] = {
    "a schema judge": {"rubric_text": "It is good.", "judge_model": "antropic:claude"},
    "a panel": {"rubric_text": "It is good.", "panel": [JUDGE, WRITER, "antropic:claude"]},
    "a fallback": {"rubric_text": "It is good.", "judge_model": {"id": JUDGE, "fallback": ["antropic:claude"]}},
    "criteria": {"rubric": "- it is good", "grader": {"model": "antropic:claude"}},
    "a criterion": {"rubric": {"criteria": [{"description": "x", "grader": "antropic:claude"}]}, "grader": {"model": JUDGE}},
}


@pytest.mark.parametrize("name", JUDGES)
async def test_a_judgement_by_an_unknown_provider_is_refused_as_input(client: Client, tmp_path: Path, name: str) -> None:
    """Alone and in a batch: to run the same again would cure nothing, and nobody is paid."""
    run = AgentRun.model_validate(fresh(f"unknown {name}"))
    async with serving(client, *(answers(MATCH, at) for at in range(3))) as served:
        with pytest.raises(InvalidRequest, match=f"the run 'unknown {name}': .*antropic:claude.*{re.escape(UNKNOWN)}"):
            await Judge(JUDGES[name], client, task_queue=served.task_queue)(run)
        assert served.models.requests == []

    async with batching(client, tmp_path) as batches:
        judge = Judge(JUDGES[name], client, task_queue=batches.served.task_queue)
        with pytest.raises(InvalidRequest, match=re.escape(UNKNOWN)):
            await judge_many(judge, [run], lambda _: None, store=batches.store)
        assert batches.served.models.requests == []
