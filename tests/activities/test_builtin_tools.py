"""The built-in tools: what each finds, what it refuses, and what it is bounded by."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from temporalio.client import Client

from activities.tools import file_tools
from activities.tools.base import Tool, ToolContext, tool_of
from activities.tools.registry import TOOLS, ToolRegistry, build_rows
from gradeloop.errors import InvalidRequest
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import local_code_sandbox
from gradeloop.settings.worker import WorkerSettings
from tests.rig.tables import over
from tests.rig.threads import draft, grade, request, serving, wants

FOR_EVER = 120.0
"""Seconds that no check takes, though the machine be busy; what is not bounded takes years."""


def tools(**settings: Any) -> dict[str, Tool]:
    """Return the built-in tools by name, under these settings."""
    offered, _ = build_rows(ToolContext(WorkerSettings(**settings), local_code_sandbox().choice()))
    return {tool.spec.name: tool for tool in map(tool_of, offered)}


async def called(name: str, arguments: dict[str, Any], text: str = "", **settings: Any) -> Any:
    """Call a tool as a model does."""
    return await tools(**settings)[name].run(arguments, text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("first\nSecond line é\n")
    (tmp_path / "in" / "deep" / "b.txt").write_text("second\n")
    (tmp_path / "in" / "binary").write_bytes(b"\x00\x01\x02")
    (tmp_path / "secret").write_text("canary")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "in" / "linked").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "in" / "pipe")
    return tmp_path


class TestFiles:
    async def test_a_file_is_read_listed_and_searched(self, root: Path) -> None:
        settings: dict[str, Any] = {"files": {"roots": {"docs": root / "in"}}}

        read = await called("read_file", {"path": "docs/a.txt"}, **settings)
        listed = await called("list_files", {}, **settings)
        found = await called("search_files", {"pattern": "(?i)second"}, **settings)

        assert read == {"path": "docs/a.txt", "bytes": 21, "text": "first\nSecond line é\n", "next_offset": None}
        assert [file["path"] for file in listed["files"]] == ["docs/a.txt", "docs/binary", "docs/deep/b.txt"]
        assert [(match["path"], match["line"]) for match in found["matches"]] == [("docs/a.txt", 2), ("docs/deep/b.txt", 1)]
        assert found["passed_over"] == "1 large or binary files"

    @over(
        ("path", "expected"),
        [
            ("docs/../secret", "leads out of its root"),
            ("/etc/passwd", "is under no root; paths begin with one of: docs"),
            ("secret", "is under no root"),
            ("", "is under no root"),
            ("docs/link", "it is or goes through a link"),
            ("docs/linked/secret", "it is or goes through a link"),
            ("docs/none", "No such file or directory"),
            ("docs/deep", "is not a file"),
            ("docs/pipe", "is not a file"),
            ("docs/a.txt/x", "Not a directory"),
            ("docs/a\0b", "leads out of its root"),
            ("docs/binary", "is binary \\(3 bytes, sha256 ae4b3280e56e2faf83f414a6e3dabe9d5fbe18976544c05fed121accb85b53fc\\)"),
        ],
    )
    async def test_what_is_no_file_under_a_root_is_refused(self, root: Path, path: str, expected: str) -> None:
        with pytest.raises(ValueError, match=expected):
            await called("read_file", {"path": path}, files={"roots": {"docs": root / "in"}})

    async def test_a_long_file_that_is_not_utf8_is_read_to_its_end(self, root: Path) -> None:
        (root / "in" / "latin.txt").write_bytes(b"\xb0" * 100_000)
        offset: int | None = 0
        stretches = 0
        while offset is not None and stretches < 5:
            outcome = await called("read_file", {"path": "docs/latin.txt", "offset": offset}, files={"roots": {"docs": root / "in"}})
            offset, stretches = outcome["next_offset"], stretches + 1
        assert (offset, stretches) == (None, 4)

    async def test_a_long_file_is_read_in_stretches_that_cut_no_character(self, root: Path) -> None:
        whole = "é" * 40_000
        (root / "in" / "long.txt").write_text(whole)
        parts, offset = [], 0
        while offset is not None:
            outcome = await called("read_file", {"path": "docs/long.txt", "offset": offset}, files={"roots": {"docs": root / "in"}})
            parts.append(outcome["text"])
            offset = outcome["next_offset"]

        assert "".join(parts) == whole
        assert len(parts) == 3

    async def test_an_offset_behind_the_end_is_refused(self, root: Path) -> None:
        with pytest.raises(ValueError, match="offset is 99; the file has 21 bytes"):
            await called("read_file", {"path": "docs/a.txt", "offset": 99}, files={"roots": {"docs": root / "in"}})

    async def test_a_great_many_files_and_matches_are_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_tools, "LISTED", 20)
        for number in range(30):
            (tmp_path / f"{number:02}.txt").write_text("x\n" * 10)

        listed = await called("list_files", {"path": "d"}, files={"roots": {"d": tmp_path}})
        found = await called("search_files", {"pattern": "x"}, files={"roots": {"d": tmp_path}})

        assert (len(listed["files"]), listed["more"]) == (20, True)
        assert (len(found["matches"]), found["more"]) == (200, True)

    async def test_a_pattern_that_would_hold_pythons_own_takes_no_time(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("a" * 100_000 + "!\n")
        began = time.monotonic()

        found = await called("search_files", {"pattern": "(a+)+$"}, files={"roots": {"d": tmp_path}})

        assert found["matches"] == []
        assert time.monotonic() - began < FOR_EVER


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def page(request: web.Request) -> web.StreamResponse:
    """Answer by the path."""
    where = request.path
    if where == "/html":
        html = "<html><head><title>Hours</title><script>alert(1)</script></head><body><p>Open   9 to <b>18</b></p></body></html>"
        return web.Response(text=html, content_type="text/html")
    if where == "/away":
        raise web.HTTPFound("http://example.com/")
    if where == "/round":
        raise web.HTTPFound("/round")
    if where == "/on":
        raise web.HTTPFound("/html")
    if where == "/picture":
        return web.Response(body=b"\x89PNG", content_type="image/png")
    if where == "/large":
        return web.Response(text="x" * 3_000_000)
    if where == "/slow":
        await asyncio.sleep(2)
    return web.Response(status=404)


@pytest.fixture
async def site() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{any:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "127.0.0.1", 0)
    await listening.start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


class TestFetchPage:
    def settings(self, site: str, **more: Any) -> dict[str, Any]:
        return {"fetch": {"hosts": [site, "*.example.com"], "networks": ["127.0.0.0/8"], **more}}

    async def test_a_page_comes_as_text_also_behind_a_redirection(self, site: str) -> None:
        outcome = await called("fetch_page", {"url": f"http://{site}/on"}, **self.settings(site))

        assert outcome == {"url": f"http://{site}/html", "status": 200, "text": "Hours\nOpen 9 to\n18"}

    @over(
        ("path", "expected"),
        [
            ("/away", "the host 'example.com' is not allowed; those that are: "),
            ("/round", "leads from page to page more than 5 times"),
            ("/picture", "is image/png, no text"),
            ("/none", "answers with 404"),
            ("/slow", "cannot be fetched: ReadTimeout"),
        ],
    )
    async def test_what_is_no_page_is_told(self, site: str, path: str, expected: str) -> None:
        with pytest.raises(ValueError, match=expected):
            await called("fetch_page", {"url": f"http://{site}{path}"}, **self.settings(site, seconds=1))

    async def test_a_large_page_is_cut(self, site: str) -> None:
        outcome = await called("fetch_page", {"url": f"http://{site}/large"}, **self.settings(site, max_kib=64))

        assert (len(outcome["text"]), outcome["cut_at_bytes"]) == (65_536, 65_536)

    @over(
        ("url", "expected"),
        [
            ("http://other.com/", "the host 'other.com' is not allowed"),
            ("http://example.com.evil.net/", "is not allowed"),
            ("http://evil.net/.example.com", "is not allowed"),
            ("http://127.0.0.1:1/", "the host '127.0.0.1:1' is not allowed"),
            ("file:///etc/passwd", "is not an address of a page"),
            ("gopher://a.example.com/", "is not an address of a page"),
            ("http://a.example.com@evil.net/", "is not an address of a page"),
            ("http://user:pass@a.example.com/", "is not an address of a page"),
            ("http://a.example.com:99999/", "is not an address"),
            ("a.example.com", "is not an address of a page"),
        ],
    )
    async def test_an_address_that_is_not_allowed_is_refused(self, site: str, url: str, expected: str) -> None:
        with pytest.raises(ValueError, match=expected):
            await called("fetch_page", {"url": url}, **self.settings(site))

    @over("address", ["169.254.169.254", "192.0.0.192", "::169.254.169.254", "64:ff9b:1::a9fe:a9fe", "fec0::1"])
    async def test_an_allowed_name_that_leads_into_a_private_network_is_refused(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def resolve(*_: object, **__: object) -> list[Any]:
            return [(2, 1, 6, "", (address, 80))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
        with pytest.raises(ValueError, match=r"not a public address; name its network in fetch\.networks if it is meant"):
            await called("fetch_page", {"url": "http://metadata.example.com/"}, fetch={"hosts": ["*.example.com"]})

    async def test_a_proxy_of_the_environment_is_not_asked(self, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

        assert (await called("fetch_page", {"url": f"http://{site}/html"}, **self.settings(site)))["status"] == 200


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["name"],
    "additionalProperties": False,
}


class TestJsonSchema:
    @over(
        ("text", "expected"),
        [
            ('{"name": "ann"}', None),
            ('Here:\n```json\n{"name": "ann"}\n```\n', None),
            ('{"name": "Ann"}', "$.name: 'Ann' does not match '^[a-z]+$'"),
            ("{}", "$: 'name' is a required property"),
            ('{"name": "ann", "x": 1}', "$.x: 'x' is not among the properties"),
            ("no JSON at all", "no JSON: Expecting value"),
            ('{"name": NaN}', "no JSON: NaN is not JSON"),
            ("[" * 100_000, "no JSON"),
            ("[" * 300 + "]" * 300, "the JSON is nested"),
            ("1" * 10_000, "no JSON: Exceeds the limit"),
        ],
    )
    async def test_a_draft_fits_or_it_is_told_where_not(self, text: str, expected: str | None) -> None:
        found = await called("json_schema_check", {"schema": SCHEMA}, text)

        assert found["ok"] is (expected is None)
        if expected:
            assert found["errors"][0].startswith(expected)

    @over(
        ("schema", "expected"),
        [
            ({"type": "strng"}, "the schema is none: "),
            ({"$ref": "http://127.0.0.1:1/x"}, "the schema refers to 'http://127.0.0.1:1/x', which is not in it"),
            ({"$ref": "file:///etc/passwd"}, "which is not in it"),
            ({"$ref": "#"}, "the schema refers to itself without end|more than 200000 steps"),
            ({"pattern": "(?=a)b"}, "is refused: .*RE2 has neither look-around nor back-references"),
            ({"patternProperties": {"^a": {}}, "unevaluatedProperties": False}, "both patternProperties and unevaluatedProperties"),
        ],
    )
    async def test_a_schema_that_is_none_is_the_schemas_mistake(self, schema: dict[str, Any], expected: str) -> None:
        with pytest.raises(ValueError, match=expected):
            await called("json_schema_check", {"schema": schema}, '"text"')

    @pytest.mark.slow
    async def test_a_schema_that_would_take_for_ever_is_given_up(self) -> None:
        levels: dict[str, Any] = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]} for n in range(40)}
        schema = {"$defs": levels | {"l40": {"type": "null"}}, "$ref": "#/$defs/l0"}
        began = time.monotonic()

        with pytest.raises(ValueError, match="the check takes more than 200000 steps"):
            await called("json_schema_check", {"schema": schema}, "1")
        assert time.monotonic() - began < FOR_EVER

    @over("keyword", ["pattern", "patternProperties", "additionalProperties"])
    async def test_no_pattern_holds_the_worker(self, keyword: str) -> None:
        evil, long = "(a+)+$", "a" * 50 + "!"
        schemas: dict[str, Any] = {
            "pattern": {"items": {"pattern": evil}},
            "patternProperties": {"items": {"patternProperties": {evil: {}}}},
            "additionalProperties": {"items": {"patternProperties": {evil: {}}, "additionalProperties": False}},
        }
        began = time.monotonic()
        await called("json_schema_check", {"schema": schemas[keyword]}, f'["{long}", {{"{long}": 1}}]')

        assert time.monotonic() - began < FOR_EVER

    @over(
        ("step", "text", "ok"),
        [
            (0.5, "1e400", False),
            (0.5, "-1e400", False),
            (2, "1e400", False),
            (0.5, "1" + "0" * 400, True),
            (0.3, "1" + "0" * 400, False),
            (3, "1" + "0" * 400, False),
            (1e-300, "1e300", True),
            (0.1, "0.3", True),
            (0.1, "0.35", False),
            (7, "21", True),
        ],
    )
    async def test_a_number_is_a_multiple_or_it_is_none(self, step: float, text: str, ok: bool) -> None:
        found = await called("json_schema_check", {"schema": {"multipleOf": step}}, text)

        assert found["ok"] is ok
        if not ok:
            assert "is not a multiple of" in found["errors"][0]

    async def test_a_long_array_of_unique_items_takes_no_time(self) -> None:
        began = time.monotonic()
        text = str(list(range(100_000)))

        assert (await called("json_schema_check", {"schema": {"uniqueItems": True}}, text))["ok"] is True
        assert (await called("json_schema_check", {"schema": {"uniqueItems": True}}, "[1, 2, 1]"))["ok"] is False
        assert time.monotonic() - began < FOR_EVER


class TestText:
    @over(
        ("arguments", "ok"),
        [
            ({"pattern": "spring"}, True),
            ({"pattern": "SPRING"}, False),
            ({"pattern": "(?i)SPRING"}, True),
            ({"pattern": "winter", "absent": True}, True),
            ({"pattern": "spring", "absent": True}, False),
            ({"pattern": "spring", "whole": True}, False),
            ({"pattern": "(?s).*spring.*", "whole": True}, True),
            ({"pattern": "^x = 1\\n$", "extract": "code"}, True),
        ],
    )
    async def test_a_pattern_is_found_or_not(self, arguments: dict[str, Any], ok: bool) -> None:
        assert (await called("regex_check", arguments, "it is spring\n```\nx = 1\n```\n"))["ok"] is ok

    @over("pattern", ["(", "(?=a)", "(a)\\1", "a{1001}", "x" * 10_001])
    async def test_a_pattern_that_is_none_is_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match="the pattern"):
            await called("regex_check", {"pattern": pattern}, "a")

    @over(
        ("arguments", "ok"), [({}, True), ({"maximum": 3}, True), ({"maximum": 2}, False), ({"minimum": 4}, False), ({"minimum": 3}, True)]
    )
    async def test_words_and_tokens_are_counted(self, arguments: dict[str, Any], ok: bool) -> None:
        assert await called("word_count", arguments, " one  two\nthree ") == {"ok": ok, "words": 3, **arguments}
        assert await called("count_tokens", arguments, "one two three") == {"ok": ok, "tokens": 3, **arguments}

    async def test_another_tokenizer_may_be_named(self) -> None:
        assert (await called("count_tokens", {"encoding": "cl100k_base"}, "Grüße"))["tokens"] == 3

    @pytest.mark.parametrize("arguments", [{"minimum": -1}, {"minimum": 5, "maximum": 4}])
    async def test_bounds_that_make_no_sense_are_refused(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="minimum"):
            await called("word_count", arguments, "x")


CHECKS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"tool": "word_count", "arguments": {"maximum": 3}}, "three words here", "words: 4; maximum: 3", "now there are four"),
    ({"tool": "regex_check", "arguments": {"pattern": "^Dear "}}, "Dear Ann", "found: null", "Hello Ann"),
    ({"tool": "json_schema_check", "arguments": {"schema": SCHEMA}}, '{"name": "ann"}', "'name' is a required property", "{}"),
    ({"tool": "text_check", "arguments": {"kind": "contains", "value": "5 days"}}, "in 5 days", "why: '5 days' is not in it", "soon"),
    ({"tool": "count_tokens", "arguments": {"maximum": 2}}, "one two", "tokens: 3; maximum: 2", "one two three"),
]


@pytest.mark.slow
@over(("check", "good", "gap", "bad"), CHECKS)
async def test_a_check_serves_as_a_criterion_without_a_model(client: Client, check: dict[str, Any], good: str, gap: str, bad: str) -> None:
    rubric = {"criteria": [{"id": "c1", "description": "it holds", "check": check}]}
    async with serving(client, draft(text=bad), draft(1, good)) as served:
        result = await served.run(request(rubric, grader=None))

    assert served.models.requests_of("grader") == []
    assert (result.status, result.iterations) == ("satisfied", 2)
    assert gap in (result.evaluations[0].criteria[0].gap or "")


@over(
    ("check", "expected"),
    [
        (
            {"tool": "regex_check"},
            "the tool 'regex_check' needs more than the draft; it needs pattern; a check takes it",
        ),
        (
            {"tool": "regex_check", "arguments": {"patern": "x", "pattern": "x"}},
            "the arguments of 'regex_check': patern: is not known here",
        ),
        (
            {"tool": "word_count", "arguments": {"maximum": "many"}},
            "the arguments of 'word_count': maximum: Input should be",
        ),
        ({"tool": "fetch_page"}, "the tool 'fetch_page' is not available on this worker: no host is allowed; name some as fetch.hosts"),
        ({"tool": "read_transcript"}, "unknown tool 'read_transcript'"),
    ],
)
async def test_a_check_that_cannot_be_is_refused_before_anybody_is_asked(client: Client, check: dict[str, Any], expected: str) -> None:
    async with serving(client, draft()) as served:
        refusal = await served.refusal(request({"criteria": [{"description": "x", "check": check}]}, grader=None))

    assert expected in refusal
    assert served.models.requests == []


async def test_a_grader_that_names_read_transcript_has_it_also_where_nothing_is_cut(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["read_transcript"]
    call = {"name": "read_transcript", "arguments": {"record": 1, "offset": 0}}
    async with serving(client, draft(text="the draft"), wants("grader", call), grade(step=1)) as served:
        await served.run(argument)
        argument["generator"]["tools"] = ["read_transcript"]
        refusal = await served.refusal(argument)

    assert '"text":"the draft"' in served.models.requests_of("grader")[1].messages[-1].content
    assert refusal == "generator.tools: read_transcript shows a grader what it judges; leave it out here"


def test_where_no_sandbox_holds_the_tools_that_need_one_are_refused_by_name() -> None:
    toolbox = ToolRegistry([], ToolContext(WorkerSettings(), SandboxChoice(None, None, None, ())))

    for name in ("run_python", "run_pytest"):
        with pytest.raises(InvalidRequest, match=f"the tool '{name}' is not available on this worker: no sandbox for programs works"):
            toolbox.refuse_unknown([name], "grader.tools")


def test_every_built_in_tool_is_offered_or_refused_with_a_cure() -> None:
    offered, refused = build_rows(ToolContext(WorkerSettings(), local_code_sandbox().choice()))

    assert {tool.__name__ for tool in offered} | set(refused) == set(TOOLS.rows)
    for name in ("run_command", "fetch_page", "read_file", "list_files", "search_files"):
        assert "gradeloop.toml" in refused[name]


async def test_a_tool_that_the_settings_mark_needs_approval() -> None:
    toolbox = ToolRegistry([], ToolContext(WorkerSettings(needs_approval=["word_count"]), local_code_sandbox().choice()))

    assert {tool.spec.name for tool in toolbox if tool.needs_approval} == {"word_count"}
    with pytest.raises(InvalidRequest, match="needs_approval: unknown tool 'nothing'"):
        ToolRegistry([], ToolContext(WorkerSettings(needs_approval=["nothing"]), local_code_sandbox().choice()))
