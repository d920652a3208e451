"""Logs of Inspect: a sample is a run; scores, target and what ended it are metadata, which a judge is not shown by default."""

import math
from collections.abc import Iterator

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.text import clip
from gradeloop.transcripts.message_forms import parse_messages
from gradeloop.transcripts.parts import text_of
from gradeloop.transcripts.runs import error_message, other_message, require_messages, run_of
from gradeloop.transcripts.unreadable import Json, UnreadableMessage, dict_of, inside, rows_of

_ATTACHMENT = "attachment://"
_KEPT = ("target", "scores", "epoch", "metadata", "choices", "sandbox", "total_time", "working_time", "error_retries", "uuid")


def recognise(value: Json) -> str | None:
    """Return why a value is a log of Inspect; None where it is none."""
    if isinstance(value, dict) and isinstance(value.get("samples"), list):
        return "an object with samples, and eval beside them" if "eval" in value else "an object with samples"
    if isinstance(value, dict) and isinstance(value.get("eval"), dict) and "status" in value and "plan" in value:
        return "an object with eval, plan and status, without samples"
    return None


def parse(log: dict[str, Json], name: str) -> Iterator[AgentRun]:
    """Yield the samples of a log as runs.

    Raises:
        UnreadableMessage: A sample holds nothing that can be judged, or the log has none.
    """
    about = dict_of(log.get("eval"))
    task = str(about.get("task") or name)
    if not log.get("samples") and (log.get("error") or log.get("status") in {"error", "cancelled"}):
        why = text_of(dict_of(log.get("error")).get("message") or log.get("status"))
        raise UnreadableMessage(f"the log of {task!r} has no samples, since the evaluation ended with {log.get('status')}: {clip(why)}")
    for at, sample in enumerate(log.get("samples") or ()):
        with inside("samples", at):
            run = parse_sample(sample, task, about.get("model"))
        yield run


def parse_sample(sample: Json, task: str, model: object = None) -> AgentRun:
    """Return a sample of an Inspect log as a run.

    Raises:
        UnreadableMessage: The value is no sample, or it has no messages.
    """
    if not isinstance(sample, dict) or not (isinstance(sample.get("messages"), list) or isinstance(sample.get("events"), list)):
        raise UnreadableMessage(f"{clip(str(sample))} is no sample of an Inspect log: it has no messages")
    attached = dict_of(sample.get("attachments"))
    messages = _messages_of(sample, attached)
    error = dict_of(sample.get("error"))
    if not messages and error:
        raise UnreadableMessage(f"the sample ended with an error before anything was said: {clip(text_of(error.get('message')))}", "error")
    ended: list[RunMessage] = []
    if error:
        ended.append(error_message(text_of(error.get("message")), "sample_error"))
    if limit := dict_of(sample.get("limit")):
        ended.append(other_message("system", "limit", limit))
    metadata = {key: sample[key] for key in _KEPT if sample.get(key) not in (None, {}, [])}
    metadata["scores"] = {name: _score(score) for name, score in dict_of(sample.get("scores")).items()}
    metadata = {key: inner for key, inner in metadata.items() if inner != {}}
    metadata |= {"error": error} if error else {}
    metadata |= ({"model": str(model)} if model else {}) | {"task": task}
    epoch = f"-{sample['epoch']}" if sample.get("epoch") not in (None, 1) else ""
    run_id = f"{task.rpartition('/')[2]}-{sample.get('id', 'sample')}{epoch}"
    return run_of(run_id, [*require_messages(messages, "messages"), *ended], metadata)


def _messages_of(sample: dict[str, Json], attached: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of a sample; where it has none, those of its last model event, else its input and output."""
    written = sample.get("messages")
    if isinstance(written, list) and written:
        with inside("messages"):
            return parse_messages(_with_attachments(written, attached))
    events = [event for event in rows_of(sample.get("events")) if event.get("event") == "model"]
    if not events:
        return []
    last = _with_attachments(events[-1], attached)
    answered = [
        choice["message"] for choice in rows_of(dict_of(last.get("output")).get("choices")) if isinstance(choice.get("message"), dict)
    ]
    with inside("events"):
        messages = parse_messages([*(last.get("input") or ()), *answered])
    return [*messages, *([error_message(text_of(last["error"]), "model_error")] if last.get("error") else [])]


def _score(score: Json) -> JsonValue:
    """Return a score; one of NaN is Inspect's `Score.unscored()`, which is no score."""
    if isinstance(score, dict) and "value" in score:
        value, gaps = _without_nan(score["value"])
        unscored: dict[str, JsonValue] = {"unscored": gaps if value is not None else True} if gaps else {}
        return {**score, "value": value, **unscored}
    return _without_nan(score)[0]


def _without_nan(value: Json) -> tuple[JsonValue, list[JsonValue]]:
    """Return a value with None in the place of NaN, and where that stood: the keys of an object, or the places in a list."""
    if _is_nan(value):
        return None, [""]
    if isinstance(value, dict):
        gaps: list[JsonValue] = [key for key, inner in value.items() if _is_nan(inner)]
        return {key: None if key in gaps else inner for key, inner in value.items()}, gaps
    if isinstance(value, list):
        return [None if _is_nan(inner) else inner for inner in value], [at for at, inner in enumerate(value) if _is_nan(inner)]
    return value, []


def _is_nan(value: object) -> bool:
    return (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and value.lower() == "nan")


def _with_attachments(value: Json, attached: dict[str, Json]) -> Json:
    """Return messages with the texts that a log keeps as attachments."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attached.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_with_attachments(item, attached) for item in value]
    return {key: _with_attachments(inner, attached) for key, inner in value.items()} if isinstance(value, dict) else value
