"""The port that the live page listens on: the one that was asked for, else its own, else a free one."""

import os
import socket
from collections.abc import Mapping

from gradeloop.errors import InvalidRequest

VARIABLE = "GRADELOOP_PAGE_PORT"
HOST = "127.0.0.1"
DEFAULT = 8244
"""Beside Temporal's own 8233; always the same, so that a page that is open finds the next `gradeloop dev` again."""

_PORTS = 65536


def asked_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the port that the environment names; None where it names none.

    Raises:
        InvalidRequest: It is no port.
    """
    named = environment.get(VARIABLE, "").strip()
    if not named:
        return None
    if not named.isdecimal() or len(named) > len(str(_PORTS)) or int(named) >= _PORTS:
        raise InvalidRequest(f"{VARIABLE} is {named!r}; write a port from 1 to {_PORTS - 1}, or 0 for a free one")
    return int(named)


def listening(asked: int | None) -> socket.socket:
    """Return a socket that listens on this machine's own address alone.

    Raises:
        InvalidRequest: The port that was asked for is taken.
    """
    if asked is not None:
        try:
            return _bound(asked)
        except OSError as error:
            raise InvalidRequest(
                f"{VARIABLE} is {asked}, a port that cannot be opened ({error.strerror}); choose another, or unset it"
            ) from None
    try:
        return _bound(DEFAULT)
    except OSError:
        return _bound(0)


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is left of closed connections holds no port
        found.bind((HOST, port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found
