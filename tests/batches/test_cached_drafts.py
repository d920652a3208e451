"""A draft that was paid for is reused for exactly the same request, by the same tenant alone, and never where a call is measured."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.grading.cache_key import tenant_digits
from tests.rig.batches import batching, breaks, drafted, passes
from tests.rig.stores import ON_EITHER

WRITES = {"role": "generator", "text": "a draft"}
CONTAINS = {
    "criteria": [{"id": "c1", "description": "it is one", "check": {"tool": "text_check", "arguments": {"kind": "contains", "value": "a"}}}]
}
TIMED = {
    "criteria": [{"id": "c1", "description": "quick", "check": {"tool": "call_check", "arguments": {"kind": "latency", "value": 60_000}}}]
}


def asked(prompt: str = "Write it.", **more: Any) -> dict[str, Any]:
    return drafted("a", rubric=CONTAINS) | {"messages": [{"role": "user", "content": prompt}]} | more


@pytest.mark.slow
@ON_EITHER
async def test_a_draft_that_was_paid_for_is_not_paid_again(client: Client, tmp_path: Path, url: str) -> None:
    async with batching(client, tmp_path, WRITES, url=url) as batches:
        first, written = await batches.run([asked()])
        again, results = await batches.run([asked()])
        anew, _ = await batches.run([asked()], cache=False)

    assert (first.usage.calls, first.cached, written[0].cached) == (1, 0, False)
    assert (again.usage.attempts, again.cached, again.passed) == (0, 1, 1)
    assert (results[0].output, results[0].cached, results[0].usage.calls) == ("a draft", True, 0)
    assert (anew.usage.calls, anew.cached) == (1, 0)


OTHERS: dict[str, dict[str, Any]] = {
    "the prompt": {"prompt": "Write another."},
    "a setting": {"generator": {"model": {"id": "scripted:writer", "config": {"temperature": 0.5}}}},
    "the system prompt": {"generator": {"model": "scripted:writer", "system_prompt": "Be kind."}},
    "a function": {"generator": {"model": "scripted:writer", "functions": [{"name": "f", "description": "", "parameters": {}}]}},
    "the form of the output": {"generator": {"model": "scripted:writer", "output_form": {}}},
    "the repetition": {"repeat": 1},
    "a case whose time counts": {"rubric": TIMED},
}


@pytest.mark.parametrize("more", OTHERS.values(), ids=OTHERS)
async def test_another_request_is_drafted_anew(client: Client, tmp_path: Path, more: dict[str, Any]) -> None:
    async with batching(client, tmp_path, WRITES) as batches:
        await batches.run([asked()])
        other, _ = await batches.run([asked(**more)])

    assert (other.usage.calls, other.errors) == (1, 0)


@pytest.mark.slow
async def test_a_scripted_reply_that_was_edited_is_the_draft(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, WRITES) as batches:
        await batches.run([asked()])
    async with batching(client, tmp_path, WRITES | {"text": "a better draft"}) as batches:
        _, results = await batches.run([asked()])

    assert (results[0].output, results[0].cached) == ("a better draft", False)


@pytest.mark.slow
async def test_a_draft_and_its_verdict_cost_nothing_together(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, WRITES, passes()) as batches:
        first, _ = await batches.run([drafted("a")])
        again, _ = await batches.run([drafted("a")])
        judged, results = await batches.run([drafted("a", rubric="- it is better")])

    assert (first.usage.calls, again.usage.calls, again.cached) == (2, 0, 1)
    assert (judged.usage.calls, results[0].cached) == (1, False)


@pytest.mark.slow
async def test_a_draft_that_failed_is_never_cached(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks(role="generator")) as batches:
        failed, _ = await batches.run([asked()])
    async with batching(client, tmp_path, WRITES) as batches:
        mended, _ = await batches.run([asked()])

    assert (failed.errors, failed.cached, mended.passed, mended.usage.calls) == (1, 0, 1, 1)


@pytest.mark.slow
async def test_a_failure_is_drafted_anew_where_it_is_asked_again(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, {"role": "generator", "text": "none of it: X"}) as batches:
        case = asked(
            rubric={
                "criteria": [CONTAINS["criteria"][0] | {"check": {"tool": "text_check", "arguments": {"kind": "contains", "value": "!"}}}]
            }
        )
        failed, _ = await batches.run([case], batch_id="again")
        again = await (await batches.start("again", 1, again="failures")).result()

    assert (failed.failed, failed.usage.calls, again.usage.calls) == (1, 1, 2)


async def test_no_tenant_profits_from_the_draft_of_another_and_forgetting_one_erases_its_own(client: Client, tmp_path: Path) -> None:
    calls = []
    async with batching(client, tmp_path, WRITES) as batches:
        for tenant in (None, "acme", "beta", "acme", None):
            priority: dict[str, Any] = {"priority": {"level": 4, "tenant": tenant}} if tenant else {}
            summary, _ = await batches.run([asked()], **priority)
            calls.append(summary.usage.calls)
        before = batches.store.do(lambda connection: connection.execute(text("SELECT key FROM verdicts")).scalars().all())
        await Eraser(client, batches.store, None).forget(ForgottenSubject(tenant="acme"))
        after = batches.store.do(lambda connection: connection.execute(text("SELECT key FROM verdicts")).scalars().all())

    assert calls == [1, 1, 1, 0, 0]
    assert set(before) - set(after) == {key for key in before if key.startswith(tenant_digits("acme"))}
    assert len(before) == 3
