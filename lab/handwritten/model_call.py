"""One request to a model, made by an activity: an attempt sends it once, and Temporal retries."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Literal, TypeVar

from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import EasyInputMessageParam, Response, ResponseInputParam, ResponseTextConfigParam
from pydantic import BaseModel, ConfigDict
from temporalio import activity
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.workflow import ActivityConfig

PAID_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=8),
)
"""Options of an activity that calls a model; a worker that is lost is missed by its heartbeats."""

HEARTBEAT_SECONDS = 2.0
"""A cancellation reaches an activity with the answer to a heartbeat."""

PERMANENT = frozenset({400, 401, 403, 404, 422})
"""Statuses of requests that fail in the same way when they are sent again."""


class Form(BaseModel):
    """An answer of a model: every key, and no other."""

    model_config = ConfigDict(extra="forbid")


Answer = TypeVar("Answer", bound=Form)


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["user", "assistant"]
    content: str


class Model:
    """Models behind OpenAI's Responses API.

    Args:
        client: Without retries of its own.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def write(self, model: str, messages: Sequence[Message]) -> str:
        """Return the model's next message.

        Raises:
            ApplicationError: The provider refuses the request, or the model gives no text.
        """
        asked: ResponseInputParam = [EasyInputMessageParam(role=message.role, content=message.content) for message in messages]
        async with attempt():
            return _text(await self._client.responses.create(model=model, input=asked, store=False))

    async def answer(self, model: str, instructions: str, question: str, form: type[Answer]) -> Answer:
        """Return the model's answer to a question, validated; an answer of another form is a failed attempt.

        Raises:
            ApplicationError: The provider refuses the request, or the model gives no answer.
            ValidationError: The answer has another form.
        """
        async with attempt():
            response = await self._client.responses.create(
                model=model, instructions=instructions, input=question, text=_format(form), store=False
            )
        return form.model_validate_json(_text(response))


@cache
def _format(form: type[Form]) -> ResponseTextConfigParam:
    """Return the strict schema of an answer, which `responses.parse` makes anew for every call: a millisecond."""
    schema = form.model_json_schema()
    return {"format": {"type": "json_schema", "name": form.__name__, "strict": True, "schema": schema}}


def _text(response: Response) -> str:
    if not response.output_text:
        raise ApplicationError(f"{response.model} gave no text, status {response.status}", type="NoText")
    return response.output_text


@asynccontextmanager
async def attempt() -> AsyncIterator[None]:
    """Send heartbeats while a request runs; a status of `PERMANENT` is not retried, and `Retry-After` is kept to."""
    beating = asyncio.create_task(_beat())
    try:
        yield
    except APIStatusError as error:
        after = error.response.headers.get("retry-after", "")
        raise ApplicationError(
            error.message,
            type=type(error).__name__,
            non_retryable=error.status_code in PERMANENT,
            next_retry_delay=timedelta(seconds=int(after)) if after.isdigit() else None,
        ) from error
    finally:
        beating.cancel()


async def _beat() -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        activity.heartbeat()
