"""`gradeloop doctor`: what works here, which grader would judge and why, and whether the keys are good, without showing them."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.providers import WorkerExamination, examine
from activities.providers.environment import Environment
from gradeloop.admin.doctor import Finding, _check_default_grader, _read_examination, tables_finding
from gradeloop.settings.endpoints import EndpointSettings
from tests.rig.cli import CommandLine
from tests.rig.local_servers import LocalServer, serving

GOOD, BAD = "sk-canary-good-123", "sk-canary-bad-456"


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command."""
    return commands


def found(output: str) -> dict[str, dict[str, Any]]:
    """Return the findings by their subjects."""
    return {finding["subject"]: finding for finding in json.loads(output)}


@pytest.mark.slow
def test_without_a_key_everything_else_is_looked_at(gradeloop: CommandLine) -> None:
    done = gradeloop.alone("doctor", "--json")

    seen = found(done.out)
    assert done.code == 0, done.err
    machine = {name for name in seen if name.startswith("sandbox ")}
    works = {"server", "retention", "search attributes", "tables", "retired", "sandbox", "limits", "tools"}
    assert {name for name in seen if seen[name]["ok"]} - machine == works
    assert machine == {"sandbox monty", "sandbox bubblewrap", "sandbox landlock"}
    assert seen["sandbox"]["detail"].startswith("snippets monty, programs ")
    assert seen["tool fetch_page"]["detail"] == "no host is allowed; name some as fetch.hosts in gradeloop.toml"
    assert seen["retention"]["detail"] == "closed threads stay readable for 365 days"
    assert (seen["default grader"]["ok"], seen["default grader"]["detail"]) == (None, "none: no provider key is set")
    assert seen["keys"]["ok"] is None


def test_the_settings_in_force_are_shown_and_no_variables_value(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "gradeloop.toml").write_text(
        'needs_approval = ["word_count"]\n[files.roots]\nhere = "."\n[commands.count]\nargv = ["wc", "-w"]\n[sandbox]\nseconds = 3\n'
        '[mcp.shop]\nurl = "http://127.0.0.1:9/mcp"\ntools = ["look"]\nheaders = {authorization = "SHOP_TOKEN"}\n'
    )
    done = gradeloop("doctor", "--trust", "--json", SHOP_TOKEN="sk-canary", GRADELOOP_SANDBOX__USE="landlock")
    (gradeloop.folder / "gradeloop.toml").unlink()

    seen = found(done.out)
    assert seen["settings"]["detail"] == str(gradeloop.folder / "gradeloop.toml")
    assert seen["limits"]["detail"].startswith("use landlock, seconds 3.0, ")
    assert "word_count (needs approval)" in seen["tools"]["detail"]
    assert seen["roots"]["detail"] == f"here {gradeloop.folder}"
    assert seen["commands"]["detail"] == "count wc -w"
    assert "the MCP server 'shop' did not list its tools" in seen["tool shop__look"]["detail"]
    assert "sk-canary" not in done.out + done.err


CLONED = """
needs_approval = ["leak", "word_count"]
tools = ["tools.py"]
[files.roots]
home = "/"
[fetch]
hosts = ["evil.example.com"]
[commands.steal]
argv = ["sh", "-c", "touch {folder}/ran"]
[mcp.evil]
command = ["sh", "-c", "touch {folder}/ran"]
tools = ["leak"]
[sandbox]
seconds = 3
read_only = ["/root"]
"""


def test_a_cloned_folders_tools_commands_and_servers_are_not_run_until_it_is_trusted(gradeloop: CommandLine) -> None:
    folder = gradeloop.folder
    (folder / "tools.py").write_text("open('ran', 'w').close()\ndef leak() -> str:\n    'Leak.'\n    return 'x'\n")
    (folder / "gradeloop.toml").write_text(CLONED.format(folder=folder))
    try:
        seen = found(gradeloop("doctor", "--json").out)
        ran = (folder / "ran").exists()
        trusting = gradeloop("doctor", "--trust", "--json")
    finally:
        (folder / "gradeloop.toml").unlink()

    assert not ran
    assert seen["settings"]["ok"] is None
    assert seen["settings"]["detail"] == (
        f"{folder / 'gradeloop.toml'} is not trusted, so these of its settings do not count: "
        "tools, files, fetch, commands, mcp, sandbox.read_only"
    )
    assert seen["settings"]["cure"] == "read it, then run: gradeloop trust"
    assert seen["limits"]["detail"].startswith("use auto, seconds 3.0, ")
    assert "word_count (needs approval)" in seen["tools"]["detail"]
    assert not {"roots", "commands", "mcp", "hosts"} & set(seen)
    assert (folder / "ran").exists(), trusting


def test_settings_that_are_wrong_are_told_in_one_sentence(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "gradeloop.toml").write_text("[sandbox]\nsecond = 3\n")
    done = gradeloop("doctor", "--json")
    (gradeloop.folder / "gradeloop.toml").unlink()

    assert found(done.out)["worker"]["detail"].startswith("sandbox: unknown key 'second'. Did you mean 'seconds'?")


@pytest.mark.slow
def test_a_key_that_nobody_accepts_is_told_and_not_shown(gradeloop: CommandLine) -> None:
    variables = {"OPENAI_API_KEY": BAD, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "ANTHROPIC_API_KEY": "k"}
    done = gradeloop("doctor", **variables, ANTHROPIC_BASE_URL="http://127.0.0.1:9")

    assert done.code == 1
    assert "✓ default grader: openai:gpt-6-luna, because OPENAI_API_KEY is set; $0.1 in, $0.5 out a million tokens" in done.out
    assert "✗ key of openai: not checked: no answer from http://127.0.0.1:9/v1: APIConnectionError" in done.out
    assert "✗ key of anthropic: not checked: no answer from" in done.out
    assert BAD not in done.out + done.err


def test_a_server_that_does_not_answer_is_a_finding(gradeloop: CommandLine) -> None:
    done = gradeloop("doctor", "--json", TEMPORAL_ADDRESS="127.0.0.1:9")

    server = found(done.out)["server"]
    assert (done.code, server["ok"]) == (1, False)
    assert server["detail"].startswith("No Temporal server answers at '127.0.0.1:9'")


async def examined(*models: str, **more: str) -> WorkerExamination:
    """Examine keys at a server that knows one of them, and lists models."""
    listed = [{"id": name, "name": f"models/{name}", "type": "model", "object": "model"} for name in models]

    async def answer(request: web.Request) -> web.Response:
        sent = request.headers.get("authorization", "") + request.headers.get("x-goog-api-key", "")
        if GOOD not in sent:
            return web.json_response({"error": {"message": f"no such key: {sent}", "code": 401}}, status=401)
        return web.json_response({"data": listed, "models": listed, "has_more": False, "object": "list"})

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
    try:
        return await examine(Environment.read(places | more))
    finally:
        await server.close()


async def test_every_provider_is_asked_for_its_own_key() -> None:
    examination = await examined(ANTHROPIC_API_KEY=GOOD, OPENAI_API_KEY=BAD, GEMINI_API_KEY=GOOD)

    assert [(key.provider, key.verdict) for key in examination.keys] == [
        ("anthropic", "accepted"),
        ("openai", "refused"),
        ("google_genai", "accepted"),
    ]
    assert examination.keys[1].why == "AuthenticationError, HTTP 401, openai: no such key: Bearer [key]"


async def test_models_that_end_soon_and_models_without_a_price_are_named() -> None:
    examination = await examined("gpt-4", "gpt-6-luna", "gpt-99", "gpt-99-audio", "dall-e-9", OPENAI_API_KEY=GOOD)

    (key,) = examination.keys
    assert key.unpriced == ("gpt-99",)
    assert key.retiring == ("gpt-4 (2026-10-23)",)
    lines = {finding.subject: finding for finding in read_examination(examination)}
    assert lines["retired models"].detail == "openai lists models that it retires: gpt-4 (2026-10-23)"
    assert lines["missing prices"].detail == "openai lists models without a price: gpt-99"
    assert lines["missing prices"].cure == "add those that you use to the file that GRADELOOP_PRICES names"


def read_examination(examination: WorkerExamination) -> list[Finding]:
    """Return what doctor says of an examination's keys and tables."""
    evidence: dict[str, Any] = {name: [] for name in ("uncounted", "sandboxes", "replaced", "tools", "hosts")}
    evidence |= {name: {} for name in ("limits", "refused", "roots", "commands", "mcp")}
    evidence |= {"config": None, "chosen": {"snippets": None, "programs": None}, "concurrency": 1}
    return list(_read_examination(examination.model_dump(mode="json") | {"evidence": evidence}))


@pytest.mark.parametrize(
    ("day", "ok", "words"),
    [
        ("2026-11-23", True, "models as of 2026-11-22, prices as of 2026-11-22 (genai-prices 0.2."),
        ("2027-01-21", True, ", 2 rows of your own for models as of 2026-12-01"),
        ("2027-01-22", None, "; older than 60 days: models 61 days, prices 61 days"),
        ("2027-01-31", None, "; older than 60 days: models 70 days, prices 70 days, your models 61 days"),
    ],
)
def test_tables_of_more_than_sixty_days_are_named(day: str, ok: bool | None, words: str) -> None:
    report = {"models_as_of": "2026-11-22", "prices_as_of": "2026-11-22", "published_prices": "0.2.3", "own_models": 2}
    report |= {"own_models_as_of": "2026-12-01", "own_prices": 0, "own_prices_as_of": None}

    found = tables_finding(report, date.fromisoformat(day))

    assert found.ok == ok
    assert words in found.detail
    assert (found.cure is None) == (ok is True)


def test_every_default_grader_has_its_price_and_ones_own_table_counts(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "models.toml").write_text('as_of = 2026-01-01\n[[families]]\nprovider = "openai"\nmodels = "gpt-7.*"\n')
    done = gradeloop("doctor", "--json", GRADELOOP_MODELS=str(gradeloop.folder / "models.toml"))

    seen = found(done.out)
    rules = seen["default graders"]["detail"]
    assert "OPENAI_API_KEY: openai:gpt-6-luna ($0.1 in, $0.5 out a million tokens); " in rules
    assert "ANTHROPIC_API_KEY: anthropic:claude-haiku-5-5 ($0.1 in, $0.5 out a million tokens); " in rules
    assert "AZURE_OPENAI_DEPLOYMENT: openai_compatible:{AZURE_OPENAI_DEPLOYMENT} (its price is not known); " in rules
    assert rules.endswith("OPENROUTER_API_KEY: openrouter:anthropic/claude-haiku-5.5 ($0.1 in, $0.5 out a million tokens)")
    assert "GITHUB" not in rules
    assert "openai since 2026-10-23: gpt-4, gpt-4-1106-preview, gpt-4-turbo" in seen["retired"]["detail"]
    assert ", 1 row of your own for models as of 2026-01-01; older than 60 days: " in seen["tables"]["detail"]


def test_a_table_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.toml").write_text('[[families]]\nprovider = "openai"\nmodels = "("\n')
    monkeypatch.setenv("GRADELOOP_MODELS", str(tmp_path / "models.toml"))

    (finding,) = _check_default_grader()

    assert (finding.subject, finding.ok) == ("tables", False)
    assert "GRADELOOP_MODELS: " in finding.detail
    assert "families[0].models: '(' is not a regular expression" in finding.detail


async def test_a_key_that_is_not_set_is_not_asked_for() -> None:
    assert (await examined()).keys == ()


async def test_the_keys_of_endpoints_with_names_are_checked_at_their_addresses(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.path} {request.headers['authorization']}")
        return web.json_response([{"id": "m"}])  # a list, as some servers have it

    asked: list[str] = []
    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    (tmp_path / "key").write_text("key-of-the-house")
    tables = {
        "house": EndpointSettings(protocol="openai_chat", base_url=f"{url}/v1", key=str(tmp_path / "key")),
        "gate": EndpointSettings(protocol="anthropic", base_url=f"{url}/gate", key="NOBODYS_KEY"),
        "vllm": EndpointSettings(base_url=f"{url}/own"),
    }
    examination = await examine(Environment.read({}, tables))
    await server.close()

    found = {key.provider: (key.verdict, key.why) for key in examination.keys}
    assert found == {"house": ("accepted", None), "gate": ("not set", "NOBODYS_KEY has none"), "vllm": ("accepted", None)}
    assert {"/own/models Bearer EMPTY", "/v1/models Bearer key-of-the-house"} <= set(asked)
    assert {line.partition("/")[2][:3] for line in asked if "of-the-house" in line} == {"v1/", "inf"}


async def test_local_servers_that_answer_are_shown_with_what_is_known_of_them() -> None:
    several = {"data": [{"id": f"model-{at}", "owned_by": "library"} for at in range(7)]}
    async with serving(LocalServer()) as llamacpp, serving(LocalServer({"/v1/models": several})) as ollama:
        environ = {"OPENAI_BASE_URL": llamacpp.url, "OLLAMA_BASE_URL": ollama.url, "VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
        environ |= {f"{name}_BASE_URL": "http://127.0.0.1:9/v1" for name in ("LLAMACPP", "LMSTUDIO", "SGLANG", "TGI", "LITELLM")}
        examination = await examine(Environment.read(environ))

    shown = {finding.subject: finding.detail for finding in read_examination(examination) if finding.subject.startswith("server ")}
    said = "m; context of 2048 tokens; 3 slots; streams; a schema is enforced, with its bounds"
    names = ", ".join(f"model-{at}" for at in range(5))
    assert shown == {
        "server llamacpp": f"at {llamacpp.url}: {said}",
        "server ollama": f"at {ollama.url}: {names} and 2 more; streams; no schema was tried",
    }
    assert (len(llamacpp.chats), ollama.chats) == (1, [])
