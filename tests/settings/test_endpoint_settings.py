"""Endpoints in a worker's settings: file, variable, trust, and mistakes by their place, without a key in the message."""

import json
from pathlib import Path

import pytest

from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import ThreadRequest
from gradeloop.errors import InvalidRequest
from gradeloop.settings.catalog import capability_of
from gradeloop.settings.endpoints import (
    CallCeilings,
    declare_endpoints,
    endpoint_ceilings,
    find_replies,
    listed_model,
    named_endpoints,
    own_names,
    refuse_unservable,
)
from gradeloop.settings.trust import find_config_file, trust
from gradeloop.settings.worker import load_settings
from gradeloop.temporal.connect import Connection, WorkerSpec

TABLE = """
[providers.house]
protocol = "openai_chat"
base_url = "http://10.0.0.7:8000/v1"
key = "./secrets/house"
headers = { x-team = "graders" }
limits = { requests_per_minute = 600, concurrency = 20 }

[providers.azure]
base_url = "https://ours.openai.azure.com"
key = "entra"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, whose settings name endpoints."""
    monkeypatch.setattr("gradeloop.settings.endpoints._declared", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradeloop.toml").write_text(TABLE)
    return tmp_path


def test_a_file_and_a_variable_name_endpoints_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"house": {"headers": {"x-more": "1"}}, "gate": {"protocol": "anthropic", "base_url": "https://gate.example", "key": "GATE"}}
    monkeypatch.setenv("GRADELOOP_PROVIDERS", json.dumps(other))
    monkeypatch.setenv("GRADELOOP_PROVIDERS__HOUSE__LIMITS__CONCURRENCY", "5")

    providers = load_settings(["--config", "gradeloop.toml"]).providers

    assert set(providers) == {"house", "azure", "gate"}
    assert providers["house"].key == str(folder / "./secrets/house")
    assert providers["house"].headers == {"x-team": "graders", "x-more": "1"}
    assert (providers["house"].limits.requests_per_minute, providers["house"].limits.concurrency) == (600, 5)
    assert named_endpoints(providers)["azure"].keys == ("AZURE_OPENAI_API_KEY",)
    assert endpoint_ceilings(providers) == {"house": CallCeilings(requests_per_minute=600, concurrency=5)}


def test_endpoints_of_a_folder_count_once_it_is_trusted(folder: Path) -> None:
    assert (load_settings([]).providers, load_settings([]).uncounted) == ({}, ("providers",))
    assert own_names({}, find_config_file((), {})) == frozenset()

    trust(folder / "gradeloop.toml")

    assert set(load_settings([]).providers) == {"house", "azure"}
    assert own_names({}, find_config_file((), {})) == {"house", "azure"}
    assert own_names({"GRADELOOP_SCRIPTED": "replies.yaml"}, find_config_file((), {})) == {"house", "azure", "scripted"}


def test_the_file_of_replies_is_that_of_the_variable_else_that_of_the_trusted_settings(folder: Path) -> None:
    settings = folder / "gradeloop.toml"
    settings.write_text('scripted = "replies.yaml"')
    assert find_replies({}, find_config_file((), {})) is None

    file = trust(settings)

    assert find_replies({}, file) == folder / "replies.yaml"
    assert own_names({}, file) == {"scripted"}
    assert find_replies({"GRADELOOP_SCRIPTED": "other.yaml"}, file) == Path("other.yaml")
    assert find_replies({}, None) is None


def test_a_worker_with_other_replies_serves_another_queue(folder: Path) -> None:
    (folder / "gradeloop.toml").write_text('scripted = "replies.yaml"')
    server, queues = Connection("127.0.0.1:7233", "default", embedded=False), set[str]()
    for text in ("replies: []", "replies: [{role: generator, text: a}]"):
        (folder / "replies.yaml").write_text(text)
        queues.add(WorkerSpec(config=trust(folder / "gradeloop.toml")).task_queue(server))

    assert len(queues) == 2


def test_a_mistake_is_told_by_its_place_and_shows_no_key(folder: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ('[providers.x]\nbase_url = "http://h"\n', "providers: x: protocol is missing; give protocol and base_url, or a preset."),
        ('[providers.x]\nprotocol = "openai_chat"\n', "providers: x: base_url is missing"),
        ('[providers.x]\nprotocol = "chat"\nbase_url = "http://h"\n', "providers.x.protocol: Input should be 'anthropic', 'openai_resp"),
        ('[providers.x]\npreset = "gorq"\n', "providers.x.preset: there is no preset 'gorq'. Did you mean 'groq'?"),
        ('[providers.X]\npreset = "groq"\n', "providers: 'X' is not a name for an endpoint; write small letters"),
        ('[providers.scripted]\npreset = "groq"\n', "providers: 'scripted' is not a name for an endpoint"),
        ('[providers.groq]\nkey = "gsk_live-canary"\n', "providers.groq.key: this is neither a variable's name in capital letters nor"),
        ('[providers.groq]\nkey = "entra"\n', "providers: groq: key 'entra' is for Azure"),
        ('[providers.groq]\nheaders = { Host = "x" }\n', "providers.groq.headers: 'Host' is not a header that an endpoint may set"),
        ('[providers.groq]\nheaders = { "x-a" = "é-canary" }\n', "providers.groq.headers: the value of x-a has a character"),
        ('[providers.groq]\nbody = { model = "m" }\n', "providers.groq.body: 'model' is not for an endpoint to set; leave it out"),
        ("[providers.groq]\nlimits = { rpm = 3 }\n", "providers.groq.limits: unknown key 'rpm'."),
        ('[providers.groq]\nurl = "http://h"\n', "providers.groq: unknown key 'url'."),
    ]
    for table, words in rows:
        with subtests.test(table=table):
            (folder / "gradeloop.toml").write_text(table)

            with pytest.raises(InvalidRequest) as caught:
                load_settings(["--config", "gradeloop.toml"])

            assert words in str(caught.value)
            assert "canary" not in str(caught.value)


@pytest.mark.slow
def test_a_model_is_looked_up_as_its_endpoint_says(folder: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, tuple[str, str]]] = [
        ("bedrock:anthropic.claude-haiku-4-5-20251001-v1:0", ("anthropic", "claude-haiku-4-5-20251001")),
        ("bedrock:us.anthropic.claude-opus-4-8", ("anthropic", "claude-opus-4-8")),
        ("bedrock:arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-sonnet-5-5", ("anthropic", "claude-sonnet-5-5")),
        ("vertex:claude-haiku-4-5@20251001", ("anthropic", "claude-haiku-4-5-20251001")),
        ("azure:gpt-4o", ("openai", "gpt-4o")),
        ("groq:llama-4", ("openai_compatible", "llama-4")),
        ("eu-claude:anthropic.claude-opus-4-8", ("anthropic", "claude-opus-4-8")),
        ("mock-of-google:gemini-3.6-flash", ("google_genai", "gemini-3.6-flash")),
        ("anthropic:claude-haiku-5-5", ("anthropic", "claude-haiku-5-5")),
        ("nowhere:m", ("nowhere", "m")),
    ]
    for model, listed in rows:
        with subtests.test(model=model):
            (folder / "gradeloop.toml").write_text(
                '[providers.eu-claude]\npreset = "bedrock"\n[providers.mock-of-google]\nprotocol = "google"\nbase_url = "http://h"\n'
            )
            declare_endpoints(named_endpoints(load_settings(["--config", "gradeloop.toml"]).providers))
            spec = ModelSpec(id=model)

            assert listed_model(spec.provider, spec.model) == listed
            same = capability_of(ModelSpec(id=":".join(listed)))
            of_azure = {"bounds": "none", "properties": 100} if spec.provider == "azure" else {}
            assert capability_of(spec) == same.model_copy(update=of_azure)


def refused(model: str, environ: dict[str, str], *endpoints: str) -> str | None:
    """Return why a request for a model is refused before a worker is started; None where it is not."""
    request = ThreadRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "generator": {"model": model}})
    try:
        refuse_unservable(request, environ, scripted=False, endpoints=endpoints)
    except InvalidRequest as error:
        return str(error)
    return None


def test_commands_refuse_early_what_the_worker_would_refuse() -> None:
    unknown = refused("groqq:m", {})
    assert unknown is not None
    assert unknown.startswith("generator.model: 'groqq:m': unknown provider 'groqq'. Did you mean 'groq'?")
    assert refused("groq:m", {}) == "generator.model: 'groq:m' needs a key and GROQ_API_KEY is not set; set it, or name another model"
    assert refused("groq:m", {"GROQ_API_KEY": "k"}) is None
    assert refused("groq:m", {}, "groq") is None
    assert refused("anthropic:m", {}, "anthropic") is None
    assert refused("house:m", {}, "house") is None
    assert "nothing listens at http://127.0.0.1:9/v1" in str(refused("ollama:m", {"OLLAMA_BASE_URL": "http://127.0.0.1:9/v1"}))
    assert refused("ollama:m", {"OLLAMA_BASE_URL": "https://models.example/v1"}) is None


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("ollama", "ollama serve; ollama pull m"),
        ("llamacpp", "llama-server -m FILE.gguf --alias m"),
        ("lmstudio", "lms server start; lms load m"),
        ("vllm", "vllm serve m"),
        ("sglang", "python -m sglang.launch_server --model-path m"),
        ("tgi", "text-generation-launcher --model-id m --port 8080"),
        ("litellm", "litellm --model m"),
    ],
)
def test_a_server_of_ones_own_that_is_not_started_is_told_with_the_command_that_starts_it(name: str, start: str) -> None:
    why = refused(f"{name}:m", {f"{name.upper()}_BASE_URL": "http://127.0.0.1:9/v1"})

    assert why is not None
    assert why.endswith(f"nothing listens at http://127.0.0.1:9/v1; start it ({start}), or name another model")
