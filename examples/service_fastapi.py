"""A web service of graded answers: it starts a thread, streams its events (SSE), and gives the answer. Put your own login before it.

gradeloop dev                        # in another terminal: server, worker and UI
export TEMPORAL_ADDRESS=...          # as it prints
pip install fastapi uvicorn
python examples/service_fastapi.py anthropic:claude-haiku-4-5 8000
curl -d '{"question": "My new chain has snapped."}' -H 'content-type: application/json' 127.0.0.1:8000/threads
curl -N 127.0.0.1:8000/threads/ID/events
curl 127.0.0.1:8000/threads/ID/answer
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from gradeloop import GradingClient, InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound

RUBRIC = """
- the answer names a concrete next step for the customer
- it promises no refund
- it is at most 80 words long
"""

STATUS: dict[type[Exception], int] = {ThreadNotFound: 404, ThreadClosed: 409, InvalidRequest: 422, ServerUnreachable: 503}


class Asked(BaseModel):
    """What a customer asks."""

    question: str = Field(min_length=1, max_length=4_000)


class Started(BaseModel):
    """The thread that answers."""

    thread_id: str


class Answer(BaseModel):
    """What came of it: without an `answer`, the `status` says why."""

    status: str | None
    answer: str | None = None
    explanation: str = ""


def build_app(model: str) -> FastAPI:
    """Return the service, whose answers that model drafts and grades."""
    clients: list[GradingClient] = []

    @asynccontextmanager
    async def connected(_: FastAPI) -> AsyncIterator[None]:
        async with GradingClient.connect() as client:
            clients.append(client)
            yield

    app = FastAPI(title="Graded answers", lifespan=connected)

    @app.post("/threads", status_code=202)
    async def start(asked: Asked) -> Started:
        generator = {"model": model, "system_prompt": "You answer the customers of a bicycle shop."}
        messages = [{"role": "user", "content": asked.question}]
        request = {"messages": messages, "rubric": RUBRIC, "generator": generator, "grader": {"model": model}}
        return Started(thread_id=await clients[0].start(request))

    @app.get("/threads/{thread_id}/events")
    async def events(thread_id: str, last_event_id: Annotated[int, Header(ge=0)] = 0) -> StreamingResponse:
        await clients[0].state(thread_id)  # of no thread: 404, before the stream begins
        return StreamingResponse(stream(clients[0], thread_id, last_event_id), media_type="text/event-stream")

    @app.get("/threads/{thread_id}/answer")
    async def answer(thread_id: str, response: Response) -> Answer:
        result = await clients[0].last_result(thread_id)
        if result is None:
            response.status_code = 202
            return Answer(status="running")
        explanation = result.error or (result.evaluations[-1].explanation if result.evaluations else "")
        return Answer(status=result.status, answer=result.output if result.status == "satisfied" else None, explanation=explanation)

    async def refused(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, STATUS[type(error)])

    for kind in STATUS:
        app.add_exception_handler(kind, refused)
    return app


async def stream(client: GradingClient, thread_id: str, after: int) -> AsyncIterator[str]:
    """Yield each event once, with the text that it refers to; a browser that comes back goes on after the last one it has seen."""
    async for event in client.watch(thread_id, after=after, details=True, until="turn"):
        yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"
    yield "event: end\ndata: {}\n\n"  # an EventSource connects again after the end, unless its page closes it here


if __name__ == "__main__":
    uvicorn.run(build_app(sys.argv[1]), port=int(sys.argv[2]))
