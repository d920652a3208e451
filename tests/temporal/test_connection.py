"""Finding a Temporal server, and saying in one sentence why there is none."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from gradeloop.contract.messages import Usage
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.temporal import connect as connect_module
from gradeloop.temporal.connect import Connection, connect, find, is_polled
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def one_line(error: pytest.ExceptionInfo[GradeloopError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
async def speaker() -> AsyncIterator[str]:
    """Return the address of a server that speaks, but not gRPC."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def write_profile(environment: Path) -> Callable[[str], int]:
    """Return what writes the file of Temporal's profiles."""
    return Path(os.environ["TEMPORAL_CONFIG_FILE"]).write_text


async def test_temporals_own_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "example.invalid:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "grading")

    assert await find() == Connection("example.invalid:7233", "grading", embedded=False)


async def test_a_profile_is_found_and_its_key_stays_out_of_sight(
    write_profile: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile('[profile.prod]\naddress = "cloud.invalid:7233"\nnamespace = "acme"\napi_key = "hush-hush"\n')
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")

    found = await find()

    assert (found.address, found.namespace, found.embedded) == ("cloud.invalid:7233", "acme", False)
    assert (found.options["api_key"], found.options["tls"]) == ("hush-hush", True)
    assert "hush" not in repr(found)


async def test_without_any_the_embedded_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stand_in() -> ServerInfo:
        return ServerInfo("127.0.0.1:4", "http://127.0.0.1:5", "a.invalid", 6, "today", "1")

    monkeypatch.setattr(connect_module, "ensure_server", stand_in)

    assert await find() == Connection("127.0.0.1:4", "default", embedded=True)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TEMPORAL_ADDRESS", "http://127.0.0.1:7233", r"address 'http://127.0.0.1:7233' is malformed; write host:port"),
        ("TEMPORAL_ADDRESS", "temporal", r"'temporal' is malformed; write host:port"),
        ("TEMPORAL_PROFILE", "nope", r"malformed: Profile 'nope' not found"),
        ("TEMPORAL_CONFIG_FILE", "/no/such.toml", r"TEMPORAL_CONFIG_FILE names '/no/such.toml', which does not exist"),
        ("TEMPORAL_TLS_CLIENT_CERT_PATH", "/no/such.pem", r"malformed: .*No such file or directory: '/no/such.pem'"),
        ("TEMPORAL_NAMESPACE", "acme", r"gives namespace 'acme' but no address; set TEMPORAL_ADDRESS"),
        ("TEMPORAL_API_KEY", "hush", r"gives api_key, tls but no address"),
    ],
)
async def test_a_configuration_that_cannot_be_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidRequest, match=sentence) as error:
        await find()
    assert "hush" not in one_line(error)


async def test_a_malformed_profile_is_said_without_quoting_it(write_profile: Callable[[str], int]) -> None:
    write_profile('[profile.default]\napi_key = "hush-hush\n')

    with pytest.raises(InvalidRequest, match=r"malformed: .*TOML parse error at line 2, column \d+; invalid basic string") as error:
        await find()
    assert "hush" not in one_line(error)


async def test_a_dead_port_is_said_fast_with_its_cure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    address = dead_address()
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    began = time.monotonic()

    with pytest.raises(ServerUnreachable, match=rf"answers at '{address}' \(connection refused\); .*TEMPORAL_ADDRESS.*unset") as error:
        await connect(await find())

    assert time.monotonic() - began < 5
    assert one_line(error)
    assert capfd.readouterr() == ("", "")


async def test_a_name_that_does_not_resolve_is_said() -> None:
    with pytest.raises(ServerUnreachable, match=r"at 'temporal\.invalid:7233' \(failed to lookup address"):
        await connect(Connection("temporal.invalid:7233", "default", embedded=False))


async def test_a_server_that_keeps_silent_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        with pytest.raises(ServerUnreachable, match=rf"answers at '{address}' within 1 s"):
            await connect(Connection(address, "default", embedded=False), seconds=0.6)
    assert capfd.readouterr() == ("", "")


async def test_a_server_that_is_no_temporal_is_said(speaker: str) -> None:
    with pytest.raises(ServerUnreachable, match=rf"No Temporal server answers at '{speaker}'") as error:
        await connect(Connection(speaker, "default", embedded=False))
    assert one_line(error)


async def test_an_unknown_namespace_is_said_with_the_command_that_creates_it(temporal_server: ServerInfo) -> None:
    with pytest.raises(ServerUnreachable, match=r"has no namespace 'acme'; create it \(temporal operator namespace create -n acme\)"):
        await connect(Connection(temporal_server.address, "acme", embedded=False))


async def test_an_embedded_server_that_is_gone_is_said_with_its_own_cure() -> None:
    with pytest.raises(ServerUnreachable, match=r"`gradeloop dev stop`"):
        await connect(Connection(dead_address(), "default", embedded=True))


async def test_a_client_carries_pydantic_models(client: Client) -> None:
    payloads = await client.data_converter.encode([Usage(calls=2)])

    assert await client.data_converter.decode(payloads, [Usage]) == [Usage(calls=2)]


async def test_a_server_that_is_gone_does_not_say_who_polls_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(tmp_path))
    server = await ensure_server()
    client = await connect(Connection(server.address, "default", embedded=True))
    before = await is_polled(client, "grading")
    await stop_server()

    assert not before
    with pytest.raises(ServerUnreachable, match=r"the server does not say who polls 'grading': .*; start it, then try again"):
        await is_polled(client, "grading")
