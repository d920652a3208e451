"""A worker refuses the models that it cannot call, in one sentence, and gives its keys to nobody else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault
from gradeloop.errors import InvalidRequest

KEYS = {"ANTHROPIC_API_KEY": "ant-1", "OPENAI_API_KEY": "oai-2", "OPENROUTER_API_KEY": "orr-3", "GEMINI_API_KEY": "goo-4"}


def complaint(model: str, config: Any = None, **environ: str) -> str:
    """Return the sentence with which a model is refused."""
    with pytest.raises(ModelFault) as caught:
        Providers(Environment.read(environ)).check(ModelSpec.model_validate({"id": model, "config": config or {}}))
    assert caught.value.kind == "config"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "variable"),
    [("anthropic:m", "ANTHROPIC_API_KEY"), ("openai:m", "OPENAI_API_KEY"), ("openrouter:a/m", "OPENROUTER_API_KEY")],
)
def test_a_missing_key_is_named(model: str, variable: str) -> None:
    sentence = f"{variable} is not set in the worker's environment; set it to use {model!r}"

    assert complaint(model) == sentence
    assert complaint(model, **{variable: " \n"}) == sentence
    Providers(Environment.read({variable: "k\n"})).check(ModelSpec(id=model))


@pytest.mark.parametrize(
    ("model", "config", "environ", "variable"),
    [
        ("anthropic:m", {}, {"ANTHROPIC_API_KEY": "k"}, "ANTHROPIC_API_KEY"),
        ("openai:m", {}, {"OPENAI_API_KEY": "k"}, "OPENAI_API_KEY"),
        ("openrouter:m", {}, {"OPENROUTER_API_KEY": "k"}, "OPENROUTER_API_KEY"),
        ("google_genai:m", {}, {"GOOGLE_API_KEY": "k", "GEMINI_API_KEY": "l"}, "GOOGLE_API_KEY"),
        ("google_genai:m", {}, {"GEMINI_API_KEY": "k"}, "GEMINI_API_KEY"),
        ("groq:m", {}, {"GROQ_API_KEY": "k"}, "GROQ_API_KEY"),
        ("openai_compatible:m", {}, {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k"}, "OPENAI_API_KEY"),
        ("openai_compatible:m", {"base_url": "https://api.mistral.ai/v1"}, {"MISTRAL_API_KEY": "k"}, "MISTRAL_API_KEY"),
        ("openai_compatible:m", {"base_url": "http://127.0.0.1:9/v1"}, {"GRADELOOP_BASE_URLS": "http://127.0.0.1:9"}, ""),
    ],
)
def test_the_cure_of_a_refused_key_names_its_variable(model: str, config: Any, environ: dict[str, str], variable: str) -> None:
    providers, spec = Providers(Environment.read(environ)), ModelSpec.model_validate({"id": model, "config": config})

    for kind in ("auth", "quota_exhausted"):
        assert providers.cure(spec, kind) == (f"; correct {variable}, or name another model" if variable else "")
    assert providers.cure(spec, "not_found") == "; correct the model's name or its address, or name another model"
    assert providers.cure(spec, "server") == ""


def test_a_missing_key_is_told_to_whoever_may_start_another_worker() -> None:
    told: list[tuple[str, str]] = []
    providers = Providers(Environment.read({}))
    providers.on_refused_key = lambda variable, key: told.append((variable, key))

    with pytest.raises(ModelFault):
        providers.check(ModelSpec(id="anthropic:m"))

    assert told == [("ANTHROPIC_API_KEY", "")]


def test_a_key_with_a_character_that_no_header_takes_is_refused_without_showing_it() -> None:
    message = complaint("openai:m", OPENAI_API_KEY="sé cret")

    assert message == "OPENAI_API_KEY holds white space or a character that no key has; set it again"


@pytest.mark.parametrize(
    ("model", "package", "extra"),
    [("anthropic:m", "anthropic", "anthropic"), ("openrouter:m", "openai", "openai"), ("openai_compatible:m", "openai", "openai")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, model: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    assert complaint(model, **KEYS).endswith(f"run: pip install 'gradeloop[{extra}]'")


BY = "(by the table of 2026-11-22)"


@pytest.mark.parametrize(
    ("model", "config", "words"),
    [
        ("anthropic:claude-opus-5", {"temperature": 0}, f"temperature 0 cannot be set for 'anthropic:claude-opus-5' {BY}; leave it out"),
        ("openai:gpt-5", {"temperature": 0.5}, f"temperature 0.5 cannot be set for 'openai:gpt-5' {BY}; leave it out"),
        ("openai:gpt-4o", {"seed": 7}, f"seed 7 cannot be set for 'openai:gpt-4o' {BY}; leave it out"),
        (
            "anthropic:claude-opus-4-6",
            {"reasoning_effort": "xhigh"},
            f"reasoning_effort 'xhigh' is unknown to 'anthropic:claude-opus-4-6' {BY}. Known: low, medium, high, max.",
        ),
        (
            "anthropic:claude-haiku-4-5",
            {"reasoning_effort": "low"},
            f"reasoning_effort 'low' is unknown to 'anthropic:claude-haiku-4-5' {BY}. Known: none.",
        ),
        (
            "anthropic:claude-opus-5-5",
            {"thinking": "disabled"},
            f"thinking 'disabled' cannot be set for 'anthropic:claude-opus-5-5' {BY}. It takes: adaptive.",
        ),
        (
            "anthropic:claude-opus-4-7",
            {"thinking": 1024},
            f"thinking 1024 cannot be set for 'anthropic:claude-opus-4-7' {BY}. It takes: adaptive, disabled.",
        ),
        (
            "openai:gpt-5",
            {"thinking": "adaptive"},
            f"thinking 'adaptive' cannot be set for 'openai:gpt-5' {BY}. It takes: none; use reasoning_effort.",
        ),
        ("openai:gpt-4o", {"max_tokens": 20000}, f"max_tokens 20000 is above what 'openai:gpt-4o' writes, 16384 {BY}; lower it"),
        (
            "openai:gpt-5",
            {"extra": {"verbosity": "low", "Store": True}},
            "extra.Store of 'openai:gpt-5' is not for a request to set; leave it out, or use the setting of its own",
        ),
    ],
)
def test_a_setting_that_the_model_does_not_take_is_refused_before_anybody_is_called(model: str, config: dict[str, Any], words: str) -> None:
    assert complaint(model, config, **KEYS) == words


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("openai:gpt-4o", {"temperature": 0, "max_tokens": 16384}),
        ("openai:gpt-5.6-sol", {"reasoning_effort": "none"}),
        ("anthropic:claude-haiku-4-5", {"temperature": 0, "thinking": 2048}),
        ("anthropic:claude-haiku-5-5", {"reasoning_effort": "high", "thinking": "disabled"}),
        ("google_genai:gemini-2.5-flash", {"temperature": 0, "seed": 7, "thinking": 512}),
        ("google_genai:gemini-3.6-flash", {"reasoning_effort": "minimal", "extra": {"safetySettings": []}}),
        ("gemini:gemini-3.6-flash", {}),
        ("openrouter:mistralai/mistral-small", {"temperature": 1, "seed": 1}),
    ],
)
def test_a_setting_that_the_model_takes_is_not_refused(model: str, config: dict[str, Any]) -> None:
    Providers(Environment.read(KEYS)).check(ModelSpec.model_validate({"id": model, "config": config}))


def test_the_scripted_provider_needs_its_file() -> None:
    assert "needs a file of replies; name it with `scripted:`" in complaint("scripted:m")
    Providers(Environment(), Script(replies=())).check(ModelSpec(id="scripted:m"))


@pytest.mark.parametrize("model", ["anthropic:m", "openai:m", "openrouter:m"])
def test_a_base_url_is_refused_for_a_provider_that_has_its_own(model: str) -> None:
    message = complaint(model, {"base_url": "http://h/v1"}, **KEYS, GRADELOOP_BASE_URLS="http://h")

    assert message == f"base_url belongs to 'openai_compatible:m', not to {model!r}; change the provider or leave it out"


def test_an_openai_compatible_model_needs_an_address() -> None:
    assert "needs config.base_url" in complaint("openai_compatible:m", **KEYS)
    Providers(Environment.read({"OPENAI_BASE_URL": "http://127.0.0.1:11434/v1"})).check(ModelSpec(id="openai_compatible:m"))


def test_an_address_that_is_not_allowed_names_the_variable_and_what_to_add() -> None:
    message = complaint("openai_compatible:m", {"base_url": "http://h:8000/v1"}, **KEYS)

    assert (
        message == "base_url 'http://h:8000/v1' is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS: http://h:8000/v1"
    )


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://h/v1", True),
        ("http://h/v1/", True),
        ("http://h:80/v1/more", True),
        ("HTTP://H/v1", True),
        ("http://h/v1x", False),
        ("http://h/", False),
        ("http://h", False),
        ("https://h/v1", False),
        ("http://h:8080/v1", False),
        ("http://h.evil/v1", False),
        ("http://evil/h/v1", False),
        ("http://h@evil/v1", False),
        ("http://u@h/v1", False),
        ("http://h\\@evil/v1", False),
        ("http://h/v1/../admin", False),
        ("http://h/v1/..", False),
        ("http://h/v1/./x", False),
        ("http://h/v1/%2e%2e/admin", False),
        ("http://h/v1%2f..", False),
        ("http://h//v1", False),
        ("http://\u212aelvin/v1", False),
        ("http://h:x/v1", False),
        ("http://[h/v1", False),
        ("https://other:8443", True),
        ("https://other:8443/any/where", True),
        ("https://other", False),
    ],
)
def test_an_address_is_allowed_at_and_below_a_listed_prefix_and_nowhere_else(url: str, allowed: bool) -> None:
    environment = Environment.read({"GRADELOOP_BASE_URLS": " http://h/v1/ ,https://other:8443, http://kelvin"})

    assert environment.allows(url) == allowed


@pytest.mark.parametrize("variable", ["GRADELOOP_BASE_URLS", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
@pytest.mark.parametrize("value", ["h/v1", "ftp://h", "http://u:p@h", "http://h?x=1", "http://h/../x", "http://h:port", "*"])
def test_a_variable_that_holds_no_base_url_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{variable}: .* is not a base URL; write http"):
        Environment.read({variable: value})


def endpoint(model: str, base_url: str | None = None, **environ: str) -> tuple[str, str | None]:
    """Return where a call goes, and the key it takes along."""
    spec = ModelSpec.model_validate({"id": model, "config": {"base_url": base_url}})
    place = Environment.read({**KEYS, **environ}).endpoint(spec)
    return place.base_url, place.key


def test_each_provider_gets_its_own_key_at_its_own_address() -> None:
    assert endpoint("anthropic:m") == ("https://api.anthropic.com", "ant-1")
    assert endpoint("anthropic:m", ANTHROPIC_BASE_URL="http://a/") == ("http://a", "ant-1")
    assert endpoint("openai:m") == ("https://api.openai.com/v1", "oai-2")
    assert endpoint("openai:m", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1", "oai-2")
    assert endpoint("openrouter:m", OPENAI_BASE_URL="http://o/v1") == ("https://openrouter.ai/api/v1", "orr-3")


def test_a_key_goes_to_no_other_address_than_the_one_that_the_environment_names() -> None:
    assert endpoint("openai_compatible:m", "http://h/v1") == ("http://h/v1", "EMPTY")
    assert endpoint("openai_compatible:m", "https://api.openai.com/v1") == ("https://api.openai.com/v1", "EMPTY")
    assert endpoint("openai_compatible:m", "http://o/v1/deeper", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1/deeper", "EMPTY")
    assert endpoint("openai_compatible:m", "http://o/v1/", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1", "oai-2")
    assert endpoint("openai_compatible:m", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1", "oai-2")


AZURE = {"AZURE_OPENAI_API_KEY": "az-5", "AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/"}


@pytest.mark.parametrize(
    ("url", "environ", "key"),
    [
        ("https://api.mistral.ai/v1", {"MISTRAL_API_KEY": "mi-6"}, "mi-6"),
        ("https://models.github.ai/inference/", {"GITHUB_TOKEN": "gh-7"}, "EMPTY"),
        ("https://me.openai.azure.com/openai/v1", AZURE, "az-5"),
        ("https://me.openai.azure.com/openai/v1/other", AZURE, "EMPTY"),
        ("https://api.mistral.ai.evil.example/v1", {"MISTRAL_API_KEY": "mi-6"}, "EMPTY"),
    ],
)
def test_a_known_compatible_server_gets_its_key_and_needs_no_entry(url: str, environ: dict[str, str], key: str) -> None:
    environment = Environment.read(environ)

    assert endpoint("openai_compatible:m", url, **environ)[1] == key
    assert environment.allows(url) == (key != "EMPTY")
    assert set(environ.values()) & {"mi-6", "az-5"} <= environment.secrets


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY"])
def test_gemini_has_a_key_of_three_names(variable: str) -> None:
    environment = Environment.read({variable: "goo-4"})

    assert environment.endpoint(ModelSpec(id="gemini:m")).key == "goo-4"


def test_vertex_ai_needs_a_project_and_no_key() -> None:
    environ = {"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p"}
    place = Environment.read(environ).endpoint(ModelSpec(id="google_genai:m"))

    assert (place.project, place.location, place.key) == ("p", "global", None)
    Providers(Environment.read(environ)).check(ModelSpec(id="google_genai:m"))


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://llm.example.com/v1", True),
        ("https://8.8.8.8/v1", True),
        ("http://llm.example.com/v1", False),
        ("https://localhost/v1", False),
        ("https://vllm/v1", False),
        ("https://127.0.0.1/v1", False),
        ("https://10.1.2.3/v1", False),
        ("https://169.254.169.254/latest", False),
        ("https://[::1]/v1", False),
        ("https://[::ffff:10.0.0.1]/v1", False),
        ("https://metadata.google.internal/v1", False),
        ("http://10.0.0.7:8000/v1", True),
    ],
)
def test_every_public_server_can_be_allowed_and_a_private_one_must_be_listed(url: str, allowed: bool) -> None:
    environment = Environment.read({"GRADELOOP_BASE_URLS": "https://*,http://10.0.0.7:8000"})

    assert environment.allows(url) == allowed


def test_only_what_the_wildcard_alone_allows_is_guarded() -> None:
    environment = Environment.read({"GRADELOOP_BASE_URLS": "https://*,https://mine.example"})
    places = ("https://mine.example/v1", "https://other.example/v1")
    specs = [ModelSpec.model_validate({"id": "openai_compatible:m", "config": {"base_url": url}}) for url in places]

    assert [environment.endpoint(spec).guarded for spec in specs] == [False, True]


def test_the_environment_shows_no_key() -> None:
    environment = Environment.read(KEYS)

    assert environment.secrets == {"ant-1", "oai-2", "orr-3", "goo-4"}
    assert not any(key in repr(environment) for key in environment.secrets)


@pytest.mark.slow
def test_asking_whether_a_model_can_be_called_imports_no_sdk() -> None:
    script = (
        "import sys; from activities.providers import Providers; from activities.providers.environment import Environment;"
        "from gradeloop.contract.model_spec import ModelSpec; e = Environment.read({'ANTHROPIC_API_KEY': 'k', 'OPENAI_API_KEY': 'k'});"
        "[Providers(e).check(ModelSpec(id=m)) for m in ('anthropic:m', 'openai:m')];"
        "print([m for m in ('anthropic', 'openai', 'ruamel.yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
