"""The fields of a suite file, and the files that its values name."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, JsonValue, Tag, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gradeloop.batches.contract import RETRIES, Abstention, CaseId
from gradeloop.contract.base import READS_SHARES, Documented, OrText, SchemaModels, Strict
from gradeloop.contract.criterion import Threshold
from gradeloop.contract.messages import MESSAGE_BYTES, ToolCall
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.named_metrics import DerivedMetrics
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import MAX_ITERATIONS, Generator, Grader, Priority
from gradeloop.errors import InvalidRequest, installed
from gradeloop.files.roots import MEDIA_TYPES, FileScope, data_url
from gradeloop.files.rubric import YAML_SUFFIXES, inline_prompts, load_rubric, refuse_bad_rubric
from gradeloop.files.yaml import Location, read_yaml
from gradeloop.suites.assertions import assertion_types
from gradeloop.suites.code_files import FILE, names_code, read_code_file
from gradeloop.text import clip


def _wrap_model(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    return {"model": value} if isinstance(value, str) or (isinstance(value, dict) and "id" in value) else value


def refuse_unclear_name(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Refuse a name that is empty, has several lines, or has white space around it."""
    if isinstance(value, str) and (not value or value != value.strip() or len(value.splitlines()) > 1):
        raise ValueError(f"{clip(value)} is not a name; write one line without white space around it")
    return value


GraderSetting = Annotated[Grader, BeforeValidator(_wrap_model, json_schema_input_type=ModelSpec | Grader)]
"""A grader as in a thread's request, or only its model, as text or object."""


@dataclass(frozen=True)
class _ListsAssertions:
    """Gives the assertions of a suite file their JSON Schema, with the types that there are when it is asked for."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        judged, *others = [row.name for row in assertion_types() if row.build and row.negatable]
        properties = {
            "type": {"enum": [judged, "assert-set", *others, *(f"not-{kind}" for kind in (judged, *others))]},
            "value": {"description": "The expected value; for llm-rubric, the criterion."},
            "assert": {"type": "array", "description": "The members of an assert-set."},
            "threshold": {"type": "number"},
            "weight": {
                "type": "number",
                "minimum": 0,
                "description": "Weight in the score; 0 reports the assertion without counting it.",
            },
            "metric": {"type": "string", "description": "The criterion's id, and the named metric in which its score counts."},
            "provider": {"description": "The model that judges this assertion."},
            "rubricPrompt": {"description": "The grader's prompt, with {{ output }} in it."},
        }
        return {"type": "array", "items": {"type": "object", "properties": properties, "required": ["type"]}}


Assertions = Annotated[tuple[JsonValue, ...], _ListsAssertions()]
"""Assertions in promptfoo's format; their fields are checked where they become criteria."""


class SuiteMessage(Strict, Documented):
    """A message of a prompt, or of the conversation that a test brings along."""

    role: Literal["system", "user", "assistant", "tool"]
    """The speaker; `system` may only come first and becomes the generator's system prompt."""
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Options(Strict, Documented):
    """Settings of the assertions of type `llm-rubric`, and the part of the output that they judge."""

    provider: JsonValue = None
    """The model that judges them."""
    rubric_prompt: JsonValue = Field(default=None, alias="rubricPrompt")
    """The grader's prompt, with `{{ output }}` in it."""
    factuality: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None
    """Scores of `factuality` by how the facts differ: `subset`, `superset`, `agree`, `disagree`, `differButFactual`."""
    disable_default_asserts: bool = Field(default=False, alias="disableDefaultAsserts")
    """Whether the assertions of the defaults are left out; only of a test."""
    transform: JsonValue = None
    """Code that makes of the output what is judged: JavaScript over `output` and `context`, or `file://` a file of code."""


class Defaults(Strict, Documented):
    """Settings of all tests that do not override them."""

    vars: dict[str, JsonValue] = Field(default_factory=dict)
    """Values that replace `{{ name }}` in prompts, messages, rubric and assertions."""
    rubric: Rubric | None = None
    """The requirements: text with a criterion a line, an object, or `file://` a file of either."""
    assertions: Assertions = Field(default=(), alias="assert")
    """Assertions in promptfoo's format, instead of a rubric; the defaults' assertions come before the test's own."""
    threshold: Threshold | None = None
    """The score that a case must reach: in addition to a rubric's own gate, or instead of it with assertions."""
    messages: tuple[SuiteMessage, ...] = ()
    """The conversation, instead of the prompts."""
    loop: bool | None = None
    """Whether the generator revises its draft by the grader's feedback."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    """The most drafts of a case with `loop`."""
    grader: GraderSetting | None = None
    """The grader that replaces the suite's."""
    abstain: Abstention = None
    """The least share of a criterion's votes with which it decides, or shares by criterion; a case with fewer is `unsure`."""
    escalate: ModelSpec | None = None
    """The model that decides what the graders are unsure of; by default a person does."""
    options: Options = Options()
    """Settings of the assertions of type `llm-rubric`."""

    @model_validator(mode="after")
    def _is_judged_one_way(self) -> "Defaults":
        if self.rubric is not None and self.assertions:
            raise ValueError("rubric and assert exclude each other; keep one, criteria can be assertions of type llm-rubric")
        return self


class SuiteTest(Defaults):
    """A test: a question or a finished output, and how it is judged."""

    id: Annotated[CaseId | None, BeforeValidator(refuse_unclear_name, json_schema_input_type=CaseId | None)] = None
    """The case's name; made from description, vars and messages by default."""
    description: Annotated[str, Field(max_length=1000)] | None = None
    """Shown beside the id."""
    output: str | None = None
    """A finished output to judge; without it a generator drafts one."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Facts about the test by name, by which `--filter-metadata` selects; no model sees them."""


Label = Annotated[str, Field(max_length=100), BeforeValidator(refuse_unclear_name, json_schema_input_type=str)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), READS_SHARES]


def _wrap_in_list(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    return [value] if isinstance(value, str | dict) else value


class Prompt(OrText, Documented):
    """A prompt as text or messages; `{{ name }}` in it is filled from the test's `vars`."""

    label: Label | None = None
    """The prompt's name in case ids; the file's name or the prompt's position (`p1`) by default."""
    text: str | None = None
    messages: tuple[SuiteMessage, ...] = ()

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


class NamedGenerator(OrText, Generator, Documented):
    """A generator as in a thread's request, with a label."""

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


def _file_or_test(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "<file>" if isinstance(value, str) else "<test>"


TestOrFile = Annotated[Annotated[str, Tag("<file>")] | Annotated[SuiteTest, Tag("<test>")], Discriminator(_file_or_test)]


class SuiteSettings(Strict, Documented):
    """Settings of a batch of the suite's cases: how it runs, and when it fails."""

    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The most model and tool calls at the same time; 50 by default."""
    budget: Budget | None = None
    """Tokens or US dollars at which the batch pauses."""
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """The batch pauses when this many cases are errors."""
    max_error_rate: Share | None = None
    """The batch pauses when more than this share of the finished cases are errors, counted from the 20th case on; 0.5 by default."""
    pass_rate: Share = 1.0
    """The batch fails when a smaller share of the judged cases passes."""
    retries: Annotated[int, Field(ge=0, le=20)] = RETRIES
    """Retries of a model call after a transient error."""
    cache: bool = True
    """Whether drafts and verdicts of earlier batches are reused from the cache."""
    delay: Annotated[int, Field(ge=0, le=60_000)] | None = None
    """Milliseconds to wait before every call; calls are then made one at a time."""
    priority: Priority | None = None
    """The batch's tenant and which calls go first, as `{tenant, level, weight}`; level 4 by default."""
    derived_metrics: DerivedMetrics = ()
    """Figures calculated from the metrics that assertions name, as `{name, value}`: `value` is a formula such as `Tone / __count`."""


class SuiteFile(SuiteSettings):
    """A suite file."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The name that its batches carry."""
    prompts: Annotated[tuple[Prompt, ...], BeforeValidator(_wrap_in_list, json_schema_input_type=Prompt | tuple[Prompt, ...])] = ()
    """Prompts as text, messages, or `file://` files of them; left out when every test has an `output`."""
    generators: Annotated[
        tuple[NamedGenerator, ...], BeforeValidator(_wrap_in_list, json_schema_input_type=NamedGenerator | tuple[NamedGenerator, ...])
    ] = ()
    """The models, activities or workflows that draft; every test becomes one case per generator."""
    grader: GraderSetting | None = None
    """The model that judges."""
    rubric: Rubric | None = None
    """The rubric of all tests; short for `defaults.rubric`."""
    defaults: Defaults = Defaults()
    """Settings of every test, which a test may override."""
    tests: Annotated[
        tuple[TestOrFile, ...], BeforeValidator(_wrap_in_list, json_schema_input_type=TestOrFile | tuple[TestOrFile, ...])
    ] = ()
    """Tests, and CSV, JSONL, JSON or YAML files of tests, relative to this file."""
    loop: bool = False
    """Whether the generator revises its draft by the grader's feedback; short for `defaults.loop`."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 3
    """The most drafts of a case with `loop`."""
    repeat: Annotated[int, Field(ge=1, le=100)] = 1
    """Times that every case is drafted and judged."""
    tools: Annotated[tuple[str, ...], BeforeValidator(_wrap_in_list, json_schema_input_type=str | tuple[str, ...])] = ()
    """Python files of evidence tools and checks, relative to this file."""
    scripted: str | None = None
    """A file of replies for the provider `scripted`, relative to this file."""

    @model_validator(mode="after")
    def _says_it_once(self) -> "SuiteFile":
        if self.rubric is not None and (self.defaults.rubric is not None or self.defaults.assertions):
            raise ValueError("rubric: defaults has a rubric or assert, too; keep one of them")
        return self


def is_file(value: JsonValue) -> bool:
    """Tell whether a value names a file."""
    return isinstance(value, str) and value.startswith(FILE)


def read_text(path: Path, where: Location) -> str:
    """Read a text file; raise InvalidRequest where the file does not exist, is not UTF-8, or is larger than a message."""
    try:
        with path.open("rb") as file:
            raw = file.read(MESSAGE_BYTES + 1)
        if len(raw) <= MESSAGE_BYTES:
            return raw.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {error.strerror}; name another") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} is not UTF-8 at byte {error.start + 1}; save it as UTF-8") from None
    raise InvalidRequest(f"{where}: the file {str(path)!r} has more than {MESSAGE_BYTES} bytes; shorten it")


def resolve_files(value: JsonValue, scope: FileScope, where: Location) -> JsonValue:
    """Return JSON with the contents of the files that its `file://` texts name; raise InvalidRequest where a file cannot be read."""
    if isinstance(value, dict):
        return {key: resolve_files(item, scope, where.at(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_files(item, scope, where.at(at)) for at, item in enumerate(value)]
    if not is_file(value):
        return value
    if names_code(value):
        return read_code_file(str(value), scope, where)
    path = scope.find(str(value).removeprefix(FILE), where)
    if path.suffix.lower() in MEDIA_TYPES:
        return pdf_text(path, where) if path.suffix.lower() == ".pdf" else data_url(path, where)
    return read_yaml(path, "the file", aliases=True) if path.suffix in YAML_SUFFIXES else read_text(path, where)


def refuse_named_code(value: JsonValue, where: Location) -> None:
    """Refuse JSON with a text that names a file of code where none is called."""
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_named_code(item, where.at(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            refuse_named_code(item, where.at(at))
    elif isinstance(value, str) and names_code(value.partition("#")[0]):
        raise InvalidRequest(f"{where}: {clip(value)} is code, which is not run; write its value out, or serve a check as a tool")


def resolve_test(value: JsonValue, scope: FileScope, where: Location) -> JsonValue:
    """Return a raw test, or defaults, with its files' contents, output as data; raise InvalidRequest for a bad file or rubric."""
    if not isinstance(value, dict):
        return value
    refuse_named_code(value.get("vars"), where.at("vars"))
    resolved = {
        key: resolve_files(item, scope, where.at(key)) if key in {"assert", "options", "vars"} else item for key, item in value.items()
    }
    return resolved | resolve_rubric(resolved, scope, where)


def resolve_rubric(raw: dict[str, JsonValue], scope: FileScope, where: Location) -> dict[str, JsonValue]:
    """Return `{"rubric": ...}` of an object that has one, read from the file that it names; else an empty object.

    Raises:
        InvalidRequest: The rubric is invalid; the message names line and column.
    """
    rubric = raw.get("rubric")
    if rubric is None:
        return {}
    if is_file(rubric):
        path = scope.find(str(rubric).removeprefix(FILE), where.at("rubric"))
        return {"rubric": load_rubric(path, scope.beside(path))}
    rubric = inline_prompts(rubric, scope, where.at("rubric"))
    refuse_bad_rubric(rubric, where.placed, (*where.path, "rubric"), where.file)
    return {"rubric": rubric}


def resolve_prompts(value: JsonValue, scope: FileScope, where: Location) -> Iterator[JsonValue]:
    """Yield raw prompts of files: JSON and YAML as messages, else as text, labelled. Raise InvalidRequest where one cannot be read."""
    for at, prompt in enumerate(value if isinstance(value, list) else [value]):
        label = {"label": prompt["label"]} if isinstance(prompt, dict) and prompt.get("label") is not None else {}
        texts = [prompt.get("text"), prompt.get("messages")] if isinstance(prompt, dict) else [prompt]
        named = next(filter(is_file, texts), None)
        if named is None:
            yield prompt
            continue
        path = scope.find(str(named).removeprefix(FILE), where.at(at))
        content = read_yaml(path, "the prompt") if path.suffix in YAML_SUFFIXES else read_text(path, where.at(at))
        if not isinstance(content, str | list):
            raise InvalidRequest(f"{where.at(at)}: the prompt {clip(str(path))} is not a list of messages; write [{{role, content}}]")
        yield {"label": path.stem, "text" if isinstance(content, str) else "messages": content, **label}


PDF_BYTES = 32 * 1024 * 1024
"""The largest file that is read."""

PDF_PAGES = 1_000
"""The most pages that are read: a small file may claim millions."""


def pdf_text(path: Path, where: Location) -> str:
    """Return the text of a PDF's pages, an empty line between them; raise InvalidRequest where there is none, too much, or no reader."""
    with installed(f"{where}: {clip(path.name)} is a PDF, which needs pypdf; run: pip install 'gradeloop[pdf]'"):
        from pypdf import PdfReader
    try:
        size = path.stat().st_size
        reader = PdfReader(path) if size <= PDF_BYTES else None
        pages = reader.pages[: PDF_PAGES + 1] if reader else []
        text = "\n\n".join(page.extract_text().strip() for page in pages[:PDF_PAGES]).strip()
    except OSError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {error.strerror or error}; name another") from None
    except Exception as error:  # noqa: BLE001 - whatever a broken file leads its reader to
        raise InvalidRequest(f"{where}: the file {str(path)!r} is not a readable PDF: {clip(str(error), 100)}; name another") from None
    if size > PDF_BYTES or len(pages) > PDF_PAGES:
        problem = f"has more than {PDF_BYTES} bytes or {PDF_PAGES} pages; save its text as a file, and name that"
        raise InvalidRequest(f"{where}: the file {str(path)!r} {problem}")
    if not text:
        raise InvalidRequest(f"{where}: the file {str(path)!r} has no text, as scans have none; write it out")
    if len(text.encode(errors="replace")) > MESSAGE_BYTES:
        raise InvalidRequest(f"{where}: the text of {str(path)!r} has more than {MESSAGE_BYTES} bytes; name a part of it")
    return text


SCHEMAS = SchemaModels(files={"Suite": SuiteFile})
