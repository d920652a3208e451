"""The SDK clients, over one connection pool: every argument explicit, so that nothing comes from variables that nobody read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from activities.providers.environment import Endpoint
from activities.providers.model import CONNECT_TIMEOUT, DEADLINE

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

IDLE_CONNECTIONS = 100
"""Connections kept open between calls; those in use are bounded by the worker's own slots for activities."""


class Clients:
    """Makes SDK clients that share a pool, and closes the pool."""

    def __init__(self, ambient_headers: frozenset[str]) -> None:
        self._ambient_headers = ambient_headers
        self._http: httpx2.AsyncClient | None = None

    def anthropic(self, endpoint: Endpoint) -> "AsyncAnthropic":
        """Return a client of the Messages API."""
        from anthropic import AsyncAnthropic, omit  # a second that only its users pay

        return AsyncAnthropic(
            api_key=endpoint.key,
            base_url=endpoint.base_url,
            webhook_key="",
            http_client=self._pool(),
            timeout=_timeout(),
            max_retries=0,
            default_headers=self._headers(endpoint, omit),  # type: ignore[arg-type]  # the SDK's own way to leave a header out
            open_telemetry=False,
        )

    def openai(self, endpoint: Endpoint) -> "AsyncOpenAI":
        """Return a client of the Chat Completions API."""
        from openai import AsyncOpenAI, omit  # half a second that only its users pay

        return AsyncOpenAI(
            api_key=endpoint.key,
            base_url=endpoint.base_url,
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            http_client=self._pool(),
            timeout=_timeout(),
            max_retries=0,
            default_headers={**self._headers(endpoint, omit), "OpenAI-Organization": omit, "OpenAI-Project": omit},  # type: ignore[dict-item]  # as above
        )

    async def aclose(self) -> None:
        """Close the connections; a later client opens a new pool."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    def _pool(self) -> "httpx2.AsyncClient":
        import httpx2  # with the SDKs

        if self._http is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS)
            self._http = httpx2.AsyncClient(timeout=_timeout(), limits=limits, follow_redirects=False)
        return self._http

    def _headers(self, endpoint: Endpoint, omit: object) -> Mapping[str, object]:
        """Leave out what `*_CUSTOM_HEADERS` would add to calls of any host, but for a pinned version of the protocol."""
        left_out = {name: omit for name in self._ambient_headers if name.lower() != "anthropic-version"}
        return {**left_out, "Authorization": f"Bearer {endpoint.key}"}


def _timeout() -> "httpx2.Timeout":
    import httpx2  # with the SDKs

    return httpx2.Timeout(DEADLINE, connect=CONNECT_TIMEOUT)
