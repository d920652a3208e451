"""What the wire formats have in common: reading replies that may be anything, and ids that a server left out."""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from activities.failures import ModelFault, kind_of
from activities.providers.model import Step
from activities.symptoms import conceal
from gradeloop.transcript import ToolCall

JsonObject = dict[str, JsonValue]


def as_it_is(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body with the user's own settings, to be sent as the SDK's `extra_body`.

    It is on the wire's terms already; as arguments the SDK would walk through all of it to make it so, a sixth of a short call's CPU.
    """
    return {**body, **extra}


def json_object(body: bytes) -> JsonObject:
    """Read a reply's body as a JSON object; a 200 may also carry a proxy's page, half a body or none.

    Raises:
        ModelFault: It is no JSON object.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        shown = f"it begins {body[:80]!r}" if body else "it is empty"
        raise ModelFault("malformed_response", f"the reply is no JSON ({error}); {shown}") from None
    if not isinstance(value, dict):
        raise ModelFault("malformed_response", f"the reply is a JSON {type(value).__name__}, not an object: {conceal(str(value))!r}")
    return value


def reported(error: JsonValue, status: int) -> ModelFault:
    """Turn an error that came inside a 200 into a fault; a numeric code is the HTTP status that it stands for."""
    report = error if isinstance(error, dict) else {"message": str(error)}
    code = report.get("code")
    codes = [word for word in (code, report.get("type")) if isinstance(word, str)]
    words = str(report.get("message") or report)
    stands_for = code if isinstance(code, int) else status
    return ModelFault(kind_of(stands_for, codes, words), f"an error inside HTTP {status}: {words}", status=stands_for)


def count(usage: JsonValue, *path: str) -> int:
    """Return the token count at `path`; 0 where it is absent or no count."""
    value = usage
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def objects(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a list; none where it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def call_id(step: Step, ordinal: int) -> str:
    """Return an id for a tool call that came without one: the same at every retry, another at every step."""
    return f"call_{step.run}_{step.iteration}_{step.group}_{step.sample}_{step.step}_{ordinal}"


def tool_call(identifier: str, name: JsonValue, arguments: JsonValue) -> ToolCall:
    """Build a tool call; arguments that are no JSON object are kept as written.

    Raises:
        ModelFault: The call names no tool.
    """
    if not isinstance(name, str) or not name:
        raise ModelFault("malformed_response", f"a tool call names no tool: {name!r}")
    parsed = _parsed(arguments)
    if isinstance(parsed, dict):
        return ToolCall(id=identifier, name=name, arguments=parsed)
    return ToolCall(id=identifier, name=name, invalid=arguments if isinstance(arguments, str) else to_json(arguments).decode())


def _parsed(arguments: JsonValue) -> JsonValue:
    """Parse arguments that are JSON text; none at all mean a call without arguments."""
    if arguments in (None, ""):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: JsonValue = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return None
    return parsed


def opaque(vendor: Mapping[str, JsonValue] | None, provider: str, part: str) -> JsonValue:
    """Return what a message carries for `provider` alone; None where it is another provider's."""
    return vendor.get(part) if vendor is not None and vendor.get("provider") == provider else None
