"""Keys of endpoints: from a variable, from a file that may change at any moment, or a token of Entra ID's."""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gradeloop.contract.provider import ModelFault
from gradeloop.settings.secrets import environment_secrets, remember_secret

logger = logging.getLogger("gradeloop.providers")

KEY_BYTES = 64 * 1024
"""The largest file of a key: many times the longest token."""

RACY_SECONDS = 2.0
"""How old a file must be before its time and size alone say that it is the same: two writes within a tick of the clock look alike."""

AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
"""What a token is asked for: the inference of Azure OpenAI and Foundry."""

RENEW_SECONDS = 300.0
"""How long before its end a token is renewed, so that none ends on the way."""


class KeySource(Protocol):
    """Where an endpoint's key comes from."""

    @property
    def origin(self) -> str:
        """What to set or to correct where there is no key."""
        ...

    def current(self) -> str | None:
        """Return the key as it is now; None where there is none."""
        ...

    async def renew(self) -> None:
        """Fetch a key where one has to be fetched, before a call.

        Raises:
            ModelFault: None can be had.
        """
        ...

    def forget(self) -> None:
        """Read the key anew at its next use, since the endpoint refused it."""
        ...


class KeyVariable:
    """A key in a variable of the worker, read once."""

    def __init__(self, names: tuple[str, ...], environ: Mapping[str, str]) -> None:
        found = next((name for name in names if environ.get(name, "").strip()), None)
        self._key = environ[found].strip() if found else None
        self.origin = found or (f"{names[0]} (or {names[1]})" if len(names) > 1 else names[0] if names else "the key")
        if self._key and not environment_secrets(dict.fromkeys(names, self._key)):  # by its name it is no secret
            remember_secret(self._key)

    def current(self) -> str | None:
        """Return the variable's value."""
        return self._key

    async def renew(self) -> None:
        """Do nothing: a process's variables do not change."""

    def forget(self) -> None:
        """Do nothing, as above."""


class KeyFile:
    """A key in a file, which is read anew when the file changes; while it is away or empty, the last key counts."""

    def __init__(self, path: Path) -> None:
        self.origin = f"the key file {str(path)!r}"
        self._path = path
        self._key: str | None = None
        self._state: tuple[int, int, int] | None = None
        self._away = False

    def current(self) -> str | None:
        """Return the file's content, without the white space around it."""
        try:
            facts = self._path.stat()
            state = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if state == self._state:
                return self._key
            with self._path.open("rb") as content:
                text = content.read(KEY_BYTES).decode(errors="replace").strip()
        except OSError as error:
            if not self._away:
                logger.warning("%s cannot be read (%s)", self.origin, error.strerror)
            self._away, self._state = True, None
            return self._key
        self._away = False
        settled = time.time() - facts.st_mtime > RACY_SECONDS
        self._state = state if settled and text else None
        if text and text != self._key:
            if self._key is not None:
                logger.info("%s has another key now", self.origin)
            self._key = text
            remember_secret(text)
        return self._key

    async def renew(self) -> None:
        """Do nothing: `current` looks at the file."""

    def forget(self) -> None:
        """Read the file at the next use, whatever its time says."""
        self._state = None


class EntraToken:
    """Tokens of Entra ID, by whatever of this machine's credentials `azure-identity` finds first."""

    origin = "a credential for Entra ID (az login, a managed identity, or AZURE_CLIENT_ID and those beside it)"

    def __init__(self) -> None:
        self._credential: Any = None  # azure-identity's, which is there for Azure's users alone
        self._token: str | None = None
        self._ends = 0.0
        self._fetching = asyncio.Lock()

    def current(self) -> str | None:
        """Return the token that was fetched last."""
        return self._token

    async def renew(self) -> None:
        """Fetch a token where there is none, or where it ends soon.

        Raises:
            ModelFault: Of kind `auth` where no credential gives one; of kind `connection` where whoever gives it cannot be reached.
        """
        async with self._fetching:
            if self._token is None or time.time() > self._ends - RENEW_SECONDS:
                await self._fetch()

    async def _fetch(self) -> None:
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        try:
            token = await asyncio.to_thread(self._ask)
        except ClientAuthenticationError as error:
            raise ModelFault("auth", f"Entra ID gives no token: {error.message}") from None
        except ServiceRequestError as error:
            raise ModelFault("connection", f"Entra ID is not reached: {error.message}") from None
        self._token, self._ends = str(token.token), float(token.expires_on)
        remember_secret(self._token)

    def _ask(self) -> Any:  # noqa: ANN401 - as above
        if self._credential is None:
            from azure.identity import DefaultAzureCredential

            self._credential = DefaultAzureCredential(exclude_interactive_browser_credential=True)
        return self._credential.get_token(AZURE_SCOPE)

    def forget(self) -> None:
        """Fetch a token at the next use."""
        self._token = None
