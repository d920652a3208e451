"""The command that serves agents by MCP."""

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradeloop.cli.commands import Grader, Scripted, Tools
from gradeloop.errors import InvalidRequest, installed
from gradeloop.files.rubric import require_files
from gradeloop.web.guard import open_socket

if TYPE_CHECKING:
    from gradeloop.integrations.agent_session import AgentSession

app = typer.Typer(rich_markup_mode=None)

TOKEN_VARIABLE = "GRADELOOP_MCP_TOKEN"  # noqa: S105 - a variable's name

SHORTEST_TOKEN = 16


@app.command()
def mcp(  # noqa: PLR0913 - one parameter a flag
    *,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP here instead of standard input and output.")] = None,
    root: Annotated[
        list[Path] | None, typer.Option("--root", metavar="FOLDER", help="Let agents name files below this folder; repeatable.")
    ] = None,
    grader: Grader = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Write the drafts of `revise` with this model.")] = None,
    max_calls: Annotated[int, typer.Option(min=1, metavar="N", help="Begin at most this many judgements and threads.")] = 200,
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Begin nothing more once this much is spent.")] = None,
    allow_decide: Annotated[bool, typer.Option("--allow-decide", help="Let agents decide criteria that wait for a person.")] = False,
    grant: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:NAME", help="Let rubrics of agents name this model, address, tool or queue; repeatable."),
    ] = None,
    tools: Tools = None,
    scripted: Scripted = None,
) -> None:
    """Serve agents by MCP: grade, revise, wait, explain."""
    cure = "`gradeloop mcp` needs the mcp package; install it with: pip install 'gradeloop[mcp]'"
    with installed(cure, "mcp", "mcp_types", "starlette", "uvicorn"):
        from gradeloop.integrations.agent_session import AgentSession, SessionLimits, SessionModels, require_model
        from gradeloop.integrations.mcp_server import serve_stdio
    if budget_usd is not None and not 0 < budget_usd < float("inf"):
        raise InvalidRequest(f"--budget-usd is {budget_usd!r}; write US dollars, more than 0")
    roots = tuple(root or ())
    if missing := next((folder for folder in roots if not folder.is_dir()), None):
        raise InvalidRequest(f"--root {str(missing)!r} is not a folder; name one that exists")
    models = SessionModels(
        grader=require_model(grader, "--grader") if grader else None,
        generator=require_model(model, "--model") if model else None,
        tools=require_files(tuple(tools or ()), "--tools"),
        scripted=require_files((scripted,), "--scripted")[0] if scripted else None,
    )
    limits = SessionLimits(max_calls=max_calls, budget_usd=budget_usd, roots=roots, allow_decide=allow_decide, grants=tuple(grant or ()))
    session = AgentSession(limits, models)
    if http is None:
        asyncio.run(serve_stdio(session))
    else:
        asyncio.run(_serve_http(session, http))


async def _serve_http(session: "AgentSession", http: str) -> None:
    """Serve HTTP until Ctrl-C; the token is the environment's, or a new one that is printed."""
    from gradeloop.integrations.mcp_server import serving_http

    token = os.environ.pop(TOKEN_VARIABLE, "").strip()  # a worker that is started from here has no use for it
    if token and len(token) < SHORTEST_TOKEN:
        raise InvalidRequest(f"{TOKEN_VARIABLE} has {len(token)} characters; use {SHORTEST_TOKEN} or more")
    made = "" if token else secrets.token_urlsafe(32)
    listening = open_socket(http, "--http")
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving_http(session, listening, token or made) as address:
        print(f"serving {address}", file=sys.stderr, flush=True)  # noqa: T201 - the command's output
        if made:
            print(f"token   {made}", file=sys.stderr, flush=True)  # noqa: T201 - the command's output
        await ended.wait()
