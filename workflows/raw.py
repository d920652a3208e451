"""What came in, undecoded: where the SDK decodes and fails, a start is tried for ever and a signal dropped in silence."""

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from gradeloop.errors import InvalidRequest, explain
    from gradeloop.rubric import Rubric

NO_VALUE = RawValue(Payload(metadata={"encoding": b"binary/null"}))
"""What a missing argument is read as."""


def decoded(raw: RawValue, what: str) -> object:
    """Return the JSON value of a raw argument.

    Raises:
        InvalidRequest: It cannot be decoded.
    """
    try:
        return workflow.payload_converter().from_payload(raw.payload)
    except Exception as error:  # noqa: BLE001 - a converter raises many kinds, each the sender's mistake
        why = explain(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidRequest(f"{what} cannot be read: {why}; send one JSON object, encoded as json/plain") from None


class Unreadable(Exception):
    """What somebody else's code returned is no JSON that can be read."""


def answered(raw: RawValue) -> object:
    """Return the JSON value that somebody else's code returned: where the SDK decodes it and fails, the thread would hang for ever.

    Raises:
        Unreadable: It cannot be decoded.
    """
    try:
        return decoded(raw, "what it returned")
    except InvalidRequest as error:
        raise Unreadable(str(error).partition("; send one")[0]) from None


def rubric_in(raw: RawValue) -> Rubric:
    """Read a rubric that was signalled; InvalidRequest where it is malformed."""
    try:
        return Rubric.model_validate(decoded(raw, "the rubric"))
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
