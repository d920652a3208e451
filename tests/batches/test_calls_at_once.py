"""No more calls of a batch are made at once than it allows, and a call that a limit holds is counted with what it has cost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest
from tests.rig.batches import batching, case, drafted, passes


def many(count: int) -> list[dict[str, Any]]:
    """Return so many cases."""
    return [case(f"c{at}") for at in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "slots", "most"),
    [
        pytest.param(many(40), 100, 6, id="outputs"),
        pytest.param([drafted(f"d{at}", loop=at % 2 == 0) for at in range(12)], 100, 6, id="drafts and threads"),
        pytest.param(many(12), 2, 1, id="a worker of few slots"),
    ],
)
async def test_no_more_calls_are_made_at_once_than_the_batch_allows(
    client: Client, tmp_path: Path, cases: list[dict[str, Any]], slots: int, most: int
) -> None:
    said = [{"role": "generator", "text": "a draft", "delay": 0.1}, passes(delay=0.1)]
    async with batching(client, tmp_path, *said, max_concurrent_activities=slots) as batches:
        summary, _ = await batches.run(cases, at_once=6)

    assert (summary.status, summary.passed) == ("finished", len(cases))
    assert batches.served.models.most_at_once <= most
    assert most == 1 or batches.served.models.most_at_once > 1


@pytest.mark.parametrize("fault", [{"kind": "truncated", "raisable": True}, {"kind": "malformed"}])
async def test_what_a_call_cost_before_a_limit_held_it_is_counted(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    """The first reply about c0 is paid for and of no use; until the call is made again, c1 has used up the budget."""
    lost = Usage(attempts=1, calls=1, input=9000, output=1000)
    async with batching(client, tmp_path, passes(usage={"input": 90, "output": 10})) as batches:
        models = batches.served.models
        complete = models.complete

        async def failing(request: ModelRequest) -> ModelReply:
            if "output of c0." not in str(request.messages) + request.system:
                return await complete(request)
            while (await batches.reader.summary("held")).passed == 0:
                await asyncio.sleep(0.02)
            raise ModelFault(message="of no use", model=request.spec.id, usage=lost, **fault)

        monkeypatch.setattr(models, "complete", failing)
        await batches.upload("held", many(3))
        summary = await (await batches.start("held", 3, at_once=2, budget={"max_tokens": 100})).result()

    assert (summary.status, summary.passed, len(models.requests)) == ("paused", 1, 1)
    assert (summary.usage.input, summary.usage.output, summary.usage.calls) == (9090, 1010, 2)
