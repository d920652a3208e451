"""A page of what waits for a person: each draft with what was found in it, and Approve and Reject. It listens on this machine alone.

gradeloop dev                        # in another terminal: server, worker and UI
export TEMPORAL_ADDRESS=...          # as it prints
pip install starlette uvicorn
python examples/approval_page.py 8001 ada
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from gradeloop import GradingClient, InvalidRequest, ThreadClosed, ThreadNotFound
from gradeloop.client.waiting import WaitingThread

HEAD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Waiting</title>
<style>body{font:16px/1.5 sans-serif;max-width:45rem;margin:2rem auto;padding:0 1rem}
pre{white-space:pre-wrap;background:#8882;padding:1rem}</style>
"""


def hidden(**fields: object) -> str:
    """Return fields that a form sends unseen."""
    return "".join(f'<input type="hidden" name="{name}" value="{escape(str(value))}">' for name, value in fields.items())


def form(about: str, label: str) -> str:
    """Return the two buttons and the field for what is missing."""
    field = f'<input name="why" maxlength="2000" aria-label="What is missing: {escape(label)}" placeholder="what is missing">'
    yes, no = ('<button name="answer" value="yes">Approve</button>', '<button name="answer" value="no">Reject</button>')
    return f'<form method="post" action="/decide">{about}<p><b>{escape(label)}</b></p>{field} {yes} {no}</form>'


def card(waiting: WaitingThread) -> str:
    """Return what one thread asks; everything that a model or a person wrote is escaped."""
    title = f"<h2>{escape(waiting.task or waiting.thread_id)}</h2><p>since {waiting.since:%Y-%m-%d %H:%M} UTC</p>"
    asked = waiting.waiting_for
    if asked is None:
        return f"{title}<p>{escape(waiting.problem or '')}</p>"
    parts = [title]
    if asked.draft is not None:
        parts.append(f"<pre>{escape(asked.draft.text or 'The draft is too long to be shown here.')}</pre><ul>")
        parts += [f"<li>{'✓' if row.passed else '✗'} {escape(row.name)}: {escape(row.gap or row.reason)}</li>" for row in asked.draft.rows]
        parts.append("</ul>")
    place = {"thread": waiting.thread_id, "run": asked.grading_run_id, "iteration": asked.iteration}
    parts += [form(hidden(**place, criterion=one.id), one.name) for one in asked.criteria]
    parts += [form(hidden(**place, call=call.call), f"{call.tool} {call.arguments}") for call in asked.calls]
    return "".join(parts)


async def decide(client: GradingClient, fields: dict[str, str], by: str) -> None:
    """Pass a decision on; of a draft that is no longer the last one, it is refused."""
    thread, yes, why = fields["thread"], fields["answer"] == "yes", fields.get("why", "").strip()
    if "criterion" in fields:
        run, iteration = fields["run"], int(fields["iteration"])
        gap = None if yes else why or "A person rejected it."
        await client.decide(thread, fields["criterion"], yes, by=by, gap=gap, grading_run_id=run, iteration=iteration)
    elif yes:
        await client.approve(thread, fields["call"], by=by)
    else:
        await client.deny(thread, fields["call"], why=why or "A person denied it.", by=by)


def build_app(port: int, by: str) -> Starlette:
    """Return the page, on which everybody who reaches it decides in the name `by`."""
    clients: list[GradingClient] = []
    own = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}

    @asynccontextmanager
    async def connected(_: Starlette) -> AsyncIterator[None]:
        async with GradingClient.connect() as client:
            clients.append(client)
            yield

    async def page(request: Request) -> Response:
        if request.headers.get("host") not in own:  # a foreign name that leads here
            return PlainTextResponse("This page is not served under that name.", 403)
        cards = [card(waiting) for waiting in await clients[0].waiting()]
        return HTMLResponse(HEAD + f"<h1>{len(cards)} waiting</h1>" + ("".join(cards) or "<p>Nothing waits for you.</p>"))

    async def answer(request: Request) -> Response:
        origin = request.headers.get("origin", "").removeprefix("http://")
        if request.headers.get("host") not in own or origin not in own:  # a form on a foreign site
            return PlainTextResponse("Decide on the page itself.", 403)
        fields = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        try:
            await decide(clients[0], fields, by)
        except (InvalidRequest, ThreadClosed, ThreadNotFound) as error:
            return PlainTextResponse(f"{error}\nGo back and reload the page.", 409)
        return RedirectResponse("/", 303)

    return Starlette(routes=[Route("/", page), Route("/decide", answer, methods=["POST"])], lifespan=connected)


if __name__ == "__main__":
    uvicorn.run(build_app(int(sys.argv[1]), sys.argv[2]), port=int(sys.argv[1]))
