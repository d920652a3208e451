"""The activity `write_back`: scores posted to Langfuse or LangSmith, with the keys of the worker's environment."""

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import httpx2
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.attempts import heartbeats
from activities.errors import invalid
from activities.notify import raise_unless_taken
from activities.providers.http import bound_body
from gradeloop.judges.write_back import Target, TraceScore, WriteBackCall, WriteBackReport
from gradeloop.settings.secrets import remember_secret
from gradeloop.text import one_line, shortened

SECONDS, CONCURRENCY = 30.0, 8
"""The seconds that one answer may take, and the requests at the same time."""

SENT = 100
"""Scores of one request to Langfuse, which takes a megabyte."""

_OF_ONE_SCORE = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}
"""The statuses that refuse what was sent, and no other score."""

Send = Callable[[str, str, object], Awaitable[httpx2.Response]]


@activity.defn(name="write_back")
async def write_back(call: WriteBackCall) -> WriteBackReport:
    """Write the scores of a call."""
    async with heartbeats():
        return await write_scores(call.to, call.scores)


async def write_scores(to: Target, scores: Sequence[TraceScore], environment: Mapping[str, str] = os.environ) -> WriteBackReport:
    """Write scores, over those of the same ids, and return what became of them; an ApplicationError says that none can be written."""
    places = asyncio.Semaphore(CONCURRENCY)
    async with _client(to, environment) as client:

        async def send(method: str, path: str, body: object) -> httpx2.Response:
            try:
                async with places:
                    response = await client.request(method, path, json=body)
            except httpx2.HTTPError as error:
                raise ApplicationError(f"{to} at {client.base_url.host} does not answer: {type(error).__name__}", type="Away") from None
            if response.status_code not in _OF_ONE_SCORE:
                raise_unless_taken(response, f"{to} at {client.base_url.host}")
                if not _is_answer(response):  # a page of a proxy, or of another program: nothing was taken
                    why = f"{to} at {client.base_url.host} gives no answer of its API; correct the address in the worker's environment"
                    raise ApplicationError(why, type="Away")
            return response

        refused = await (_to_langfuse if to == "langfuse" else _to_langsmith)(send, scores)
    return WriteBackReport(written=len(scores) - len(refused), problems=tuple(dict.fromkeys(refused))[:5])


def _client(to: Target, environment: Mapping[str, str]) -> httpx2.AsyncClient:
    """Return a client of the API that the worker's environment names, under the SDKs' own names."""

    def read(*names: str, default: str = "") -> str:
        if found := next((value for name in names if (value := environment.get(name, "").strip())), default):
            return found
        raise invalid(f"write-back to {to} needs the variable {names[0]} in the worker's environment; set it there")

    if to == "langfuse":
        public, secret = read("LANGFUSE_PUBLIC_KEY"), read("LANGFUSE_SECRET_KEY")
        url = read("LANGFUSE_BASE_URL", "LANGFUSE_HOST", default="https://cloud.langfuse.com")
        headers = {"authorization": f"Basic {base64.b64encode(f'{public}:{secret}'.encode()).decode()}"}
    else:
        secret, url = read("LANGSMITH_API_KEY"), read("LANGSMITH_ENDPOINT", default="https://api.smith.langchain.com")
        headers = {"x-api-key": secret} | ({"x-tenant-id": workspace} if (workspace := environment.get("LANGSMITH_WORKSPACE_ID")) else {})
    remember_secret(secret)
    if not url.startswith(("https://", "http://")) or "@" in url:
        raise invalid(f"write-back to {to}: its address in the worker's environment is not a URL; it begins with https://")
    hooks: dict[str, list[Callable[..., Any]]] = {"response": [bound_body]}
    return httpx2.AsyncClient(base_url=url, headers=headers | {"accept-encoding": "identity"}, timeout=SECONDS, event_hooks=hooks)


async def _to_langfuse(send: Send, scores: Sequence[TraceScore]) -> list[str]:
    """Post scores in lists, or one by one to a server that takes no list, and return why some are refused.

    Langfuse knows a score by its id and its time: one that is there keeps its time, so that it is changed and not doubled.
    """
    # A server that takes no list, or refuses a whole one for one of its scores, gets the scores one by one. So
    # the others are written, and each problem is named.
    refused = list[str]()
    for part in (scores[at : at + SENT] for at in range(0, len(scores), SENT)):
        there = await send("GET", f"api/public/v3/scores?limit={SENT}&id={','.join(str(score.id) for score in part)}", None)
        times = {one["id"]: one["timestamp"] for one in there.json()["data"]} if there.is_success else {}
        bodies = [_langfuse_body(score, times.get(str(score.id), score.time.isoformat())) for score in part]
        response = await send("POST", "api/public/scores", bodies)
        if response.status_code in _OF_ONE_SCORE:
            answers = await asyncio.gather(*(send("POST", "api/public/scores", body) for body in bodies))
            refused += [_why(answer) for answer in answers if not answer.is_success]
        elif response.status_code == HTTPStatus.MULTI_STATUS:
            refused += [shortened(one_line(str(error["message"])), 200) for error in response.json()["errors"]]
    return refused


def _langfuse_body(score: TraceScore, time: str) -> dict[str, object]:
    kind = "BOOLEAN" if isinstance(score.value, bool) else "CATEGORICAL" if isinstance(score.value, str) else "NUMERIC"
    about: dict[str, object] = {"id": str(score.id), "traceId": score.trace, "name": score.name, "timestamp": time}
    return about | {"dataType": kind, "value": score.value if kind == "CATEGORICAL" else float(score.value), "comment": score.reason}


async def _to_langsmith(send: Send, scores: Sequence[TraceScore]) -> list[str]:
    """Post scores one by one, or change those that are there, and return why some are refused."""

    async def post(score: TraceScore) -> httpx2.Response:
        said: dict[str, object] = {("value" if isinstance(score.value, str) else "score"): score.value, "comment": score.reason}
        about: dict[str, object] = {"id": str(score.id), "run_id": score.trace, "trace_id": score.trace, "key": score.name}
        about |= {"created_at": score.time.isoformat(), "feedback_source": {"type": "model"}}
        about |= {"session_id": score.session} if score.session else {}
        response = await send("POST", "feedback", about | said)
        return await send("PATCH", f"feedback/{score.id}", said) if response.status_code == HTTPStatus.CONFLICT else response

    return [_why(answer) for answer in await asyncio.gather(*map(post, scores)) if not answer.is_success]


def _is_answer(response: httpx2.Response) -> bool:
    """Return whether a success is JSON, with the list that Langfuse's answers of its status have."""
    try:
        found = response.json() if response.content else {}
    except ValueError:
        return False
    key = "errors" if response.status_code == HTTPStatus.MULTI_STATUS else "data" if response.request.method == "GET" else None
    return isinstance(found, dict) and (key is None or isinstance(found.get(key), list))


def _why(response: httpx2.Response) -> str:
    return shortened(one_line(f"{response.status_code} {response.text}"), 200)
