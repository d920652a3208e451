"""The probe of a model server: its kind, models and limits, and a trial whether it enforces a schema.

Whatever a server says of itself is data: typed, bounded, and left out where it is anything else.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pydantic import JsonValue

from activities.errors import model_fault
from activities.providers.base import MODELS_PAGE, JsonObject, listed, reported
from activities.providers.environment import is_local
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import Endpoint, ModelRequest, Step
from gradeloop.settings.catalog import ServerFacts, ServerKind
from gradeloop.text import objects_in

if TYPE_CHECKING:
    from openai import AsyncOpenAI

LOOK_SECONDS = 5.0
"""Seconds within which a server answers a question about itself."""

TRIAL_SECONDS = 120.0
"""Seconds that the trial may take: a cold model is loaded meanwhile."""

TRIAL_TOKENS = 1024
"""The cap of the trial: room for a model that reasons."""

NAME_CHARACTERS = 300
MOST = 100_000_000
"""The largest number of tokens or slots that is believed."""

MOST_WEIGHTS = 100_000_000_000_000

_OWNERS: Mapping[str, ServerKind] = {
    "llamacpp": "llamacpp",
    "library": "ollama",
    "organization_owner": "lmstudio",
    "vllm": "vllm",
    "sglang": "sglang",
}
"""The kinds of servers by the `owned_by` of the models that they list; TGI writes the model's own name there, LiteLLM `openai`."""

_PRESETS: Mapping[str, ServerKind] = {kind: kind for kind in (*_OWNERS.values(), "tgi", "litellm")}

_WORD = "quorl-7146"
"""The answer of the trial, which no free model gives by chance."""

_ENFORCED = re.compile(rf'\{{\s*"word"\s*:\s*"{_WORD}"')
_THOUGHTS = re.compile(r"<think(ing)?>.*?(</think(ing)?>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Trial:
    """The reply to a trial as far as it has come, `whole` if it ended by itself, and the error that ended it otherwise."""

    message: JsonObject = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    whole: bool = False
    streamed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Exception | None = None

    def is_refused(self, model: str) -> bool:
        """Return whether the server took the request for a wrong one."""
        fault = model_fault(self.error, model=model) if self.error is not None else None
        return fault is not None and fault.kind == "bad_request"


Attempt = Callable[[ModelRequest, bool], Awaitable[Trial]]
"""Makes the call of a trial, streamed or not."""


@dataclass(frozen=True)
class Description:
    """The facts about a model server and the cost of finding them, not `settled` where the trial's failure may be over soon."""

    facts: ServerFacts
    usage: Usage = field(default_factory=Usage)
    settled: bool = True


async def describe(client: "AsyncOpenAI", endpoint: Endpoint, spec: ModelSpec, attempt: Attempt | None) -> Description:
    """Ask a server of the compatible protocol what it is, without a trial where nothing makes its call.

    Raises:
        Exception: The server is not reached, or does not serve us now.
    """
    rows = await _model_rows(client)
    row = next((row for row in rows if row.get("id") == spec.model), rows[0] if len(rows) == 1 else {})
    kind = _OWNERS.get(str(row.get("owned_by"))) or _PRESETS.get(endpoint.provider, "unknown")
    streams = True if kind != "unknown" else None
    found = Description(ServerFacts(kind=kind, stream=streams)) if attempt is None else await _tried(attempt, spec, kind)
    limits = await _limits(client, endpoint, spec.model, found.facts.kind, row)
    names = tuple(name for name in listed({"data": rows})[:MODELS_PAGE] if len(name) <= NAME_CHARACTERS)
    return replace(found, facts=found.facts.model_copy(update={"models": names, **limits}))


async def _model_rows(client: "AsyncOpenAI") -> list[JsonObject]:
    """Return the models as the server lists them; none where it is a server that lists none."""
    try:
        answer = await client.get("/models", cast_to=object, options={"timeout": LOOK_SECONDS})
    except Exception as error:
        fault = model_fault(error, model="")
        if fault is None or fault.kind not in {"not_found", "bad_request", "malformed_response"}:
            raise
        return []
    return list(objects_in(answer.get("data") if isinstance(answer, dict) else answer))


# Two requests at most. The first asks for all that a grader would like to have. A server that takes it for a
# wrong one is asked again with the least that a schema needs. One that refuses both gets tags from then on.
# Another error without a reply says nothing of schemas, so nothing is settled, and the server is asked again
# later.
async def _tried(attempt: Attempt, spec: ModelSpec, kind: ServerKind) -> Description:
    """Make the trial: with bounds and streamed, and plainly where the server takes that for a wrong request."""
    trial = await attempt(_request(spec, bounded=True), True)
    usage, streams = trial.usage, trial.streamed or (True if kind != "unknown" else None)
    if trial.is_refused(spec.model):
        trial = await attempt(_request(spec, bounded=False), False)
        usage += trial.usage
        if trial.is_refused(spec.model):
            return Description(ServerFacts(kind=kind, answer="tagged", stream=streams), usage)
    if trial.error is not None and not trial.message and not isinstance(trial.error, TimeoutError):
        return Description(ServerFacts(kind=kind, stream=streams), usage, settled=False)
    text, thoughts = str(trial.message.get("content") or ""), trial.message.get("reasoning_content") or trial.message.get("reasoning")
    reasons = bool(thoughts) or _THOUGHTS.match(text.lstrip()) is not None
    facts = _read(_THOUGHTS.sub("", text).strip(), whole=trial.whole)
    kind = "litellm" if any(name.lower().startswith("x-litellm") for name in trial.headers) else kind
    return Description(facts.model_copy(update={"kind": kind, "stream": streams, "reasons": reasons}), usage)


# The question and the schema contradict each other on purpose. A server that enforces the schema can only give
# the word. A server that merely shows the schema to its model gets a colour. A question that fits its schema
# would be answered in form by both, and the first long rubric would show the difference.
def _request(spec: ModelSpec, *, bounded: bool) -> ModelRequest:
    """Return a question whose schema takes only an answer that has nothing to do with it."""
    properties: JsonObject = {"word": {"type": "string", "enum": [_WORD]}}
    if bounded:
        properties["pair"] = {"type": "array", "items": {"type": "string", "enum": ["no"]}, "minItems": 2, "maxItems": 2}
        properties["text"] = {"type": "string", "minLength": 7, "maxLength": 7}
    return ModelRequest(
        spec=spec.model_copy(update={"config": spec.config.model_copy(update={"max_tokens": TRIAL_TOKENS})}),
        step=Step(role="grader"),
        messages=(Message(role="user", content="Name a colour."),),
        schema={"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False},
        schema_name="answer",
    )


def _read(text: str, *, whole: bool) -> ServerFacts:
    """Return what the text of a trial's reply says of the server's schemas; nothing where it was cut before it said anything."""
    try:
        answer: Any = json.loads(text)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    if answer.get("word") != _WORD and not _ENFORCED.match(text):
        return ServerFacts(answer="tagged" if whole or text else None)
    lists = answer.get("pair") == ["no", "no"]
    texts = lists and isinstance(answer.get("text"), str) and len(answer["text"]) == 7  # noqa: PLR2004 - the schema's
    return ServerFacts(answer="schema", bounds="all" if texts else "lists" if lists else "none")


async def _limits(client: "AsyncOpenAI", endpoint: Endpoint, model: str, kind: ServerKind, row: JsonObject) -> dict[str, Any]:
    """Return how much a server takes, by the question that its kind answers; it is asked after the trial, which loads the model."""
    root, options = endpoint.base_url.removesuffix("/v1"), cast("Any", {"timeout": LOOK_SECONDS})

    async def ask(path: str, body: JsonObject | None = None) -> JsonObject:
        method = client.get if body is None else partial(client.post, body=body)
        for _ in range(2):  # llama.cpp closes a connection after a stream, which may be noticed only here
            with suppress(Exception):  # nothing is known of a server that does not answer
                answer = await method(f"{root}{path}", cast_to=object, options=options)
                return answer if isinstance(answer, dict) else {}
        return {}

    # What counts is the context with which the model is loaded, which may be smaller than what it could take. So
    # what a kind's own question says takes the place of the list of models. TGI's list does not show what it is,
    # so a local server of no known kind is asked for its `/info` as well.
    context = _number(row, "max_model_len") or _number(row, "context_length") or _number(row, "context_window")
    slots, weights = None, _number(row, "meta", "n_params", most=MOST_WEIGHTS)
    if kind == "llamacpp":
        props = await ask("/props")
        context = _number(props, "default_generation_settings", "n_ctx") or _number(row, "meta", "n_ctx")
        slots = _number(props, "total_slots")
    elif kind == "ollama":
        shown, loaded = await ask("/api/show", {"model": model}), objects_in((await ask("/api/ps")).get("models"))
        setting = re.search(r"^num_ctx\s+(\d{1,9})$", str(shown.get("parameters")), re.MULTILINE)
        running = next((one for one in loaded if one.get("name") in (model, f"{model}:latest")), {})
        context = _number(running, "context_length") or (int(setting[1]) if setting else None)
        weights = _number(shown, "model_info", "general.parameter_count", most=MOST_WEIGHTS)
    elif kind == "lmstudio":
        context = _number(await ask(f"/api/v0/models/{quote(model, safe='/')}"), "loaded_context_length")
    elif kind == "tgi" or (kind == "unknown" and is_local(endpoint.base_url)):
        info = await ask("/info")
        if limit := _number(info, "max_total_tokens"):
            kind, context, slots = "tgi", limit, _number(info, "max_concurrent_requests")
    return {"kind": kind, "context": context, "slots": slots, "parameters": weights}


def _number(value: JsonValue, *path: str, most: int = MOST) -> int | None:
    """Return the number at `path`, if it is one that can be believed."""
    found = reported(value, *path)
    return found if found and found <= most else None
