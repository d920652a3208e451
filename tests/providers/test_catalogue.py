"""The dated tables: what each family of models takes, and what its tokens cost."""

from pathlib import Path

import pytest

from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import PROVIDERS, ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.settings.catalog import Capability, capability_of, load_catalogue, load_prices, load_shipped_prices
from gradeloop.settings.default_model import DEFAULTS, DefaultRule, default_model

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
        ("openai_compatible:my-finetune", "tagged", False, False),
    ],
)
def test_a_model_has_the_capability_of_its_family(model: str, answer: str, together: bool, stream: bool) -> None:
    found = capability_of(spec(model))

    assert (found.answer, found.schema_with_tools, found.stream) == (answer, together, stream)


def test_a_request_may_say_that_its_server_keeps_a_schema() -> None:
    assert capability_of(spec("openai_compatible:mine", structured_output=True)).answer == "schema"
    assert capability_of(spec("openai:gpt-5", structured_output=False)).answer == "tagged"


def test_what_no_family_matches_gets_nothing_that_could_be_refused() -> None:
    assert Capability() == Capability(answer="tagged", temperature=False, efforts=(), thinking=(), stream=False, schema_with_tools=False)


def test_every_provider_has_families_and_the_last_one_takes_what_is_left() -> None:
    for provider in PROVIDERS:
        families = [family for family in load_catalogue().families if family.provider == provider]
        assert families[-1].models == ".*"
        assert [family.models for family in families].count(".*") == 1


def test_both_tables_say_when_they_were_made() -> None:
    assert load_catalogue().as_of == load_shipped_prices().as_of == "2026-11-20"


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
    assert default_model({"GITHUB_TOKEN": "1", "MISTRAL_API_KEY": "1"}) == default_model({"MISTRAL_API_KEY": "1"})


@pytest.mark.parametrize(
    ("model", "usage", "dollars"),
    [
        ("anthropic:claude-opus-5", ONE_MILLION, 30),
        ("anthropic:claude-opus-5-5", Usage(input=1_000_000, cached=500_000, cache_written=500_000), 0.1 + 2.5),
        ("anthropic:claude-haiku-5-5", Usage(input=100_000, output=1000), 0.01 + 0.0005),
        ("anthropic:claude-haiku-5-5", Usage(input=200_000, output=1000), 0.1 + 0.0025),
        ("openai:gpt-5-mini", Usage(input=2_000_000, cached=1_000_000), 0.25 + 0.025),
        ("google_genai:gemini-2.5-pro", Usage(input=300_000), 0.75),
        ("google_genai:gemini-3.6-flash", ONE_MILLION, 9),
        ("openai_compatible:mistral-small-latest", Usage(input=1_000_000, cached=400_000), 0.1),
        ("scripted:any", ONE_MILLION, 0),
    ],
)
def test_a_call_costs_what_its_tokens_do(model: str, usage: Usage, dollars: float) -> None:
    assert load_shipped_prices().cost(spec(model), usage) == pytest.approx(dollars)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prices = [", "is no readable TOML file"),
        ("price = []", "unknown key 'price'. Did you mean 'prices'?"),
        (
            'prices = [{provider = "a", models = "b", input = -1, output = 1}]',
            "prices[0].input: Input should be greater than or equal to 0",
        ),
        ('prices = [{provider = "a", models = "(", input = 1, output = 1}]', "prices[0].models: '(' is no regular expression"),
    ],
)
def test_prices_that_cannot_be_read_are_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(text)

    with pytest.raises(InvalidRequest) as caught:
        load_prices(own)

    assert str(caught.value).startswith("GRADELOOP_PRICES: ")
    assert words in str(caught.value)
