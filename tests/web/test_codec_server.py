"""The codec server: it decrypts for whoever knows its token, for the pages of the UIs that were named, and says what it refuses."""

import asyncio
import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict
from playwright.async_api import Browser, expect
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.client import Client

from gradeloop.errors import ServerUnreachable
from gradeloop.temporal.codec import EncryptionCodec, KeyRing
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, free_port, server_command, server_environment, ui_command, unserved_host
from gradeloop.web import temporal_ui
from gradeloop.web.serving import serving_app
from gradeloop.web.temporal_ui import codec_application
from tests.rig.cli import CommandLine
from tests.rig.threads import a_thread, answering, request, serving

TOKEN = "the token of the tests"
UI = "http://127.0.0.1:8233"
CODEC = EncryptionCodec(KeyRing(lambda: {"k1": bytes(32)}, "the tests"))
PAYLOAD = Payload(metadata={"encoding": b"json/plain"}, data=b'"said"')


@asynccontextmanager
async def serving_codec() -> AsyncIterator[httpx2.AsyncClient]:
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    application = codec_application(CODEC, TOKEN, [UI], listening.getsockname()[1], any_host=False)
    async with serving_app(application, listening), httpx2.AsyncClient(base_url=address) as client:
        yield client


@pytest.fixture
async def served() -> AsyncIterator[httpx2.AsyncClient]:
    async with serving_codec() as client:
        yield client


def sent(*payloads: Payload) -> dict[str, Any]:
    return MessageToDict(Payloads(payloads=payloads))


@pytest.mark.parametrize("by_path", [True, False])
async def test_what_was_encrypted_is_decrypted_for_whoever_has_the_token(served: httpx2.AsyncClient, by_path: bool) -> None:
    prefix, headers = ("/" + TOKEN.replace(" ", "%20"), {}) if by_path else ("", {"authorization": f"Bearer {TOKEN}"})

    encoded = await served.post(f"{prefix}/encode", json=sent(PAYLOAD), headers=headers)
    decoded = await served.post(f"{prefix}/decode", json=encoded.json(), headers=headers | {"x-namespace": "default"})

    assert base64.b64decode(encoded.json()["payloads"][0]["metadata"]["encoding"]) == b"binary/encrypted"
    assert decoded.json() == sent(PAYLOAD)
    assert decoded.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/decode", "/wrong/decode", "/%00/decode"])
async def test_without_the_token_nothing_is_decrypted(served: httpx2.AsyncClient, path: str) -> None:
    answer = await served.post(path, json=sent(PAYLOAD))

    assert (answer.status_code, answer.json()["error"][:29]) == (403, "the token is missing or anoth")


async def test_pages_of_other_addresses_may_not_read_the_answers(served: httpx2.AsyncClient) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type,x-namespace"}

    ours = await served.options("/decode", headers=asks | {"origin": UI})
    other = await served.options("/decode", headers=asks | {"origin": "https://elsewhere.example"})

    assert (ours.status_code, ours.headers["access-control-allow-origin"]) == (200, UI)
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"payloads": 3}', b"\xff"])
async def test_a_body_that_is_none_is_a_sentence(served: httpx2.AsyncClient, body: bytes) -> None:
    answer = await served.post("/decode", content=body, headers={"authorization": f"Bearer {TOKEN}"})

    assert (answer.status_code, answer.json()["error"][:33]) == (400, "the body is not JSON of payloads;")


async def test_a_body_that_is_too_large_is_refused_before_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.web.temporal_ui.BODY_BYTES", 1000)

    async with serving_codec() as served:
        answer = await served.post("/decode", json=sent(Payload(data=bytes(2000))), headers={"authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 413


async def test_a_key_that_is_not_here_is_named(served: httpx2.AsyncClient) -> None:
    (other,) = await EncryptionCodec(KeyRing(lambda: {"k9": bytes(32)}, "others")).encode([PAYLOAD])

    answer = await served.post("/decode", json=sent(other), headers={"authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 400
    assert "encrypted with the key 'k9', which the tests does not have (k1)" in answer.json()["error"]


WRONG_FLAGS = (
    (["--address", "here"], "--address is 'here'; write HOST:PORT"),
    (["--address", "0.0.0.0:0"], "is open to others; set GRADELOOP_CODEC_TOKEN"),
    (["--address", "example.com:80"], "is open to others; set GRADELOOP_CODEC_TOKEN"),
    (["--address", "127.0.0.1:99999"], "--address is '127.0.0.1:99999'; write HOST:PORT"),
    (["--origin", "the ui"], "--origin is 'the ui'; write scheme and host"),
)


def test_a_flag_that_is_wrong_is_a_sentence(commands: CommandLine, tmp_path: Path, subtests: pytest.Subtests) -> None:
    keys = environment(tmp_path)["GRADELOOP_ENCRYPTION_KEYS"]
    for flags, why in WRONG_FLAGS:
        with subtests.test(why):
            run = commands.alone if "--origin" in flags else commands  # it is refused with its port open, which ends with the process
            done = run("codec", *flags, GRADELOOP_ENCRYPTION_KEYS=keys)

            assert (done.code, why in done.err, "Traceback" in done.err) == (2, True, False)


@pytest.mark.slow
def test_without_keys_the_command_names_the_variable(commands: CommandLine) -> None:
    done = commands.alone("codec", "--address", "127.0.0.1:0", GRADELOOP_ENCRYPTION_KEYS="")

    assert (done.code, "GRADELOOP_ENCRYPTION_KEYS is not set; name the file of keys" in done.err) == (2, True)


def command(*flags: str) -> list[str]:
    return [str(Path(sys.executable).parent / "gradeloop"), "codec", *flags]


def environment(folder: Path) -> dict[str, str]:
    keys = folder / "keys"
    keys.write_text(f"k1 {base64.b64encode(bytes(32)).decode()}\n")
    return {**os.environ, "GRADELOOP_ENCRYPTION_KEYS": str(keys), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[str, int, int]]:
    """Run the command, and yield its address with the token, and ports for a server and its UI."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    flags = ("--address", "127.0.0.1:0", "--origin", f"http://127.0.0.1:{ports[1]}")
    with subprocess.Popen(command(*flags), env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found.group(), ports[0], ports[1]
        process.terminate()
        assert process.wait(10) == 0


async def reached(connection: Connection) -> Client:
    """Return a client of a server that is still starting."""
    async with asyncio.timeout(240):
        while True:
            with suppress(ServerUnreachable):
                return await connect(connection)
            await asyncio.sleep(0.5)


@pytest.mark.slow
async def test_temporals_own_ui_shows_what_is_encrypted(
    running: tuple[str, int, int], browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec_url, port, ui_port = running
    monkeypatch.setenv("GRADELOOP_ENCRYPTION_KEYS", str(tmp_path / "keys"))
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(temporal_ui, "ui_command", lambda port: [*ui_command(port), "--ui-codec-endpoint", codec_url])
    info = ServerInfo(f"127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}", unserved_host(), 0, "")
    argv = server_command(folder, port, int(info.api.rpartition(":")[2]), info.api_host)
    server = await asyncio.create_subprocess_exec(*argv, env=server_environment(os.environ))
    try:
        client = await reached(Connection(f"127.0.0.1:{port}", "default", embedded=False))
        async with serving(client, models=answering()) as rig:
            thread = a_thread()
            await rig.client.result(await rig.client.start(request("- it names the osprey", idle_timeout=0), thread_id=thread))
        async with temporal_ui.serving_ui(info, socket.create_server(("127.0.0.1", ui_port))) as ui:
            page = await browser.new_page(viewport={"width": 1400, "height": 1000})
            await page.goto(f"{ui}/namespaces/default/workflows/{thread}")
            await expect(page.get_by_text("it names the osprey").first).to_be_visible(timeout=30_000)
            await page.close()
    finally:
        server.terminate()
        await server.wait()
