"""A run as numbered blocks, each one line of JSON, so that no content can forge one: `T0B3` is block 3 of transcript 0."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradeloop.judges.agent_run import AgentRun, RunMessage
from gradeloop.records import TRANSCRIPT_BUDGET, caps, elided, line


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


def blocks(run: AgentRun) -> list[Block]:
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


def rendered(run: AgentRun, nonce: str, *, metadata: bool = False, budget: int = TRANSCRIPT_BUDGET) -> str:
    """Return the run as lines between two that carry the random code; over `budget` characters, the longest blocks are cut in the middle.

    Args:
        run: What is shown.
        nonce: The judgement's random code, which no content can hold.
        metadata: Whether what is known about the run is shown too.
        budget: Characters of text shown in all.
    """
    shown = blocks(run)
    cap = caps([len(each.text) for each in shown], budget)
    lines = list(_lines(run, shown, cap, metadata=metadata))
    return "\n".join([f"=== agent run {nonce} ===", *(line(each, nonce) for each in lines), f"=== end of agent run {nonce} ==="])


def is_cut(run: AgentRun, budget: int = TRANSCRIPT_BUDGET) -> bool:
    """True where a judge is not shown all of the run."""
    return sum(len(each.text) for each in blocks(run)) > budget


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
