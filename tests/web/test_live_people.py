"""Who decided: the name that the live page's server knows, whatever a request says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.errors import InvalidRequest
from gradeloop.reports.html import thread_path
from gradeloop.settings.paths import user_name
from gradeloop.temporal.connect import Connection
from gradeloop.web.guard import asked_user_header
from tests.rig.pages import Browser, paged
from tests.rig.threads import draft, grade, request, serving, until
from tests.workflows.test_people import RUBRIC

HEADER = "X-Forwarded-User"


@asynccontextmanager
async def waiting(client: Client, folder: Path, user_header: str = "") -> AsyncIterator[tuple[Browser, Any, dict[str, Any]]]:
    """Serve the page beside a thread that waits for a person, and yield what decides."""
    connection = Connection(client.service_client.config.target_host, "default", embedded=False)
    async with (
        serving(client, draft(), grade()) as served,
        paged(served.client, connection, folder, user_header) as browser,
    ):
        thread = await served.start(request(RUBRIC))
        asked = (await until(thread, "waiting"))["waiting_for"]
        about = {name: asked[name] for name in ("grading_run_id", "iteration")} | {"criterion": "promise", "passed": True}
        yield browser, thread, about


async def test_nobody_decides_in_the_name_of_another(client: Client, tmp_path: Path) -> None:
    async with waiting(client, tmp_path) as (browser, thread, about):
        path = f"{thread_path(thread.id)}/decide"
        forged = await browser.say(path, about | {"by": "the boss"})
        still = await thread.query("state")
        taken = await browser.say(path, about, X_Forwarded_User="the boss")
        result = await thread.result()

    assert (forged.status_code, forged.json()["error"]) == (400, "by: the server of this page says who decides; leave the field out")
    assert still["status"] == "waiting"
    assert taken.json() == {"ok": True, "by": user_name()}
    assert result.evaluations[0].criteria[1].reason == f"decided by {user_name()}"


async def test_a_proxy_names_who_decides_and_nothing_is_decided_without_a_name(client: Client, tmp_path: Path) -> None:
    async with waiting(client, tmp_path, HEADER) as (browser, thread, about):
        path = f"{thread_path(thread.id)}/decide"
        own = {"Origin": browser.address, "Sec-Fetch-Site": "same-origin", "X-Gradeloop-Token": browser.token}
        twice = [*own.items(), (HEADER, "ann"), (HEADER, "the boss")]
        refused = [
            await browser.say(path, about),
            await browser.say(path, about, X_Forwarded_User=""),
            await browser.http.post(browser.address + path, json=about, headers=twice),
            await browser.say(path, about, X_Forwarded_User="x" * 201),
            await browser.say(path, about | {"by": "the boss"}, X_Forwarded_User="ann"),
        ]
        still = await thread.query("state")
        named = [(name.encode(), value.encode()) for name, value in (*own.items(), (HEADER, "Zoë"))]
        taken = await browser.http.post(browser.address + path, json=about, headers=named)
        result = await thread.result()

    assert [answer.status_code for answer in refused] == [400] * 5
    assert f"the header {HEADER} names no person, or several" in refused[2].json()["error"]
    assert still["status"] == "waiting"
    assert taken.json() == {"ok": True, "by": "Zoë"}
    assert result.evaluations[0].criteria[1].reason == "decided by Zoë"


async def test_no_form_asks_for_a_name(client: Client, tmp_path: Path) -> None:
    async with waiting(client, tmp_path) as (browser, thread, _):
        page, inbox = await browser.get(thread_path(thread.id)), await browser.get("/inbox")
        await thread.cancel()

    assert 'name="gap"' in page.text
    assert 'name="by"' not in page.text + inbox.text


def test_what_is_no_header_is_refused() -> None:
    assert asked_user_header({}) == ""
    assert asked_user_header({"GRADELOOP_PAGE_USER_HEADER": f" {HEADER} "}) == HEADER
    with pytest.raises(InvalidRequest, match="GRADELOOP_PAGE_USER_HEADER is 'X: y'; write a header's name, as X-Forwarded-User"):
        asked_user_header({"GRADELOOP_PAGE_USER_HEADER": "X: y"})
