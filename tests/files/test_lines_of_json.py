"""Every reader of JSON lines names the line that is bad, blank lines and line separators within texts counted as an editor does."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.exports import read_export
from gradeloop.calibration.labelled_sets import read_labelled_set
from gradeloop.errors import InvalidRequest
from gradeloop.judges.judgements import read_labels, read_results
from gradeloop.suites.datasets import read_jsonl
from gradeloop.transcripts.readers import read_run_file
from tests.rig.batch_results import case
from tests.rig.suites import cases

SEPARATED = "two\u2028lines\x0cof\x85text"
"""A text with characters that Python, but no editor, takes for the end of a line."""

RESULT = json.loads(case(0, output=SEPARATED).model_dump_json()) | {"schema": "gradeloop.batch/1"}
JUDGEMENT: dict[str, Any] = {"id": "j", "agent_run_id": "r", "rubric_id": "c", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
READERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "runs": (lambda path: list(read_run_file(path)), {"messages": [{"role": "user", "content": SEPARATED}]}),
    "messages": (lambda path: list(read_run_file(path)), {"role": "user", "content": SEPARATED}),
    "labels": (read_labels, {"agent_run_id": "r", "label_value": {"label": SEPARATED}}),
    "labelled set": (read_labelled_set, {"output": SEPARATED, "label": True}),
    "tests": (lambda path: list(read_jsonl(path, str(path))), {"q": SEPARATED}),
    "results of a batch": (lambda path: read_export(path, lambda result: result), RESULT),
    "judgements": (read_results, JUDGEMENT | {"output": {"explanation": SEPARATED}, "result_metadata": {}, "usage": {}}),
}


def test_a_bad_line_is_named_with_its_number(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for bad, name in itertools.product(("{oops", "7"), READERS):
        with subtests.test(bad=bad, name=name):
            read, good = READERS[name]
            rows = [good | ({"agent_run_id": f"r{at}"} if "agent_run_id" in good else {}) for at in range(3)]
            first, *others = (json.dumps(row, ensure_ascii=False) for row in rows)
            path = tmp_path / "file.jsonl"
            path.write_text("\n".join([first, "", *others]), encoding="utf-8")
            read(path)
            path.write_text("\n".join([first, "", *others, "  ", bad]), encoding="utf-8")

            with pytest.raises(InvalidRequest, match=r"line 6\b"):
                read(path)


def test_a_line_of_prompts_is_one_prompt_whatever_stands_in_it(tmp_path: Path) -> None:
    lines = [json.dumps(f"{word} {SEPARATED}", ensure_ascii=False) for word in ("say", "tell")]
    text = "prompts: [file://p.jsonl]\nproviders: [echo]\ntests: [{assert: [{type: contains, value: text}]}]"
    found = cases(tmp_path, text, name="promptfooconfig.yaml", p_jsonl="\n\n".join(lines))

    assert [case_.output for case_ in found] == lines
