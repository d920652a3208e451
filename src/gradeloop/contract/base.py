"""The base classes of all models on the wire, bounded lists, and pages of long lists."""

import ast
import dataclasses
import inspect
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema, to_json

from gradeloop.errors import MISTAKES, InvalidRequest
from gradeloop.text import clip, did_you_mean, parse_share, shortened

FieldT = TypeVar("FieldT")


def without_nulls(model: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without nulls of optional fields: most languages' typed clients send null for a field that was never set.

    A null stays where it means something else than the field's default, as in a usage that is not known.
    """
    keeps = _json_keys(model)
    return {key: item for key, item in value.items() if item is not None or keeps.get(key, True)}


@cache
def _json_keys(model: type[BaseModel]) -> dict[str, bool]:
    """Return a model's keys in JSON, with whether a null stays."""
    return {field.alias or name: field.is_required() or _means_something(field) for name, field in model.model_fields.items()}


def _means_something(field: FieldInfo) -> bool:
    """Return whether None is another value of an optional field than its default."""
    return type(None) in get_args(field.annotation) and field.default is not None and field.default_factory is None


def _read_shares(value: object) -> object:
    if isinstance(value, dict):
        return {key: _read_shares(share) for key, share in value.items()}
    return parse_share(value) if isinstance(value, str | int | float) else value


READS_SHARES = BeforeValidator(_read_shares)
"""Reads a share, or a mapping of shares, that a person writes as `0.9` or as `90%`."""

if TYPE_CHECKING:
    OmitEmpty = Annotated[FieldT, "left out of the JSON where it is empty"]
else:

    class OmitEmpty:
        """The annotation of a field that is left out of the JSON where it is empty.

        `OmitEmpty[bool]` is left out where it is False, `OmitEmpty[int]` where it is 0, texts, tuples and dictionaries if empty,
        and any other, `OmitEmpty[str | None]` say, where it is None: the field's default in all cases.
        """

        def __class_getitem__(cls, kind: object) -> object:
            """Return the annotated type, which is left out of the JSON where it is empty."""
            bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            has_empty_value = bare in {bool, int, str} or get_origin(bare) in {tuple, dict}
            return Annotated[kind, Field(exclude_if=operator.not_ if has_empty_value else lambda value: value is None)]


RECORDED = {"recorded": True}
"""The validation context for data of a later version: every model ignores unknown keys, as `Tolerant` does."""


class Strict(BaseModel):
    """A frozen model that refuses unknown keys and names the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - raw input of any shape
        if type(value) is not dict and not isinstance(value, Mapping):  # nearly all are, and asking the abstract class takes longer
            return value
        known = _json_keys(cls)
        if not value.keys() <= known.keys() and (unknown := [key for key in value if key not in known]):
            if info.context is not RECORDED:
                name = str(unknown[0])
                raise PydanticCustomError(
                    "unknown_key", "unknown key {key}.{hint}", {"key": clip(name), "hint": did_you_mean(name, list(known))}
                )
            value = {key: item for key, item in value.items() if key in known}
        return without_nulls(cls, value)


class Tolerant(BaseModel):
    """A frozen model of recorded data, which ignores a later version's keys so that old and new workers replay it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OrText(Strict):
    """A model that may also be written as one string, as its JSON Schema for input says."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the object; for input, also of a string and of the other forms."""
        whole = super().__get_pydantic_json_schema__(schema, handler)
        if handler.mode == "serialization":
            return whole
        cls.widen(handler.resolve_ref_schema(whole))
        return {"anyOf": [{"type": "string"}, *cls.other_forms(), whole]}

    @classmethod
    def other_forms(cls) -> list[JsonSchemaValue]:
        """Return the schemas of its other forms, beside a string and the object."""
        return []

    @classmethod
    def widen(cls, schema: JsonSchemaValue) -> None:
        """Add to the object's schema those forms of its fields that pydantic does not know."""


@dataclass(frozen=True)
class Bounded:
    """Annotates a list or mapping that may be long: it is counted before its items are validated, and validation stops at 20 mistakes.

    A workflow task that takes longer than two seconds counts as a deadlock, and 50,000 mistakes take about as long.
    """

    most: int | None = None
    """The largest number of items."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the list or mapping, wrapped in the bounded validation."""
        return core_schema.no_info_wrap_validator_function(self._validated, handler(source))

    def _validated(self, value: Any, validate: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - raw input of any shape
        if not isinstance(value, list | tuple | dict):
            return validate(value)
        if self.most is not None and len(value) > self.most:
            raise PydanticCustomError(
                "too_many", "it has {count} items, {most} at most; send fewer", {"count": len(value), "most": self.most}
            )
        return validate(value) if len(value) <= MISTAKES else _validated_in_parts(value, validate)


# Pydantic collects all mistakes of a list before it raises, so only a shorter list bounds the time. Each
# part goes through the whole validator, and the results are joined as the type that it returned.
def _validated_in_parts(value: Any, validate: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - a list, a tuple or a dict
    """Validate the items in parts, and stop once there are more mistakes than a message lists."""
    parts: list[Any] = []
    mistakes: list[InitErrorDetails] = []
    for start in range(0, len(value), MISTAKES):
        keyed = isinstance(value, dict)
        part = dict(islice(value.items(), start, start + MISTAKES)) if keyed else value[start : start + MISTAKES]
        try:
            parts.append(validate(part))
        except ValidationError as error:
            mistakes += [_moved(detail, 0 if keyed else start) for detail in error.errors(include_url=False)]
        if len(mistakes) > MISTAKES:
            break
    if mistakes:
        raise ValidationError.from_exception_data("items", mistakes)
    if isinstance(parts[0], dict):
        return {key: item for part in parts for key, item in part.items()}
    return type(parts[0])(item for part in parts for item in part)


def _moved(detail: ErrorDetails, by: int) -> InitErrorDetails:
    """Return a mistake of a part with its position in the whole list."""
    first, *rest = detail["loc"] or (0,)
    location = (first + by if isinstance(first, int) else first, *rest)
    message = PydanticCustomError(cast("Any", detail["type"]), "{message}", {"message": detail["msg"]})
    return InitErrorDetails(type=message, loc=location, input=detail["input"])


Item = TypeVar("Item")

Items = Annotated[tuple[Item, ...], Bounded()]
"""A tuple of any length that a caller sends; its validation stops at 20 mistakes."""

BoundedDict = Annotated[dict[str, Item], Bounded()]
"""A mapping of any length that a caller sends; its validation stops at 20 mistakes."""

PAGE_BYTES = 1024 * 1024
"""The largest page as JSON: half of the 2 MiB that one Temporal payload may have."""

PageItem = TypeVar("PageItem")


class Page(Strict, Generic[PageItem]):
    """A page of a list, at most 1 MiB of items from `after` on: `(await client.messages("haiku-1", after=20)).items`."""

    items: tuple[PageItem, ...]
    next: int | None
    """The value of `after` for the next page; None on the last one."""
    total: int
    """The number of items that the list has had, dropped ones included."""
    first: int = 0
    """The position at which the list begins; earlier items were dropped."""


def refuse_other_than_numbers(**numbers: object) -> None:
    """Raise InvalidRequest where an argument of a query is not a whole number."""
    for name, value in numbers.items():
        if type(value) is not int:
            raise InvalidRequest(f"{name} is {shortened(json.dumps(value), 60)}, not a whole number")


def page_of(items: Sequence[Any], after: int, limit: int, *, first: int = 0) -> dict[str, Any]:
    """Return the page of `items`, whose positions start at `first`, from position `after`.

    Raises:
        InvalidRequest: A number is another JSON value: Temporal decodes arguments by their types only where none is missing.
    """
    refuse_other_than_numbers(after=after, limit=limit)
    start = min(max(after - first, 0), len(items))
    page: list[Any] = []
    size = 0
    for item in items[start : start + max(1, min(limit, 1000))]:
        size += len(to_json(item))
        # An item that is larger than a page is still returned, alone: without it `next` would stay where it is,
        # and a reader would ask for ever.
        if page and size > PAGE_BYTES:
            break
        page.append(item)
    stop = start + len(page)
    return {"items": page, "next": first + stop if stop < len(items) else None, "total": first + len(items), "first": first}


@dataclasses.dataclass(frozen=True)
class SchemaModels:
    """Models that `gradeloop schema` shows, by their names on the wire."""

    sent: Mapping[str, type[BaseModel]] = dataclasses.field(default_factory=dict)
    """Models that gradeloop takes."""
    received: Mapping[str, type[BaseModel]] = dataclasses.field(default_factory=dict)
    """Models that it writes."""
    files: Mapping[str, type[BaseModel]] = dataclasses.field(default_factory=dict)
    """Models of files that people write."""


class Documented(BaseModel):
    """A model that a file or flags are read into, and whose JSON Schema describes each field by the docstring below it.

    Pydantic's `use_attribute_docstrings` reads the sources when a class is made, which costs every command a tenth of a second.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the fields' descriptions."""
        found = super().__get_pydantic_json_schema__(schema, handler)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in field_descriptions(cls).items():
            properties.get(cls.model_fields[name].alias or name, {}).setdefault("description", text)
        return found


def describe_fields(model: type[BaseModel]) -> None:
    """Give the fields of a model, and of the models inside it, their descriptions, which `--help` prints."""
    for name, field in model.model_fields.items():
        if issubclass(model, Documented) and field.description is None:
            field.description = field_descriptions(model).get(name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                describe_fields(kind)


@cache
def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields by the fields' names, those of its bases among them."""
    own = [cls for cls in reversed(model.__mro__) if issubclass(cls, BaseModel) and cls is not BaseModel]
    return {name: text for cls in own for name, text in _docstrings(cls) if name in model.model_fields}


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    body = _classes(inspect.getfile(cls)).get(cls.__name__, [])
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass


@cache
def _classes(path: str) -> dict[str, list[ast.stmt]]:
    """Return the bodies of a file's classes by name."""
    return {item.name: item.body for item in ast.parse(Path(path).read_text(encoding="utf-8")).body if isinstance(item, ast.ClassDef)}


CODE_CHARACTERS = 262_144
"""The longest text of code: it rides in every case that it judges."""


class CodeText(Strict):
    """A text of Python or JavaScript that is run in the worker's sandbox."""

    language: Literal["javascript", "python"]
    code: Annotated[str, Field(min_length=1, max_length=CODE_CHARACTERS)]
    """An expression or a function's body; with `file`, all of that file."""
    file: OmitEmpty[Annotated[str, Field(max_length=200)]] = ""
    """The file's name."""
    function: OmitEmpty[Annotated[str, Field(max_length=200)]] = ""
    """The file's function that is called; empty for what a file of JavaScript exports."""
    config: OmitEmpty[JsonValue] = None
    """The value of `context["config"]` in the code."""
    finds_context: OmitEmpty[Annotated[int, Field(ge=0, le=2)]] = 0
    """Above 0, the code gets an output's context, and `{answer, context}` is shown: of the output (1), or before its last transform (2)."""
