"""Interface of a model's protocol: requests, replies, faults, endpoints, and the row by which a protocol is known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import JsonValue

from gradeloop.contract.base import OmitEmpty, Strict, Tolerant
from gradeloop.contract.messages import Attachment, DeclaredFunction, LogProbs, Message, OutputForm, Usage, split_attached
from gradeloop.contract.model_spec import ModelSpec

if TYPE_CHECKING:
    import httpx2

FailureKind = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "malformed_response",
    "degenerate",
    "quota_exhausted",
    "auth",
    "bad_request",
    "not_found",
    "context_overflow",
    "refused",
    "truncated",
    "config",
]

_THINKING_REFUSED = re.compile(r"block is bound to a different|encrypted[_ ]content", re.IGNORECASE)
"""Messages about thinking of another conversation or account (Anthropic), and about reasoning that cannot be decrypted (OpenAI)."""

DRAFT_CHARACTERS = 8_000
"""The characters that are told of a draft while it is being written, its last ones."""


class CallProgress(Tolerant):
    """The progress of a call, which its heartbeats carry to whoever describes its workflow."""

    since: float
    """Time of the first attempt, in seconds since 1970."""
    model: OmitEmpty[str] = ""
    """The model that this attempt asks; empty where none is asked yet."""
    attempt: int = 1
    """The number of this attempt."""
    tokens: OmitEmpty[int | None] = None
    """About how many tokens of a stream have come."""
    draft: OmitEmpty[str | None] = None
    """The end of a thread's draft, as far as its stream has come."""
    problem: OmitEmpty[str | None] = None
    """The reason why the paid attempt before this one gave no answer."""
    store: OmitEmpty[str | None] = None
    """The problem of the store that a reply waits for."""


class ModelFault(Exception):
    """A model call that gave no answer."""

    def __init__(  # noqa: PLR0913 - one argument a fact
        self,
        kind: FailureKind,
        message: str,
        *,
        model: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        error: str = "",
        usage: Usage | None = None,
        raisable: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.model = model
        self.status = status
        self.retry_after = retry_after
        """Seconds that the provider asks us to wait."""
        self.error = error
        """The class name of the exception behind it; empty where the fault is our own finding."""
        self.usage = usage
        """The cost of the reply that gave no answer; None where no reply came."""
        self.raisable = raisable
        """True for a completion that was cut at its own cap, below what the model can write."""

    @property
    def refuses_thinking(self) -> bool:
        """Whether the provider refused the thinking of an earlier reply, so that the call may succeed without it."""
        return self.kind == "bad_request" and _THINKING_REFUSED.search(self.message) is not None

    def __str__(self) -> str:
        """Return exception, HTTP status and model, then the provider's message."""
        if self.kind == "config" and not self.error:
            return self.message
        status = f"HTTP {self.status}" if self.status else ""
        return f"{', '.join(part for part in (self.error, status, self.model) if part)}: {self.message}".removeprefix(": ")


class ToolSpec(Strict):
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema of the arguments: an object."""


class Step(Strict):
    """The address of a call in its thread; a recorded or scripted reply is found by it."""

    role: Literal["generator", "grader"]
    run: int = 0
    """The ordinal of the grading run in the thread, from 0."""
    iteration: int = 0
    group: int = 0
    sample: int = 0
    step: int = 0
    """The ordinal of the model turn in its conversation, from 0."""


@dataclass(frozen=True)
class ModelRequest:
    """One call of one model."""

    spec: ModelSpec
    step: Step
    messages: tuple[Message, ...]
    system: str = ""
    thread: str = ""
    """The thread, judgement or case to which the call belongs; a provider that caches prompts keeps its calls together."""
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    """JSON Schema of the answer, in the dialect that all providers take; None for free text."""
    schema_name: str = "verdict"
    tools_allowed: bool = True
    """False on a last turn: the tools stay declared (earlier turns name them) but the model must answer."""
    breakpoints: tuple[int, ...] = ()
    """Indexes of the messages up to which the prompt is the beginning of later ones, so that a provider may cache it; three at most.

    The system prompt is always such a beginning.
    """
    tag: str | None = None
    """The name of the tags around the answer, where no schema binds it."""
    cap: int | None = None
    """Tokens that are enough for the answer, where the model's settings name no cap; None where nothing is known of its length."""
    raised: bool = False
    """True where the completion was cut at its cap before: it gets `RAISE_FACTOR` times as much, as far as the model goes."""
    without_thinking: bool = False
    """True where the provider refused the thinking of earlier messages: none of it is sent."""
    functions: tuple[DeclaredFunction, ...] = ()
    """Functions that the reply may call, beside no tools: nobody runs them."""
    function_choice: str | None = None
    """`auto`, `none`, `required`, or the name of the function to call."""
    output_form: OutputForm | None = None
    """The JSON that the reply is asked to be, where no schema of ours binds it."""
    images: tuple[Attachment, ...] = ()
    """Images and files whose labels stand in the user's messages, beside those that are attached to one."""
    logprobs: bool = False
    """Whether the reply is to say how probable its tokens were."""
    embedded: tuple[str, ...] = ()
    """The draft and the texts to which it is compared by their embeddings; nothing is completed then."""

    def parts(self, *messages: Message) -> list[str | Attachment]:
        """Return what is said in neighbouring messages in parts, those of the user with images and files in the place of their labels."""
        attached = (*self.images, *(one for message in messages for one in message.attached)) if messages[0].role == "user" else ()
        return split_attached("\n\n".join(message.content for message in messages), attached)


@dataclass(frozen=True)
class ModelReply:
    """An assistant message with text or tool calls, and what it cost."""

    message: Message
    usage: Usage = field(default_factory=Usage)
    logprobs: LogProbs | None = None
    """Log probabilities of its tokens, where they were asked for and are known."""


class Provider(Protocol):
    """An adapter of one protocol, for one endpoint.

    An adapter that can also list models has a method `models` like `ListsModels`, by which `gradeloop doctor` tries the endpoint's key.
    """

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make exactly one paid call and return its reply.

        Raises:
            ModelFault: The call failed, or its reply is not an answer (refused, truncated, malformed, empty).
        """
        ...


class ListsModels(Provider, Protocol):
    """An adapter that can say which models its endpoint has."""

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models that the endpoint lists for our key; none where it lists none."""
        ...


Cloud = Literal["azure", "bedrock", "vertex"]


@dataclass(frozen=True)
class Endpoint:
    """An address at which models are called, and our key there."""

    base_url: str
    key: str | None = field(default=None, repr=False)
    named: bool = False
    """Whether the worker's settings or variables name the address."""
    project: str | None = None
    """The Google Cloud project whose Vertex AI is called, with the machine's own credentials and no key."""
    location: str | None = None
    """The region of a cloud."""
    guarded: bool = False
    """Whether only a wildcard allows the address, so that it must not lead into a private network."""
    protocol: str | None = None
    """The protocol that it speaks."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys of every request's body; a request already has them in `config.extra`."""
    cloud: Cloud | None = None
    """The cloud whose own client is used."""
    provider: str = field(default="", compare=False)
    """The name by which models are called here: `PROVIDER:model`."""
    origin: str = field(default="", compare=False)
    """The variable or file of the key; empty where the server is called without one."""


class Connections(Protocol):
    """The connections and notes that the adapters of one worker share."""

    @property
    def ambient_headers(self) -> frozenset[str]:
        """Headers that an SDK would take from a variable of its own and send to any host; they are left out of every request."""
        ...

    def client(self, endpoint: Endpoint) -> "httpx2.AsyncClient":
        """Return the worker's pool of connections; for a guarded endpoint, one that reaches only public addresses."""
        ...

    def memory(self, endpoint: Endpoint) -> dict[str, str]:
        """Return what the adapters of an endpoint remember about it: it outlives an adapter, which is made anew for a new key."""
        ...


@dataclass(frozen=True)
class ModelProtocol:
    """A protocol in which models are called: a row of the registry `protocols`.

    Example:
        ```python
        PROTOCOLS = (ModelProtocol("acme", "acme.adapter:connect", package="acme_sdk", install="acme-sdk"),)
        ```
    """

    name: str
    """Its name as the `protocol` of an endpoint's table."""
    adapter: str
    """A function of `Connections` and `Endpoint` that returns a `Provider`, as `module:attribute`; it is imported at the first call."""
    package: str = ""
    """The package that the adapter imports; empty where it needs none."""
    install: str = ""
    """The requirement by which pip installs that package."""
    tables: str = "openai_compatible"
    """The provider under which its models and prices are looked up, where no preset says more."""
    log_probs: bool = True
    """Whether its replies can say how probable their tokens are."""
    open: bool = True
    """Whether an endpoint's table may name it."""
