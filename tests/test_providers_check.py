"""A worker refuses the models that it cannot call, in one sentence, and gives its keys to nobody else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.failures import ModelFault
from activities.providers import Providers
from activities.providers.environment import OPENAI_URL, Environment
from activities.providers.scripted import Script
from gradeloop.errors import InvalidRequest
from gradeloop.modelspec import ModelSpec

KEYS = {"ANTHROPIC_API_KEY": "ant-1", "OPENAI_API_KEY": "oai-2", "OPENROUTER_API_KEY": "orr-3"}


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


def test_temperature_is_refused_for_anthropic_alone() -> None:
    message = complaint("anthropic:m", {"temperature": 0}, **KEYS)
    Providers(Environment.read(KEYS)).check(ModelSpec.model_validate({"id": "openai:m", "config": {"temperature": 0}}))

    assert message == "temperature 0 cannot be set for 'anthropic:m': the Messages API takes none; leave it out"


def test_an_effort_that_anthropic_does_not_know_is_refused() -> None:
    message = complaint("anthropic:m", {"reasoning_effort": "minimal"}, **KEYS)

    assert message == "reasoning_effort 'minimal' is unknown to 'anthropic:m'. Known: low, medium, high, xhigh, max."


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
    with pytest.raises(InvalidRequest, match=f"{variable}: .* is no base URL; write http"):
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
    assert endpoint("openai_compatible:m", OPENAI_URL) == (OPENAI_URL, "EMPTY")
    assert endpoint("openai_compatible:m", "http://o/v1/deeper", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1/deeper", "EMPTY")
    assert endpoint("openai_compatible:m", "http://o/v1/", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1", "oai-2")
    assert endpoint("openai_compatible:m", OPENAI_BASE_URL="http://o/v1") == ("http://o/v1", "oai-2")


def test_the_environment_shows_no_key() -> None:
    environment = Environment.read(KEYS)

    assert environment.secrets == {"ant-1", "oai-2", "orr-3"}
    assert not any(key in repr(environment) for key in environment.secrets)


def test_asking_whether_a_model_can_be_called_imports_no_sdk() -> None:
    script = (
        "import sys; from activities.providers import Providers; from activities.providers.environment import Environment;"
        "from gradeloop.modelspec import ModelSpec; e = Environment.read({'ANTHROPIC_API_KEY': 'k', 'OPENAI_API_KEY': 'k'});"
        "[Providers(e).check(ModelSpec(id=m)) for m in ('anthropic:m', 'openai:m')];"
        "print([m for m in ('anthropic', 'openai', 'httpx2', 'ruamel.yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
