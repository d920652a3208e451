"""The server of the UI's files ends with the program that started it, however that ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

PROGRAM = """
import asyncio, socket, sys
import httpx2
from gradeloop.temporal.server import ServerInfo
from gradeloop.web import temporal_ui

SERVER = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
ports = []
def ui_command(port):
    ports.append(port)
    return [sys.executable, "-c", SERVER, str(port)]
temporal_ui.ui_command = ui_command

async def main():
    info = ServerInfo("127.0.0.1:1", "http://127.0.0.1:1", "nowhere.invalid", 1, "")
    async with temporal_ui.serving_ui(info, socket.create_server(("127.0.0.1", 0))) as address:
        async with httpx2.AsyncClient(trust_env=False, timeout=None) as http:
            await http.get(address)
        print(ports[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def is_served(port: int) -> bool:
    """Return whether somebody answers on a port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_the_server_of_the_files_ends_with_its_program(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        port = int(program.stdout.readline())
        assert is_served(port)

        if end == "closed":
            program.stdin.close()
        else:
            os.kill(program.pid, signal.SIGKILL)
        assert program.wait() == (0 if end == "closed" else -signal.SIGKILL)

        while is_served(port):
            time.sleep(0.05)
