"""What a file of runs is read as, in lines that a test can compare."""

from pathlib import Path

from gradeloop.transcripts.readers import Reading, read_run_file


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
