"""Langfuse and LangSmith as far as scores go: what is posted is kept as they keep it, and their SDKs read it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from aiohttp import web
from aiohttp.test_utils import TestServer

STAMP = "2026-01-01T00:00:00+00:00"


class ScoreServer:
    """Both services on a free port; the first answers may have other statuses."""

    def __init__(self, *statuses: int, takes_lists: bool = True) -> None:
        self.scores: dict[tuple[str, str], dict[str, Any]] = {}
        """Langfuse's by id and time."""
        self.feedback: dict[str, dict[str, Any]] = {}
        """LangSmith's by id."""
        self.headers: list[dict[str, str]] = []
        self.requests: list[str] = []
        self._statuses, self._takes_lists = list(statuses), takes_lists
        app = web.Application(middlewares=[self._first])
        app.router.add_post("/api/public/scores", self._post_scores)
        app.router.add_get("/api/public/v3/scores", self._get_scores)
        app.router.add_post("/feedback", self._post_feedback)
        app.router.add_patch("/feedback/{id}", self._patch_feedback)
        app.router.add_get("/feedback", self._get_feedback)
        app.router.add_get("/info", self._info)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        """Its address."""
        return str(self.server.make_url("")).rstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which both SDKs, and a worker, find it."""
        langfuse = {"LANGFUSE_BASE_URL": self.url, "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": f"sk-{uuid4()}"}
        return langfuse | {"LANGSMITH_ENDPOINT": self.url, "LANGSMITH_API_KEY": f"ls-{uuid4()}"}

    @web.middleware
    async def _first(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.requests.append(f"{request.method} {request.path}")
        if self._statuses and request.method != "GET":
            return web.Response(status=self._statuses.pop(0), text="not now")
        return await handler(request)  # type: ignore[no-any-return]

    async def _post_scores(self, request: web.Request) -> web.Response:
        body = await request.json()
        if isinstance(body, list) != self._takes_lists:
            return web.json_response({"message": "Invalid request data"}, status=400)
        errors = []
        for one in body if isinstance(body, list) else [body]:
            if one["traceId"].endswith("f" * 8):
                errors.append({"message": f"no trace {one['traceId']}"})
            else:
                self.scores[one["id"], one.get("timestamp", STAMP)] = one
        if errors and not self._takes_lists:
            return web.json_response(errors[0], status=400)
        answer = {"accepted": len(body) - len(errors), "rejected": len(errors), "errors": errors} if errors else {"message": "Accepted"}
        return web.json_response(answer, status=207 if errors else 202)

    async def _get_scores(self, request: web.Request) -> web.Response:
        ids, traces = (set(filter(None, request.query.get(name, "").split(","))) for name in ("id", "traceId"))
        rows = [one for one in self.scores.values() if (not ids or one["id"] in ids) and (not traces or one["traceId"] in traces)]
        about = {"projectId": "p", "source": "API", "environment": "default", "createdAt": STAMP, "updatedAt": STAMP}
        data = [
            about | one | {"value": bool(one["value"]) if one["dataType"] == "BOOLEAN" else one["value"]} | {"timestamp": time}
            for (_, time), one in self.scores.items()
            if one in rows
        ]
        return web.json_response({"data": data, "meta": {"limit": 100}})

    async def _post_feedback(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        if body["id"] in self.feedback:
            return web.json_response({"detail": "feedback exists"}, status=409)
        if body["run_id"].endswith("f" * 8):
            return web.json_response({"detail": "no such run"}, status=404)
        self.feedback[body["id"]] = body
        return web.json_response(body)

    async def _patch_feedback(self, request: web.Request) -> web.Response:
        self.feedback[request.match_info["id"]] |= json.loads(await request.text())
        return web.json_response({})

    async def _get_feedback(self, request: web.Request) -> web.Response:
        wanted = set(request.query.getall("run", []))
        rows = [one | {"created_at": STAMP, "modified_at": STAMP} for one in self.feedback.values() if one["run_id"] in wanted]
        return web.json_response(rows if request.query.get("offset", "0") == "0" else [])

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.0.1", "batch_ingest_config": {"use_multipart_endpoint": False}})


@asynccontextmanager
async def score_server(*statuses: int, takes_lists: bool = True) -> AsyncIterator[ScoreServer]:
    """Serve both services; the first answers to what is written have these statuses."""
    made = ScoreServer(*statuses, takes_lists=takes_lists)
    await made.server.start_server()
    try:
        yield made
    finally:
        await made.server.close()
