"""The settings of a generator that is an address, read without an HTTP client."""

from pydantic import ValidationError

from gradeloop.contract.http_call import HttpCall
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault
from gradeloop.errors import explain


def read_call(spec: ModelSpec) -> HttpCall:
    """Return what a model of this kind sends.

    Raises:
        ModelFault: Its settings are none of a request.
    """
    try:
        return HttpCall.model_validate({"method": spec.model.upper(), **spec.config.extra})
    except ValidationError as error:
        raise ModelFault("config", f"{spec.id!r}: extra: {explain(error)}", model=spec.id) from None
