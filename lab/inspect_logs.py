"""Logs that Inspect writes, read beside what Inspect itself says of them: `python -m lab.inspect_logs`.

Its mock model answers ten evaluations (plain, critique, tools with errors, an agent, choices, images and documents, hosted tools, failing
solvers, a limit, epochs with scores of NaN), each written as `.eval` and as `.json`. Of every sample the messages, their roles and texts,
calls and results of tools, files (their types and sizes) and scores are compared; an error and a limit have to be one record more. It
ends with 1 where anything differs. Inspect's packages go into a folder of their own in the user's cache.
"""

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradeloop.contract.transcript import AgentRun, ErrorPart, FilePart, OtherPart, RunMessage, ToolCallPart, ToolResultPart
from gradeloop.exit_codes import leave
from gradeloop.transcripts.readers import read_run_file
from lab.peer.venv import peer_python

INSPECT = ("inspect-ai==0.3.285",)

LOGS = 20

COUNTED = ("samples", "messages", "errors and limits", "texts", "calls", "results", "hosted", "files", "scores", "unscored")
"""What is counted; of each there is some, so that nothing is equal for lack of it."""


def run_name(task: str, sample: Mapping[str, Any]) -> str:
    """Return the id that the run of a sample has."""
    return f"{task}-{sample['id']}" + (f"-{sample['epoch']}" if sample["epoch"] != 1 else "")


def as_read(run: AgentRun, sample: Mapping[str, Any]) -> dict[str, object]:
    """Return what was read of a run, in the words in which Inspect's own is written."""
    messages = [message for transcript in run.transcripts for message in transcript.messages]
    ended = bool(sample["error"]) + bool(sample["limit"])
    spoken, last = messages[: len(messages) - ended], [part for message in messages[len(messages) - ended :] for part in message.records()]
    parts = [part for message in spoken for part in message.records()]
    hosted = {name for name, _, _ in sample["hosted"]}
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    errors = [part.text for part in last if isinstance(part, ErrorPart) and part.name == "sample_error"]
    limits = [part.value.get("type") for part in last if isinstance(part, OtherPart) and isinstance(part.value, dict)]
    failed = {part.call: part.is_error for part in results}
    return {
        "roles": [message.role for message in spoken],
        "texts": [whole_texts(message, texts) for message, texts in zip(spoken, sample["texts"], strict=False)],
        "calls": [[part.call, part.name, part.arguments] for part in calls if part.call not in hosted],
        "results": [[part.call, part.name, part.is_error] for part in results if part.call not in hosted],
        "hosted": [[part.call, part.name, failed.get(part.call)] for part in calls if part.call in hosted],
        "files": [[part.media_type, part.bytes] for part in parts if isinstance(part, FilePart)],
        "scores": read_scores(run),
        "error": errors[0] if errors else None,
        "limit": limits[0] if limits else None,
    }


def whole_texts(message: RunMessage, texts: Sequence[str]) -> list[str]:
    """Return those texts that stand in a message, whole."""
    said = [getattr(part, "text", "") for part in message.records()]
    return [text for text in texts if any(text in one for one in said)]


def read_scores(run: AgentRun) -> dict[str, object]:
    """Return the values of a run's scores; one that is None without being called unscored is named so."""
    found = run.metadata.get("scores")
    values: dict[str, object] = {}
    for name, score in found.items() if isinstance(found, dict) else ():
        if isinstance(score, dict):
            gaps = unscored({name: score["value"]})
            values[name] = score["value"] if not gaps or score.get("unscored") else "None, and not marked as unscored"
    return values


def unscored(scores: Mapping[str, object]) -> int:
    """Return how many values are no number where one belongs."""
    return sum(unscored(value) if isinstance(value, dict) else value is None for value in scores.values())


def differences(task: str, samples: Sequence[Mapping[str, Any]], runs: Mapping[str, AgentRun]) -> Iterator[str]:
    """Yield what is read otherwise than Inspect says, and which runs there ought, or ought not, to be."""
    names = [run_name(task, sample) for sample in samples]
    yield from (f"{name} is missing" for name in names if name not in runs)
    yield from (f"{name} is none of its samples" for name in runs if name not in names)
    for name, sample in zip(names, samples, strict=True):
        read = as_read(runs[name], sample) if name in runs else {}
        yield from (f"{name}: {key} {value!r}, of {sample[key]!r}" for key, value in read.items() if value != sample[key])


def count(samples: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return how much of everything there is, as Inspect says."""
    found = Counter({"samples": len(samples)})
    for sample in samples:
        found["messages"] += len(sample["roles"])
        found["errors and limits"] += bool(sample["error"]) + bool(sample["limit"])
        found["texts"] += sum(map(len, sample["texts"]))
        found["unscored"] += unscored(sample["scores"])
        found.update({key: len(sample[key]) for key in ("calls", "results", "hosted", "files", "scores")})
    return found


def main() -> None:
    """Write the logs, read them, and print a row for each."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    python, failed, total = peer_python(INSPECT), False, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(python), str(Path(__file__).parent / "peer" / "inspect_writer.py"), folder], check=True)
        logs = json.loads((Path(folder) / "counts.json").read_text())
        print(f"| log | {' | '.join(COUNTED)} | messages read | differences |\n|{'---|' * (len(COUNTED) + 3)}")
        for name, log in logs.items():
            runs = {run.id: run for run in read_run_file(Path(folder) / name)}
            found, counts = list(differences(log["task"], log["samples"], runs)), count(log["samples"])
            messages = sum(len(transcript.messages) for run in runs.values() for transcript in run.transcripts)
            failed = failed or bool(found) or messages != counts["messages"] + counts["errors and limits"]
            row = [f"{Path(name).parent} {Path(name).suffix}", *(counts[key] for key in COUNTED), messages, len(found)]
            total.update(counts, **{"messages read": messages})
            print(f"| {' | '.join(map(str, row))} |", *found, sep="\n  ", flush=True)
    row = [f"{len(logs)} logs", *(total[key] for key in COUNTED), total["messages read"], "some" if failed else "none"]
    print(f"| {' | '.join(map(str, row))} |")
    leave(1 if failed or len(logs) != LOGS or not all(total[key] for key in COUNTED) else 0)


if __name__ == "__main__":
    main()
