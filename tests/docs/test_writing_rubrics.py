"""The page on writing rubrics: its examples are read, and those with a verdict come to what it says."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.contract.evaluation import Verdict
from gradeloop.contract.rubric import Rubric
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.scoring import GraderAnswer, PassFindings, aggregate, call_groups, result_of, score_of
from gradeloop.grading.templates import fill
from gradeloop.suites.convert import from_mastra, from_promptfoo

PAGE = Path(__file__).parents[2] / "docs" / "writing-rubrics.md"
BLOCKS = re.findall(r"```(\w+) ?(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def of_kind(kind: str) -> list[str]:
    """Return the page's YAML blocks of one kind."""
    return [text for language, about, text in BLOCKS if (language, about) == ("yaml", kind)]


def judged() -> list[tuple[str, str]]:
    """Return the rubrics under which a verdict stands, with it."""
    texts = [(about, text) for _, about, text in BLOCKS]
    return [(text, after) for (about, text), (next_about, after) in pairwise(texts) if (about, next_about) == ("rubric", "verdict")]


def test_every_block_of_the_page_is_of_a_kind_that_is_read() -> None:
    assert {about for language, about, _ in BLOCKS if language == "yaml"} == {"rubric", "verdict", "task", "promptfoo", "mastra"}
    assert {language for language, _, _ in BLOCKS} == {"yaml", "text"}


@pytest.mark.parametrize("text", of_kind("rubric"))
def test_every_rubric_is_read(text: str) -> None:
    assert Rubric.model_validate(read_yaml(text, "the rubric")).criteria


@pytest.mark.parametrize(("text", "verdict"), judged())
def test_the_verdicts_come_to_what_the_page_says(text: str, verdict: str) -> None:
    rubric, documented = Rubric.model_validate(read_yaml(text, "the rubric")), read_yaml(verdict, "the verdict")
    assert isinstance(documented, dict)
    said: dict[str, Any] = documented["rows"]  # type: ignore[assignment]  # JSON of the page
    rows = [{"id": name, "reason": "r", "gap": None if row["passed"] else "g"} | row for name, row in said.items()]
    answer = Verdict.model_validate({"criteria": rows, "explanation": "e", "result": "needs_revision"})

    judgement = aggregate(rubric, PassFindings(answers={(0, 0): GraderAnswer(judge="j", verdict=answer)}))

    assert len(call_groups(rubric)) == 1
    assert score_of(rubric, judgement) == pytest.approx(documented["score"])
    assert result_of(rubric, judgement) == documented["result"]


def test_the_text_form_is_read() -> None:
    (text,) = (text for language, _, text in BLOCKS if language == "text")

    assert [criterion.text for criterion in Rubric.model_validate(text).criteria] == [
        "Three lines",
        "5-7-5 syllables",
        "The theme is spring",
    ]


def test_the_task_is_filled_from_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    (tmp_path / "task.yaml").write_text(of_kind("task")[0])

    asked = read_task(tmp_path / "task.yaml", TaskFlags()).request
    rubric = fill(asked.rubric, asked.vars)

    assert rubric is not None
    assert [criterion.text for criterion in rubric.criteria] == ["Addresses Ada by name", "At most 40 words"]


def test_the_shapes_of_others_are_read() -> None:
    (foo,), (mastra,) = of_kind("promptfoo"), of_kind("mastra")

    assert [criterion.text for criterion in from_promptfoo(read_yaml(foo, "")).criteria] == ["Names the price of the pump", "Apologizes"]
    assert [group.group for group in from_mastra(read_yaml(mastra, "")).groups] == ["short", "thorough"]
