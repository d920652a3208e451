"""Certificates and API keys that change on disk while a worker runs: the SDK reads them once, so the worker connects anew."""

import asyncio
import logging
from collections.abc import Callable

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError

from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import load_connect_config
from gradeloop.temporal.connect import CONNECT_SECONDS, Connection
from gradeloop.temporal.runtime import reconnect

LOOK_SECONDS = 10.0
"""The pause between two looks at the files: they are small, and a certificate is renewed hours before it ends."""

logger = logging.getLogger(__name__)


async def follow_credentials(client: Client, connection: Connection, moved: Callable[[], None], seconds: float = LOOK_SECONDS) -> None:
    """Connect the client anew whenever its certificates or its API key have changed; never returns.

    Calls in flight end on the connection that they began on. What cannot be read or does not connect is tried again: files are renewed
    one after the other.

    Args:
        client: What `connect` returned for the connection.
        connection: The server, and what it was connected with.
        moved: Has the client's worker use its new connection.
        seconds: The pause between two looks.
    """
    in_use, reported = connection.options, ""
    while True:
        await asyncio.sleep(seconds)
        try:
            found = _credentials()
            if found != in_use:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await reconnect(client, connection.address, moved, **{**found, "namespace": connection.namespace})
                in_use, reported = found, ""
                logger.info("connected to %s anew, with the credentials as they are now", connection.address)
        except (InvalidRequest, RuntimeError, ValueError, TimeoutError, RPCError) as error:
            if reported != (reported := type(error).__name__):  # said once, and not at every look
                logger.warning("the new credentials for %s cannot be used yet (%s); the last ones count", connection.address, error)


def _credentials() -> ClientConnectConfig:
    options = load_connect_config()
    options.pop("target_host", None)
    options.pop("namespace", None)
    return options
