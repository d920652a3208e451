"""A model of a provider that the worker does not know is a final error by name, wherever it stands; nothing hangs."""

from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.judges.client import Judge
from tests.rig.judging import fresh
from tests.rig.threads import JUDGE, WRITER, draft, refusal, request, serving

UNKNOWN = "unknown provider 'antropic'. Did you mean 'anthropic'?"


@pytest.mark.parametrize(
    "argument",
    [
        request(generator={"model": "antropic:claude"}),
        request("- x", grader={"model": "antropic:claude"}),
        request({"criteria": [{"description": "x", "grader": "antropic:claude"}]}),
        request({"criteria": [{"description": "x", "panel": [JUDGE, "antropic:claude"]}]}),
        request("- x", generator={"activity": "write", "task_queue": "elsewhere"}, grader={"model": "antropic:claude"}),
    ],
    ids=["generator", "grader", "criterion", "panel", "remote generator"],
)
async def test_a_thread_with_an_unknown_provider_is_refused_by_name(client: Client, argument: dict[str, Any]) -> None:
    async with serving(client, draft()) as served:
        thread = await served.start(argument)

        assert UNKNOWN in await refusal(thread)
        assert served.models.requests == []


async def test_a_judgement_by_an_unknown_provider_ends_with_its_name(client: Client) -> None:
    async with serving(client) as served:
        judge = {"rubric_text": "It is good.", "judge_model": "antropic:claude"}
        result = await Judge(judge, client, task_queue=served.task_queue)(fresh("unknown"))

    assert UNKNOWN in str(result.result_metadata)
    assert WRITER not in str(result)
