"""Tenants of batches: what one of them has paid for, no other sees."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.contract.thread import parse_request
from gradeloop.errors import InvalidRequest
from gradeloop.grading.cache_key import key_of_tenant, tenant_digits
from tests.rig.batches import batching, case, passes
from tests.rig.threads import request

ODD_NAMES = ("a'b; DROP TABLE verdicts", "%", "_", "a\\b", "ä/β", "tenant", "x" * 64)


async def test_no_tenant_profits_from_the_cached_verdict_of_another(client: Client, tmp_path: Path) -> None:
    calls: list[tuple[str | None, int]] = []
    async with batching(client, tmp_path, passes()) as batches:
        for tenant in (None, "acme", "beta", "acme", None, "beta", "Acme"):
            priority: dict[str, Any] = {"priority": {"level": 4, "tenant": tenant}} if tenant else {}
            summary, _ = await batches.run([case("a")], **priority)
            calls.append((tenant, summary.usage.calls))
        stored = batches.store.do(lambda connection: connection.execute(text("SELECT key, batch_id FROM verdicts")).all())

    assert calls == [(None, 1), ("acme", 1), ("beta", 1), ("acme", 0), (None, 0), ("beta", 0), ("Acme", 1)]
    assert len(stored) == 4
    assert all(batch for _, batch in stored)
    assert sum(key.startswith(tenant_digits("acme")) for key, _ in stored) == 1


def test_keys_without_a_tenant_stay_what_they_were() -> None:
    assert key_of_tenant("abc", None) == "abc"


def test_odd_names_of_tenants_have_keys_of_their_own() -> None:
    keys = {key_of_tenant("abc", name) for name in ODD_NAMES}

    assert len(keys) == len(ODD_NAMES)
    assert {len(key) for key in keys} == {64}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("é" * 33, "priority.tenant: a tenant's name has 64 bytes in UTF-8 at most; shorten it"),
        ("a\nb", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
        ("a\x00", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
        (" a", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request(priority={"tenant": name}))

    assert words in str(caught.value)
