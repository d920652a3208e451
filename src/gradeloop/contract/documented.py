"""Models whose fields are described by the docstrings below them, read when somebody asks: in a JSON Schema, in help, on a page."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


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
def field_descriptions(model: type[Documented]) -> dict[str, str]:
    """Return the docstrings of a model's fields by the fields' names, those of its bases among them."""
    own = [cls for cls in reversed(model.__mro__) if issubclass(cls, Documented) and cls is not Documented]
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
