"""Samples of the formats of runs, and the lines that a file of runs is read as, which a test can compare."""

import json
from pathlib import Path
from typing import Any

from gradeloop.transcripts.readers import Reading, read_run_file

FOLDER = Path(__file__).parent.parent / "transcripts" / "samples"
FORMATS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "formats").iterdir())}
"""Each format's sample (`value`), the records that it holds, and the format and the reason that its detector names."""
SAMPLES: dict[str, Any] = {name: sample["value"] for name, sample in FORMATS.items()}


def read_samples(name: str) -> dict[str, dict[str, Any]]:
    """Return the named samples of a file, each with what it is read as (`shown`) or why it is refused (`refused`)."""
    samples: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return samples


def shown_value(value: Any, folder: Path) -> list[str]:
    """Return the records of a value that is written to a file, as `shown` returns them."""
    (folder / "run.json").write_text(json.dumps(value), encoding="utf-8")
    return shown(folder / "run.json")


def shown(path: Path) -> list[str]:
    """Return each record of a file as a line: role, type, the fields beside the text, and the text; `--` parts transcripts."""
    lines = []
    for run in read_run_file(path, Reading()):
        for transcript in run.transcripts:
            for message in transcript.messages:
                for part in message.records():
                    record = part.record()
                    beside = [str(record[key]) for key in record if key not in {"type", "text"}]
                    lines.append(" ".join([message.role, part.type, *beside, str(record["text"])]).rstrip())
            lines.append("--")
    return lines[:-1]
