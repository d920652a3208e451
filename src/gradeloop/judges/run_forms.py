"""Runs as others write them, read into ours: message lists, Inspect's logs, Docent's agent runs, and our own."""

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import explain
from gradeloop.judges.agent_run import AgentRun, RunMessage, RunTranscript
from gradeloop.judges.message_forms import Unreadable, is_message, read_messages
from gradeloop.printable import clip

_ATTACHMENT = "attachment://"

IDS = ("id", "agent_run_id", "run_id", "thread_id")
"""Where a run's id may stand, the first that does."""


def read_runs_in(value: Any, name: str) -> Iterator[AgentRun]:  # noqa: ANN401 - raw input of any shape
    """Yield the runs of a JSON value.

    Args:
        value: A run, a list of runs, a list of messages, or an Inspect log.
        name: What a run without an id of its own is called.

    Raises:
        Unreadable: It is none; its path says where.
    """
    if isinstance(value, list) and value and not all(is_message(each) for each in value):
        for at, each in enumerate(value):
            try:
                yield from read_runs_in(each, f"{name}-{at + 1}")
            except Unreadable as error:
                raise Unreadable(str(error), at, *error.path) from None
    elif isinstance(value, dict) and isinstance(value.get("samples"), list):
        yield from _inspect(value, name)
    else:
        yield _run(value, name)


def _run(value: Any, name: str) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise Unreadable(f"{clip(str(value))} is no run; write an object with messages or transcripts, or a list of messages")
    named = next((str(value[key]) for key in IDS if value.get(key) not in (None, "")), name)
    metadata = _object(value, "metadata")
    if "transcripts" in value:
        transcripts = _transcripts(value["transcripts"])
        told = {key: value[key] for key in ("name", "description") if value.get(key)}
        return _made(named, transcripts, {**told, **metadata})
    if isinstance(value.get("input"), str) and "messages" not in value:
        value = value | {"input": [{"role": "user", "content": value["input"]}]}
    key = next((each for each in ("messages", "input") if isinstance(value.get(each), list)), None)
    if key is None:
        raise Unreadable(f"the run has neither transcripts nor messages; its keys: {', '.join(map(str, value)) or 'none'}")
    messages = [*_system(value.get("system") or value.get("instructions")), *_under(key, value[key]), *_output(value)]
    return _made(named, [RunTranscript.model_validate({"messages": tuple(_some(messages, key))})], metadata)


def _system(value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    """Return the system prompt that stands beside the messages, as Anthropic and OpenAI's Responses have it."""
    return read_messages([{"role": "system", "content": value}]) if value else []


def _output(value: dict[str, Any]) -> list[RunMessage]:
    """Return what the model answered, where a request and its reply stand together."""
    given = value.get("output") if isinstance(value.get("input"), list) else None
    return _under("output", given) if isinstance(given, list) else []


def _under(key: str, value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    try:
        return read_messages(value)
    except Unreadable as error:
        raise Unreadable(str(error), key, *error.path) from None


def _some(messages: list[RunMessage], key: str) -> list[RunMessage]:
    if not messages:
        raise Unreadable("there are no messages; nothing can be judged", key)
    return messages


def _transcripts(value: Any) -> list[RunTranscript]:  # noqa: ANN401 - raw input of any shape
    held = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(held, list) or not held:
        raise Unreadable("transcripts is no list with something in it; give at least one transcript", "transcripts")
    found = []
    for at, each in enumerate(held):
        if not isinstance(each, dict) or "messages" not in each:
            raise Unreadable(f"{clip(str(each))} is no transcript; write an object with messages", "transcripts", at)
        try:
            messages = _some(_under("messages", each["messages"]), "messages")
            metadata = _object(each, "metadata")
        except Unreadable as error:
            raise Unreadable(str(error), "transcripts", at, *error.path) from None
        told = {"id": str(each.get("id") or ""), "name": each.get("name"), "messages": tuple(messages), "metadata": metadata}
        try:
            found.append(RunTranscript.model_validate(told))
        except ValidationError as error:
            raise Unreadable(explain(error), "transcripts", at) from None
    return found


def _object(value: dict[str, Any], key: str) -> dict[str, JsonValue]:
    told = value.get(key)
    if told is not None and not isinstance(told, dict):
        raise Unreadable(f"{key} is {clip(str(told))}; write an object", key)
    return told or {}


def _made(name: str, transcripts: list[RunTranscript], metadata: dict[str, JsonValue]) -> AgentRun:
    try:
        return AgentRun(id=name, transcripts=tuple(transcripts), metadata=metadata)
    except ValidationError as error:
        raise Unreadable(explain(error)) from None


def _inspect(log: dict[str, Any], name: str) -> Iterator[AgentRun]:
    """Yield the samples of an Inspect log, a run each."""
    about = log.get("eval") if isinstance(log.get("eval"), dict) else {}
    task = str((about or {}).get("task") or name)
    for at, sample in enumerate(log["samples"]):
        try:
            yield inspect_sample(sample, task, (about or {}).get("model"))
        except Unreadable as error:
            raise Unreadable(str(error), "samples", at, *error.path) from None


def inspect_sample(sample: Any, task: str, model: object = None) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    """Return a sample of an Inspect log as a run; its scores and target are metadata, which a judge is not shown by default.

    Raises:
        Unreadable: It is none.
    """
    if not isinstance(sample, dict) or not isinstance(sample.get("messages"), list):
        raise Unreadable(f"{clip(str(sample))} is no sample of an Inspect log: it has no messages")
    attached = sample.get("attachments") if isinstance(sample.get("attachments"), dict) else {}
    messages = _some(_under("messages", _with_attachments(sample["messages"], attached or {})), "messages")
    known = {key: sample[key] for key in ("target", "scores", "epoch", "metadata") if sample.get(key) not in (None, {}, [])}
    told = known | ({"model": str(model)} if model else {}) | {"task": task}
    epoch = f"-{sample['epoch']}" if sample.get("epoch") not in (None, 1) else ""
    named = f"{task.rpartition('/')[2]}-{sample.get('id', 'sample')}{epoch}"
    return _made(named, [RunTranscript(messages=tuple(messages))], told)


def _with_attachments(value: Any, attached: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return messages with the texts that a log keeps apart."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attached.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_with_attachments(each, attached) for each in value]
    return {key: _with_attachments(each, attached) for key, each in value.items()} if isinstance(value, dict) else value
