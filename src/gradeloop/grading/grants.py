"""Names in a request, however deep they are nested, and the grants of a caller."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gradeloop.contract.base import CodeText
from gradeloop.contract.criterion import Check
from gradeloop.contract.messages import Attachment
from gradeloop.contract.model_spec import FallbackModel, ModelConfig, ModelSpec, RemoteGrader, RemoteTool
from gradeloop.contract.thread import Generator, Grader, ThreadRequest
from gradeloop.errors import InvalidRequest, explain, field_path
from gradeloop.grading.checks import CHECKS
from gradeloop.grading.code_checks import CODE_CHECK, parse_code_check
from gradeloop.text import clip

Request = TypeVar("Request", bound=BaseModel)

Kind = Literal["model", "address", "setting", "queue", "activity", "tool", "code"]
"""The kinds of names. An activity or workflow is granted with its queue; a setting is a key of a model's `extra` or of a checkpoint."""

_REMOTE: Mapping[str, Kind] = {"activity": "activity", "task_queue": "queue"}

NAMES: Mapping[type[BaseModel], Mapping[str, Kind]] = {
    FallbackModel: {"id": "model"},
    ModelConfig: {"base_url": "address", "extra": "setting"},
    Generator: {**_REMOTE, "workflow": "activity", "tools": "tool"},
    Grader: {**_REMOTE, "function": "tool", "tools": "tool"},
    RemoteGrader: {**_REMOTE, "function": "tool"},
    RemoteTool: _REMOTE,
    Check: {"tool": "tool"},
    Attachment: {"url": "address"},
    CodeText: {"language": "code"},
    ThreadRequest: {"checkpoint": "setting"},
}
"""The fields that name something; `tests/grading/test_grants.py` lists every other field of a request, which is data."""


@dataclass(frozen=True)
class Named:
    """Something that a request names."""

    kind: Kind
    value: str
    where: str
    """The path of its field; for a model that of the whole model."""
    model: FallbackModel | None = None
    """The model, where that is what is named."""


def named_in(value: object, path: tuple[int | str, ...] = ()) -> Iterator[Named]:
    """Yield whatever a request, or a part of one, names; raise InvalidRequest where a check's arguments hold an invalid model or code."""
    if isinstance(value, list | tuple | dict):
        for at, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_in(item, (*path, at))
    elif isinstance(value, BaseModel):
        for name, kind in _fields(type(value)).items():
            if not (found := getattr(value, name)):
                continue
            if kind is not None:
                model = value if isinstance(value, FallbackModel) else None
                where = field_path(path if model else (*path, name))
                texts = (found,) if isinstance(found, str) else found
                yield from (Named(kind, text, where, model) for text in texts if isinstance(text, str))
            if kind != "setting":  # whose JSON may be deep
                yield from named_in(found, (*path, name))
        if isinstance(value, Check):
            yield from named_in(_in_arguments(value, path), (*path, "arguments"))


def _in_arguments(check: Check, path: tuple[int | str, ...]) -> BaseModel | dict[str, BaseModel]:
    """Return the part of a check's arguments that names something outside of its tool: an assertion's code, a comparison's grader."""
    try:
        if check.tool == CODE_CHECK:
            return parse_code_check(check.arguments)
        judged = any(kind.tool == check.tool and kind.takes_grader for kind in CHECKS)
        grader = check.arguments.get("grader") if judged else None
        return {"grader": ModelSpec.model_validate(grader)} if grader else {}
    except ValueError as error:
        why = explain(error) if isinstance(error, ValidationError) else error
        raise InvalidRequest(f"{field_path(path)}.arguments: {why}") from None


@cache
def _fields(model: type[BaseModel]) -> dict[str, Kind | None]:
    """Return the fields of a model that name something, with its kind, and those below which something is named."""
    # Computed from the models, so that a field which holds models that name something is descended into
    # without being listed. A new field that itself names something has to be added to NAMES; the test that
    # lists all other fields fails until its author has decided which it is.
    own = {name: kind for base in model.__mro__ for name, kind in NAMES.get(base, {}).items()}
    others = ((name, field) for name, field in model.model_fields.items() if name not in own)
    return own | {name: None for name, field in others if any(map(_fields, _models_of(field.annotation)))}


def _models_of(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_of(part)


@dataclass(frozen=True)
class Grants:
    """The names that a caller may use."""

    kinds: frozenset[Kind]
    """The kinds of which nothing else may be named; all others are granted whole."""
    names: frozenset[tuple[str, str]]
    """The kinds and values that are granted."""
    cure: str
    """The cure for any other name."""

    def check(self, request: Request, place: str = "") -> Request:
        """Return a request that names only what was granted; raise InvalidRequest, which begins with `place`, for any other."""
        for named in named_in(request):
            if named.kind in self.kinds and (named.kind, named.value) not in self.names:
                raise InvalidRequest(f"{place}{named.where}: the {named.kind} {clip(named.value)} was not granted; {self.cure}")
        return request
