"""Messages, the log that holds them with a running sha256, and the usage of model calls."""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    model_validator,
)
from pydantic_core import core_schema, to_json

from gradeloop.contract.base import Bounded, Items, OmitEmpty, Strict
from gradeloop.errors import explained
from gradeloop.text import clip

MESSAGE_BYTES = 1024 * 1024
"""The largest message, measured as JSON: half of the 2 MiB that one Temporal payload may have."""

MAX_MESSAGES = 10_000
"""The most messages that a caller sends at once: a workflow reads them in one task."""

FEEDBACK_SOURCE = "rubric_grader"
"""The `name` and `source` of a message that gives the grader's feedback to the generator."""

TURN_LIMIT_SOURCE = "turn_limit"
"""The `source` of a message that asks a model to answer now, since its tool calls or turns are used up."""

EMPTY_SHA = hashlib.sha256(b"").hexdigest()
"""The sha256 of an empty log."""

_DECIMALS = 10
"""The decimals of a cost in US dollars: sums of floats stay short, and a tenth of a nanodollar is below every price of a token."""

_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")

_FENCE = re.compile(r"(?P<indent> {0,3})(?P<mark>`{3,}|~{3,})(?P<rest>.*)")

RecordKind = Literal["text", "reasoning", "tool_call", "tool_result", "file", "error", "other", "finding"]
"""The types of records in which a finished run is shown to judges; `finding` is a judge's word about a part of a longer run."""

IMAGE_BYTES = 640 * 1024
"""The largest image or file inside of a message or a case, which may have 1 MiB with all it says."""

IMAGES = 20
"""The most images and files of a message or a case, as the strictest vendor has it."""

_DATA = re.compile(r"data:(?P<media>(?P<image>image/(?:png|jpeg|gif|webp))|application/pdf);base64,(?P<data>[A-Za-z0-9+/]+={0,2})")
_UNSAFE = {ord(character): f"%{ord(character):X}" for character in '"\\<'}
"""Characters that the JSON in which graders are shown a label would write otherwise."""
_ADDRESS = re.compile(r"https?://[^\s/?#@]+(?:[/?#]\S*)?")


class Attachment(Strict):
    """An image or a file, by its address or as a `data:` URL."""

    type: OmitEmpty[Literal["image", "file"]] = "image"
    url: Annotated[str, Field(min_length=1)]
    """`https://…`, which the vendor fetches, or `data:image/png;base64,…` (png, jpeg, gif, webp; of a file `application/pdf`)."""
    detail: OmitEmpty[Literal["auto", "low", "high"] | None] = None
    """The detail in which OpenAI's models look at an image."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if _ADDRESS.fullmatch(self.url):
            return self
        found = _DATA.fullmatch(self.url)
        if found is None or (found["image"] is None) != (self.type == "file"):
            forms = "data:application/pdf;base64,…" if self.type == "file" else "data:image/png;base64,… (png, jpeg, gif or webp)"
            raise ValueError(f"{clip(self.url)} is not a valid {self.type}; write https://…, or {forms}")
        try:
            size = len(self._bytes)
        except (binascii.Error, ValueError):
            raise ValueError(f"{clip(self.url)} is not base64; encode the {self.type} anew") from None
        if size > IMAGE_BYTES:
            raise ValueError(f"the {self.type} has {size} bytes, {IMAGE_BYTES} at most; shrink it, or give its address")
        return self

    @property
    def media_type(self) -> str | None:
        """The type of an attachment that is data; None of one that has an address."""
        found = _DATA.fullmatch(self.url)
        return found["media"] if found else None

    @property
    def data(self) -> str:
        """The base64 of an attachment that is data."""
        return self.url.partition(",")[2]

    @property
    def _bytes(self) -> bytes:
        return base64.b64decode(self.data, validate=True)

    def label(self, number: int | None = None) -> str:
        """Return what stands in a text in the place of the attachment; `number` counts a case's images from 1."""
        name = self.type if number is None else f"{self.type} {number}"
        if self.media_type is None:
            return f"[{name}, at {self.url.translate(_UNSAFE)}]"
        size = max(1, round(len(self._bytes) / 1024))
        return f"[{name}, {size} KiB, sha256 {hashlib.sha256(self._bytes).hexdigest()[:12]}…]"


# A label in the text is all that says where an attachment stands; validation refuses a message without it.
# Each is searched for in the parts that are left as text, the numbered form of a case's prompt first.
def split_attached(text: str, attached: Sequence[Attachment]) -> list[str | Attachment]:
    """Return a text in parts, with images and files in the place of their labels."""
    parts: list[str | Attachment] = [text]
    for one, label in ((it, label) for number, it in enumerate(attached, 1) for label in (it.label(number), it.label())):
        at = next((at for at, part in enumerate(parts) if isinstance(part, str) and label in part), None)
        if at is not None:
            before, _, after = str(parts[at]).partition(label)
            parts[at : at + 1] = [before, one, after]
    if len(parts) == 1:
        return [text] if text.strip() else []
    return [part.strip("\n") if isinstance(part, str) else part for part in parts if not isinstance(part, str) or part.strip()]


class TextBlock(Strict):
    """A text between images and files."""

    type: Literal["text"]
    text: str


ContentBlocks = tuple[TextBlock | Attachment, ...]


class ToolCall(Strict):
    """A tool call that a model asks for: `ToolCall(id="call-1", name="word_count", arguments={"maximum": 80})`."""

    id: str
    """The id of the call, which its result names."""
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    invalid: OmitEmpty[str | None] = None
    """The arguments as the model wrote them, where they are not a JSON object."""


class Message(Strict):
    """One message of a conversation; absent fields stay out of its JSON: `Message(role="user", content="Write a haiku.")`."""

    role: Literal["user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(lambda text: text, json_schema_input_type=str | ContentBlocks)] = ""
    """The text; it may be sent as blocks, too."""
    name: OmitEmpty[str | None] = None
    """The author's name; of a tool's result the tool's."""
    source: OmitEmpty[str | None] = None
    """The author besides the role: `rubric_grader` of feedback, `turn_limit` of the request to answer now."""
    tool_calls: OmitEmpty[Items[ToolCall]] = ()
    """The tool calls of an answer of role `assistant`."""
    tool_call_id: OmitEmpty[str | None] = None
    """The id of the call that a message of role `tool` answers."""
    vendor: OmitEmpty[dict[str, JsonValue] | None] = None
    """Parts that only the provider understands, such as signatures and encrypted reasoning; they are sent back to it unread."""
    model: OmitEmpty[str | None] = None
    """The model that wrote it, where that is a fallback of the one that was to."""
    kind: OmitEmpty[RecordKind | None] = None
    """The type of the record that a judge is shown, for a part of a finished run that is neither a plain text nor a tool's."""
    about: OmitEmpty[dict[str, JsonValue] | None] = None
    """Further fields of the record that a judge is shown: `is_error` of a tool's result, `media_type` of a file."""
    attached: OmitEmpty[Annotated[tuple[Attachment, ...], Field(max_length=IMAGES)]] = ()
    """Images and files of a user's message, each with its label in `content`; sent as blocks of `content`, they are written so."""
    hidden: OmitEmpty[bool] = False
    """True where graders are not shown it; an answer, which may be judged, cannot be hidden."""

    @model_validator(mode="before")
    @classmethod
    def _reads_blocks(cls, value: Any) -> Any:  # noqa: ANN401 - whatever came
        """Return a message whose content is a text: a label stands in it for each block that is an image or a file."""
        blocks = value.get("content") if isinstance(value, Mapping) else None
        if not isinstance(blocks, list | tuple):
            return value
        texts, attached = list[str](), list[Attachment]()
        for at, block in enumerate(blocks):
            kind = block.get("type", "image") if isinstance(block, Mapping) else None
            if kind not in {"text", "image", "file"}:
                raise ValueError(f"content[{at}] is {clip(str(block))}; write a block of type text (with text), image or file (with url)")
            with explained(f"content[{at}]: "):
                if kind == "text":
                    texts.append(TextBlock.model_validate(block).text)
                else:
                    attached.append(Attachment.model_validate(block))
                    texts.append(attached[-1].label())
        return {**value, "content": "\n".join(texts), "attached": attached}

    @model_validator(mode="after")
    def _hangs_together(self) -> "Message":
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of role 'tool' needs the tool_call_id that it answers")
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"tool_calls belong to role 'assistant', not {self.role!r}")
        if self.role != "tool" and not self.tool_calls and not self.content.strip() and self.kind is None:
            raise ValueError(f"the content of a message of role {self.role!r} is empty; write it or leave the message out")
        if self.attached and (self.role != "user" or any(one.label() not in self.content for one in self.attached)):
            raise ValueError("images and files belong to role 'user', each with its label in the text; send content as a list of blocks")
        if self.hidden and self.is_answer:
            raise ValueError("an answer of role 'assistant' may be judged, so it cannot be hidden; leave hidden out")
        return self

    @property
    def is_answer(self) -> bool:
        """True for what a model says, and no call of a tool."""
        return self.role == "assistant" and not self.tool_calls

    def size(self) -> int:
        """Return the bytes of the message as JSON."""
        return len(to_json(self))


def _refuse_records(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages, none of which is a record of a finished run: a model would be sent only its text."""
    if at := next((number for number, message in enumerate(messages, 1) if message.kind is not None or message.about), None):
        raise ValueError(f"message {at} has kind or about, which belong to the records of finished runs; leave them out")
    return messages


class HiddenMessages(Strict):
    """Messages that graders are not shown: those that have all that it names; answers, which may be judged, are never among them."""

    role: OmitEmpty[Literal["user", "assistant", "tool"] | None] = None
    source: OmitEmpty[str | None] = None
    name: OmitEmpty[str | None] = None
    """The message's `name`; that of a tool's result is the tool's."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("it would hide every message; give role, source or name")
        return self

    def has(self, message: Message) -> bool:
        """Return whether a message is one of them."""
        wanted = self.model_dump(exclude_none=True)
        return not message.is_answer and all(getattr(message, name) == value for name, value in wanted.items())


Messages = Annotated[tuple[Message, ...], Bounded(MAX_MESSAGES), AfterValidator(_refuse_records)]
"""The messages that a caller sends."""


# Each entry's hash covers the one before it, so the hash at a length speaks for all messages up to there. A
# worker with an older copy compares one hash instead of every message, and needs only the rest.
class Log:
    """Messages in order with a running sha256, by which a worker knows that its cached copy is right."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._shas: list[str] = []
        self._ends: list[int] = []
        for message in messages:
            self.append(message)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return the schema by which a log is read and written as the list of its messages."""
        # On the wire a log is the plain list: hashes are made anew from the messages, so that none can be
        # claimed.
        from_json = core_schema.no_info_after_validator_function(cls, handler(Annotated[list[Message], Bounded()]))
        return core_schema.json_or_python_schema(
            json_schema=from_json,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_json]),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda log: log.slice(0)),
        )

    def append(self, message: Message) -> None:
        """Append a message."""
        line = to_json(message)
        self._messages.append(message)
        self._shas.append(hashlib.sha256(self.sha256().encode() + line).hexdigest())
        self._ends.append(self.bytes + len(line))

    @property
    def bytes(self) -> int:
        """The size of all messages as JSON."""
        return self._ends[-1] if self._ends else 0

    def first(self, count: int) -> "Log":
        """Return a log of the first `count` messages, without reading them again."""
        copy = Log()
        copy._messages, copy._shas, copy._ends = self._messages[:count], self._shas[:count], self._ends[:count]
        return copy

    def sha256(self, count: int | None = None) -> str:
        """Return the running sha256 over the first `count` messages (all of them by default)."""
        count = len(self._shas) if count is None else count
        return self._shas[count - 1] if count else EMPTY_SHA

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def slice(self, start: int, stop: int | None = None) -> list[Message]:
        """Return the messages from `start` to before `stop`."""
        return self._messages[start:stop]


def unanswered(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the tool calls of the last message, which still wait for their results."""
    return messages[-1].tool_calls if messages else ()


def code_of(text: str) -> str:
    """Return the last fenced code block of `text`, or the whole text where it has none; fences are CommonMark's, and closed."""
    code: str | None = None
    opening: re.Match[str] | None = None
    block: list[str] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip())
        if opening is None:
            opening = fence if fence and not (fence["mark"][0] == "`" and "`" in fence["rest"]) else None
            block = []
        elif fence and fence["mark"].startswith(opening["mark"]) and not fence["rest"]:
            code, opening = "".join(block), None
        else:
            block.append(line.removeprefix(opening["indent"]))
    return text if code is None else code


class Usage(Strict):
    """Tokens, calls, seconds and cost, summed over the model calls that were recorded: `(await client.state("haiku-1")).usage.calls`."""

    input: NonNegativeInt | None = 0
    """Prompt tokens, the cached and the cache-written ones included; None where the server of some call does not report them."""
    cached: NonNegativeInt = 0
    """Prompt tokens that the provider read from its cache."""
    cache_written: NonNegativeInt = 0
    """Prompt tokens that the provider wrote to its cache, where it says so."""
    output: NonNegativeInt | None = 0
    """Completion tokens, reasoning included; None where the server of some call does not report them."""
    reasoning: NonNegativeInt = 0
    """Completion tokens spent on reasoning."""
    calls: NonNegativeInt = 0
    """Model calls that returned, malformed and refused replies included."""
    attempts: NonNegativeInt = 0
    """Requests that were sent, the failed ones included."""
    seconds: NonNegativeFloat = 0
    """The summed time in which a request was in flight."""
    cost_usd: Annotated[float, Field(ge=0)] | None = None
    """US dollars by the worker's price table; None where no call was made, or the price or the tokens of some call are unknown."""

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum, field by field; what is unknown of one is unknown of the sum."""
        sums: dict[str, Any] = {name: _sum(getattr(self, name), getattr(other, name)) for name in _COUNTS}
        return Usage.model_construct(**sums, seconds=float(round(self.seconds + other.seconds, 3)), cost_usd=_cost(self, other))

    def minus(self, earlier: "Usage") -> "Usage":
        """Return the usage since `earlier`; what is unknown of one is unknown of the difference."""
        differences: dict[str, Any] = {name: _sum(getattr(self, name), getattr(earlier, name), sign=-1) for name in _COUNTS}
        since = earlier.cost_usd or 0.0 if earlier.cost_usd is not None or not earlier.calls else None
        known = self.cost_usd is not None and since is not None
        cost = round(max(self.cost_usd - since, 0.0), _DECIMALS) if known and differences["calls"] else None  # type: ignore[operator]  # known
        return Usage(**differences, seconds=round(max(self.seconds - earlier.seconds, 0.0), 3), cost_usd=cost)

    @property
    def tokens(self) -> int | None:
        """Prompt and completion tokens together; None where they are not known."""
        return _sum(self.input, self.output)


class LogProbs(Strict):
    """The probability that a model gave the tokens of its reply, all together."""

    total: Annotated[float, Field(allow_inf_nan=False)]
    """The sum of the tokens' natural log probabilities."""
    tokens: Annotated[int, Field(ge=1)]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log probability: 1 where every token was certain, infinite where it is too large to say."""
        mean = -self.total / self.tokens
        return math.exp(mean) if mean < _LARGEST_EXPONENT else math.inf


_LARGEST_EXPONENT = 700.0
"""The exponent above which `exp` may be no number any more."""


def _sum(one: int | None, other: int | None, *, sign: int = 1) -> int | None:
    return None if one is None or other is None else one + sign * other


def _cost(one: Usage, other: Usage) -> float | None:
    """Return the sum of two costs; a usage without calls adds nothing, and makes nothing unknown."""
    costs = [usage.cost_usd for usage in (one, other) if usage.calls]
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), _DECIMALS) if costs and len(known) == len(costs) else None


FUNCTION_BYTES = 64 * 1024
"""The largest JSON Schema of a function or of a draft's form: every call of the model has it in its prompt."""

FUNCTIONS = 128
"""The most functions of a generator, as the vendors have it."""

CallForm = Literal["chat", "function_call", "responses", "anthropic", "bedrock", "google"]
"""The API whose reply shows the called functions: Chat Completions (`function_call`: its older form), Responses, or another vendor's."""

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$")]


class DeclaredFunction(Strict):
    """A function that a model may call in its draft; nobody runs it, and the call is the draft."""

    name: FunctionName
    description: OmitEmpty[Annotated[str, Field(max_length=8_000)]] = ""
    parameters: OmitEmpty[dict[str, JsonValue] | None] = None
    """The JSON Schema of the arguments, of type `object`; none for a function without arguments."""
    strict: OmitEmpty[bool] = False
    """Whether the server enforces the schema, where it can."""

    @model_validator(mode="after")
    def _takes_an_object(self) -> Self:
        _refuse_large(self.parameters, f"the parameters of {self.name}")
        if self.parameters is not None and self.parameters.get("type", "object") != "object":
            raise ValueError('parameters is not a JSON Schema of an object; write {"type": "object", "properties": {...}}')
        return self


class OutputForm(Strict):
    """The form that a draft is asked to have: JSON, of a schema where one is given."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    json_schema: OmitEmpty[dict[str, JsonValue] | None] = None
    """The JSON Schema of the draft; without one it is any JSON object."""
    strict: OmitEmpty[bool] = False
    """Whether the server enforces the schema, where it can enforce it more or less."""

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        _refuse_large(self.json_schema, "json_schema")
        return self


def _refuse_large(schema: dict[str, JsonValue] | None, what: str) -> None:
    if schema is not None and (size := len(json.dumps(schema))) > FUNCTION_BYTES:
        raise ValueError(f"{what} has {size} bytes as JSON, {FUNCTION_BYTES} at most")


def refuse_odd_functions(functions: tuple[DeclaredFunction, ...], choice: str | None) -> None:
    """Raise ValueError where two functions have one name, or the choice is none of them."""
    names = [function.name for function in functions]
    if twin := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"functions: {twin!r} is there twice; give each function a name of its own")
    if choice is None or (choice in CHOICES and functions) or choice in names:
        return
    known = ", ".join([*CHOICES, *names]) if functions else "none, as there are no functions"
    raise ValueError(f"function_choice: {choice!r} is not a choice; write one of: {known}")


CHOICES = ("auto", "none", "required")
"""The choices besides the name of a function that must be called: the model may call one, may not, or must."""


@dataclass(frozen=True)
class EvidenceTool:
    """A tool that a worker runs for graders and generators: a row of the registry `tools`.

    Example:
        ```python
        def count_vowels(draft: str) -> dict[str, int]:
            return {"vowels": sum(letter in "aeiou" for letter in draft)}

        TOOLS = (EvidenceTool.of(count_vowels),)
        ```
    """

    name: str
    build: Callable[[Any], Callable[..., Any]]
    """Takes the worker's `ToolContext`, and returns the function of that name; its annotations are the tool's parameters."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "EvidenceTool":
        """Return the tool that a function is on every worker."""
        return cls(function.__name__, lambda _: function)
