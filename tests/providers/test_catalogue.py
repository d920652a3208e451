"""The dated tables: what each family of models takes, and what its tokens cost."""

from datetime import datetime
from pathlib import Path

import pytest

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import HTTP_REQUEST, PROVIDERS, ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.settings.catalog import Capability, capability_of, load_catalogue, load_prices, load_shipped_prices, settings_complaint
from gradeloop.settings.endpoints import DEFAULTS, DefaultRule, default_model

ONE_MILLION = Usage(input=1_000_000, output=1_000_000, calls=1)


def spec(model: str, **config: object) -> ModelSpec:
    """Return a model with settings."""
    return ModelSpec.model_validate({"id": model, "config": config})


@pytest.mark.parametrize(
    ("model", "answer", "together", "stream"),
    [
        ("anthropic:claude-haiku-5-5", "schema", True, True),
        ("anthropic:claude-sonnet-4-20250514", "tagged", False, True),
        ("anthropic:claude-9", "schema", True, True),
        ("openai:gpt-5-mini", "schema", True, True),
        ("openai:gpt-99", "schema", True, True),
        ("google_genai:gemini-2.5-flash", "schema", False, True),
        ("google_genai:gemini-3.6-flash", "schema", True, True),
        ("google_genai:gemini-9", "schema", False, True),
        ("openrouter:anthropic/claude-haiku-4.5", "schema", False, True),
        ("openrouter:minimax/minimax-m2", "tagged", False, True),
        ("openai_compatible:mistral-small-latest", "schema", False, True),
        ("openai_compatible:my-finetune", None, False, False),
    ],
)
def test_a_model_has_the_capability_of_its_family(model: str, answer: str, together: bool, stream: bool) -> None:
    found = capability_of(spec(model))

    assert (found.answer, found.schema_with_tools, found.stream) == (answer, together, stream)


def test_a_request_may_say_that_its_server_keeps_a_schema() -> None:
    assert capability_of(spec("openai_compatible:mine", structured_output=True)).answer == "schema"
    assert capability_of(spec("openai:gpt-5", structured_output=False)).answer == "tagged"


@pytest.mark.parametrize(
    ("model", "base_url", "dialect"),
    [
        ("openai:gpt-5", None, ("lists", 5000)),
        ("openai_compatible:gpt-5", "http://localhost:4000/v1", ("lists", 5000)),
        ("openai_compatible:gpt-5", "https://mine.openai.azure.com/openai/v1", ("none", 100)),
        ("openai_compatible:llama", "https://mine.services.ai.azure.com/openai/v1", ("none", 100)),
        ("azure:gpt-5", None, ("none", 100)),
        ("google_genai:gemini-3-pro", None, ("lists", None)),
        ("anthropic:claude-haiku-5-5", None, ("none", None)),
        ("ollama:qwen3", None, ("none", None)),
    ],
)
def test_a_schema_is_bounded_as_the_api_that_serves_the_model_takes_it(model: str, base_url: str | None, dialect: tuple[str, int]) -> None:
    found = capability_of(spec(model, **({"base_url": base_url} if base_url else {})))

    assert (found.bounds, found.properties) == dialect


def test_of_what_no_family_matches_nothing_is_known_and_nothing_refused() -> None:
    assert capability_of(ModelSpec.model_construct(id="elsewhere:m")) == Capability()
    assert {getattr(Capability(), name) for name in ("temperature", "seed", "efforts", "thinking", "max_output")} == {None}


def test_ones_own_families_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "models.toml"
    own.write_text('[[families]]\nprovider = "openai"\nmodels = "gpt-6.*"\nefforts = ["low"]\ntemperature = true\nstream = true\n')
    before = settings_complaint(spec("openai:gpt-6-luna", temperature=0))
    monkeypatch.setenv("GRADELOOP_MODELS", f" {own} ")

    assert before is not None
    assert settings_complaint(spec("openai:gpt-6-luna", temperature=0)) is None
    assert settings_complaint(spec("openai:gpt-6-luna", reasoning_effort="max")) is not None
    assert capability_of(spec("openai:gpt-5")).efforts == ("minimal", "low", "medium", "high")
    assert load_catalogue().own == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("families = [", "is not a readable TOML file"),
        ('[[families]]\nprovider = "a"\nmodels = "b"\neffort = []', "families[0]: unknown key 'effort'. Did you mean 'efforts'?"),
        ('[[families]]\nprovider = "a"\nmodels = "("', "families[0].models: '(' is not a regular expression"),
    ],
)
def test_a_table_of_models_that_cannot_be_read_stops_the_worker_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    own = tmp_path / "models.toml"
    own.write_text(text)
    monkeypatch.setenv("GRADELOOP_MODELS", str(own))

    with pytest.raises(InvalidRequest) as caught:
        Providers(Environment())

    assert str(caught.value).startswith("GRADELOOP_MODELS: ")
    assert words in str(caught.value)


def test_every_provider_has_families_and_the_last_one_takes_what_is_left() -> None:
    for provider in set(PROVIDERS) - {HTTP_REQUEST}:  # an address has no models
        families = [family for family in load_catalogue().families if family.provider == provider]
        assert families[-1].models == ".*"
        assert [family.models for family in families].count(".*") == 1


def test_both_tables_say_when_they_were_made() -> None:
    assert load_catalogue().as_of == load_shipped_prices().as_of == "2026-11-22"


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row.variables[0])
def test_a_default_is_found_by_its_variables_and_its_family_is_known(row: DefaultRule) -> None:
    variables, model = row.variables, row.model
    environ = {name: "https://a.example" if name.endswith("ENDPOINT") else "true" for name in variables}

    found = default_model(environ)

    assert found is not None
    assert (found.spec.id, found.variable) == (model.format(**environ), variables[0])
    assert default_model(dict.fromkeys(variables, " ")) is None
    assert capability_of(found.spec).stream or found.spec.model == "true"


def test_the_defaults_are_tried_in_their_order() -> None:
    every = {name: "1" for row in DEFAULTS for name in row.variables}

    assert default_model(every) == default_model({"OPENAI_API_KEY": "1"})
    assert default_model({"MISTRAL_API_KEY": "1", "OPENROUTER_API_KEY": "1"}) == default_model({"MISTRAL_API_KEY": "1"})


def test_the_token_of_a_ci_makes_no_grader() -> None:
    assert default_model({"GITHUB_TOKEN": "gh-1"}) is None


@pytest.mark.parametrize(
    ("model", "usage", "dollars"),
    [
        ("anthropic:claude-opus-5", ONE_MILLION, 30),
        ("anthropic:claude-opus-5-5", Usage(input=1_000_000, cached=500_000, cache_written=500_000), 0.1 + 2.5),
        ("anthropic:claude-haiku-5-5", Usage(input=100_000, output=1000), 0.01 + 0.0005),
        ("anthropic:claude-haiku-5-5", Usage(input=200_000, output=1000), 0.1 + 0.0025),
        ("openai:gpt-5-mini", Usage(input=2_000_000, cached=1_000_000), 0.25 + 0.025),
        ("google_genai:gemini-2.5-pro", Usage(input=300_000), 0.75),
        ("openai_compatible:mistral-small-latest", Usage(input=1_000_000, cached=400_000), 0.09 + 0.006),
        ("openai:gpt-6-luna", ONE_MILLION, 0.2 + 0.75),
        ("openai:gpt-6-luna", Usage(input=100_000, cache_written=100_000), 0.0125),
        ("openai:gpt-6-astra", Usage(input=100_000, output=1000), 1.05),
        ("openai:gpt-6.1-terra", Usage(input=100_000, output=1000), 0.105),
        ("openai:gpt-6-sol", Usage(input=100_000, cache_written=100_000), 0.25),
        ("openai:gpt-6-sol", Usage(input=272_000), 0.544),
        ("openai:gpt-6-sol", Usage(input=272_001, output=1000), 272_001 * 4e-6 + 0.015),
        ("openai:gpt-6.2-astra", Usage(input=272_001, output=1000), 272_001 * 16e-6 + 0.06),
        ("openai:gpt-5.6-terra", Usage(input=100_000, cached=100_000), 0.02),
        ("openai:gpt-5.6-luna", Usage(input=100_000), 0.02),
        ("openai:gpt-5.6-sol", Usage(output=100_000), 2),
        ("openai:gpt-5.4-2026-03-05", Usage(input=100_000, output=100_000), 0.25 + 1.5),
        ("openai:gpt-6-luna-2026-09-22", Usage(input=100_000), 0.01),
        ("openai:ft:gpt-4o-mini-2024-07-18:acme::a1", Usage(input=100_000, output=100_000), 0.03 + 0.12),
        ("google_genai:gemini-3.5-flash", ONE_MILLION, 1.5 + 9),
        ("google_genai:gemini-3.1-flash-lite", ONE_MILLION, 0.25 + 1.5),
        ("anthropic:claude-mythos-5-1", Usage(input=100_000, cached=100_000), 0.025),
        ("anthropic:claude-haiku-5-5-20261007", Usage(input=100_000), 0.01),
        ("scripted:any", ONE_MILLION, 0),
    ],
)
def test_a_call_costs_what_its_tokens_do(model: str, usage: Usage, dollars: float) -> None:
    assert load_shipped_prices().cost(spec(model), usage) == pytest.approx(dollars)


@pytest.mark.parametrize(("day", "dollars"), [("2026-12-31", 4.5), ("2027-01-01", 9)])
def test_a_price_that_changes_with_a_date_is_that_of_the_day(monkeypatch: pytest.MonkeyPatch, day: str, dollars: float) -> None:
    monkeypatch.setattr("gradeloop.settings.catalog.time.time", datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp)

    assert load_shipped_prices().cost(spec("google_genai:gemini-3.6-flash"), ONE_MILLION) == dollars


def test_a_compatible_servers_model_is_priced_by_its_address() -> None:
    table, model = load_shipped_prices(), spec("openai_compatible:llama-3.3-70b-versatile")

    assert table.cost(model, ONE_MILLION, address="https://api.groq.com/openai/v1") == pytest.approx(0.59 + 0.79)
    assert table.cost(model, ONE_MILLION, address="http://127.0.0.1:8000/v1") is None


@pytest.mark.parametrize("model", ["openai:gpt-99", "openrouter:a/b", "openai_compatible:mine", "anthropic:claude-9"])
def test_the_cost_of_an_unknown_model_is_not_known(model: str) -> None:
    assert load_shipped_prices().cost(spec(model), ONE_MILLION) is None


def test_ones_own_prices_come_first(tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('prices = [{provider = "openai_compatible", models = "mine|mistral.*", input = 2, output = 4}]')

    table = load_prices(own)

    assert table.cost(spec("openai_compatible:mine"), ONE_MILLION) == 6
    assert table.cost(spec("openai_compatible:mistral-small-latest"), ONE_MILLION) == 6
    assert table.cost(spec("openai:gpt-5"), ONE_MILLION) == 11.25
    assert table.own == 1


def test_prices_are_read_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection for prices")

    monkeypatch.setattr("socket.socket.connect", refuse)

    assert load_shipped_prices().cost(spec("openai:o3"), ONE_MILLION) == 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prices = [", "is not a readable TOML file"),
        ("price = []", "unknown key 'price'. Did you mean 'prices'?"),
        (
            'prices = [{provider = "a", models = "b", input = -1, output = 1}]',
            "prices[0].input: Input should be greater than or equal to 0",
        ),
        ('prices = [{provider = "a", models = "(", input = 1, output = 1}]', "prices[0].models: '(' is not a regular expression"),
    ],
)
def test_prices_that_cannot_be_read_are_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(text)

    with pytest.raises(InvalidRequest) as caught:
        load_prices(own)

    assert str(caught.value).startswith("GRADELOOP_PRICES: ")
    assert words in str(caught.value)
