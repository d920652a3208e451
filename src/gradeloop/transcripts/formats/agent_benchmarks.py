"""Runs of agents in the formats of smolagents, OpenHands, tau-bench, ATIF (Agent Trajectory Interchange Format), and logs of Inspect."""

import math
from collections.abc import Iterator

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, ReasoningPart, RunMessage, RunPart, TextPart
from gradeloop.text import clip, objects_in
from gradeloop.transcripts.assemble import build_run, error_message, id_of, other_message, require_messages, run_of, transcript_of
from gradeloop.transcripts.formats import Format, rows_of
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, flag_at, inside, list_at, require_rows, without
from gradeloop.transcripts.message_forms import build_message, messages_at, parse_message, parse_messages, read_rows
from gradeloop.transcripts.parts import parts_in, read_call, read_result, text_of

_OPENHANDS_KINDS = {
    *("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent", "PauseEvent", "Condensation"),
    *("CondensationRequest", "CondensationSummaryEvent", "UserRejectObservation", "ConversationStateUpdateEvent", "TokenEvent"),
    *("ConversationErrorEvent", "LLMCompletionLogEvent", "HookExecutionEvent", "StreamingDeltaEvent"),
}
"""The kinds of events of OpenHands' agent SDK."""


def _recognise_openhands(value: Json) -> str | None:
    """Return why a value holds events of OpenHands: a list of them, or a row of its evaluations with their history."""
    if isinstance(value, dict):
        key = _history_key(value)
        return f"an object with {key}, which are events" if _are_events(_flat(value.get(key))) else None
    return "events with source, and action or observation" if _are_events(_flat(value)) else None


def _history_key(value: dict[str, Json]) -> str:
    """Return the key of an object's events: of a row of an evaluation, or of what its server answers."""
    return next((key for key in ("history", "trajectory", "items", "events") if isinstance(value.get(key), list)), "history")


def _flat(value: Json) -> list[Json]:
    """Return events; the first versions wrote pairs of an action and its observation."""
    return [event for item in value for event in (item if isinstance(item, list) else [item])] if isinstance(value, list) else []


def _are_events(events: list[Json]) -> bool:
    rows = objects_in(events)[:20]
    known = [
        str(row.get("kind")) in _OPENHANDS_KINDS or ("role" not in row and "source" in row and {"action", "observation"} & set(row))
        for row in rows
    ]
    # New versions add kinds of events. One that is not known yet counts beside events of known kinds. Otherwise
    # one new event would make a whole file unreadable.
    new = [isinstance(row.get("kind"), str) and "source" in row and "role" not in row for row in rows]  # of a kind that is not known yet
    return len(rows) == len(events[:20]) and any(known) and all(map(any, zip(known, new, strict=True)))


def _parse_openhands(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of the events."""
    whole: dict[str, Json] = value if isinstance(value, dict) else {"history": value}
    messages: list[RunMessage] = []
    if instruction := text_of(whole.get("instruction")):
        messages.append(RunMessage(role="user", content=instruction))
    key = _history_key(whole)
    path = [key] if isinstance(value, dict) else []
    messages += read_rows(_flat(whole[key]), lambda event: _sdk_event(event) if "kind" in event else _openhands_event(event), *path)
    asked = [part for message in messages[1:] if message.role == "user" for part in message.records()]
    if instruction and any(isinstance(part, TextPart) and part.text == instruction for part in asked):
        del messages[0]  # the events have it, behind the system's prompt
    if error := whole.get("error"):
        messages.append(error_message(text_of(error), "error"))
    metadata = without(whole, key, "instruction", "error")
    yield run_of(id_of(whole, name, "instance_id", "id"), messages, metadata)


def _openhands_event(event: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the messages of an event of OpenHands: an action, or an observation that it caused."""
    args, extras = dict_of(event.get("args")), dict_of(event.get("extras"))
    role = "user" if event.get("source") == "user" else "assistant"
    kind = str(event.get("action") or event.get("observation"))
    if "action" not in event:
        cause = dict_of(event.get("tool_call_metadata")).get("tool_call_id") or event.get("cause")
        failed = kind == "error" or extras.get("exit_code", dict_of(extras.get("metadata")).get("exit_code", 0)) not in (0, None, -1)
        content = event.get("content") if event.get("content") not in (None, "") else event.get("message")
        if kind in {"agent_state_changed", "null"}:
            yield other_message("system", kind, extras or None)
        else:
            yield build_message("tool", [*read_result(cause, content, name=kind, failed=failed)])
    elif kind in {"message", "system"}:
        said = "system" if kind == "system" else role
        files = parts_in([{"type": "image_url", "image_url": {"url": url}} for url in list_at(args, "image_urls")])
        yield build_message(said, [TextPart(text=text_of(args.get("content"))), *files])
    elif kind in {"change_agent_state", "recall", "null"}:
        yield other_message("system", kind, args or None)
    else:
        thought = text_of(args.get("thought"))
        call = dict_of(event.get("tool_call_metadata")).get("tool_call_id") or event.get("id")
        given = {key: inner for key, inner in args.items() if key not in {"thought", "hidden", "blocking"} and inner not in (None, "")}
        said_ = [TextPart(text=thought)] if thought else []
        yield build_message(role, [*said_, read_call(call, kind, given)])


def _sdk_event(event: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the messages of an event of OpenHands' agent SDK."""
    kind = str(event.get("kind"))
    role = "user" if str(event.get("source")) in {"user", "environment"} else "assistant"
    call, tool = event.get("tool_call_id"), str(event.get("tool_name") or "tool")
    if kind == "SystemPromptEvent":
        prompts = (text_of(dict_of(event.get(key)).get("text")) for key in ("system_prompt", "dynamic_context"))
        yield RunMessage(role="system", content="\n\n".join(filter(None, prompts)))
    elif kind == "MessageEvent":
        yield from messages_at({"llm_message": [event.get("llm_message")]}, "llm_message")
        if extended := event.get("extended_content"):  # what the program added to the user's message
            yield from parse_messages([{"role": role, "content": extended, "metadata": {"extended_content": True}}])
    elif kind == "ActionEvent":
        thought = parts_in(event.get("thought") or None)
        reasoning = text_of(event.get("reasoning_content"))
        written = dict_of(event.get("tool_call"))
        arguments = first_of(written, "arguments") or dict_of(written.get("function")).get("arguments")
        given = arguments if arguments is not None else without(dict_of(event.get("action")), "kind")
        blocks = parts_in(event.get("thinking_blocks") or None)
        before: list[RunPart] = [ReasoningPart(text=reasoning)] if reasoning else blocks
        yield build_message("assistant", [*before, *thought, read_call(call, tool, given)])
    elif kind in {"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"}:
        observation = dict_of(event.get("observation"))
        content = (
            first_of(observation, "content", "output", "text")
            or without(observation, "kind")
            or first_of(event, "error", "rejection_reason")
        )
        failed = kind != "ObservationEvent" or flag_at(observation, "is_error") or bool(observation.get("error"))
        yield build_message("tool", [*read_result(call, content, name=tool, failed=failed)])
    elif kind == "ConversationErrorEvent":
        yield error_message(text_of(first_of(event, "detail", "error")), str(event.get("code") or kind))
    else:
        yield other_message(role if role == "assistant" else "system", kind, without(event, "kind", "id", "timestamp", "source"))


def _recognise_tau(value: Json) -> str | None:
    """Return why a value is a run of tau-bench, or simulations of tau2-bench."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("traj"), list):
        return "traj, beside task_id and reward"
    if isinstance(value.get("simulations"), list):
        return "simulations, each with messages"
    return None


def _parse_tau(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the runs: the task and the trial are their ids, the reward is metadata."""
    several = "simulations" in value
    for at, row in enumerate(value["simulations"] if several else [value]):
        place: tuple[int | str, ...] = ("simulations", at) if several else ()
        with inside(*place):
            if not isinstance(row, dict):
                raise UnreadableMessage("a simulation is not an object")
            key = "traj" if isinstance(row.get("traj"), list) else "messages"
            spoken = objects_in(row.get("ticks")) if not row.get(key) else []
            if key not in row and not spoken:
                raise UnreadableMessage("there are neither traj nor messages")
            with inside(*(["ticks"] if spoken else [])):
                messages = parse_messages(_of_ticks(spoken)) if spoken else messages_at(row, key)
            ended = row.get("termination_reason")
            metadata = without(row, "traj", "messages", "ticks", "id")
            error = dict_of(row.get("info")).get("error")
            if error:
                messages.append(error_message(text_of(error), "error"))
            elif ended and str(ended).endswith("error"):
                messages.append(error_message(str(ended), "termination_reason"))
            own = f"task-{row['task_id']}-trial-{row.get('trial', 0)}"[:200] if "task_id" in row else name
            run = run_of(own, messages, metadata)
        yield run


def _of_ticks(ticks: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return the messages of a call in which both sides may speak at the same time: what each says in one utterance is one message."""
    rows: list[dict[str, Json]] = []
    speaking: dict[str, tuple[dict[str, Json], set[str]]] = {}
    # The pieces of both sides alternate. A piece that shares an id with what its side is saying goes on with
    # that, whatever the other said in between. Without ids it goes on only with the newest message. A call of a
    # tool ends what its side was saying.
    for tick in ticks:
        for side, role in (("agent", "assistant"), ("user", "user")):
            chunk, calls = dict_of(tick.get(f"{side}_chunk")), objects_in(tick.get(f"{side}_tool_calls"))
            text, ids = text_of(first_of(chunk, "content", "audio_script_gold")), {str(name) for name in chunk.get("utterance_ids") or ()}
            row, known = speaking.get(role, ({}, set()))
            if text and row and (ids & known or (not ids and not known and rows[-1] is row)):
                row["content"] += text
                known |= ids
            elif text:
                rows.append({"role": role, "content": text})
                speaking[role] = rows[-1], ids
            if calls:
                rows.append({"role": role, "content": None, "tool_calls": calls})
                speaking.pop(role, None)
            rows += objects_in(tick.get(f"{side}_tool_results"))
    return rows


def _recognise_atif(value: Json) -> str | None:
    """Return why a value is a trajectory in the interchange format."""
    if isinstance(value, dict) and isinstance(value.get("steps"), list):
        if str(value.get("schema_version")).startswith("ATIF"):
            return f"schema_version is {value['schema_version']}"
        if all(isinstance(step, dict) and "source" in step and "message" in step for step in value["steps"][:5]) and value["steps"]:
            return "steps with source and message"
    return None


def _parse_atif(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a trajectory; those of its subagents are transcripts of their own."""
    transcripts = [transcript_of(read_rows(value.get("steps"), _atif_step, "steps"), id="main")]
    for at, below in enumerate(require_rows(value.get("subagent_trajectories"), "subagent_trajectories")):
        with inside("subagent_trajectories", at):
            own = str(first_of(below, "trajectory_id", "session_id") or f"subagent-{at + 1}")
            transcripts.append(transcript_of(read_rows(below.get("steps"), _atif_step, "steps"), id=own))
    metadata = without(value, "steps", "subagent_trajectories", "session_id")
    yield build_run(id_of(value, name, "session_id", "trajectory_id", "id"), transcripts, metadata)


_ATIF_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def _atif_step(step: dict[str, Json]) -> Iterator[RunMessage]:
    if str(step.get("source")) not in _ATIF_ROLES:
        raise UnreadableMessage("the source of a step is system, user or agent", "source")
    calls = [
        {"id": call.get("tool_call_id"), "name": call.get("function_name"), "arguments": call.get("arguments")}
        for call in require_rows(step.get("tool_calls"), "tool_calls")
    ]
    message: dict[str, Json] = {"role": _ATIF_ROLES[step["source"]], "content": step.get("message")}
    more = without(step, "source", "message", "reasoning_content", "tool_calls", "observation", "step_id", "timestamp")
    message |= {"reasoning_content": step.get("reasoning_content"), "tool_calls": calls, "metadata": more}
    yield from parse_messages([message])
    for result in require_rows(dict_of(step.get("observation")).get("results"), "observation", "results"):
        yield _atif_result(result, calls)


def _atif_result(result: dict[str, Json], calls: list[dict[str, Json]]) -> RunMessage:
    """Return what a step observed: a tool's result, or without a call what the environment said."""
    call = result.get("source_call_id")
    references = [without(ref) for ref in require_rows(result.get("subagent_trajectory_ref"), "subagent_trajectory_ref")]
    content = result.get("content") if result.get("content") is not None else references or None
    more = without(result, "source_call_id", "content", *(["subagent_trajectory_ref"] if content is references else []))
    if call is None and not calls:
        said = content if isinstance(content, (str, list)) else text_of(content)
        return build_message("user", parts_in(said), metadata=more)
    tool = next((given["name"] for given in calls if given["id"] == call), None)
    return build_message("tool", [*read_result(call, content, name=tool)], metadata=more)


_ATTACHMENT = "attachment://"
_KEPT = ("target", "scores", "epoch", "metadata", "choices", "sandbox", "total_time", "working_time", "error_retries", "uuid")

_ABOUT_SAMPLES = "eval|plan|results|stats|reductions|events|attachments|store|timelines|sandbox"
"""The keys about an evaluation, and of what samples have beside their messages: events repeat these, or are a scorer's."""


def _recognise_inspect(value: Json) -> str | None:
    """Return why a value is a log of Inspect; None where it is none."""
    if isinstance(value, dict) and isinstance(value.get("samples"), list):
        return "an object with samples, and eval beside them" if "eval" in value else "an object with samples"
    if isinstance(value, dict) and isinstance(value.get("eval"), dict) and "status" in value and "plan" in value:
        return "an object with eval, plan and status, without samples"
    return None


def _parse_inspect(log: dict[str, Json], name: str) -> Iterator[AgentRun]:
    """Yield the samples of a log as runs."""
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
    """Return a sample of an Inspect log as a run; raise UnreadableMessage where the value is not a sample, or it has no messages."""
    if not isinstance(sample, dict) or not (isinstance(sample.get("messages"), list) or isinstance(sample.get("events"), list)):
        raise UnreadableMessage(f"{clip(str(sample))} is not a sample of an Inspect log: it has no messages")
    attached = dict_of(sample.get("attachments"))
    messages = _messages_of(sample, attached)
    # A sample that broke off is judged with its error as a last record. One that broke off before anything was
    # said holds nothing that could be judged.
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
    events = [event for event in objects_in(sample.get("events")) if event.get("event") == "model"]
    if not events:
        return []
    last = _with_attachments(events[-1], attached)
    answered = [
        choice["message"] for choice in objects_in(dict_of(last.get("output")).get("choices")) if isinstance(choice.get("message"), dict)
    ]
    with inside("events"):
        messages = parse_messages([*(last.get("input") or ()), *answered])
    return [*messages, *([error_message(text_of(last["error"]), "model_error")] if last.get("error") else [])]


def _score(score: Json) -> JsonValue:
    """Return a score; one of NaN is Inspect's `Score.unscored()`, which is not a score."""
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


_SMOLAGENTS = {"system_prompt": "system", "task": "user", "plan": "assistant", "step_number": "assistant"}
"""The keys by which the steps of an agent of smolagents are known, and who speaks in them."""


def _is_smolagents(row: dict[str, Json]) -> bool:
    return set(row) in ({"system_prompt"}, {"task", "task_images"}) or "model_output_message" in row


def _parse_smolagents(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of the steps; what the model was sent is what was said before it, but for the system's prompt."""
    steps = require_rows(value if isinstance(value, list) else [value])
    sent = next((rows for step in steps if (rows := objects_in(step.get("model_input_messages")))), [])
    prompt = [] if any("system_prompt" in step for step in steps) else [row for row in sent if row.get("role") == "system"]
    yield run_of(name, [*parse_messages(prompt), *read_rows(steps, _smolagents_step)])


def _smolagents_step(step: dict[str, Json]) -> Iterator[RunMessage]:
    key = next((key for key in _SMOLAGENTS if key in step), None)
    if key is None:
        raise UnreadableMessage(f"a step has {' or '.join(_SMOLAGENTS)}, and this one has the keys: {', '.join(step) or 'none'}")
    calls, seen, error = require_rows(step.get("tool_calls"), "tool_calls"), text_of(step.get("observations")), step.get("error")
    said = step[key] if key != "step_number" else step.get("model_output") or dict_of(step.get("model_output_message")).get("content")
    sent = ["model_input_messages"] if key == "step_number" else []  # a plan's prompt is not said elsewhere
    more = without(step, key, *sent, "model_output_message", "model_output", "tool_calls", "observations", "error")
    content = said if isinstance(said, list) else text_of(said)
    yield from parse_message({"role": _SMOLAGENTS[key], "content": content, "tool_calls": calls, "metadata": more})
    if seen or error:
        back: dict[str, Json] = {"role": "tool", "tool_call_id": calls[0].get("id")} if calls else {"role": "system"}
        yield from parse_message({**back, "content": seen, "error": error})
    if step.get("is_final_answer") and step.get("action_output") is not None:
        yield build_message("assistant", [TextPart(text=text_of(step["action_output"]))])


ATIF = Format("ATIF trajectory", _recognise_atif, _parse_atif, unshown="agent|extra|notes|(final_)?metrics")
INSPECT = Format("Inspect log", _recognise_inspect, _parse_inspect, several="samples", unshown=_ABOUT_SAMPLES)
_BESIDE_EVENTS = "instance|test_result|report|message|extras|tool_call_metadata|(llm_)?metrics"
OPENHANDS = Format("OpenHands events", _recognise_openhands, _parse_openhands, whole=True, unshown=_BESIDE_EVENTS)
TAU = Format("tau-bench run", _recognise_tau, _parse_tau, several="simulations", unshown="info|tasks|reward_info")
SMOLAGENTS = Format(
    "smolagents steps", rows_of(_is_smolagents, "steps of an agent's memory"), _parse_smolagents, whole=True, unshown="model_input_messages"
)
