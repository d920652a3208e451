"""The base of every model at the trust boundary: frozen, and closed to unknown keys."""

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gradeloop.printable import clip, did_you_mean

FieldT = TypeVar("FieldT")


def without_nulls(model: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that are null and may be absent: most languages' typed clients send null for a field that was never set."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    return {key: item for key, item in value.items() if item is not None or key not in fields or fields[key].is_required()}


if TYPE_CHECKING:
    Sparse = Annotated[FieldT, "left out of the JSON where it is empty"]
else:

    class Sparse:
        """The annotation of a field that is left out of the JSON where it says nothing.

        `Sparse[bool]` is left out where it is False, `Sparse[int]` where it is 0, texts, tuples and dictionaries where they are empty, and
        any other, `Sparse[str | None]` say, where it is None: the field's default in all cases.
        """

        def __class_getitem__(cls, kind: object) -> object:
            """Return the type with the condition beside it."""
            bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            has_empty_value = bare in {bool, int, str} or get_origin(bare) in {tuple, dict}
            return Annotated[kind, Field(exclude_if=operator.not_ if has_empty_value else _is_none)]


def _is_none(value: object) -> bool:
    return value is None


class Strict(BaseModel):
    """A frozen model that refuses unknown keys and says which ones it knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in value:
                if key not in known:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key {key}.{hint}",
                        {"key": clip(str(key)), "hint": did_you_mean(str(key), known)},
                    )
            return without_nulls(cls, value)
        return value


class Recorded(BaseModel):
    """A frozen model of what histories hold: a later version's extra keys are passed over, so that old and new workers replay it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OrText(Strict):
    """A model that may also be written as one string; its JSON Schema says so for input."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the object, or of a string and the other ways to write it where it describes input."""
        whole = handler(schema)
        if handler.mode == "serialization":
            return whole
        cls.widen(handler.resolve_ref_schema(whole))
        return {"anyOf": [{"type": "string"}, *cls.other_forms(), whole]}

    @classmethod
    def other_forms(cls) -> list[JsonSchemaValue]:
        """Return the schemas of what it may be written as, beside a string and the object."""
        return []

    @classmethod
    def widen(cls, schema: JsonSchemaValue) -> None:
        """Add to the object's schema what its fields may be written as, where pydantic does not see it."""
