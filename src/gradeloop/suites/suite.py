"""The suite file: prompts, generators, grader, tests, and how its batch runs."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gradeloop.budget import Budget
from gradeloop.request import MAX_ITERATIONS, Generator
from gradeloop.rubric import Rubric
from gradeloop.strict import OrText, Strict
from gradeloop.suites.fields import Defaults, GraderSetting, Said, SuiteTest, one_line

RETRIES = 7
"""Retries of a model call by default: with doubling pauses they outlast a provider outage of two minutes."""

FORMER_CONCURRENCY = "at_once"
"""The former name of `concurrency`, which suites of earlier versions use."""

Label = Annotated[str, Field(max_length=100), BeforeValidator(one_line, json_schema_input_type=str)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _listed(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    return [value] if isinstance(value, str | dict) else value


class Prompt(OrText):
    """A prompt as text or messages; `{{ name }}` in it is filled from the test's `vars`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: Label | None = None
    """The prompt's name in case ids; the file's name or the prompt's position (`p1`) by default."""
    text: str | None = None
    messages: tuple[Said, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Prompt":
        if (self.text is None) == (not self.messages):
            raise ValueError("give the prompt either as text or as messages")
        if self.text is not None and not self.text.strip():
            raise ValueError("the prompt is empty; write what is asked")
        return self


class NamedGenerator(OrText, Generator):
    """A generator as in a thread's request, with a label."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: Label | None = None
    """The generator's name in case ids; the model, activity or workflow by default."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"model": value} if isinstance(value, str) else value

    @property
    def named(self) -> str:
        """The label, or the name of the model, activity or workflow."""
        return self.label or (self.model.id if self.model else self.activity or self.workflow or "")

    def plain(self) -> Generator:
        """Return the generator without its label."""
        return Generator.model_construct(**{name: getattr(self, name) for name in Generator.model_fields})


def _is_file(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "<file>" if isinstance(value, str) else "<test>"


TestOrFile = Annotated[Annotated[str, Tag("<file>")] | Annotated[SuiteTest, Tag("<test>")], Discriminator(_is_file)]


class SuiteSettings(Strict):
    """How a batch of the suite's cases runs, and when it fails."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many model and tool calls run at the same time at most; 50 by default."""
    budget: Budget | None = None
    """Tokens or US dollars at which the batch pauses."""
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """The batch pauses when this many cases are errors."""
    max_error_rate: Share | None = None
    """The batch pauses when more than this share of the finished cases are errors, counted from the 20th case on; 0.5 by default."""
    pass_rate: Share = 1.0
    """The batch fails when a smaller share of the judged cases passes."""
    retries: Annotated[int, Field(ge=0, le=20)] = RETRIES
    """How often a model call is retried after a transient error."""
    cache: bool = True
    """Whether verdicts of earlier batches are reused from the cache."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_key(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if not isinstance(value, dict) or FORMER_CONCURRENCY not in value:
            return value
        if "concurrency" in value:
            raise ValueError(f"concurrency: {FORMER_CONCURRENCY} is its former name; remove that line")
        return {("concurrency" if key == FORMER_CONCURRENCY else key): item for key, item in value.items()}


class SuiteFile(SuiteSettings):
    """The whole file."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The name that its batches carry."""
    prompts: Annotated[tuple[Prompt, ...], BeforeValidator(_listed, json_schema_input_type=Prompt | tuple[Prompt, ...])] = ()
    """Prompts as text, messages, or `file://` files of them; left out when every test has an `output`."""
    generators: Annotated[
        tuple[NamedGenerator, ...], BeforeValidator(_listed, json_schema_input_type=NamedGenerator | tuple[NamedGenerator, ...])
    ] = ()
    """The models, activities or workflows that draft; every test becomes one case per generator."""
    grader: GraderSetting | None = None
    """The model that judges."""
    rubric: Rubric | None = None
    """The rubric of all tests; short for `defaults.rubric`."""
    defaults: Defaults = Defaults()
    """Settings of every test, which a test may override."""
    tests: Annotated[tuple[TestOrFile, ...], BeforeValidator(_listed, json_schema_input_type=TestOrFile | tuple[TestOrFile, ...])] = ()
    """Tests, and CSV, JSONL, JSON or YAML files of tests, relative to this file."""
    loop: bool = False
    """Whether the generator revises its draft by the grader's feedback; short for `defaults.loop`."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 3
    """How many drafts a case with `loop` may take at most."""
    repeat: Annotated[int, Field(ge=1, le=100)] = 1
    """How many times every case is drafted and judged."""
    tools: Annotated[tuple[str, ...], BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...])] = ()
    """Python files of evidence tools and checks, relative to this file."""
    scripted: str | None = None
    """A file of replies for the provider `scripted`, relative to this file."""

    @model_validator(mode="after")
    def _says_it_once(self) -> "SuiteFile":
        if self.rubric is not None and (self.defaults.rubric is not None or self.defaults.assertions):
            raise ValueError("rubric: defaults says how tests are judged, too; keep one of them")
        return self
