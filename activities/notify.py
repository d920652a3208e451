"""The activity `notify`: one notice, signed, to one webhook of the worker's settings."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import JsonValue
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import retry_after
from activities.providers.http import PrivateAddress, guarded_transport
from gradeloop.contract.notice import NOTIFY, Notice, NoticeCall, Webhooks
from gradeloop.errors import InvalidRequest
from gradeloop.settings.secrets import remember_secret
from gradeloop.settings.worker import NotifySettings

SECONDS = 20.0
"""The seconds that a webhook may take: chat services answer within one."""

REFUSED = "WebhookRefused"
"""The type of an error after which a notice is not sent again."""

PREFIX = "whsec_"
"""The beginning of a secret in base64, as Standard Webhooks has them."""

_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TEAMS_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~-])")
_AGAIN = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True)
class Webhook:
    """The address of a webhook, with the secrets that only the worker's environment has."""

    url: str
    key: bytes | None
    settings: NotifySettings

    @classmethod
    def find(cls, name: str, settings: NotifySettings, environment: Mapping[str, str]) -> "Webhook":
        """Resolve a webhook's variables; raise InvalidRequest where a variable is not set, or has no address."""
        url = settings.url if settings.has_address else _variable(name, "url", settings.url, environment)
        if not settings.has_address:
            remember_secret(url)
        parts = urlsplit(url)
        if parts.scheme not in {"https", "http"} or not parts.hostname or "@" in parts.netloc:
            raise InvalidRequest(f"notify.{name}.url: the variable {settings.url!r} has no address; it begins with https://")
        if parts.scheme == "http" and not settings.networks:
            raise InvalidRequest(f"notify.{name}.url: use https; http is for the private networks that notify.{name}.networks lists")
        secret = _variable(name, "secret", settings.secret, environment) if settings.secret else None
        if secret is not None:
            remember_secret(secret)
        return cls(url, None if secret is None else _key(name, secret), settings)

    def headers(self, notice_id: str, body: bytes, now: int) -> dict[str, str]:
        """Return the headers of a delivery: its id and time, and the signature over both and the body."""
        headers = {"content-type": "application/json", "webhook-id": notice_id, "webhook-timestamp": str(now)}
        if self.key is not None:
            signed = hmac.new(self.key, f"{notice_id}.{now}.".encode() + body, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
        return headers

    def body(self, notice: Notice) -> bytes:
        """Return what is posted, without content unless the settings ask for it."""
        page = self.settings.pages
        place = f"threads/{quote(notice.thread_id)}" if notice.thread_id else f"batches/{quote(notice.batch_id or '')}"
        known = notice.model_copy(
            update={
                "content": notice.content if self.settings.content else None,
                "url": f"{page.rstrip('/')}/{place}" if page and not notice.monitor else None,
            }
        )
        if self.settings.format == "json":
            return known.model_dump_json().encode()
        return to_json(_slack(known) if self.settings.format == "slack" else _teams(known))


def _variable(name: str, key: str, variable: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable, "").strip()
    if not value:
        raise InvalidRequest(f"notify.{name}.{key}: the variable {variable!r} is not set; set it in the worker's environment")
    return value


def _key(name: str, secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        raise InvalidRequest(f"notify.{name}.secret: what follows {PREFIX!r} is not base64; correct the secret") from None


def _lines(notice: Notice) -> list[str]:
    ids = [f"thread {notice.thread_id}"] if notice.thread_id else [f"batch {notice.batch_id}"]
    if notice.monitor:
        return [f"failed: {', '.join(notice.runs)}"] if notice.runs else []
    content = notice.content
    asked = [f"- {question}" for question in content.questions] if content else []
    return [*ids, *asked, *([content.draft] if content and content.draft else [])]


def _slack(notice: Notice) -> dict[str, JsonValue]:
    """Return the body of Slack's incoming webhooks; its three special characters are escaped."""
    title, answer, *lines = (text.translate(_MARKUP) for text in (notice.title, notice.answer, *_lines(notice)))
    link = [f"<{notice.url.translate(_MARKUP)}|open>"] if notice.url else []
    return {"text": "\n".join([f"{answer}: {title}", *lines, *link]), "unfurl_links": False}


def _teams(notice: Notice) -> dict[str, JsonValue]:
    """Return the body of a workflow of Teams: an adaptive card, whose texts are Markdown and so escaped."""
    title, answer, *lines = (_TEAMS_MARKUP.sub(r"\\\1", text) for text in (notice.title, notice.answer, *_lines(notice)))
    blocks: list[JsonValue] = [{"type": "TextBlock", "text": answer, "weight": "Bolder", "wrap": True}]
    blocks += [{"type": "TextBlock", "text": text, "wrap": True} for text in (title, *lines)]
    actions: list[JsonValue] = [{"type": "Action.OpenUrl", "title": "Open", "url": notice.url}] if notice.url else []
    card: dict[str, JsonValue] = {"type": "AdaptiveCard", "version": "1.4", "body": blocks, "actions": actions}
    return {"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}]}


class NotifyActivities:
    """The activity `notify`, with the webhooks of the worker."""

    def __init__(self, settings: Mapping[str, NotifySettings], environment: Mapping[str, str]) -> None:
        self._webhooks = {name: Webhook.find(name, one, environment) for name, one in settings.items()}

    @property
    def offered(self) -> Webhooks:
        """The webhooks' names, each with the events of which it is told, as workflows learn them."""
        return {name: webhook.settings.on for name, webhook in self._webhooks.items()}

    @activity.defn(name=NOTIFY)
    async def notify(self, call: NoticeCall) -> None:
        """Post a notice; raise ApplicationError where the webhook did not take it, of type `WebhookRefused` where it never will."""
        webhook = self._webhooks.get(call.webhook)
        if webhook is None:
            raise ApplicationError(f"this worker has no webhook {call.webhook!r}; add it to [notify]", type=REFUSED, non_retryable=True)
        body = webhook.body(call.notice)
        # A notice is delivered at least once: an answer that is lost is followed by a second delivery. Its id
        # is the same each time, and a receiver may drop what it has; only the time is new, since receivers
        # refuse old signatures.
        headers = webhook.headers(call.notice.id, body, int(time.time()))
        transport = guarded_transport(f"name its network in notify.{call.webhook}.networks if it is meant", webhook.settings.networks)
        timeout = httpx2.Timeout(SECONDS)
        host = urlsplit(webhook.url).hostname
        try:
            async with (
                httpx2.AsyncClient(timeout=timeout, follow_redirects=False, transport=transport, trust_env=False) as client,
                client.stream("POST", webhook.url, content=body, headers=headers) as response,
            ):
                raise_unless_taken(response, f"the webhook {call.webhook!r} at {host}")
        except PrivateAddress as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        except httpx2.HTTPError as error:  # its own words may name the address, which is a secret where a variable has it
            why = f"the webhook {call.webhook!r} at {host} does not answer: {type(error).__name__}"
            raise ApplicationError(why, type="WebhookAway") from None


def raise_unless_taken(response: httpx2.Response, who: str) -> None:
    """Raise ApplicationError for an answer that is not success: one to be retried where the status says so."""
    status = response.status_code
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return
    later = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _AGAIN
    seconds = retry_after(response.headers) if later else None
    raise ApplicationError(
        f"{who} answers with {status}",
        type="WebhookAway" if later else REFUSED,
        non_retryable=not later,
        next_retry_delay=None if seconds is None else timedelta(seconds=min(seconds, 3600)),
    )
