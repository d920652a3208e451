"""Prompts of judges with a schema of their own, and the blocks of a transcript that they cite."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gradeloop.contract.messages import Message
from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET, caps, elided, line, prompt_text
from gradeloop.judges.contract import SchemaJudge, fill_template
from gradeloop.judges.schema import wants_citations


@dataclass(frozen=True)
class Block:
    """One message of a run, as it is shown and cited."""

    transcript: int
    index: int
    role: str
    name: str | None
    text: str
    """Reasoning, content and tool calls; the offsets of citations count its characters."""

    @property
    def label(self) -> str:
        """How it is cited."""
        return f"T{self.transcript}B{self.index}"


def blocks_of(run: AgentRun) -> list[Block]:
    """Return a block for each message of the run, in order."""
    return [
        Block(at, index, message.role, message.name, text_of(message))
        for at, transcript in enumerate(run.transcripts)
        for index, message in enumerate(transcript.messages)
    ]


def text_of(message: RunMessage) -> str:
    """Return all that a message says, as one text."""
    return "\n".join(_parts(message))


def _parts(message: RunMessage) -> Iterator[str]:
    if message.reasoning:
        yield f"<reasoning>\n{message.reasoning}\n</reasoning>"
    if message.content or not (message.reasoning or message.tool_calls):
        yield message.content
    for call in message.tool_calls:
        arguments = call.invalid if call.invalid is not None else json.dumps(call.arguments, ensure_ascii=False)
        yield f"<tool call>\n{call.name} {arguments}\n</tool call>"


def render_run(run: AgentRun, nonce: str, *, metadata: bool = False, budget: int = TRANSCRIPT_BUDGET) -> str:
    """Return the run as lines between two that carry the random code; over `budget` characters, the longest blocks are cut in the middle.

    Args:
        run: What is shown.
        nonce: The judgement's random code, which no content can hold.
        metadata: Whether what is known about the run is shown too.
        budget: Characters of text shown in all.
    """
    shown = blocks_of(run)
    cap = caps([len(each.text) for each in shown], budget)
    lines = list(_lines(run, shown, cap, metadata=metadata))
    return "\n".join([f"=== agent run {nonce} ===", *(line(each, nonce) for each in lines), f"=== end of agent run {nonce} ==="])


def is_cut(run: AgentRun, budget: int = TRANSCRIPT_BUDGET) -> bool:
    """True where a judge is not shown all of the run."""
    return sum(len(block.text) for block in blocks_of(run)) > budget


def _lines(run: AgentRun, shown: Sequence[Block], cap: int, *, metadata: bool) -> Iterator[dict[str, object]]:
    if metadata and run.metadata:
        yield {"metadata": "R0M", "value": run.metadata}
    for at, transcript in enumerate(run.transcripts):
        yield {"transcript": f"T{at}", "name": transcript.name or transcript.id, "messages": len(transcript.messages)}
        if metadata and transcript.metadata:
            yield {"metadata": f"T{at}M", "value": transcript.metadata}
        for block in (each for each in shown if each.transcript == at):
            named = {"name": block.name} if block.name else {}
            yield {"block": block.label, "role": block.role, **named, "text": elided(block.text, cap)}
            known = transcript.messages[block.index].metadata
            if metadata and known:
                yield {"metadata": f"{block.label}M", "value": known}


REFLECTED_CHARACTERS = 60_000
"""Of all answers that a reflection is shown; longer ones are shown without their long texts."""

LONG_TEXT = 400

_TEXTS = {
    name: prompt_text(f"judge_{name}")
    for name in ("boundary", "citations", "citations_metadata", "form_json", "form_yaml", "repair", "reflect")
}


@dataclass(frozen=True)
class JudgePrompt:
    """A system prompt, and the messages after it."""

    system: str
    messages: tuple[Message, ...]


def build_judge_prompt(judge: SchemaJudge, run: AgentRun, nonce: str, *, budget: int = TRANSCRIPT_BUDGET) -> JudgePrompt:
    """Return what a judge is sent about a run; equal input gives equal bytes.

    Args:
        judge: Its rubric, schema and templates.
        run: What is judged.
        nonce: The judgement's random code.
        budget: Characters of the run shown in all.
    """
    values = {
        "rubric": judge.rubric_text,
        "agent_run": render_run(run, nonce, metadata=judge.show_metadata, budget=budget),
        "output_schema": json.dumps(judge.output_schema, indent=2, ensure_ascii=False),
        "output_format_instructions": _TEXTS[f"form_{judge.output_format}"],
    }
    told = [(template.role, fill_template(template.content, values)) for template in judge.templates]
    if wants_citations(judge.output_schema):
        role, text = told[-1]
        told[-1] = (role, f"{text}\n\n{_citing(judge)}")
    system = [text for role, text in told if role == "system"]
    said = [Message(role="user" if role == "user" else "assistant", content=text) for role, text in told if role != "system"]
    if not said:  # a provider is asked by a user: where there is only a system prompt, it is the question
        said, system = [Message(role="user", content="\n\n".join(system))], []
    return JudgePrompt("\n\n".join([*system, _TEXTS["boundary"]]), tuple(said))


def _citing(judge: SchemaJudge) -> str:
    more = f"{_TEXTS['citations_metadata']}\n- " if judge.show_metadata else ""
    return _TEXTS["citations"].format(metadata=more)


def _tags(judge: SchemaJudge) -> str:
    key = judge.response_xml_key
    return "" if judge.constrained else f": once, between <{key}> and </{key}>"


def repair_message(judge: SchemaJudge, problems: Sequence[str]) -> Message:
    """Return the request for a valid answer, with what was wrong in the validator's own words."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), tags=_tags(judge)))


def reflection_message(judge: SchemaJudge, answers: Sequence[dict[str, JsonValue]], nonce: str) -> Message:
    """Return the request to weigh several answers to the same question."""
    whole = sum(len(json.dumps(answer)) for answer in answers) <= REFLECTED_CHARACTERS
    shown = [line({"answer": at + 1, "output": each if whole else _brief(each)}, nonce) for at, each in enumerate(answers)]
    fenced = "\n".join([f"=== answers {nonce} ===", *shown, f"=== end of answers {nonce} ==="])
    return Message(role="user", content=_TEXTS["reflect"].format(count=len(answers), answers=fenced, tags=_tags(judge)))


def _brief(value: JsonValue) -> JsonValue:
    """Return a value with its long texts cut."""
    if isinstance(value, dict):
        return {key: _brief(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_brief(each) for each in value[:50]]
    return f"{value[:LONG_TEXT]}…" if isinstance(value, str) and len(value) > LONG_TEXT else value
