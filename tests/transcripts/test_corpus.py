"""Short files in the shapes that others write: each is read whole, and nothing that it says is missing from what a judge is shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from gradeloop.judges.prompt import render_run
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.provider_server import RECORDINGS

FILES: dict[str, dict[str, Any]] = yaml.safe_load((RECORDINGS / "transcripts.yaml").read_text(encoding="utf-8"))


def written(name: str, folder: Path) -> Path:
    """Write a file as its author does, and return its path."""
    path = folder / name
    path.write_text("\n".join(map(json.dumps, FILES[name].get("lines") or [FILES[name]["holds"]])))
    return path


@pytest.mark.parametrize("name", FILES)
def test_all_that_a_file_says_is_shown(name: str, tmp_path: Path) -> None:
    reading = Reading()
    shown = "\n".join(render_run(run, "0f" * 16) for run in read_run_file(written(name, tmp_path), reading))

    records = [json.loads(line) for line in shown.splitlines() if not line.startswith("===")]
    assert [word for word in FILES[name]["says"] if word not in shown] == []
    assert all(record["type"] for record in records if "block" in record)
    assert reading.formats


def test_ciphertext_is_marked_and_not_shown(tmp_path: Path) -> None:
    (run,) = read_run_file(written("anthropic_redacted.json", tmp_path))
    record: dict[str, Any] = run.transcripts[0].messages[1].records()[0].record()

    assert record == {"type": "reasoning", "redacted": True, "text": ""}
