"""Prompts of judges with a schema of their own, and the blocks of a run that they cite."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from gradeloop.contract.messages import Message
from gradeloop.contract.transcript import AgentRun, MessagePlace, RunMessage, ToolCallPart
from gradeloop.errors import InvalidRequest
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET, cut_to, elide, exceeds, read_prompt_text, record_line
from gradeloop.judges.contract import SchemaJudge
from gradeloop.judges.schema import wants_citations


@dataclass(frozen=True)
class BlockRecord:
    """One record of a block: a text, a tool call, a file."""

    fields: dict[str, JsonValue]
    """Its type and what else it has beside its text."""
    start: int
    """The place of what can be quoted of it in the block's text, in characters: its text, and before that a called tool's name."""
    end: int
    text_start: int
    """Position of its text there."""


@dataclass(frozen=True)
class Block:
    """One message of a run, as it is shown and cited: a line for each of its records."""

    transcript: int
    index: int
    role: str
    name: str | None
    text: str
    """The text that can be quoted of all its records, a line break between two; the offsets of citations count its characters."""
    records: tuple[BlockRecord, ...] = ()
    transcript_id: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name by which it is cited: `T0B3`."""
        return f"T{self.transcript}B{self.index}"


def blocks_of(run: AgentRun) -> list[Block]:
    """Return a block for each message of the run, in order, with its number in the longer run where this is an excerpt."""
    return [_block(place, transcript.id, message) for place, transcript, message in run.placed()]


def _block(place: MessagePlace, transcript_id: str, message: RunMessage) -> Block:
    texts, records, at = [], [], 0
    for part in message.records():
        fields = part.record()
        text = str(fields.pop("text"))
        named = f"{part.name} " if isinstance(part, ToolCallPart) else ""
        texts.append(named + text)
        records.append(BlockRecord(fields, at, at + len(named) + len(text), at + len(named)))
        at = records[-1].end + 1
    text = "\n".join(texts)
    return Block(place.transcript, place.message, message.role, message.name, text, tuple(records), transcript_id, message.metadata)


def render_run(run: AgentRun, nonce: str, *, metadata: bool = False, budget: int = TRANSCRIPT_BUDGET) -> str:
    """Render a run as JSON lines between two that carry the random code: a line for each record, with its type.

    Behind the messages that the findings on a longer run cite stand the findings, between lines of their own.

    Over `budget` characters, the longest records lose their middle; of very many short ones, those in the middle are left out.

    `budget`: characters of text shown in all.
    """
    records = (record_line(record, nonce) for record in _records(run, budget, metadata=metadata))
    lines = [f"=== agent run {nonce} ===", *records, f"=== end of agent run {nonce} ==="]
    if run.excerpt and run.excerpt.findings:
        found = (record_line({"type": "finding", **finding.model_dump(mode="json")}, nonce) for finding in run.excerpt.findings)
        lines += [f"=== findings {nonce} ===", *found, f"=== end of findings {nonce} ==="]
    return "\n".join(lines)


def is_cut(run: AgentRun) -> bool:
    """Return whether a run is too long for a judge to be shown all of it."""
    messages = (message for transcript in run.transcripts for message in transcript.messages)
    return exceeds(TRANSCRIPT_BUDGET, (len(str(part.record()["text"])) for message in messages for part in message.records()))


def refuse_cut(runs: Iterable[AgentRun]) -> None:
    """Raise InvalidRequest where a judge would not be shown all of a run."""
    if name := next((run.id for run in runs if is_cut(run)), None):
        shown = f"the {TRANSCRIPT_BUDGET:,} characters that a judge is shown"
        raise InvalidRequest(f"--whole: the run {name!r} is longer than {shown}; split it, or judge it cut")


def _records(run: AgentRun, budget: int, *, metadata: bool) -> Iterator[dict[str, object]]:
    shown = blocks_of(run)
    cut = cut_to(budget, [record.end - record.text_start for block in shown for record in block.records])
    first_left_out = dict(cut.left_out)
    if metadata and run.metadata:
        yield {"metadata": "R0M", "value": run.metadata}
    if run.excerpt and run.excerpt.part:
        yield {"part": run.excerpt.part, "of": run.excerpt.parts}
    number, resume, transcript = 0, 0, -1
    headings = iter(run.transcripts)
    for block in shown:
        if block.transcript != transcript:
            transcript = block.transcript
            heading = next(headings)
            yield {"transcript": f"T{transcript}", "name": heading.name or heading.id, "messages": len(heading.messages)}
            if metadata and heading.metadata:
                yield {"metadata": f"T{transcript}M", "value": heading.metadata}
        was_shown = False
        for record in block.records:
            if number in first_left_out:
                resume = first_left_out[number] + 1
                yield {"left_out": f"{resume - number} records, beginning in {block.label}"}
            if number >= resume:
                was_shown, name = True, {"name": block.name} if block.name else {}
                text = elide(block.text[record.text_start : record.end], cut.cap)
                yield {"block": block.label, "role": block.role, **name, **record.fields, "text": text}
            number += 1
        if metadata and block.metadata and was_shown:
            yield {"metadata": f"{block.label}M", "value": block.metadata}


REFLECTED_CHARACTERS = 60_000
"""The size, all answers together, up to which a reflection is shown them whole; beyond, their long texts are cut."""

LONG_TEXT = 400
"""Characters that are left of a text that is cut."""

SHOWN_ITEMS = 50
"""Items that are left of a list that is cut."""

_TEXTS = {
    name: read_prompt_text(f"judge_{name}")
    for name in ("boundary", "citations", "citations_metadata", "citations_required", "form_json", "form_yaml", "repair", "reflect")
}


@dataclass(frozen=True)
class JudgePrompt:
    """A system prompt, and the messages after it."""

    system: str
    messages: tuple[Message, ...]


def build_judge_prompt(judge: SchemaJudge, run: AgentRun, nonce: str, *, budget: int = TRANSCRIPT_BUDGET) -> JudgePrompt:
    """Build what a judge is sent about a run; equal input gives equal bytes.

    `budget`: characters of the run shown in all.
    """
    values = {
        "rubric": judge.rubric_text,
        "agent_run": render_run(run, nonce, metadata=judge.show_metadata, budget=budget),
        "output_schema": json.dumps(judge.output_schema, indent=2, ensure_ascii=False),
        "output_format_instructions": _TEXTS[f"form_{judge.output_format}"],
    }
    filled = [(template.role, template.content.format_map(values)) for template in judge.templates]
    if wants_citations(judge.output_schema):
        role, text = filled[-1]
        metadata_rule = f"{_TEXTS['citations_metadata']}\n- " if judge.show_metadata else ""
        required = f"\n{_TEXTS['citations_required']}" if judge.require_citations else ""
        filled[-1] = (role, f"{text}\n\n{_TEXTS['citations'].format(metadata=metadata_rule)}{required}")
    system = [text for role, text in filled if role == "system"]
    messages = [Message(role="user" if role == "user" else "assistant", content=text) for role, text in filled if role != "system"]
    if not messages:  # a provider is asked by a user: where there is only a system prompt, it is the question
        messages, system = [Message(role="user", content="\n\n".join(system))], []
    return JudgePrompt("\n\n".join([*system, _TEXTS["boundary"]]), tuple(messages))


def repair_message(judge: SchemaJudge, problems: Sequence[str]) -> Message:
    """Build the message that asks for a valid answer, with the problems in the validator's own words."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), tags=_tags(judge)))


def reflection_message(judge: SchemaJudge, answers: Sequence[dict[str, JsonValue]], nonce: str) -> Message:
    """Build the message that asks to weigh several answers to the same question."""
    whole = sum(len(json.dumps(answer)) for answer in answers) <= REFLECTED_CHARACTERS
    shown = [record_line({"answer": at + 1, "output": answer if whole else _shortened(answer)}, nonce) for at, answer in enumerate(answers)]
    fenced = "\n".join([f"=== answers {nonce} ===", *shown, f"=== end of answers {nonce} ==="])
    return Message(role="user", content=_TEXTS["reflect"].format(count=len(answers), answers=fenced, tags=_tags(judge)))


def _tags(judge: SchemaJudge) -> str:
    """Return where the answer is to stand, as the end of a sentence."""
    key = judge.response_xml_key
    return "" if judge.constrained else f": once, between <{key}> and </{key}>"


def _shortened(value: JsonValue) -> JsonValue:
    """Return a value with its long texts and lists cut."""
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value[:SHOWN_ITEMS]]
    return f"{value[:LONG_TEXT]}…" if isinstance(value, str) and len(value) > LONG_TEXT else value
