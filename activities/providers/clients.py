"""The SDK clients, over one connection pool: every argument explicit, so that nothing comes from variables that nobody read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from activities.providers.environment import Endpoint
from activities.providers.model import CONNECT_TIMEOUT, IDLE_TIMEOUT, LONGEST

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from google.genai import Client
    from openai import AsyncOpenAI


class Clients:
    """Makes SDK clients that share a pool, and closes the pool."""

    def __init__(self, ambient_headers: frozenset[str]) -> None:
        self._ambient_headers = ambient_headers
        self._pools: dict[bool, httpx2.AsyncClient] = {}

    def anthropic(self, endpoint: Endpoint) -> "AsyncAnthropic":
        """Return a client of the Messages API."""
        from anthropic import AsyncAnthropic, omit  # a second that only its users pay

        return AsyncAnthropic(
            api_key=endpoint.key,
            base_url=endpoint.base_url,
            webhook_key="",
            http_client=self._pool(endpoint),
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
            http_client=self._pool(endpoint),
            timeout=_timeout(),
            max_retries=0,
            default_headers={**self._headers(endpoint, omit), "OpenAI-Organization": omit, "OpenAI-Project": omit},  # type: ignore[dict-item]  # as above
        )

    def google(self, endpoint: Endpoint) -> "Client":
        """Return a client of the Gemini API, of Vertex AI where the endpoint names a project."""
        from google.genai import Client, types  # a third of a second that only its users pay

        options = types.HttpOptions(
            base_url=endpoint.base_url if endpoint.named or not endpoint.project else None,
            api_version="v1",
            timeout=int(LONGEST * 1000),
            httpx_async_client=self._pool(endpoint),
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        if endpoint.project:
            return Client(vertexai=True, project=endpoint.project, location=endpoint.location, http_options=options)
        return Client(vertexai=False, api_key=endpoint.key, http_options=options)

    async def aclose(self) -> None:
        """Close the connections; a later client opens a new pool."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    def _pool(self, endpoint: Endpoint) -> "httpx2.AsyncClient":
        from activities.providers.transport import http_client  # with the SDKs

        if endpoint.guarded not in self._pools:
            self._pools[endpoint.guarded] = http_client(_timeout(), guarded=endpoint.guarded)
        return self._pools[endpoint.guarded]

    def _headers(self, endpoint: Endpoint, omit: object) -> Mapping[str, object]:
        """Leave out what `*_CUSTOM_HEADERS` would add to calls of any host, but for a pinned version of the protocol."""
        left_out = {name: omit for name in self._ambient_headers if name.lower() != "anthropic-version"}
        return {**left_out, "Authorization": f"Bearer {endpoint.key}"}


def _timeout() -> "httpx2.Timeout":
    import httpx2  # with the SDKs

    return httpx2.Timeout(LONGEST, read=IDLE_TIMEOUT, connect=CONNECT_TIMEOUT)
