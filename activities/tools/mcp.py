"""The tools of MCP servers, as a worker's own."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import httpx2
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.tools.base import DIGITS, Tool, ToolUnavailable, require_package
from gradeloop.contract.provider import ToolSpec
from gradeloop.errors import InvalidRequest
from gradeloop.settings.secrets import SHORTEST, scrubbed
from gradeloop.settings.worker import McpSettings

if TYPE_CHECKING:
    from mcp import Client


LISTING_SECONDS = 20.0
"""The seconds that a server has to start and to list its tools."""

ATTEMPTS = 3
"""Attempts at a call that may be repeated, where the connection failed; an error of the tool itself is not retried."""

PAUSE_SECONDS = 0.5

RESULT_BYTES = 16 * 1024 * 1024
"""The largest result that is read; 64 KiB of it are kept."""

NAME_CHARACTERS = 64
DESCRIPTION_CHARACTERS = 8_000

OPERATION_META = "gradeloop/operation_id"
"""The name under which a call's own id is sent along, for servers that make a repeated call happen once."""

Call = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class McpServers:
    """The MCP servers of a worker, connected while it runs."""

    def __init__(self, settings: Mapping[str, McpSettings]) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._operations: dict[str, Call] = {}
        self.tools: list[Tool] = []
        self.refused: dict[str, str] = {}
        """The reasons why listed tools are not available, by their names here."""

    async def __aenter__(self) -> Self:
        """Connect, and read the servers' lists of tools."""
        if not self._settings:
            return self
        try:
            require_package("mcp")
        except ToolUnavailable as why:
            raise InvalidRequest(f"mcp: {why}") from None
        from temporalio.mcp import MCPPlugin

        plugin = MCPPlugin({name: _client_of(name, settings) for name, settings in self._settings.items()})
        # Its activities are not registered with the worker: they would let anybody call any tool, and answer with any size.
        self._operations = {_name_of(operation): operation for operation in plugin.activities or ()}  # type: ignore[union-attr]  # a list
        await self._stack.enter_async_context(plugin.run_context())  # type: ignore[misc]  # this plugin has one
        await asyncio.gather(*(self._load_tools(name, settings) for name, settings in self._settings.items()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _load_tools(self, server: str, settings: McpSettings) -> None:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                listed = await self._list_tools(server)
        except Exception as error:  # noqa: BLE001 - a server that does not answer takes nothing else of the worker with it
            cause = f"no answer within {LISTING_SECONDS:g} s" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            variables = [os.environ.get(name, "") for name in (*settings.headers.values(), *settings.environment)]
            cause = scrubbed(cause, {value for value in variables if len(value) >= SHORTEST})[:300]
            listed, why = {}, f"the MCP server {server!r} did not list its tools ({cause}); restart the worker when it does"
        else:
            why = ""
        for name in settings.tools:
            here = f"{server}__{name}"
            problem = why or _problem(server, name, listed.get(name), settings)
            if problem:
                self.refused[here] = problem
            else:
                self.tools.append(self._tool(here, server, name, listed[name], settings))

    async def _list_tools(self, server: str) -> dict[str, dict[str, Any]]:
        listing = await _call_with_retries(self._operations[f"temporalio.mcp.{server}.list-tools"], {}, ATTEMPTS)
        return {tool["name"]: tool for tool in listing["tools"]}

    def _tool(self, here: str, server: str, name: str, listed: dict[str, Any], settings: McpSettings) -> Tool:
        async def call(arguments: dict[str, Any], operation_id: str) -> str:
            request = {"name": name, "arguments": arguments, "meta": {OPERATION_META: operation_id}}
            operation = self._operations[f"temporalio.mcp.{server}.call-tool"]
            return _text_of(await _call_with_retries(operation, request, ATTEMPTS if tool.repeatable else 1))

        # A server may change a tool after the worker has read its list. It is looked at again before calls, so
        # that one that only read, and now writes, is refused.
        async def refresh() -> None:
            now = (await self._list_tools(server)).get(name)
            if problem := _problem(server, name, now, settings):
                raise LookupError(problem)
            tool.spec = _spec(here, now or {})

        writes = name in settings.writes
        repeatable = not writes or bool((listed.get("annotations") or {}).get("idempotent_hint"))
        tool = Tool(_spec(here, listed), call, None, takes_operation=True, repeatable=repeatable, refresh=refresh)
        return tool


def _client_of(name: str, settings: McpSettings) -> "Callable[[], Client]":
    def client() -> "Client":
        from mcp import Client, StdioServerParameters

        if settings.url is None:
            environment = {variable: os.environ[variable] for variable in settings.environment if variable in os.environ}
            parameters = StdioServerParameters(command=settings.command[0], args=list(settings.command[1:]), env=environment)
            return Client(parameters, read_timeout_seconds=settings.seconds)
        headers = {header: _value(name, variable) for header, variable in settings.headers.items()}
        return Client(_over_http(settings.url, headers, settings.seconds), read_timeout_seconds=settings.seconds)

    return client


@asynccontextmanager
async def _over_http(url: str, headers: dict[str, str], seconds: float) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(seconds), trust_env=False)
    async with http, streamable_http_client(url, http_client=http, max_sse_event_size=RESULT_BYTES) as streams:
        yield streams


def _value(server: str, variable: str) -> str:
    if variable not in os.environ:
        raise InvalidRequest(f"mcp.{server}.headers: the worker has no variable {scrubbed(variable)!r}; set it")
    return os.environ[variable]


def _name_of(operation: Any) -> str:  # noqa: ANN401 - an activity of the package's
    defined = activity._Definition.from_callable(operation)  # noqa: SLF001 - the SDK gives a name in no other way
    return str(defined.name) if defined else ""


# A tool that its server does not mark as read-only may change something. So it is called only if the worker's
# owner has listed it as one that writes. The mark is looked at again before calls, since servers change their
# tools.
def _problem(server: str, name: str, listed: dict[str, Any] | None, settings: McpSettings) -> str:
    """Return why a tool may not be called; empty where it may."""
    if listed is None:
        return f"the MCP server {server!r} has no tool {name!r}"
    reads = (listed.get("annotations") or {}).get("read_only_hint") is True
    if not reads and name not in settings.writes:
        return f"the MCP server {server!r} does not say that {name!r} only reads; list it in mcp.{server}.writes if it is meant"
    if len(f"{server}__{name}") > NAME_CHARACTERS:
        return f"the name {server}__{name} has more than {NAME_CHARACTERS} characters; shorten the server's"
    return ""


def _spec(here: str, listed: dict[str, Any]) -> ToolSpec:
    schema = listed.get("input_schema") or {}
    return ToolSpec(name=here, description=str(listed.get("description") or here)[:DESCRIPTION_CHARACTERS], parameters=schema)


async def _call_with_retries(operation: Call, request: dict[str, Any], attempts: int) -> dict[str, Any]:
    for attempt in range(1, attempts + 1):
        try:
            return await operation(request)
        except ApplicationError as error:
            if error.non_retryable or attempt == attempts:
                raise
            await asyncio.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable")


def _text_of(result: dict[str, Any]) -> str:
    """Return a tool's result as text; what is not text is named by kind, size and sha256.

    Raises:
        RuntimeError: The tool failed; the message is its own.
    """
    texts = [_block_text(block) for block in result.get("content") or ()]
    structured = result.get("structured_content")
    if structured is not None and not texts:
        texts = [json.dumps(structured, ensure_ascii=False)]
    text = "\n".join(texts)
    if result.get("is_error"):
        raise RuntimeError(text or "the tool failed without a message")
    return text


def _block_text(block: dict[str, Any]) -> str:
    resource = block.get("resource") or {}
    for text in (block.get("text"), resource.get("text")):
        if isinstance(text, str):
            return text
    raw = str(block.get("data") or resource.get("blob") or "")
    kind = block.get("mime_type") or resource.get("mime_type") or block.get("type")
    return f"[{kind}, {len(raw)} characters of base64, sha256 {hashlib.sha256(raw.encode()).hexdigest()[:DIGITS]}; not shown]"
