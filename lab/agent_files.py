"""Files that other tools write, read beside what these tools hold of them: `python -m lab.agent_files [NAME ...]`.

mini-swe-agent's agents run on a scripted provider, by Chat, Responses, Anthropic's protocol and without tools: with commands that fail or
take too long, answers that they can make nothing of, pictures, limits, a person at the terminal, an instance of SWE-bench. Docent's models
write runs with calls, errors, hidden thoughts, groups and clocks, and what its loaders make of sessions and of Inspect's logs. Every
answer, call, result, file, reasoning, error and mark of these is compared, and the order of transcripts.

One conversation, with parallel calls of which one fails and a text that looks like a call, is held by OpenAI's Agents SDK, Pydantic AI,
LangSmith's and Langfuse's SDKs, Google's (streamed), three versions of Vercel's AI SDK with their spans, and Claude Code with a subagent, a
session that is resumed and one that is forked; Harbor's models write trajectories. Every text, reasoning, call, result and error that the
tool itself says it has is compared.

It ends with 1 where anything differs. The packages go into folders of their own in the user's cache. Names choose among the tools.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradeloop.contract.transcript import (
    EMPTY_MESSAGE,
    AgentRun,
    ErrorPart,
    FilePart,
    OtherPart,
    ReasoningPart,
    RunMessage,
    RunTranscript,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gradeloop.exit_codes import leave
from gradeloop.transcripts.readers import read_run_file
from lab.inspect_logs import INSPECT
from lab.peer.venv import DOCENT, peer_python
from rig.node_peers import peer

MINI_SWE = ("mini-swe-agent==2.4.6",)

SDKS = (
    *("google-genai==3.6.1", "langfuse==5.0.4", "langsmith==0.15.1", "openai==3.57.0", "openai-agents==0.24.0"),
    "pydantic-ai-slim[openai]==2.68.0",
)
CLAUDE_CODE = ("claude-agent-sdk==0.2.189",)
"""Which brings Claude Code 2.1.332 itself."""
HARBOR = ("harbor==0.26.0",)

_SPANS = ("zod@4.6.7", "@opentelemetry/sdk-trace-node@2.12.0", "@opentelemetry/otlp-transformer@0.223.1")
VERCEL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "5": (("ai@5.0.277", "@ai-sdk/openai@2.0.131", *_SPANS), ()),
    "6": (("ai@6.0.326", "@ai-sdk/openai@3.0.141", *_SPANS), ()),
    "7": (("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/otel@1.0.173", *_SPANS), ("OpenTelemetry", "LegacyOpenTelemetry")),
}
"""The packages of each version of Vercel's AI SDK, and the names of what writes its spans, where that is a package of its own."""

PEER = Path(__file__).parent / "peer"


def said(message: RunMessage) -> str:
    """Return the texts of a message, line by line."""
    return "\n".join(part.text for part in message.records() if isinstance(part, TextPart))


def parsed(arguments: str) -> object:
    """Return the arguments of a call, which two may write with other spaces; as they are, where they are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def read_trajectory(run: AgentRun, held: Mapping[str, Any]) -> dict[str, object]:
    """Return what was read of a trajectory, in the words in which mini-swe-agent's own is written."""
    messages = run.transcripts[0].messages
    parts = [part for message in messages for part in message.records()]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    bare = {part.call for part in calls if part.call.startswith("command_")}
    texts = [(message.role, said(message)) for message in messages]
    errors = [[part.name, "", part.text] for part in parts if isinstance(part, ErrorPart)]
    ends = [part.value for part in parts if isinstance(part, OtherPart) and part.kind == "exit" and isinstance(part.value, dict)]
    return {
        "messages": len(messages) - held["refused answers"],
        "refused answers": sum(message.metadata.get("refused_by") == "FormatError" for message in messages),
        "answers": [text for role, text in texts if role == "assistant"],
        "reasoning": [part.text for part in parts if isinstance(part, ReasoningPart)],
        "calls": [[part.call, part.name, parsed(str(part.record()["text"]))] for part in calls if part.call not in bare],
        "commands without a call": [part.arguments["command"] for part in calls if part.call in bare],
        "results": [[None if part.call in bare else part.call, part.text, part.is_error] for part in results],
        "files": sum(isinstance(part, FilePart) for part in parts),
        "people": [text for role, text in texts if role == "user"],
        "exit": [*errors, *([end["exit_status"], end.get("submission", ""), None] for end in ends)],
    }


def trajectories(python: Path, folder: Path) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Yield of each trajectory its name, how much there is of everything, and what differs."""
    environment = {**os.environ, "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "config")}
    command = [str(python), str(PEER / "mini_swe_writer.py"), str(folder)]
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for name, held in json.loads((folder / "counts.json").read_text()).items():
        held["calls"] = [[call, tool, parsed(arguments)] for call, tool, arguments in held["calls"]]
        held["exit"] = [held["exit"]]
        (run,) = read_run_file(folder / name)
        read = read_trajectory(run, held)
        counts = Counter({key: value if isinstance(value, int) else len(value) for key, value in held.items()})
        yield name, counts, [f"{name}: {key} {read[key]!r}, of {held[key]!r}" for key in held if read[key] != held[key]]


def read_docent(run: AgentRun) -> dict[str, object]:
    """Return what was read of a run of Docent, in the words in which its own is written."""
    groups: Any = run.metadata.get("transcript_groups") or []
    keys = ("id", "name", "description")
    return {
        "id": run.id,
        "metadata": {key: value for key, value in run.metadata.items() if key != "transcript_groups"},
        "groups": [[*(group.get(key) for key in keys), group.get("metadata", {})] for group in groups],
        "transcripts": [read_docent_transcript(transcript) for transcript in run.transcripts],
    }


def read_docent_transcript(transcript: RunTranscript) -> dict[str, object]:
    """Return what was read of a transcript."""
    about = dict(transcript.metadata)
    about.pop("created_at", None)
    return {
        "id": transcript.id,
        "name": transcript.name,
        "description": about.pop("description", None),
        "group": about.pop("transcript_group_id", None),
        "metadata": about,
        "messages": [read_docent_message(message) for message in transcript.messages],
    }


def read_docent_message(message: RunMessage) -> dict[str, object]:
    """Return what was read of a message; what it answers and what failed is looked for in metadata, too."""
    parts, about = message.records(), dict(message.metadata)
    own: Any = {key: about.pop(key, default) for key, default in (("model", None), ("tool_calls", []), ("error", {}), ("parts", []))}
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    errors = [part for part in parts if isinstance(part, ErrorPart)]
    failed = [value for part in errors if part.name != "parse_error" for value in (part.name, part.text) if value]
    about.pop("tool_call_id", None)
    return {
        "role": message.role,
        "text": results[0].text if results else said(message),
        "reasoning": [[part.text, part.redacted] for part in parts if isinstance(part, ReasoningPart)],
        "refusals": [part.text for part in parts if isinstance(part, TextPart) and part.refusal],
        "calls": [[part.call, part.name, part.arguments] for part in parts if isinstance(part, ToolCallPart)],
        "unparsed": [part.text for part in errors if part.name == "parse_error"],
        "views": [call["view"]["content"] for call in own["tool_calls"]],
        "summaries": [part["summary"] for part in own["parts"] if "summary" in part],
        "answered": message.metadata.get("tool_call_id"),
        "result": [results[0].call, results[0].name, results[0].is_error] if results else None,
        "error": sorted([*failed, *map(str, own["error"].values())]),
        "model": own["model"],
        "metadata": about,
    }


def docent_runs(python: Path, folder: Path, logs: Sequence[Path]) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Yield of each file of Docent's its name, how much there is of everything, and what differs."""
    subprocess.run([str(python), str(PEER / "docent_writer.py"), str(folder), *map(str, logs)], check=True)
    for name, held in json.loads((folder / "counts.json").read_text()).items():
        read = [read_docent(run) for run in read_run_file(folder / name)]
        counts = Counter({"runs": len(held)})
        for run in held:
            counts += Counter({"transcripts": len(run["transcripts"]), "groups": len(run["groups"])})
            for message in (message for transcript in run["transcripts"] for message in transcript["messages"]):
                counts["messages"] += 1
                counts.update({key: len(message[key]) for key in COUNTED_OF_DOCENT[4:-1]})
                counts["results"] += message["result"] is not None
        yield name, counts, list(_different(name, held, read))


COUNTED_OF_DOCENT = (
    *("runs", "transcripts", "groups", "messages"),
    *("calls", "unparsed", "views", "reasoning", "summaries", "refusals", "error", "results"),
)


def read_conversation(runs: Sequence[AgentRun]) -> dict[str, Any]:
    """Return what was read of runs, in the words in which the other tools' writers count."""
    messages = [message for run in runs for transcript in run.transcripts for message in transcript.messages]
    parts = [part for message in messages for part in message.records()]
    results = [[part.call, parsed(part.text), part.is_error] for part in parts if isinstance(part, ToolResultPart)]
    return {
        "runs": len(runs),
        "messages": len(messages),
        "texts": [part.text for part in parts if isinstance(part, TextPart)],
        "reasoning": [part.text for part in parts if isinstance(part, ReasoningPart)],
        "calls": [[part.call, part.name, parsed(str(part.record()["text"]))] for part in parts if isinstance(part, ToolCallPart)],
        "results": sorted(results, key=lambda result: str(result[0])),
        "files": sum(isinstance(part, FilePart) for part in parts),
        "errors": sum(isinstance(part, ErrorPart) for part in parts),
        "others": sum(isinstance(part, OtherPart) and part.kind != EMPTY_MESSAGE for part in parts),
    }


_NONE: dict[str, Any] = {"runs": 1, "reasoning": [], "calls": [], "results": [], "files": 0, "errors": 0, "others": 0}
"""What a file holds of everything that its writer says nothing of."""

COUNTED = ("runs", "messages", "texts", "reasoning", "calls", "results", "files", "errors")


def conversations(command: Sequence[str | Path], folder: Path, label: str = "") -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Yield of each file that a command writes its name, how much was read of everything, and what differs; null is not compared."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*map(str, command)], check=True, stdin=subprocess.DEVNULL)
    for name, own in json.loads((folder / "counts.json").read_text()).items():
        held: dict[str, Any] = {**_NONE, **own}
        held["results"] = sorted(held["results"], key=lambda result: str(result[0]))
        read = read_conversation(list(read_run_file(folder / name)))
        counts = Counter({key: read[key] if isinstance(read[key], int) else len(read[key]) for key in COUNTED})
        compared = [key for key in held if key in read and held[key] is not None]
        yield f"{label}{name}", counts, [f"{name}: {key} {read[key]!r}, of {held[key]!r}" for key in compared if read[key] != held[key]]


def vercel_files(folder: Path) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Yield what `conversations` does of each version of Vercel's AI SDK."""
    for version, (pins, exporters) in VERCEL.items():
        installed = peer(pins)
        for exporter in exporters or ("",):
            place = folder / f"{version}{exporter}"
            place.mkdir(parents=True)
            command: list[str | Path] = [installed.node, PEER / "vercel_writer.mjs", place, installed.modules, *filter(None, (exporter,))]
            yield from conversations(command, place, f"{version} {exporter} ".replace("  ", " "))


def sdk_tables(folder: Path, chosen: Sequence[str]) -> list[bool]:
    """Print a table for each tool that is chosen, and return of each whether nothing differs."""
    python_tools = {
        "sdks": ("file of an SDK", SDKS, "agent_sdk_writer.py", COUNTED),
        "claude": ("session of Claude Code", CLAUDE_CODE, "claude_code_writer.py", (*COUNTED[:-2], "errors")),
        "harbor": ("trajectory of Harbor", HARBOR, "harbor_writer.py", COUNTED[:-1]),
    }
    found = []
    for name, (what, pins, writer, counted) in python_tools.items():
        if name == "harbor" and name in chosen and sys.version_info < (3, 12):
            print("\nHarbor is left out: it needs Python 3.12")
        elif name in chosen:
            place = folder / name
            files = conversations([peer_python(pins), PEER / writer, place], place)
            found.append(table(what, counted, files, may_lack={"errors", "files"}))
    if "vercel" in chosen:
        found.append(table("file of Vercel's AI SDK", COUNTED, vercel_files(folder / "vercel")))
    return found


def _different(place: str, held: object, read: object) -> Iterator[str]:
    """Yield where two values differ, down to the first that does."""
    if isinstance(held, dict) and isinstance(read, dict):
        for key in {**held, **read}:
            yield from _different(f"{place}.{key}", held.get(key), read.get(key))
    elif isinstance(held, list) and isinstance(read, list) and len(held) == len(read):
        for at, (one, other) in enumerate(zip(held, read, strict=True)):
            yield from _different(f"{place}[{at}]", one, other)
    elif held != read:
        yield f"{place}: {read!r}, of {held!r}"


def table(what: str, counted: Sequence[str], files: Iterator[tuple[str, Counter[str], list[str]]], may_lack: Collection[str] = ()) -> bool:
    """Print a row a file and the sum, and return whether nothing differs and there is some of everything, but of what it may lack."""
    print(f"\n| {what} | {' | '.join(counted)} | differences |\n|{'---|' * (len(counted) + 2)}")
    total, failed, number = Counter[str](), 0, 0
    for name, counts, differences in files:
        total, failed, number = total + counts, failed + len(differences), number + 1
        print(f"| {name} | {' | '.join(str(counts[key]) for key in counted)} | {len(differences)} |", *differences, sep="\n  ", flush=True)
    print(f"| {number} files | {' | '.join(str(total[key]) for key in counted)} | {failed or 'none'} |")
    return not failed and all(total[key] for key in counted if key not in may_lack)


TOOLS = ("mini-swe-agent", "docent", "sdks", "claude", "harbor", "vercel")


def main() -> None:
    """Write the files, read them, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="NAME", help=f"some of {', '.join(TOOLS)}; all by default")
    chosen = parser.parse_args().tools or TOOLS
    if unknown := sorted(set(chosen) - set(TOOLS)):
        raise SystemExit(f"there is no tool {', '.join(unknown)}; known: {', '.join(TOOLS)}")
    with tempfile.TemporaryDirectory() as folder:
        swe, logs, docent = (Path(folder, name) for name in ("mini", "logs", "docent"))
        for place in (swe, logs, docent, *(Path(folder, name) for name in ("sdks", "claude", "harbor"))):
            place.mkdir()
        whole = []
        if "mini-swe-agent" in chosen:
            counted = (
                "messages",
                "refused answers",
                "answers",
                "reasoning",
                "calls",
                "commands without a call",
                "results",
                "files",
                "exit",
            )
            whole.append(table("trajectory of mini-swe-agent", counted, trajectories(peer_python(MINI_SWE), swe)))
        if "docent" in chosen:
            subprocess.run([str(peer_python(INSPECT)), str(PEER / "inspect_writer.py"), str(logs)], check=True)
            written = [logs / name for name in json.loads((logs / "counts.json").read_text())]
            whole.append(table("file of Docent", COUNTED_OF_DOCENT, docent_runs(peer_python(DOCENT), docent, written)))
        whole += sdk_tables(Path(folder), chosen)
    leave(0 if all(whole) else 1)


if __name__ == "__main__":
    main()
