"""Notices to webhooks: signed, refused for good or tried again, and without content unless the settings ask for it."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.notify import NotifyActivities, Webhook
from gradeloop.contract.notice import AskedOfPerson, Notice, NoticeCall, NoticeContent
from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import NotifySettings
from tests.rig.tables import over
from tests.rig.webhooks import hooked

NOTICE = Notice(
    id="thread-1/7",
    type="thread.waiting",
    time="2026-11-23T22:00:00+00:00",
    title="Reply <!channel> to *Ann*",
    answer="WAITING for a person: 1 question",
    thread_id="thread 1",
    questions=(AskedOfPerson(kind="criterion", id="promise"),),
    content=NoticeContent(questions=("Promises nothing",), draft="Dear Ann"),
)


async def post(settings: dict[str, Any], environment: dict[str, str] | None = None, webhook: str = "ops") -> None:
    """Post the notice as a worker with these settings does."""
    tables = {name: NotifySettings.model_validate(table) for name, table in settings.items()}
    activities = NotifyActivities(tables, environment or {})
    await ActivityEnvironment().run(activities.notify, NoticeCall(webhook=webhook, notice=NOTICE))


def body_of(**settings: Any) -> dict[str, Any]:
    """Return what is posted with these settings."""
    table = NotifySettings.model_validate({"url": "https://chat.example/hook"} | settings)
    body: dict[str, Any] = json.loads(Webhook.find("ops", table, {}).body(NOTICE))
    return body


async def test_a_notice_is_signed_over_its_id_its_time_and_its_body() -> None:
    secret = b"a secret of 24 bytes, or"
    async with hooked() as hook:
        settings = hook.settings(url="HOOK_URL", secret="HOOK_SECRET")
        await post(settings, {"HOOK_URL": hook.url, "HOOK_SECRET": "whsec_" + base64.b64encode(secret).decode()})

    headers, body = hook.posts[0]
    signed = f"thread-1/7.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()

    assert headers["webhook-id"] == "thread-1/7"
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_without_a_secret_nothing_is_signed() -> None:
    async with hooked() as hook:
        await post(hook.settings())

    assert "webhook-signature" not in hook.posts[0][0]


def test_content_is_posted_only_where_the_settings_say_so() -> None:
    assert "content" not in body_of()
    assert body_of()["title"] == NOTICE.title
    assert body_of(content=True)["content"] == {"questions": ["Promises nothing"], "draft": "Dear Ann"}


def test_a_page_is_linked_where_the_settings_have_its_address() -> None:
    assert "url" not in body_of()
    assert body_of(pages="https://pages.example/")["url"] == "https://pages.example/threads/thread%201"


def test_slack_cannot_be_made_to_call_a_channel() -> None:
    posted = body_of(format="slack", pages="https://pages.example")

    assert posted["text"].splitlines() == [
        "WAITING for a person: 1 question: Reply &lt;!channel&gt; to *Ann*",
        "thread thread 1",
        "<https://pages.example/threads/thread%201|open>",
    ]


def test_teams_gets_a_card_whose_texts_are_no_markdown() -> None:
    card = body_of(format="teams", content=True)["attachments"][0]["content"]

    assert [block["text"] for block in card["body"]] == [
        "WAITING for a person: 1 question",
        r"Reply <\!channel> to \*Ann\*",
        "thread thread 1",
        r"\- Promises nothing",
        "Dear Ann",
    ]


@pytest.mark.parametrize(("status", "final"), [(503, False), (429, False), (404, True), (302, True)])
async def test_only_a_webhook_that_may_take_it_later_is_tried_again(status: int, final: bool) -> None:
    async with hooked(status) as hook:
        with pytest.raises(ApplicationError, match=f"answers with {status}") as caught:
            await post(hook.settings())

    assert caught.value.non_retryable is final
    assert "/hook" not in str(caught.value)
    assert len(hook.posts) == 1


async def test_a_private_address_is_reached_only_where_its_network_is_listed() -> None:
    async with hooked() as hook:
        address = hook.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(ApplicationError, match=r"not a public address; name its network in notify\.ops\.networks") as caught:
            await post({"ops": {"url": address}})

    assert caught.value.non_retryable
    assert hook.posts == []


async def test_a_webhook_that_does_not_answer_is_tried_again_and_its_address_is_not_said() -> None:
    async with hooked() as hook:
        settings = hook.settings(url="HOOK_URL")
        url = hook.url
    with pytest.raises(ApplicationError, match="does not answer: ConnectError") as caught:
        await post(settings, {"HOOK_URL": url})

    assert not caught.value.non_retryable
    assert "/hook" not in str(caught.value)


async def test_a_webhook_that_this_worker_does_not_have_is_refused() -> None:
    with pytest.raises(ApplicationError, match="no webhook 'other'; add it to"):
        await post({}, webhook="other")


@over(
    ("table", "environment", "message"),
    [
        ({"url": "HOOK"}, {}, r"notify\.ops\.url: the variable 'HOOK' is not set"),
        ({"url": "HOOK"}, {"HOOK": "chat.example/x"}, r"notify\.ops\.url: the variable 'HOOK' has no address"),
        ({"url": "HOOK"}, {"HOOK": "http://chat.example/x"}, r"use https; http is for the private networks"),
        ({"url": "https://a.example", "secret": "KEY"}, {}, r"notify\.ops\.secret: the variable 'KEY' is not set"),
        ({"url": "https://a.example", "secret": "KEY"}, {"KEY": "whsec_ü"}, r"what follows 'whsec_' is not base64"),
    ],
)
def test_a_worker_says_which_setting_is_wrong_before_it_serves(table: dict[str, Any], environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        NotifyActivities({"ops": NotifySettings.model_validate(table)}, environment)


@over("table", [{"url": "http://a.example"}, {"url": "a.example/x"}, {"url": "A", "on": []}, {"url": "A", "secret": "x y"}])
def test_malformed_settings_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NotifySettings.model_validate(table)
