"""The ceilings that a person sets for the calls of a provider or of a model."""

from typing import Annotated

from pydantic import Field

from gradeloop.contract.base import Strict
from gradeloop.contract.documented import Documented

CeilingName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*(:.+)?$", max_length=300)]
"""A provider (`openai`), all of whose calls are counted together, or one of its models (`openai:gpt-6-luna`)."""


ANY_TENANT = "*"
"""The name that stands for each tenant that has no budget of its own name."""


class CallCeilings(Strict, Documented):
    """The most that is asked of a provider or of a model; each value is optional."""

    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Start at most this many calls a minute, evenly spread."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Send and receive at most this many tokens a minute; what a call will take is reckoned from its prompt and from earlier replies."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Have at most this many calls in flight in one worker."""
