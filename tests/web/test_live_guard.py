"""Who may ask the live page for what: each way in which another site, or another process, tries to."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import httpx2
import pytest
from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.errors import InvalidRequest
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.web.app import new_token
from gradeloop.web.guard import BODY_BYTES, HEADERS, asked_port, listening
from tests.rig.pages import Browser, paged
from tests.rig.threads import a_thread, answering, serving, start

FOREIGN = "http://evil.example"


@pytest.fixture(scope="module")
async def browser(client: Client, temporal_server: ServerInfo, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Serve one page for all the tests here; no worker is needed to be refused."""
    connection = Connection(temporal_server.address, "default", embedded=False)
    async with paged(GradingClient(client), connection, tmp_path_factory.mktemp("guard")) as served:
        yield served


def words(answer: httpx2.Response) -> str:
    """Return what a refusal says."""
    return str(answer.json()["error"])


async def test_its_own_page_is_answered_by_either_name_of_this_machine(browser: Browser) -> None:
    here = await browser.get("/")
    by_name = await browser.get("/", Host=f"localhost:{browser.port}")

    assert (here.status_code, by_name.status_code) == (200, 200)


HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:1", "localhost.:{port}", "[::1]:{port}", ""]


async def test_a_name_that_was_rebound_to_this_machine_is_refused(browser: Browser, subtests: pytest.Subtests) -> None:
    for host in HOSTS:
        with subtests.test(host):
            got = await browser.get("/", Host=host.format(port=browser.port))
            said = await browser.say("/threads/x/interrupt", Host=host.format(port=browser.port))

            assert (got.status_code, said.status_code) == (421, 421)
            assert f"http://127.0.0.1:{browser.port}" in words(got)


async def test_a_form_of_another_site_is_refused(browser: Browser) -> None:
    form = {"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    answer = await browser.http.post(f"{browser.address}/threads/x/interrupt", data={"a": "b"}, headers=form)

    assert answer.status_code == 403
    assert "another site" in words(answer)


async def test_a_simple_request_without_a_preflight_is_refused(browser: Browser) -> None:
    headers = {"Content-Type": "text/plain", "X-Gradeloop-Token": browser.token}
    answer = await browser.http.post(f"{browser.address}/threads/x/interrupt", content=b"{}", headers=headers)
    form = await browser.http.post(f"{browser.address}/threads/x/interrupt", data={"a": "b"}, headers={"X-Gradeloop-Token": browser.token})

    assert (answer.status_code, form.status_code) == (415, 415)


ORIGINS = [FOREIGN, "null", "http://localhost:{port}", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://127.0.0.1"]


async def test_another_origin_is_refused_even_with_the_token(browser: Browser, subtests: pytest.Subtests) -> None:
    for origin in ORIGINS:
        with subtests.test(origin):
            answer = await browser.say("/threads/x/interrupt", Origin=origin.format(port=browser.port))

            assert answer.status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
async def test_a_request_that_a_browser_calls_another_sites_is_refused_even_with_the_token(browser: Browser, site: str) -> None:
    answer = await browser.say("/threads/x/interrupt", Sec_Fetch_Site=site)

    assert answer.status_code == 403


async def test_without_the_token_or_with_that_of_another_process_nothing_is_done(browser: Browser) -> None:
    none = await browser.http.post(f"{browser.address}/threads/x/interrupt", json={})
    empty = await browser.say("/threads/x/interrupt", X_Gradeloop_Token="")
    other = await browser.say("/threads/x/interrupt", X_Gradeloop_Token=new_token())
    twice = await browser.http.post(
        f"{browser.address}/threads/x/interrupt",
        json={},
        headers=[("X-Gradeloop-Token", browser.token), ("X-Gradeloop-Token", browser.token)],
    )

    assert [item.status_code for item in (none, empty, other, twice)] == [403, 403, 403, 403]
    assert "reload it" in words(other)


async def test_a_script_of_this_machine_that_read_the_page_may_speak_without_an_origin(browser: Browser) -> None:
    answer = await browser.http.post(f"{browser.address}/threads/x/interrupt", json={}, headers={"X-Gradeloop-Token": browser.token})

    assert answer.status_code == 404
    assert "no thread 'x'" in words(answer)


FETCHES = (
    ("navigate", "iframe"),
    ("navigate", "frame"),
    ("no-cors", "script"),
    ("no-cors", "image"),
    ("cors", "empty"),
    ("no-cors", "style"),
    ("navigate", "object"),
)


async def test_another_site_can_neither_frame_nor_load_nor_fetch_a_page(browser: Browser, subtests: pytest.Subtests) -> None:
    for site, (mode, dest) in product(("cross-site", "same-site"), FETCHES):
        with subtests.test(site=site, mode=mode, dest=dest):
            answer = await browser.get("/", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode, Sec_Fetch_Dest=dest)

            assert answer.status_code == 403
            assert browser.token not in answer.text


async def test_another_site_may_link_to_a_page(browser: Browser) -> None:
    answer = await browser.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document")

    assert answer.status_code == 200


async def test_other_methods_are_refused_and_no_preflight_is_granted(browser: Browser, subtests: pytest.Subtests) -> None:
    for method in ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]:
        with subtests.test(method):
            asked = {"Origin": FOREIGN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-gradeloop-token"}
            answer = await browser.http.request(method, f"{browser.address}/threads/x/interrupt", headers=asked)

            assert answer.status_code == 405
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_every_answer_has_the_headers_that_keep_it_to_itself(browser: Browser, subtests: pytest.Subtests) -> None:
    for path in ["/", "/?part=1", "/nowhere", "/threads/none", "/batches/none"]:
        with subtests.test(path):
            answers = [
                await browser.get(path),
                await browser.get(path, Host="evil.example"),
                await browser.say("/threads/x/interrupt", Origin=FOREIGN),
            ]

            for answer in answers:
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS
                assert "access-control-allow-origin" not in answer.headers
                assert "server" not in answer.headers


async def test_a_body_that_is_too_large_is_refused_whatever_it_says_of_its_length(browser: Browser) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES // 65536 + 2):
            yield b" " * 65536

    said = await browser.say("/threads/x/rubric", {"rubric": "x" * BODY_BYTES})
    fields = {"X-Gradeloop-Token": browser.token, "Content-Type": "application/json"}
    chunked = await browser.http.post(f"{browser.address}/threads/x/rubric", content=endless(), headers=fields)

    assert (said.status_code, chunked.status_code) == (413, 413)


async def test_what_is_no_json_object_is_refused_in_words(browser: Browser) -> None:
    fields = {"X-Gradeloop-Token": browser.token, "Content-Type": "application/json; charset=utf-8"}
    for body in (b"[]", b"{", b"\xff", b"[" * 100_000):
        answer = await browser.http.post(f"{browser.address}/threads/x/rubric", content=body, headers=fields)

        assert (answer.status_code, words(answer)) == (400, "the body is not a JSON object; send one")


async def test_two_hosts_or_none_at_all_are_refused(browser: Browser) -> None:
    own = f"Host: 127.0.0.1:{browser.port}\r\n"
    answers = [await raw(browser.port, f"GET / HTTP/1.1\r\n{hosts}\r\n") for hosts in ("", own + "Host: evil.example\r\n")]
    absolute = await raw(browser.port, f"GET http://evil.example/ HTTP/1.1\r\n{own}Connection: close\r\n\r\n")

    assert not [answer for answer in answers if b" 200 " in answer.partition(b"\r\n")[0]]
    assert absolute.startswith(b"HTTP/1.1 404 ")


async def test_a_refusal_reaches_a_client_whose_body_comes_later(browser: Browser) -> None:
    """A connection that is closed before its body was read is reset, and takes the answer with it."""
    own = f"Host: 127.0.0.1:{browser.port}\r\nContent-Type: application/json\r\n"
    head = f"POST /threads/x/interrupt HTTP/1.1\r\n{own}Content-Length: 100000\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    writer.write(head.encode())
    for _ in range(10):
        await asyncio.sleep(0.02)
        writer.write(b" " * 10_000)
        await writer.drain()
    async with asyncio.timeout(240):
        answer = await reader.read(200_000)
    writer.close()

    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_a_refusal_does_not_wait_for_a_body_that_never_comes(browser: Browser) -> None:
    own = f"Host: 127.0.0.1:{browser.port}\r\nContent-Type: application/json\r\n"
    answer = await raw(browser.port, f"POST /threads/x/interrupt HTTP/1.1\r\n{own}Content-Length: 5\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 403 ")


async def raw(port: int, request: str) -> bytes:
    """Send bytes as no client would, and return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    await writer.drain()
    async with asyncio.timeout(240):
        try:
            answer = await reader.read(200_000)
        finally:
            writer.close()
    return answer


async def test_a_refused_word_has_no_effect_and_the_same_one_from_the_page_has(
    client: Client, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    connection = Connection(temporal_server.address, "default", embedded=False)
    async with serving(client, models=answering()) as served, paged(served.client, connection, tmp_path) as browser:
        thread_id = a_thread()
        turn = await served.begun(thread_id, "generator", **start())
        refused = await browser.say(f"/threads/{thread_id}/interrupt", Origin=FOREIGN)
        still = (await served.client.state(thread_id)).status
        taken = await browser.say(f"/threads/{thread_id}/interrupt")
        result = await turn

    assert (refused.status_code, still) == (403, "running")
    assert (taken.status_code, taken.json(), result.status) == (200, {"ok": True}, "interrupted")


def test_the_page_listens_on_this_machine_alone() -> None:
    with listening(0) as found:
        host = found.getsockname()[0]

    assert host == "127.0.0.1"


def test_a_port_is_its_own_one_that_was_asked_for_or_any() -> None:
    with listening(0) as first:
        taken = first.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"GRADELOOP_PAGE_PORT is {taken}, a port that cannot be opened"):
            listening(taken)
        with listening(None) as one, listening(None) as two:
            ports = {taken, one.getsockname()[1], two.getsockname()[1]}

    assert len(ports) == 3
    assert asked_port({}) is None
    assert asked_port({"GRADELOOP_PAGE_PORT": " 8300 "}) == 8300


def test_what_is_no_port_is_refused_in_words(subtests: pytest.Subtests) -> None:
    for named in ["x", "-1", "65536", "8e3", "99999999999999999999", "²"]:
        said = pytest.raises(InvalidRequest, match=r"GRADELOOP_PAGE_PORT is .*; write a port from 1 to 65535")
        with subtests.test(named), said:
            asked_port({"GRADELOOP_PAGE_PORT": named})


async def test_the_token_stands_in_the_page_alone(browser: Browser) -> None:
    page, elsewhere = await browser.get("/"), await browser.part("/")

    assert browser.token in page.text
    assert browser.token not in elsewhere.text
    assert browser.token not in json.dumps(dict(page.headers))
