"""What a suite file says: prompts, who drafts, who judges, and the tests."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gradeloop.budget import Budget
from gradeloop.request import MAX_ITERATIONS, Generator
from gradeloop.rubric import Rubric
from gradeloop.strict import OrText, Strict
from gradeloop.suites.fields import Defaults, GraderSetting, Said, SuiteTest, one_line

RETRIES = 7
"""Of a model call by default: with doubling pauses they outlast two minutes of a provider's trouble."""

Label = Annotated[str, Field(max_length=100), BeforeValidator(one_line, json_schema_input_type=str)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _listed(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    return [value] if isinstance(value, str | dict) else value


class Prompt(OrText):
    """What is asked: a text, or messages; `{{ name }}` in it is filled from the test's `vars`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: Label | None = None
    """By default the file's name, or the prompt's position: `p1`."""
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
    """Who drafts, as in a thread's request, and a name for it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: Label | None = None
    """By default the model's, activity's or workflow's own name."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"model": value} if isinstance(value, str) else value

    @property
    def named(self) -> str:
        """The label, or the name that stands for it."""
        return self.label or (self.model.id if self.model else self.activity or self.workflow or "")

    def plain(self) -> Generator:
        """Return it without its name."""
        return Generator.model_construct(**{name: getattr(self, name) for name in Generator.model_fields})


def _is_file(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "<file>" if isinstance(value, str) else "<test>"


TestOrFile = Annotated[Annotated[str, Tag("<file>")] | Annotated[SuiteTest, Tag("<test>")], Discriminator(_is_file)]


class SuiteSettings(Strict):
    """How a batch of the suite's cases runs, and when it fails."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    at_once: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Calls in flight at most; 50 by default."""
    budget: Budget | None = None
    """Of the whole batch."""
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """So many cases without a verdict pause the batch."""
    max_error_rate: Share | None = None
    """So does a larger share of the cases that ended, counted from the 20th on; 0.5 by default."""
    pass_rate: Share = 1.0
    """Below which share of passed cases the batch counts as failed."""
    retries: Annotated[int, Field(ge=0, le=20)] = RETRIES
    """Of each model call."""
    cache: bool = True
    """False: verdicts of earlier batches are not used."""


class SuiteFile(SuiteSettings):
    """The whole file."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """By which its batches are found."""
    prompts: Annotated[tuple[Prompt, ...], BeforeValidator(_listed, json_schema_input_type=Prompt | tuple[Prompt, ...])] = ()
    """What is asked: texts, messages, `file://` files of them. None where all outputs are given."""
    generators: Annotated[
        tuple[NamedGenerator, ...], BeforeValidator(_listed, json_schema_input_type=NamedGenerator | tuple[NamedGenerator, ...])
    ] = ()
    """Who drafts; every test is a case for each of them."""
    grader: GraderSetting | None = None
    """Who judges."""
    rubric: Rubric | None = None
    """Short for that of `defaults`."""
    defaults: Defaults = Defaults()
    """What a test has that it does not say itself."""
    tests: Annotated[tuple[TestOrFile, ...], BeforeValidator(_listed, json_schema_input_type=TestOrFile | tuple[TestOrFile, ...])] = ()
    """Tests, and the names of CSV, JSONL, JSON and YAML files of them, relative to this file."""
    loop: bool = False
    """Short for that of `defaults`."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 3
    """Drafts of a case with `loop`, at most."""
    repeat: Annotated[int, Field(ge=1, le=100)] = 1
    """How often every case is drafted and judged."""
    tools: Annotated[tuple[str, ...], BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...])] = ()
    """Python files of evidence tools and checks, relative to this file."""
    scripted: str | None = None
    """A file of replies for the provider `scripted`, relative to this file."""

    @model_validator(mode="after")
    def _says_it_once(self) -> "SuiteFile":
        if self.rubric is not None and (self.defaults.rubric is not None or self.defaults.assertions):
            raise ValueError("rubric: defaults says how tests are judged, too; keep one of them")
        return self
