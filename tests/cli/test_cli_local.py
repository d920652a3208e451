"""Model servers of this machine: what a command's own files name is called without a setting, and nothing else of loopback is."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from ruamel.yaml import YAML

from gradeloop.cli.dev import other_servers
from gradeloop.settings.endpoints import presets_by_name
from tests.rig.cli import CommandLine
from tests.rig.local_servers import LocalServer as Described
from tests.rig.local_servers import serving as describing

JUDGE = {
    "id": "r",
    "output_parsing_mode": "constrained_decoding",
    "rubric_text": "Say whether it is good.",
    "output_schema": {"type": "object", "properties": {"good": {"type": "boolean"}}},
}

CHECKED = {"criteria": [{"description": "It is short", "check": {"tool": "word_count", "arguments": {"maximum": 9}}}]}


class LocalServer:
    """A server of models on a port of its own, which keeps the paths that it was asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.listed: object = None
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_route("*", "/{path:.*}", self._other)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/v1"))

    async def _complete(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.paths.append(request.path)
        text = '{"good": true}' if "good" in json.dumps(body["messages"]) else "Bring it in."
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "c", "model": body["model"], "choices": [choice], "usage": usage})

    async def _other(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self.paths.append(request.path)
        elif request.path == "/v1/models":
            return web.json_response({"data": self.listed})
        return web.json_response({"error": {"message": "not here"}}, status=404)


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    served = LocalServer()
    await served.server.start_server()
    yield served
    await served.server.close()


async def run(gradeloop: CommandLine, name: str, text: dict[str, Any], *arguments: str, **variables: str) -> Any:
    """Write a file, and run a command with it."""
    (gradeloop.folder / name).write_text(json.dumps(text))
    return await asyncio.to_thread(gradeloop, *arguments, **variables)


def local(server: LocalServer, **config: Any) -> dict[str, Any]:
    return {"id": "openai_compatible:m", "config": {"base_url": server.url, "structured_output": True, **config}}


@pytest.mark.slow
async def test_promptfoos_address_of_a_local_server_works_as_it_is_written(gradeloop: CommandLine, server: LocalServer) -> None:
    config = {
        "prompts": ["My chain snapped."],
        "providers": [{"id": "openai:chat:m", "config": {"apiBaseUrl": server.url}}],
        "tests": [{"assert": [{"type": "contains", "value": "Bring it in"}]}],
    }
    done = await run(gradeloop, "promptfooconfig.yaml", config, "eval", "promptfooconfig.yaml", "--json")
    looked_at = await asyncio.to_thread(gradeloop, "eval", "promptfooconfig.yaml", "--check", "--json")

    assert done.code == 0, done.err
    assert set(server.paths) == {"/v1/chat/completions"}
    assert looked_at.code == 0, looked_at.err


@pytest.mark.slow
async def test_a_task_and_a_judge_may_name_a_local_server(gradeloop: CommandLine, server: LocalServer) -> None:
    task = {"prompt": "My chain snapped.", "generator": {"model": local(server)}}
    drafted = await run(gradeloop, "local.yaml", task, "run", "local.yaml", "--json")
    (gradeloop.folder / "run.txt").write_text("It is done.")
    judged = await run(gradeloop, "judge.yaml", JUDGE | {"judge_model": local(server)}, "judge", "judge.yaml", "run.txt", "--json")

    assert (drafted.code, drafted.result["output"]) == (0, "Bring it in."), drafted.err
    assert judged.code == 0, judged.err
    assert judged.result["output"] == {"good": True}


BOUND = {
    "id": "r",
    "rubric_text": "Say whether it is good.",
    "output_parsing_mode": "constrained_decoding",
    "output_schema": {"type": "object", "properties": {"good": {"type": "string", "enum": ["yes", "no"]}}},
}


@pytest.mark.parametrize("store", ["--store", "--no-store"])
async def test_a_judge_that_needs_a_schema_is_served_where_the_server_turns_out_to_enforce_one(gradeloop: CommandLine, store: str) -> None:
    (gradeloop.folder / "run.txt").write_text(f"It is done, {store}.")
    given = ("judge", "bound.yaml", "run.txt", "--json", store)
    async with (
        describing(Described()) as bound,
        describing(Described(schemas="ignored")) as loose,
        describing(Described(status=401)) as away,
    ):
        models = [{"id": "openai_compatible:m", "config": {"base_url": server.url}} for server in (bound, loose, away)]
        served, refused, fallen_back = [
            await run(gradeloop, "bound.yaml", BOUND | {"judge_model": model}, *given, GRADELOOP_PROBE="on")
            for model in (*models[:2], models[2] | {"fallback": [models[0]]})
        ]

    assert served.result["output"] == fallen_back.result["output"] == {"good": "yes"}, served.err + fallen_back.err
    assert "keeps no JSON Schema, as output_parsing_mode CONSTRAINED_DECODING needs" in refused.out + refused.err


@pytest.mark.slow
async def test_what_a_file_names_opens_nothing_else_of_this_machine(
    gradeloop: CommandLine, server: LocalServer, subtests: pytest.Subtests
) -> None:
    root = server.url.removesuffix("/v1")
    named = [{"id": "openai_compatible:m", "config": {"base_url": url}} for url in (server.url, root)]
    others = [
        {"id": "http_request:POST", "config": {"base_url": f"{root}/v1/images/create"}},
        {"id": "openai_compatible:m", "config": {"base_url": f"{root}/v1,https://*"}},
        {"id": "openai_compatible:m", "config": {"base_url": "http://127.0.0.2:9/v1"}},
        {"id": "openai_compatible:m", "config": {"base_url": "http://10.0.0.7/v1"}},
        {"id": "openai_compatible:m", "config": {"base_url": "http://localhost.example/v1"}},
        {"id": "openai_compatible:m", "config": {"base_url": f"{root}/a/../v1"}},
    ]
    for other in others:
        with subtests.test(other=other):
            suite = {
                "prompts": ["a"],
                "generators": [{"model": model, "label": str(at)} for at, model in enumerate((*named, other))],
                "rubric": CHECKED,
            }
            done = await run(gradeloop, "suite.yaml", suite | {"tests": [{"id": "t"}]}, "eval", "suite.yaml")

            assert done.code == 2, done.err
            assert "is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS" in done.err
    assert server.paths == []


LISTED = [{"id": "nomic-embed-text"}, {"id": "x\n# y: [1"}, {"id": "qwen3:8b"}, {"id": "llama3.2"}]


def quiet(**variables: str) -> dict[str, str]:
    """Return variables that lead to no server of models on this machine, but for those that are given."""
    local = {name for preset in presets_by_name().values() if preset.keyless for name in preset.variables if name.endswith("_BASE_URL")}
    return dict.fromkeys(local, "http://127.0.0.1:9/v1") | variables


MODELS: list[tuple[str, str, str, Any]] = [
    ("task", "OLLAMA_BASE_URL", "ollama:qwen3:8b", lambda made: (made["generator"]["model"], made["grader"]["model"])),
    ("suite", "VLLM_BASE_URL", "vllm:qwen3:8b", lambda made: (made["generators"][0], made["grader"])),
    ("judge", "OPENAI_BASE_URL", "openai_compatible:qwen3:8b", lambda made: (made["grader"]["model"],)),
]


@pytest.mark.parametrize(("kind", "variable", "model", "models"), MODELS, ids=[row[0] for row in MODELS])
async def test_init_writes_a_model_of_this_machine_where_no_key_is_set_and_says_so(
    gradeloop: CommandLine, server: LocalServer, kind: str, variable: str, model: str, models: Any
) -> None:
    server.listed = LISTED
    name = f"{kind}-{variable}.yaml"
    wrote = await asyncio.to_thread(gradeloop, "init", "--kind", kind, name, **quiet(**{variable: server.url}))
    checked = await asyncio.to_thread(gradeloop, "validate", name, **quiet(**{variable: server.url}))

    assert set(models(YAML(typ="safe").load(gradeloop.folder / name))) == {model}
    assert f"found at {server.url}: {model}, {model.replace('qwen3:8b', 'llama3.2')}\n" in wrote.out
    assert f"no provider's key is set, so it uses {model}" in wrote.out
    assert checked.code == 0, checked.err


@pytest.mark.slow
async def test_init_prefers_no_model_of_this_machine_to_a_key_that_is_set(gradeloop: CommandLine, server: LocalServer) -> None:
    server.listed = LISTED
    wrote = await asyncio.to_thread(gradeloop, "init", "keyed.yaml", **quiet(OLLAMA_BASE_URL=server.url, ANTHROPIC_API_KEY="k"))
    text = (gradeloop.folder / "keyed.yaml").read_text()

    assert "ANTHROPIC_API_KEY is set, so it uses anthropic:claude-haiku-5-5; a comment has ollama:qwen3:8b" in wrote.out
    assert not {"generator", "grader"} & set(YAML(typ="safe").load(text))
    assert f'# grader: {{model: "ollama:qwen3:8b"}}  # at {server.url}' in text


async def test_without_a_key_and_a_server_init_says_what_is_needed_first(gradeloop: CommandLine) -> None:
    wrote = await asyncio.to_thread(gradeloop, "init", "needy.yaml", **quiet())

    assert "no provider's key is set, and no model server answers on this machine. Before it runs: name a model with --model, " in wrote.out
    assert "OPENAI_API_KEY" in wrote.out
    assert wrote.out.endswith("; then run it with: gradeloop run needy.yaml\n")


async def test_doctor_names_the_servers_of_this_machine_that_answer(
    gradeloop: CommandLine, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.listed = LISTED
    answers = await asyncio.to_thread(gradeloop, "doctor", **quiet(OLLAMA_BASE_URL=server.url))
    silent = await asyncio.to_thread(gradeloop, "doctor", **quiet())
    monkeypatch.setattr("gradeloop.cli.dev.find_spec", lambda _: None)
    (found,) = other_servers({"http://127.0.0.1:8000/v1": ["vllm:m"]}, [])

    assert f"at {server.url}: " in answers.out
    assert "none answers on this machine" not in answers.out
    assert "none answers on this machine: http://127.0.0.1:9/" in silent.out
    assert (found.detail, found.cure) == (
        "answers at http://127.0.0.1:8000/v1: vllm:m",
        "pip install 'gradeloop[openai]', by which its models are called",
    )


HOSTILE: list[object] = [[{"id": "x\n# y"}], "models", [7], [{"name": "m"}], None, [{"id": "m" * 2_000_000}]]


@pytest.mark.slow
async def test_init_takes_nothing_odd_from_a_server(gradeloop: CommandLine, server: LocalServer, subtests: pytest.Subtests) -> None:
    plain = await asyncio.to_thread(gradeloop, "init", "plain.yaml", **quiet())
    for at, listed in enumerate(HOSTILE):
        with subtests.test(listed=str(listed)[:40]):
            server.listed = listed
            wrote = await asyncio.to_thread(gradeloop, "init", f"odd{at}.yaml", **quiet(LLAMACPP_BASE_URL=server.url))

            assert wrote.out == plain.out.replace("plain.yaml", f"odd{at}.yaml"), wrote.err
            assert (gradeloop.folder / f"odd{at}.yaml").read_text() == (gradeloop.folder / "plain.yaml").read_text()
