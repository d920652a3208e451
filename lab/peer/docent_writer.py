"""Agent runs of Docent, written by its own models, with what Docent itself reads in them; it runs in Docent's environment."""

# mypy: ignore-errors
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from docent.data_models.agent_run import AgentRun, AgentRunTree
from docent.data_models.chat import AssistantMessage, ContentReasoning, ContentText, SystemMessage, ToolCall, ToolCallContent, ToolMessage
from docent.data_models.chat import UserMessage as User
from docent.data_models.transcript import Transcript, TranscriptGroup
from docent.loaders.load_claude_code import load_claude_code_session
from docent.loaders.load_inspect import runs_from_file
from docent.sdk.integrations.harbor import serialize_agent_run_jsonl_line
from pydantic import ValidationError

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def tools() -> AgentRun:
    """Return a run with calls, results, what went wrong with either, and hidden thoughts."""
    view = ToolCallContent(title="A search", format="markdown", content="search for **Zürich**")
    calls = [
        ToolCall(id="c1", function="search", arguments={"query": "Zürich", "deep": {"pages": [1, 2]}}, type="function", view=view),
        ToolCall(id="c2", function="shell", arguments={}, type="function", parse_error="no JSON: {broken"),
        ToolCall(id="c3", function="shell", arguments={"command": "<tool call>ls</tool call>"}, google_thought_signature="c2ln"),
    ]
    thought = ContentReasoning(reasoning="I search first.", summary="It searches.", signature="c2lnbmVk")
    hidden = ContentReasoning(reasoning="Z2hlaW0=", summary="It thought of Bern.", redacted=True)
    messages = [
        SystemMessage(content="Be brief.", metadata={"prompt": "v3"}),
        User(content=[ContentText(text="Where is"), ContentText(text="Zürich?")], id="m-1", tool_call_id=["earlier"]),
        AssistantMessage(content=[thought, ContentText(text="I look.")], tool_calls=calls, model="gpt-5", metadata={"cost": {"usd": 0.1}}),
        ToolMessage(content="in Switzerland", tool_call_id="c1", function="search"),
        ToolMessage(content="", tool_call_id="c2", function="shell", error={"type": "timeout", "message": "it took 9 s", "seconds": 9}),
        ToolMessage(content=[ContentText(text="bin"), ContentText(text="etc")], tool_call_id="c3", function="shell"),
        AssistantMessage(content=[hidden, ContentText(text="I will not say.", refusal=True)], model="gpt-5"),
        AssistantMessage(content=""),
        AssistantMessage(content="In Switzerland."),
    ]
    metadata = {"scores": {"right": 1.0, "brief": None}, "tags": ["a", {"b": 1}], "model": "gpt-5"}
    main = Transcript(name="main", description="the only one", messages=messages, metadata={"temperature": 0})
    return AgentRun(name="a search", description="for Zürich", transcripts=[main], metadata=metadata)


def conversation(word: str, created: datetime | None = None, group: str | None = None) -> Transcript:
    """Return a short transcript."""
    said = [User(content=f"Where is {word}?"), AssistantMessage(content=f"{word} is there.")]
    return Transcript(name=word, messages=said, created_at=created, transcript_group_id=group)


def in_time() -> AgentRun:
    """Return a run whose transcripts stand in another order than they were made in, by clocks of two time zones."""
    ahead = timezone(timedelta(hours=2))
    made = {
        "third": (NOON + timedelta(hours=1)).astimezone(ahead),
        "second": NOON + timedelta(milliseconds=500),
        "first": NOON,
        "none": None,
        "zeroth": NOON.astimezone(ahead) - timedelta(minutes=1),
    }
    return AgentRun(transcripts=[conversation(word, created) for word, created in made.items() if created])


def in_groups() -> AgentRun:
    """Return a run whose transcripts are in groups, one of them within another."""
    agents = TranscriptGroup(name="agents", description="two of them", created_at=NOON + timedelta(hours=2), metadata={"round": 2})
    inner = TranscriptGroup(name="inner", parent_transcript_group_id=agents.id, created_at=NOON + timedelta(hours=3))
    planning = TranscriptGroup(name="planning", created_at=NOON)
    placed = [("deep", inner.id, 4), ("after", agents.id, 5), ("plan", planning.id, 6), ("before", agents.id, 1), ("alone", None, 1)]
    transcripts = [conversation(word, NOON + timedelta(hours=hours), group) for word, group, hours in placed]
    return AgentRun(transcripts=transcripts, transcript_groups=[agents, inner, planning])


def without_times() -> AgentRun:
    """Return a run whose groups and transcripts say nothing of when they were made."""
    one, other = TranscriptGroup(name="one"), TranscriptGroup(name="other")
    transcripts = [conversation("alone"), conversation("late", group=other.id), conversation("early", group=one.id)]
    return AgentRun(transcripts=transcripts, transcript_groups=[one, other])


def session() -> AgentRun:
    """Return a session of a coding agent, as Docent reads it."""
    about = {"sessionId": "s", "cwd": "/", "version": "2"}
    blocks = [
        {"type": "thinking", "thinking": "I list.", "signature": "c2ln"},
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
    ]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no such file", "is_error": True}
    records = [
        {"type": "user", "uuid": "1", "message": {"role": "user", "content": "What is here?"}},
        {"type": "assistant", "uuid": "2", "message": {"id": "a", "role": "assistant", "model": "m", "content": blocks}},
        {"type": "user", "uuid": "3", "message": {"role": "user", "content": [result]}},
        {"type": "assistant", "uuid": "4", "message": {"id": "b", "role": "assistant", "model": "m", "content": "Nothing."}},
    ]
    return load_claude_code_session([record | about for record in records])


def facts(run: AgentRun) -> dict[str, object]:
    """Return what Docent itself says of a run: its transcripts in the order of its own numbers."""
    order = AgentRunTree.from_agent_run(run).transcript_id_to_idx
    transcripts = sorted(run.transcripts, key=lambda transcript: order[transcript.id])
    about = {"name": run.name, "description": run.description}
    groups = [[group.id, group.name, group.description, group.metadata] for group in run.transcript_groups]
    return {
        "id": run.id,
        "metadata": {key: value for key, value in about.items() if value} | json.loads(run.model_dump_json())["metadata"],
        "groups": groups,
        "transcripts": [
            {
                "id": transcript.id,
                "name": transcript.name,
                "description": transcript.description,
                "group": transcript.transcript_group_id,
                "metadata": transcript.metadata,
                "messages": [message_facts(message) for message in transcript.messages],
            }
            for transcript in transcripts
        ],
    }


def message_facts(message: object) -> dict[str, object]:
    """Return what Docent says of a message."""
    parts = [] if isinstance(message.content, str) else message.content
    calls = getattr(message, "tool_calls", None) or ()
    error = getattr(message, "error", None) or {}
    return {
        "role": message.role,
        "text": message.text,
        "reasoning": [[part.summary if part.redacted else part.reasoning, part.redacted] for part in parts if part.type == "reasoning"],
        "refusals": [part.text for part in parts if part.type == "text" and part.refusal],
        "calls": [[call.id, call.function, call.arguments] for call in calls],
        "unparsed": [call.parse_error for call in calls if call.parse_error],
        "views": [call.view.content for call in calls if call.view],
        "summaries": [part.summary for part in parts if part.type == "reasoning" and part.summary and not part.redacted],
        "answered": getattr(message, "tool_call_id", None) if message.role == "user" else None,
        "result": [message.tool_call_id, message.function, bool(error)] if message.role == "tool" else None,
        "error": sorted(str(value) for value in error.values()),
        "model": getattr(message, "model", None),
        "metadata": message.metadata or {},
    }


def main() -> None:
    """Write the runs of each file, and what is in them."""
    folder, logs = Path(sys.argv[1]), [Path(log) for log in sys.argv[2:]]
    built = {"tools": [tools()], "times": [in_time()], "groups": [in_groups(), without_times()], "session": [session()]}
    for log in logs:
        with log.open("rb") as file, suppress(ValidationError):  # Docent has no messages with images, documents or hosted tools
            built[f"{log.parent.name} {log.suffix[1:]}"] = list(runs_from_file(file, log.suffix[1:])[1])
    counts = {}
    for name, runs in built.items():
        (folder / f"{name}.json").write_text(json.dumps([run.model_dump(mode="json") for run in runs], indent=1))
        (folder / f"{name}.jsonl").write_text("".join(f"{serialize_agent_run_jsonl_line(run)}\n" for run in runs))
        counts |= {f"{name}{ending}": [facts(run) for run in runs] for ending in (".json", ".jsonl")}
    for at, run in enumerate(built["groups"]):
        (folder / f"one {at}.json").write_text(run.model_dump_json())
        counts[f"one {at}.json"] = [facts(run)]
    (folder / "counts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
