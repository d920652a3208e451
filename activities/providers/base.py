"""Tools of all adapters: limits of a call, JSON and streams as they arrive, and the thinking of earlier replies.

Some providers take thinking back only behind what it was written behind.
"""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, from_json, to_json

from activities.calls.rate_headers import keep_streamed
from activities.errors import EXCERPT_CHARACTERS, conceal, error_kind, excerpt, note_paid, reported_codes, reported_message
from gradeloop.contract.messages import LogProbs, Message, OutputForm, ToolCall, Usage
from gradeloop.contract.model_spec import CALL_SECONDS, LONGEST_TIMEOUT
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step
from gradeloop.settings.catalog import capability_of
from gradeloop.text import JSON_DEPTH, NESTING_DEPTH, Repetition, depth, objects_in, refuse_constant, repetition, whole_characters

if TYPE_CHECKING:
    import httpx2


CONNECT_TIMEOUT = 10.0
"""Seconds to reach a provider."""

IDLE_TIMEOUT = 240.0
"""Seconds without a byte after which a stream counts as hung: reasoning models think for minutes before their first word."""

SLOW_CALL = 3600.0
"""Seconds that a call of a slow model may take in all: some think for most of an hour."""

LONGEST_COMPLETION = 3300.0
"""Seconds that the longest completion is given."""

TOKENS_PER_SECOND = 30.0
"""The speed by which the time for a long completion is reckoned; few hosted models write slower."""

MAX_TOKENS = 16_384
"""The completion's cap where a provider demands one: room for reasoning and a long draft, under every current model's own cap."""

RAISE_FACTOR = 4
"""The factor by which the cap of a completion rises, once, after it was cut at the cap."""

QUIET_SECONDS = 60.0
"""Seconds without an event after which the stream of a local server is over, once it has begun: such a server has hung or gone."""

LOOP_CHARACTERS = 1_000
"""Characters over which a verdict may repeat one piece before its stream is ended."""

LOOP_WINDOW = 16 * LOOP_CHARACTERS
LOOK_EVENTS = 64
"""Events after which a stream is looked at again."""

UNMETERED = Usage(input=None, output=None, calls=1)
"""The usage of a reply that nobody reports."""


def completion_cap(request: ModelRequest) -> int:
    """Return the tokens that a completion may have: `RAISE_FACTOR` times as many where one was cut, never more than the model writes.

    A budget for thinking is a part of the completion; one that would fill it is added, so that the answer has the room that was asked for.
    """
    cap, most = request.spec.config.max_tokens or request.cap or MAX_TOKENS, capability_of(request.spec).max_output
    budget = request.spec.config.thinking
    cap += budget if isinstance(budget, int) and budget >= cap else 0
    cap *= RAISE_FACTOR if request.raised else 1
    return min(cap, most) if most else cap


def deadline(request: ModelRequest, usual: float | None = None) -> float:
    """Return the seconds that a call may take in all: its model's own, else the usual ones, or more where model or completion need more."""
    if request.spec.config.timeout is not None:
        return request.spec.config.timeout
    slow = SLOW_CALL if capability_of(request.spec).slow else 0.0
    cap = completion_cap(request)
    long = min(cap / TOKENS_PER_SECOND, LONGEST_COMPLETION) if cap > MAX_TOKENS else 0.0
    return max(CALL_SECONDS if usual is None else usual, slow, long)


def silence(request: ModelRequest) -> float:
    """Return the seconds for which a stream may be silent: until the deadline, where the model is slow or its settings say how long."""
    patient = request.spec.config.timeout is not None or capability_of(request.spec).slow
    return LONGEST_TIMEOUT if patient else IDLE_TIMEOUT


SILENCE: ContextVar[float | None] = ContextVar("silence", default=None)
"""The result of `silence` for the current call, for a client whose SDK takes no such time."""

JsonObject = dict[str, JsonValue]

MODELS_PAGE = 200
"""The models of an endpoint that are looked at."""


def listed(answer: object) -> tuple[str, ...]:
    """Return the names of models, in whatever form a server lists them."""
    rows = answer.get("data") if isinstance(answer, dict) else answer
    names = [row.get("id") if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else []
    return tuple(name for name in names if isinstance(name, str))


def request_body(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body with the user's own settings, to be sent as the SDK's `extra_body`.

    It is on the wire's terms already; as arguments the SDK would walk through all of it to make it so, a sixth of a short call's CPU.
    """
    return {**body, **extra}


def json_object(body: bytes) -> JsonObject:
    """Read a body as a JSON object; raise ModelFault where it is none: a 200 may also carry a proxy's page, half a body or nothing."""
    try:
        value = json_value(body)
    except ValueError as error:
        shown = f"it begins {excerpt(body)}" if body else "it is empty"
        raise malformed(f"the reply is not JSON ({error}); {shown}") from None
    if not isinstance(value, dict):
        raise malformed(f"the reply is a JSON {type(value).__name__}, not an object: {conceal(str(value))!r}")
    return whole_object(value)


_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a character, of which the fast parser accepts no lone one."""


def json_value(text: bytes | str) -> JsonValue:
    """Parse JSON as a model's server wrote it; a lone half of a character stays one, and bytes that are not UTF-8 are U+FFFD.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        value: JsonValue = from_json(text, allow_inf_nan=False)
    except ValueError:
        decoded = text if isinstance(text, str) else text.decode(errors="replace")
        if not _HALVES.search(decoded) and "\ufffd" not in decoded:
            raise
        try:
            value = json.loads(decoded, parse_constant=refuse_constant)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if depth(value) > JSON_DEPTH:
            raise ValueError(f"it is nested more than {JSON_DEPTH} deep") from None
    return value


def whole_object(value: JsonObject) -> JsonObject:
    """Return an object that can be sent on: halves of characters are joined where both are there, else replaced."""
    try:
        to_json(value)
    except (PydanticSerializationError, UnicodeEncodeError):
        return {whole_characters(name): _whole(item) for name, item in value.items()}
    return value


def _whole(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {whole_characters(name): _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return whole_characters(value) if isinstance(value, str) else value


def sendable(message: Message) -> Message:
    """Return a message that can be sent on, whoever made it."""
    try:
        message.size()
    except (PydanticSerializationError, UnicodeEncodeError):
        return Message.model_validate(whole_object(message.model_dump()))
    return message


@contextmanager
def paid_reply(body: JsonObject, key: str, read: Callable[[JsonValue], Usage]) -> Iterator[Usage]:
    """Yield what a reply cost; where it is not an answer, the fault says so, provided that the server did."""
    try:
        yield read(body.get(key))
    except ModelFault as fault:
        if fault.usage is None and isinstance(body.get(key), dict):
            fault.usage = read(body[key])
        raise


def error_in_reply(error: JsonValue, status: int) -> ModelFault:
    """Turn an error that came inside a 200 into a fault; a numeric code is the HTTP status that is meant."""
    report = error if isinstance(error, dict) else {"message": str(error)}
    code, message = report.get("code"), reported_message(report) or str(report)
    meant = code if isinstance(code, int) else status
    return ModelFault(error_kind(meant, reported_codes(report), message), f"an error inside HTTP {status}: {message}", status=meant)


def log_probs(tokens: JsonValue, name: str = "logprob") -> LogProbs | None:
    """Return what a reply's tokens say of their probabilities; None unless every one of them says it."""
    found = [token.get(name) for token in objects_in(tokens)]
    known = [float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)]
    return LogProbs(total=math.fsum(known), tokens=len(known)) if known and len(known) == len(found) else None


def assistant_reply(
    text: str, calls: Sequence[ToolCall], vendor: JsonObject | None, usage: Usage, logprobs: LogProbs | None = None
) -> ModelReply:
    """Return a finished reply; raise ModelFault where it is empty."""
    if not text.strip() and not calls:
        raise malformed("the reply is empty: no text and no tool call", usage)
    if depth(vendor) > NESTING_DEPTH:
        raise malformed(f"a part of the reply is nested more than {NESTING_DEPTH} deep", usage)
    return ModelReply(Message(role="assistant", content=text, tool_calls=tuple(calls), vendor=vendor), usage, logprobs)


def malformed(message: str, usage: Usage | None = None) -> ModelFault:
    """Return the fault of a reply that keeps no protocol, or says nothing; it may cost tokens all the same."""
    return ModelFault("malformed_response", message, usage=usage)


def refused(why: object, usage: Usage) -> ModelFault:
    """Return the fault of a model that gave a refusal instead of an answer."""
    return ModelFault("refused", f"the model refused to answer ({why})", usage=usage)


def truncated(reason: str, request: ModelRequest, usage: Usage, reply: JsonValue, *, at_own_cap: bool = True) -> ModelFault:
    """Return the fault of a reply that was cut; one cut at its own cap may be longer where the model writes more, and no loop is in it."""
    said = _longest_text(reply)
    if (found := _loop(said, request, 300)) is not None:
        return degenerate(said, found, usage)
    most = capability_of(request.spec).max_output
    raisable = at_own_cap and not request.raised and (most is None or completion_cap(request) < most)
    after = "" if usage.output is None else f" after {usage.output} tokens"
    text = f"the reply was cut ({reason}){after}; raise config.max_tokens or shorten the task"
    return ModelFault("truncated", text, usage=usage, raisable=raisable)


def _longest_text(value: JsonValue) -> str:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_longest_text, inner), key=len, default="") if not isinstance(value, str) else value


def _loop(said: str, request: ModelRequest, least: int) -> Repetition | None:
    """Return the loop in which a reply ends; a draft may repeat more than a verdict, and numbers in it are its content."""
    grades = request.step.role == "grader"
    return repetition(said, least if grades else 8 * least, counted=grades and least < LOOP_CHARACTERS)


def degenerate(said: str, found: Repetition, usage: Usage | None = None) -> ModelFault:
    """Return the fault of a reply that repeats itself."""
    piece = " ".join(said[-found.piece :].split())
    cure = "a larger model, prompt: short of the grader, structured_output where its server enforces it, or a penalty in config.extra helps"
    text = f"the model repeats itself ({piece[:EXCERPT_CHARACTERS]!r}, again and again); {cure}"
    return ModelFault("degenerate", text, usage=usage)


def unknown_end(reason: str, usage: Usage) -> ModelFault:
    """Return the fault of a reply that ended for a reason that no version of the protocol names."""
    return malformed(f"the reply ended for an unknown reason: {reason}", usage)


def count(usage: JsonValue, *path: str) -> int:
    """Return the token count at `path`; 0 where it is absent or no count."""
    return reported(usage, *path) or 0


def reported(usage: JsonValue, *path: str) -> int | None:
    """Return the token count at `path`; None where the server does not report it."""
    value = usage
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def callables(request: ModelRequest) -> tuple[list[JsonObject], str | None]:
    """Return what the model may call, each with what is known of its name, description, parameters and strictness, and the choice of it.

    These are evidence tools, which we run, or the functions of a draft, which nobody runs.
    """
    rows = [
        {name: value for name in ("name", "description", "parameters", "strict") if (value := getattr(one, name, None))}
        for one in request.functions or request.tools
    ]
    return rows, request.function_choice or (("auto" if request.tools_allowed else "none") if request.tools else None)


def answer_form(request: ModelRequest) -> OutputForm | None:
    """Return the JSON that the reply is asked to be; None for free text."""
    if request.output_form is None and request.schema is not None:
        return OutputForm.model_construct(name=request.schema_name, strict=True, json_schema=request.schema)
    return request.output_form


def call_id(step: Step, ordinal: int) -> str:
    """Return an id for a tool call that came without one: the same at every retry, another at every step."""
    return f"call_{step.run}_{step.iteration}_{step.group}_{step.sample}_{step.step}_{ordinal}"


def tool_call(identifier: str, name: JsonValue, arguments: JsonValue) -> ToolCall:
    """Build a tool call; arguments that are not a JSON object are kept as written. Raise ModelFault where the call names no tool."""
    if not isinstance(name, str) or not name:
        raise malformed(f"a tool call names no tool: {name!r}")
    parsed = _parsed(arguments)
    if isinstance(parsed, dict) and depth(parsed) <= NESTING_DEPTH and not _is_beyond_numbers(parsed):
        return ToolCall(id=identifier, name=name, arguments=parsed)
    return ToolCall(id=identifier, name=name, invalid=arguments if isinstance(arguments, str) else to_json(arguments).decode())


def _is_beyond_numbers(value: JsonValue) -> bool:
    """Tell whether a number in the value is larger than any that can be sent on, `1e400` say."""
    if isinstance(value, dict | list):
        return any(map(_is_beyond_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


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


def reply_timeout(request: ModelRequest, *, streamed: bool) -> "httpx2.Timeout":
    """Return how long to wait for the next bytes: a stream that says nothing hangs, any other reply comes at its end."""
    import httpx2  # with the SDKs

    return httpx2.Timeout(LONGEST_TIMEOUT, read=silence(request) if streamed else LONGEST_TIMEOUT, connect=CONNECT_TIMEOUT)


class Assembly(Protocol):
    """Puts the events of a stream together to what the same call returns without streaming."""

    def add(self, event: JsonObject) -> None:
        """Take the next event in; raise ModelFault where it reports an error."""
        ...

    def body(self) -> JsonObject | None:
        """Return the whole reply; None where its end has not come."""
        ...

    def usage(self) -> JsonValue:
        """Return what the server has reported of the usage so far; None where that is nothing."""
        ...


@contextmanager
def paid_until_cut(usage: Callable[[], JsonValue], read: Callable[[JsonValue], Usage]) -> Iterator[None]:
    """Have whatever cuts a reply short say what it had cost by then, as far as the server has reported that."""
    try:
        yield
    except ModelFault as fault:
        reported_usage = usage()
        if fault.usage is None and isinstance(reported_usage, dict):
            fault.usage = read(reported_usage)
        elif fault.usage is None and fault.kind == "degenerate":
            fault.usage = UNMETERED
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(reported_usage := usage(), dict):
            note_paid(error, read(reported_usage))
        raise


async def reply_body(
    response: "httpx2.Response",
    assembly: Assembly,
    read: Callable[[JsonValue], Usage],
    request: ModelRequest,
    quiet: float | None = None,
) -> JsonObject:
    """Read a reply, streamed or not: servers that know no streams answer with one JSON object.

    `quiet`: seconds without an event after which the stream is over, once something was said; None where only bytes are waited for.

    Raises:
        ModelFault: It is not JSON, too large, reports an error, ends early, says no more, or repeats itself.
    """
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return json_object(await response.aread())
    with paid_until_cut(assembly.usage, read):
        async with aclosing(_heard(response, request, quiet)) as heard:
            async for event in heard:
                if event.get("error") and "choices" not in event and event.get("type") in (None, "error"):
                    raise error_in_reply(event["error"], status=200)
                assembly.add(event)
        if (body := assembly.body()) is None:
            raise malformed("the stream ended before the reply was complete")
        return whole_object(body)


# A stream that is left in its middle is closed at once, from the outermost of these generators to the innermost: one that waits for the
# garbage collector keeps its connection, and a server that goes on writing into it.
async def _heard(response: "httpx2.Response", request: ModelRequest, quiet: float | None) -> AsyncGenerator[JsonObject]:
    """Yield the events of a stream until its end; raise ModelFault if it falls silent or only repeats itself."""
    said: list[str] = []
    # A local server may hang in the middle of a reply and keep the connection open. Before its first word it
    # may think, or load the model, for as long as the deadline allows; once it has begun, a minute without an
    # event means that it has hung. A reply that only repeats itself never ends by itself, so every few events
    # the end of what was said is looked at, and the call is ended before it fills its cap.
    begun, clock = False, asyncio.get_running_loop().time
    async with aclosing(_events(response)) as events:
        while True:
            try:
                async with asyncio.timeout_at(clock() + quiet if quiet and begun else None):
                    event = await anext(events, None)
            except TimeoutError:
                text = f"the stream stopped: no event for {quiet:g} s after its beginning; raise config.timeout if its server is so slow"
                raise ModelFault("timeout", text) from None
            if event is None:
                return
            yield event
            if text := keep_streamed(event):
                begun = True
                said.append(text)
            if len(said) > LOOK_EVENTS:
                said = ["".join(said)[-LOOP_WINDOW:]]
                if (found := _loop(said[0], request, LOOP_CHARACTERS)) is not None:
                    raise degenerate(said[0], found)


async def _events(response: "httpx2.Response") -> AsyncGenerator[JsonObject]:
    """Yield the data of each server-sent event; `[DONE]` and comments are ignored."""
    data: list[str] = []
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                if (event := _event("\n".join(data))) is not None:
                    yield event
                data = []
    if data and (event := _event("\n".join(data))) is not None:  # some servers leave the last blank line out
        yield event


async def _lines(response: "httpx2.Response") -> AsyncGenerator[str]:
    """Split only at line feeds: other separators in a text, U+2028 among them, end no line here."""
    # The parts of a stream end anywhere, also within a character. So bytes are split at line feeds first, and
    # only whole lines are decoded; decoded part by part, a cut character would become two marks of
    # replacement.
    rest = b""
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _event(data: str) -> JsonObject | None:
    if data.strip() in ("", "[DONE]"):
        return None
    try:
        value = json_value(data)
    except ValueError as error:
        raise malformed(f"an event of the stream is not JSON ({error}); it begins {excerpt(data)}") from None
    if not isinstance(value, dict):
        raise malformed(f"an event of the stream is not an object: {excerpt(data)}")
    return value


THINKING = frozenset({"thinking", "redacted_thinking"})
"""The types of Anthropic's blocks that a change of what stands before them makes invalid."""

BOUND = "bound"
"""The key, among a message's vendor parts, of the circumstances under which its thinking was written."""

ALONE = "alone"
"""The key, among a message's vendor parts, which says that the message was written without the thinking before it."""


def circumstances(request: ModelRequest, account: str) -> str:
    """Return a short sum of what a reply's thinking is bound to, beside the messages: model, system prompt, tools and account.

    `account`: what tells the account from others: the key, which cannot be had from the sum.
    """
    tools = [tool.model_dump(mode="json") for tool in request.tools]
    parts = [request.spec.model, request.system, tools, hashlib.sha256(account.encode()).hexdigest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def first_with_thinking(request: ModelRequest, bound: str | None = None) -> int:
    """Return the index of the first message whose thinking may be sent; that of all before it is left out.

    One message whose thinking is bound to something else invalidates all thinking before it too: the oldest thinking may be left out, but
    none from the middle. So the same thinking is sent behind each message as when it was written.

    `bound`: its own circumstances; None where none count.
    """
    if request.without_thinking:
        return len(request.messages)
    # Two marks move the first message whose thinking may go along: one that was written without the thinking
    # before it, and one whose thinking is bound to another model, prompt, tools or account. The latter is
    # itself invalid, so the first one lies behind it. Everything from there on was written with exactly the
    # thinking that is sent again.
    first = 0
    for at, message in enumerate(request.messages):
        vendor = message.vendor or {}
        first = at if vendor.get(ALONE) else first
        first = at + 1 if vendor.get(BOUND, bound) != bound else first
    # A model with a budget for its thinking is refused where a tool's result comes back without the thinking that led to the call.
    return min(first, _current_turn(request)) if isinstance(request.spec.config.thinking, int) else first


def _current_turn(request: ModelRequest) -> int:
    """Return the index of the message that the model is answering, with tool calls on the way."""
    roles = [message.role for message in request.messages]
    return max((at for at, role in enumerate(roles) if role == "user" and (at == 0 or roles[at - 1] != "tool")), default=0)


def with_circumstances(reply: ModelReply, request: ModelRequest, provider: str, bound: str | None = None) -> ModelReply:
    """Return a reply that says to what its thinking is bound, and whether the thinking before it was left out.

    `provider`: the name under which the reply's own parts are kept.
    `bound`: the circumstances of the call; None where none count.
    """
    vendor = reply.message.vendor
    if not request.without_thinking and (vendor is None or bound is None):
        return reply
    alone: dict[str, JsonValue] = {ALONE: True} if request.without_thinking else {}
    noted = {**(vendor or {"provider": provider}), **({} if bound is None else {BOUND: bound}), **alone}
    return replace(reply, message=reply.message.model_copy(update={"vendor": noted}))


if TYPE_CHECKING:
    from google.genai import Client
    from openai import AsyncOpenAI

BLANK = "\u2014"
"""The text that is embedded for one without a word, which servers refuse."""


async def embed_openai(client: "AsyncOpenAI", request: ModelRequest) -> ModelReply:
    """Make one call of OpenAI's embeddings, and return the verdict; raise ModelFault where the reply has not one vector for each text."""
    body: JsonObject = {"model": request.spec.model, "input": _texts(request), "encoding_format": "float", **request.spec.config.extra}
    call = client.embeddings.with_streaming_response.create
    async with call(model=request.spec.model, input=[], extra_body=body, timeout=reply_timeout(request, streamed=False)) as response:
        reply = json_object(await response.http_response.aread())
    with paid_reply(reply, "usage", lambda found: Usage(input=reported(found, "prompt_tokens"), output=0, calls=1)) as usage:
        data = reply.get("data")
        rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        placed = {row.get("index") if isinstance(row.get("index"), int) else at: row.get("embedding") for at, row in enumerate(rows)}
        return _verdict(request, [placed.get(at) for at in range(max(len(rows), 1))], usage)


async def embed_google(client: "Client", request: ModelRequest) -> ModelReply:
    """Make one call of Gemini's embeddings, and return the verdict; raise ModelFault where the reply has not one vector for each text."""
    api = client._api_client  # noqa: SLF001 - the one place that gives raw replies
    if api.vertexai:
        raise ModelFault("config", "embeddings of Vertex AI are not called; name a model of Google AI Studio or of OpenAI")
    model = f"models/{request.spec.model}"
    rows = [{"model": model, "content": {"parts": [{"text": text}]}, **request.spec.config.extra} for text in _texts(request)]
    response = await api.async_request("post", f"{model}:batchEmbedContents", {"requests": rows})
    reply = json_object((response.body or "").encode())
    with paid_reply(reply, "usageMetadata", lambda found: Usage(input=reported(found, "promptTokenCount"), output=0, calls=1)) as usage:
        data = reply.get("embeddings")
        vectors = [row.get("values") for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        return _verdict(request, vectors, usage)


def _texts(request: ModelRequest) -> list[JsonValue]:
    return [text if text.strip() else BLANK for text in request.embedded]


def _verdict(request: ModelRequest, vectors: Sequence[JsonValue], usage: Usage) -> ModelReply:
    """Return the best cosine as an answer of the form `pass_score`."""
    read = [_vector(vector, usage) for vector in vectors]
    if len(read) != len(request.embedded) or len({len(vector) for vector in read}) != 1:
        raise malformed(f"the reply has {len(read)} vectors for {len(request.embedded)} texts, or of different lengths", usage)
    draft, *references = read
    best = max(_cosine(draft, reference) for reference in references)
    score = min(max(best, 0.0), 1.0)
    answer = {"reason": f"The cosine of the two embeddings is {best:.3f}.", "pass": True, "score": round(score, 6)}
    return ModelReply(Message(role="assistant", content=json.dumps(answer)), usage)


def _vector(value: JsonValue, usage: Usage) -> list[float]:
    numbers = value if isinstance(value, list) else []
    vector = [float(number) for number in numbers if isinstance(number, int | float) and not isinstance(number, bool)]
    if not vector or len(vector) != len(numbers) or not all(map(math.isfinite, vector)) or not any(vector):
        raise malformed("a text's embedding is not a list of numbers, or all zeros", usage)
    return vector


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
