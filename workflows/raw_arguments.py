"""Undecoded arguments and results."""

from pydantic import ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, explain, explained

NO_VALUE = RawValue(Payload(metadata={"encoding": b"binary/null"}))
"""The value of a missing argument."""


def decode(raw: RawValue, what: str) -> object:
    """Return the JSON value of a raw argument; raise InvalidRequest where it cannot be decoded."""
    try:
        return workflow.payload_converter().from_payload(raw.payload)
    except Exception as error:  # noqa: BLE001 - a converter raises many kinds, each the sender's mistake
        why = explain(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidRequest(f"{what} cannot be read: {why}; send one JSON object, encoded as json/plain") from None


class UnreadableResult(Exception):
    """The result of code that is not ours is not JSON that can be read."""


def decode_result(raw: RawValue) -> object:
    """Return the JSON value of a result of code that is not ours: where the SDK decodes it and fails, the thread would hang for ever.

    Raises:
        UnreadableResult: It cannot be decoded.
    """
    try:
        return decode(raw, "what it returned")
    except InvalidRequest as error:
        raise UnreadableResult(str(error).partition("; send one")[0]) from None


def parse_rubric(raw: RawValue) -> Rubric:
    """Return the rubric of a signal; raise InvalidRequest where it is malformed."""
    with explained():
        return Rubric.model_validate(decode(raw, "the rubric"))
