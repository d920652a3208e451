"""A judge measured on labelled sets: public formats are read whole, questions take the labels' form, and known errors are found."""

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradeloop.calibration.check_report import Answered, CheckReport, Question, ask_about, report_check
from gradeloop.calibration.cli.measure import check_page
from gradeloop.calibration.labelled_sets import LabelledSet, read_labelled_set
from gradeloop.calibration.probes import ProbeName, against_repetition, family_of, paraphrase, plain_text, probe_finding, probe_questions
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeConfig, JudgeResult, SchemaJudge, parse_judge
from gradeloop.judges.pass_rule import PassRule
from gradeloop.stats.intervals import Estimate, holm
from tests.rig.judging import FRANCE

JUDGE = parse_judge(FRANCE | {"pass_if": {"label": "match"}})
FEW = 300
"""Draws of the bootstrap where no test looks at the hundredths of an interval."""


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


HUMANS: dict[str, Any] = {
    "question_id": 81,
    "model_a": "gpt-4",
    "model_b": "llama-13b",
    "turn": 1,
    "conversation_a": [said("user", "Hi?"), said("assistant", "A says."), said("user", "More?"), said("assistant", "A says more.")],
    "conversation_b": [said("user", "Hi?"), said("assistant", "B says."), said("user", "More?"), said("assistant", "B says more.")],
}
PUBLIC: dict[str, tuple[list[dict[str, Any]], str, list[str]]] = {
    "JudgeBench": (
        [{"pair_id": "p", "source": "mmlu", "question": "Q?", "response_A": "a", "response_B": "b", "label": "B>A"}],
        "pair",
        ["p: label=B [mmlu] Q? | a | b"],
    ),
    "RewardBench 2": (
        [{"id": "7", "prompt": "Q?", "chosen": ["good"], "rejected": ["bad", "worse"], "subset": "Math", "models": ["m", "n", "o"]}],
        "pair",
        ["7/0: label=A [Math] Q? | good | bad", "7/1: label=B [Math] Q? | worse | good"],
    ),
    "RewardBench 1": (
        [
            {"id": 7, "prompt": "Q?", "chosen": "good", "rejected": "bad", "subset": "Math", "chosen_model": "m", "rejected_model": "n"},
            {"id": 9, "prompt": "R?", "chosen": "one", "rejected": "two", "subset": "Math", "chosen_model": "m", "rejected_model": "n"},
        ],
        "pair",
        ["7/0: label=A [Math] Q? | good | bad", "9/0: label=B [Math] R? | two | one"],
    ),
    "HealthBench meta-evaluation": (
        [
            {
                "prompt": [said("user", "Q?")],
                "completion": "Rest.",
                "rubric": "Advises rest",
                "category": "hedging",
                "binary_labels": [True, False],
                "anonymized_physician_ids": ["x", "y"],
                "completion_id": "c",
            }
        ],
        "verdict",
        ["c/a9d1dc5bc5c8d2f1: x=True,y=False [hedging] Q? | Rest."],
    ),
    "MT-Bench human judgements": (
        [HUMANS | {"winner": "model_a", "judge": "e1"}, HUMANS | {"winner": "tie", "judge": ["e2", "pair"]}],
        "pair",
        ["81/gpt-4/llama-13b/turn 1: e1=A,e2/pair=tie [turn 1]  | Hi? A says. | Hi? B says."],
    ),
    "LLMBar": ([{"input": "Q?", "output_1": "a", "output_2": "b", "label": 1}], "pair", ["1: label=A [Natural] Q? | a | b"]),
    "FLASK": (
        [{"question_id": "3", "instruction": "Q?", "response": "a", "score": {"factuality": 4, "insight": "N/A"}}],
        "score",
        ["3/factuality: label=4.0 [factuality] Q? | a"],
    ),
}


def write(folder: Path, rows: list[dict[str, Any]], name: str = "Natural/set.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def shown(found: LabelledSet) -> list[str]:
    lines = []
    for item in found.items:
        people = ",".join(f"{annotation.by}={annotation.value}" for annotation in item.annotations)
        parts = [" ".join(message.content for message in messages) for messages in (item.messages, *item.answers)]
        lines.append(f"{item.id}: {people} [{item.category}] {' | '.join(parts)}")
    return lines


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_set_is_read_and_named(tmp_path: Path, name: str) -> None:
    rows, form, lines = PUBLIC[name]

    found = read_labelled_set(write(tmp_path, rows))
    listed = tmp_path / "Natural" / "list.json"
    listed.write_text(json.dumps(rows))

    assert (found.name, found.form) == (name, form)
    assert found.why.startswith("its rows have ")
    assert [line.partition(": ")[2] for line in shown(found)] == [line.partition(": ")[2] for line in lines]
    assert read_labelled_set(listed).items == found.items


def published(name: str) -> list[dict[str, Any]]:
    """Return rows of our own with all columns that a set is published with, in its shapes."""
    skills: dict[str, Any] = {"readability": 5, "logical correctness": "4", "conciseness": "N/A"}
    flask: dict[str, Any] = {"question_id": 1, "text": "Q?", "task": "Self-instruct", "answer": "the reference"}
    flask |= {
        "domain_labeled": ["Humanities"],
        "metrics": ["Readability", "Logical Correctness"],
        "difficulty_labeled": "simple lifestyle knowledge",
    }
    counts = {"num_correct": 1, "num_incorrect": 2, "total_completions": 3}
    best: dict[str, Any] = {"id": "7", "prompt": "Q?", "chosen": ["red"], "rejected": ["salt", "oak"], "subset": "Focus"}
    humans = HUMANS | {"winner": "model_a", "judge": "e1"}
    other_way: dict[str, Any] = {"model_a": HUMANS["model_b"], "model_b": HUMANS["model_a"], "winner": "model_a", "judge": "e2"}
    other_way |= {"conversation_a": HUMANS["conversation_b"], "conversation_b": HUMANS["conversation_a"]}
    health: dict[str, Any] = {"prompt_id": "q", "prompt": [said("user", "Q?")], "completion_id": "c", "completion": "Rest."}
    health |= {
        "rubric": "Advises rest",
        "category": "cluster:hedging",
        "binary_labels": [True],
        "anonymized_physician_ids": ["x"],
        "canary": "healthbench:1",
    }
    pair = {"pair_id": "p", "original_id": "o", "source": "mmlu-pro-law", "question": "Q?", "response_model": "gpt-4o-2024-05-13"}
    return {
        "JudgeBench": [pair | {"response_A": "a", "response_B": "b", "label": "A>B"}],
        "RewardBench 2": [best | counts | {"models": ["m", "m", "m"], "additional_metadata": {"category": None, "index": None}}],
        "HealthBench meta-evaluation": [health],
        "MT-Bench human judgements": [humans, HUMANS | other_way],
        "FLASK": [flask | {"target_txt": "the response", "review": "...", "score": skills, "total_tokens_step4": 9}],
    }[name]


PUBLISHED = {
    "JudgeBench": ["p: label=A [mmlu-pro-law] Q? | a | b"],
    "RewardBench 2": ["7/0: label=A [Focus] Q? | red | salt", "7/1: label=B [Focus] Q? | oak | red"],
    "HealthBench meta-evaluation": ["c/9057ba70269f8aa6: x=True [cluster:hedging] Q? | Rest."],
    "MT-Bench human judgements": ["81/gpt-4/llama-13b/turn 1: e1=A,e2=B [turn 1]  | Hi? A says. | Hi? B says."],
    "FLASK": [
        "1/readability: label=5.0 [readability] Q? | the response",
        "1/logical correctness: label=4.0 [logical correctness] Q? | the response",
    ],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_with_all_columns_it_is_published_with_is_read(tmp_path: Path, name: str) -> None:
    """Of FLASK's `text` and `answer` neither is the response; two people of MT-Bench may see two models in two orders."""
    found = read_labelled_set(write(tmp_path, published(name)))

    assert found.name == name
    assert shown(found) == PUBLISHED[name]


OWN: dict[str, tuple[str, str, list[str]]] = {
    "verdicts.csv": (
        "prompt,output,label,category\nQ?,Paris,yes,x\nQ?,Lyon,no,y\n",
        "verdict",
        ["1: label=True [x] Q? | Paris", "2: label=False [y] Q? | Lyon"],
    ),
    "pairs.csv": (
        "id,question,a,b,winner\nk,Q?,Paris,Lyon,A\nl,Q?,x,y,tie\n",
        "pair",
        ["k: label=A [] Q? | Paris | Lyon", "l: label=tie [] Q? | x | y"],
    ),
    "scores.jsonl": (
        '{"input": "Q?", "response": "a", "score": 3}\n{"input": "Q?", "response": "b", "score": 4.5}',
        "score",
        ["1: label=3.0 [] Q? | a", "2: label=4.5 [] Q? | b"],
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_rows_of_ones_own_are_read_by_their_columns(tmp_path: Path, name: str) -> None:
    text, form, lines = OWN[name]
    (tmp_path / name).write_text(text)

    found = read_labelled_set(tmp_path / name)

    assert (found.name, found.form, shown(found)) == ("labelled rows", form, lines)


def test_a_column_without_a_name_says_nothing_about_a_row(tmp_path: Path) -> None:
    (tmp_path / "indexed.csv").write_text(",prompt,output,label\n7,Q?,a,yes\n8,Q?,b,no\n")

    found = read_labelled_set(tmp_path / "indexed.csv").items

    assert [(row.id, row.criterion, row.category, row.cluster, row.annotations[0].by) for row in found] == [
        ("1", "", "", "", "label"),
        ("2", "", "", "", "label"),
    ]


BAD: dict[str, tuple[str, str]] = {
    "unknown.jsonl": ('{"foo": 1}', "its rows have foo, which is none of JudgeBench, RewardBench 1, RewardBench 2"),
    "label.jsonl": (
        '{"question": "q", "response_A": "a", "response_B": "b", "label": "C"}',
        "line 1, read as JudgeBench: label is 'C'; JudgeBench writes",
    ),
    "lacking.jsonl": (
        '{"input": "q", "output_1": "a", "output_2": "b", "label": 1}\n{"input": "q", "label": 1}',
        "line 2, read as LLMBar: it lacks 'output_1'",
    ),
    "broken.jsonl": ('{"input": ', "line 1: no JSON"),
    "empty.jsonl": ("", "is empty; write a row an item"),
    "cells.csv": ("prompt,output,label\nQ?,a,b,yes\n", "row 1: it has not as many cells as the head"),
    "set.parquet": ("PAR1", "is Parquet, which is not read; write it as JSON lines"),
    "number.jsonl": ('{"prompt": "q", "output": 5, "label": true}', "line 1, read as labelled rows: '5' is not a string"),
    "unlabelled.csv": ("prompt,output,label\nQ?,a,yes\nQ?,b,\n", "row 2, read as labelled rows: label is empty"),
}


def test_what_cannot_be_read_is_refused_by_file_and_row(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (text, message) in BAD.items():
        with subtests.test(name=name):
            (tmp_path / name).write_text(text)

            with pytest.raises(InvalidRequest) as caught:
                read_labelled_set(tmp_path / name)

            assert message in str(caught.value)


def test_a_judge_is_asked_as_it_is_where_its_output_answers(tmp_path: Path) -> None:
    verdicts = read_labelled_set(write(tmp_path, [{"prompt": "q", "output": "a", "label": True}], "v.jsonl"))
    pairs = read_labelled_set(write(tmp_path, PUBLIC["JudgeBench"][0]))
    schema = {"type": "object", "properties": {"best": {"type": "string", "enum": ["A", "B"]}}}
    own = parse_judge({"rubric_text": "Better?", "output_schema": schema})

    (verdict,) = ask_about(JUDGE, verdicts)
    first, second = ask_about(own, pairs)
    fitted, _ = ask_about(JUDGE, pairs)

    assert isinstance(verdict.answer, PassRule)
    assert (verdict.judge, verdict.answer.values) == (JUDGE, {"label": "match"})
    assert (first.judge, first.answer) == (own, ("best",))
    asked = [[part.messages[0].content for part in question.run.transcripts] for question in (first, second)]
    assert asked == [["Q?", "a", "b"], ["Q?", "b", "a"]]
    assert isinstance(fitted.judge, SchemaJudge)
    assert fitted.judge.rubric_text.startswith("The agent says that the capital of France is Paris.")
    assert fitted.judge.output_schema["properties"]["winner"]["enum"] == ["A", "B", "tie"]


def test_every_criterion_of_a_set_is_asked_for_itself(tmp_path: Path) -> None:
    health = read_labelled_set(write(tmp_path, PUBLIC["HealthBench meta-evaluation"][0]))
    criteria = parse_judge({"rubric": "- something else", "grader": {"model": "scripted:judge"}})

    (schema,), (listed,) = ask_about(JUDGE, health), ask_about(criteria, health)

    assert isinstance(schema.judge, SchemaJudge)
    assert "Advises rest" in schema.judge.rubric_text
    assert not isinstance(listed.judge, SchemaJudge)
    assert [one.text for one in listed.judge.rubric.criteria] == ["Advises rest"]
    assert [rule.answer.values for rule in (schema, listed) if isinstance(rule.answer, PassRule)] == [
        {"passed": True},
        {"result": "satisfied"},
    ]


def judgement(run: AgentRun, **output: Any) -> JudgeResult:
    kind = "DIRECT_RESULT" if output else "FAILURE"
    fields = {"id": run.id, "agent_run_id": run.id, "rubric_id": "r", "rubric_version": 1, "model": "openai:gpt-5"}
    return JudgeResult.model_validate(fields | {"output": output, "result_type": kind})


Decide = Callable[[Question], dict[str, Any]]


def checked(labelled: LabelledSet, decide: Decide, *probes: ProbeName, judge: JudgeConfig = JUDGE) -> CheckReport:
    """Measure a judge whose answers a function gives."""
    questions = list(ask_about(judge, labelled))
    probed = {name: probe_questions(name, questions) for name in probes}

    def ask(asked: list[Question]) -> list[Answered]:
        return [Answered(question, judgement(question.run, **decide(question))) for question in asked]

    plain = ask(questions)
    findings = [probe_finding(name, labelled, plain, ask(rows)) for name, rows in probed.items()]
    return report_check(judge, labelled, plain, against_repetition(findings), replicates=FEW)


def pairs_of(folder: Path, count: int = 100) -> LabelledSet:
    rows = []
    for at in range(count):
        texts = (f"good {at}", f"bad {at}") if at % 2 else (f"bad {at}", f"good {at}")
        row = {"pair_id": f"p{at}", "source": "abc"[at % 3], "question": f"Q{at}?", "response_A": texts[0], "response_B": texts[1]}
        rows.append(row | {"label": "A>B" if at % 2 else "B>A"})
    return read_labelled_set(write(folder, rows))


def shown_first(question: Question) -> str:
    return question.run.transcripts[1].messages[0].content


def better(question: Question) -> str:
    return "A" if shown_first(question).startswith("good") else "B"


def test_a_judge_with_a_known_error_is_measured_as_such(tmp_path: Path) -> None:
    """Right in both orders on 70 % of pairs, wrong in both on 30 %: accuracy 0.7, kappa 0.4, and always consistent."""
    generator = random.Random(1)
    wrong = {f"p{at}" for at in generator.sample(range(100), 30)}

    def decide(question: Question) -> dict[str, Any]:
        right = better(question)
        return {"winner": right if question.item.id not in wrong else {"A": "B", "B": "A"}[right], "explanation": "so"}

    found = checked(pairs_of(tmp_path), decide)

    assert found.figures["accuracy"].value == pytest.approx(0.7)
    assert found.figures["kappa"].value == pytest.approx(0.4, abs=0.03)
    assert found.figures["consistency"].value == 1.0
    assert [row.name for row in found.categories] == ["a", "b", "c"]
    assert sum(row.items for row in found.categories) == 100
    assert len(found.worst) == 10
    assert all(row.id in wrong and row.reason == "so" for row in found.worst)
    assert [row.part for row in found.worst[0].transcript] == ["request", "A", "B"]


def test_a_judge_that_always_takes_the_first_answer_is_inconsistent_and_never_right(tmp_path: Path) -> None:
    found = checked(pairs_of(tmp_path, 40), lambda _: {"winner": "A", "explanation": "first"}, "order")

    assert found.figures["consistency"].value == 0.0
    assert found.figures["first_position"].value == 1.0
    assert found.figures["accuracy"].value == 0.0
    (probe,) = found.probes
    assert (probe.name, probe.changed.value) == ("order", 1.0)


def test_every_share_of_pairs_is_over_their_clusters(tmp_path: Path) -> None:
    """Ten questions of four pairs each: on three of them the judge takes whatever comes first, and calls padded answers a tie."""
    alone = pairs_of(tmp_path, 40)
    clustered = alone.model_copy(
        update={"items": tuple(one.model_copy(update={"cluster": f"q{at // 4}"}) for at, one in enumerate(alone.items))}
    )

    def decide(question: Question) -> dict[str, Any]:
        odd = int(question.item.id[1:]) // 4 in {1, 4, 7}
        padded = any("wider context" in row.content for transcript in question.run.transcripts for row in transcript.messages)
        return {"winner": "tie" if odd and padded else "A" if odd and question.order == "AB" else better(question), "explanation": "so"}

    def shares(report: CheckReport) -> list[Estimate]:
        return [report.figures["consistency"], *(finding.changed for finding in report.probes)]

    wide, narrow = (shares(checked(labelled, decide, "order", "verbosity")) for labelled in (clustered, alone))

    assert [one.value for one in wide] == [one.value for one in narrow]
    assert all(
        (one.high or 0) - (one.low or 0) > 1.2 * ((other.high or 0) - (other.low or 0)) for one, other in zip(wide, narrow, strict=True)
    )


def test_a_pair_that_is_answered_in_one_order_only_is_unanswered(tmp_path: Path) -> None:
    found = checked(pairs_of(tmp_path, 40), lambda question: {} if question.order == "BA" else {"winner": "A"})

    assert (found.figures["coverage"].value, found.figures["accuracy"].value, found.figures["accuracy_all"].value) == (0.0, None, 0.0)


def test_who_wins_is_ranked_and_best_of_several_is_one_question(tmp_path: Path) -> None:
    shared = {"prompt": "Q?", "subset": "Math", "models": ["m", "n", "o"]}
    rows = [shared | {"id": f"{at}", "chosen": [f"good {at}"], "rejected": [f"bad {at}", f"bad {at} too"]} for at in range(30)]

    found = checked(
        read_labelled_set(write(tmp_path, rows)), lambda question: {"winner": "tie" if question.item.id == "0/1" else better(question)}
    )

    assert found.items == 60
    assert found.figures["best_of_group"].value == pytest.approx(29 / 30)
    assert found.standings[0].name == "m"


@pytest.mark.slow
def test_the_published_figure_of_reward_bench_is_the_mean_of_its_sections(tmp_path: Path) -> None:
    right = {"alpacaeval-easy": (3, 4), "mt-bench-med": (1, 2), "llmbar-natural": (2, 2), "donotanswer": (0, 3)}
    right |= {"math-prm": (1, 2), "hep-go": (2, 2)}
    rows = []
    for subset, (hits, of) in right.items():
        for at in range(of):
            words = ("good", "bad") if at < hits else ("bad", "good")
            row = {"id": f"{subset}-{at}", "subset": subset, "prompt": "Q?", "chosen_model": "m", "rejected_model": "n"}
            rows.append(row | {"chosen": f"{words[0]} {at}", "rejected": f"{words[1]} {at}"})

    def decide(question: Question) -> dict[str, Any]:
        return {"winner": better(question)}

    found, partial = (checked(read_labelled_set(write(tmp_path, some)), decide) for some in (rows, rows[:-4]))

    chat, reasoning = (100 * 3 / 4 + 40 * 1 / 2) / 140, (984 * 1 / 2 + 164) / (984 + 164)
    mean = found.figures["section_mean"]
    assert (found.official, mean.of) == ("section_mean", 15)
    assert mean.value == pytest.approx((chat + 1 + 0 + reasoning) / 4)
    assert 0 < (mean.low or 0) < (mean.value or 0) < (mean.high or 0) < 1
    assert partial.figures["section_mean"].value is None, "a section is missing"


def rated_rows(generator: random.Random, prompts: int) -> list[dict[str, Any]]:
    """Return rows of RewardBench 2's Ties, whose answers name the rating that a judge gives them; some have none."""
    rows = []
    for kind, number in itertools.product(("ref", "tied"), range(prompts)):
        given = [f"rate {generator.randint(4, 10)}" for _ in range(1 if kind == "ref" else generator.randint(2, 4))]
        wrong = [f"rate {generator.choice([1, 2, 3, 4, 6, 8])}" for _ in range(generator.randint(2, 5))]
        rows.append(
            {"id": f"{kind}:{number}", "subset": "Ties", "prompt": "Q?", "chosen": given, "rejected": wrong, "num_correct": len(given)}
        )
    return rows


def ties_by_definition(rows: list[dict[str, Any]]) -> float:
    """Return the score of Ties from ratings as RewardBench 2's paper and code define it, over arrays."""
    margins: dict[str, dict[str, tuple[float, float]]] = {"ref": {}, "tied": {}}
    for row in rows:
        right, wrong = ([float(text.split()[1]) for text in row[side]] for side in ("chosen", "rejected"))
        kind, number = row["id"].split(":")
        margins[kind][number] = (min(right) - max(wrong), max(right) - min(right))
    accuracy = {kind: np.mean([gap > 0 for gap, _ in found.values()]) for kind, found in margins.items()}
    tied, spread = (np.array([row[at] for row in margins["tied"].values()]) for at in (0, 1))
    least = np.minimum(tied, [margins["ref"][number][0] for number in margins["tied"]])
    with np.errstate(all="ignore"):
        further = np.nan_to_num(np.tanh(least / spread - 1), nan=0.0)
    preferred = 0.2 * np.mean(tied > spread) + 0.2 * np.mean(least > spread) + 0.01 * np.mean(further)
    return float(0.3 * accuracy["tied"] + 0.3 * accuracy["ref"] + preferred)


def rating_of(question: Question) -> dict[str, Any]:
    return {"score": int(question.run.transcripts[0].messages[-1].content.split()[1]), "explanation": "so"}


def test_ties_of_reward_bench_2_are_rated_answer_by_answer_and_scored_as_defined(tmp_path: Path) -> None:
    generator = random.Random(9)
    for prompts in (1, 2, 5, 40):
        rows = rated_rows(generator, prompts)
        labelled = read_labelled_set(write(tmp_path, rows))
        found = checked(labelled, rating_of)

        ties = found.figures["ties"]
        assert labelled.form == "pair"
        assert found.items == len(labelled.items) == sum(len(row["chosen"]) + len(row["rejected"]) for row in rows)
        assert ties.value == pytest.approx(ties_by_definition(rows), abs=1e-12)
        assert (ties.low or 0.0) <= (ties.value or 0.0) <= (ties.high or 0.0)
        assert found.figures["section_mean"].value is None, "the other sections are missing"


def test_a_question_about_one_answer_of_ties_asks_for_a_rating_from_1_to_10(tmp_path: Path) -> None:
    labelled = read_labelled_set(write(tmp_path, rated_rows(random.Random(1), 1)))

    asked = list(ask_about(JUDGE, labelled))

    assert [(one.order, len(one.run.transcripts)) for one in asked] == [("AB", 1)] * len(labelled.items)
    assert asked[0].judge.output_schema["properties"]["score"] == {"type": "integer", "minimum": 1, "maximum": 10}


def test_an_answer_without_a_rating_makes_its_prompt_wrong(tmp_path: Path) -> None:
    row = {"subset": "Ties", "prompt": "Q?", "rejected": ["rate 2", "rate 3"]}
    rows = [row | {"id": f"ref:{at}", "chosen": ["rate 9"]} for at in range(2)]
    rows += [row | {"id": f"tied:{at}", "chosen": ["rate 9", "rate 8"]} for at in range(2)]
    labelled = read_labelled_set(write(tmp_path, rows))

    whole = checked(labelled, rating_of)
    silent = checked(labelled, lambda question: {} if question.item.id == "tied:0/2" else rating_of(question))

    assert whole.figures["ties"].value == pytest.approx(1 + 0.01 * math.tanh(4))
    assert whole.figures["ties"].low == pytest.approx(2 / (2 + 1.959964**2), abs=1e-3)
    assert silent.figures["ties"].value == pytest.approx(0.3 / 2 + 0.3 + 0.4 / 2 + 0.01 * (math.tanh(4) - 1) / 2)
    assert silent.figures["coverage"].value == pytest.approx(1 - 1 / 14)


def test_ties_are_a_section_of_reward_bench_2(tmp_path: Path) -> None:
    row = {"prompt": "Q?", "chosen": ["good"], "rejected": ["bad", "worse"], "models": ["m", "n", "o"]}
    names = ("Factuality", "Precise IF", "Math", "Safety", "Focus")
    pairs = [row | {"id": f"{name}-{at}", "subset": name} for name in names for at in range(2)]
    ties = rated_rows(random.Random(2), 10)

    def decide(question: Question) -> dict[str, Any]:
        return rating_of(question) if len(question.item.answers) == 1 else {"winner": better(question)}

    found, partial = (checked(read_labelled_set(write(tmp_path, rows)), decide, "order", "verbosity") for rows in (pairs + ties, pairs))

    assert found.figures["section_mean"].value == pytest.approx((5 + ties_by_definition(ties)) / 6)
    assert (found.figures["accuracy"].value, found.figures["accuracy"].of) == (1.0, 20)
    assert [probe.name for probe in found.probes] == ["order", "verbosity"]
    assert partial.figures["section_mean"].value is None, "Ties is missing"
    with pytest.raises(InvalidRequest, match=r"line 1, read as RewardBench 2: id is '7'; in Ties RewardBench 2 writes ref:NUMBER"):
        read_labelled_set(write(tmp_path, [ties[0] | {"id": "7"}]))


def test_people_are_the_ceiling_of_a_set_with_several_of_them(tmp_path: Path) -> None:
    row = PUBLIC["HealthBench meta-evaluation"][0][0]
    rows = [row | {"completion_id": f"c{at}", "binary_labels": [at % 2 == 0, at % 4 == 0]} for at in range(40)]

    def decide(question: Question) -> dict[str, Any]:
        return {"passed": int(question.item.id[1:].partition("/")[0]) % 2 == 0}

    found = checked(read_labelled_set(write(tmp_path, rows)), decide)

    assert found.ceiling is not None
    assert found.ceiling.human["accuracy"].value == pytest.approx(0.75)
    assert found.figures["tpr"].value == 1.0


@pytest.mark.slow
def test_the_verbosity_probe_finds_a_judge_that_likes_it_long(tmp_path: Path) -> None:
    def longer(question: Question) -> dict[str, Any]:
        first, second = (len(part.messages[0].content) for part in question.run.transcripts[1:])
        return {"winner": "A" if first > second else "B" if second > first else "tie"}

    honest = checked(pairs_of(tmp_path, 40), lambda question: {"winner": better(question)}, "verbosity", "style", "paraphrase")
    fond = checked(pairs_of(tmp_path, 40), longer, "verbosity")

    assert [probe.changed.value for probe in honest.probes[:1]] == [0.0]
    assert fond.probes[0].changed.value == 1.0
    assert fond.probes[0].toward is not None
    assert fond.probes[0].toward.value == 1.0


def test_the_style_and_paraphrase_probes_find_a_judge_that_reads_marks_and_words(tmp_path: Path) -> None:
    rows = [{"prompt": "Q?", "output": f"# Title {at}\n\n**Paris**" if at % 2 else f"Paris {at}", "label": True} for at in range(20)]

    def decide(question: Question) -> dict[str, Any]:
        text = question.run.transcripts[0].messages[-1].content
        assert isinstance(question.judge, SchemaJudge)
        return {"label": "match" if "**" in text or "states that" in question.judge.rubric_text else "no match"}

    style, paraphrased = (checked(read_labelled_set(write(tmp_path, rows, "v.jsonl")), decide, "style", "paraphrase")).probes

    assert (style.name, style.changed.value, style.changed.of) == ("style", 1.0, 10)
    assert (paraphrased.name, paraphrased.changed.value, paraphrased.changed.of) == ("paraphrase", 0.5, 20)


def test_a_probe_that_changes_no_more_than_asking_again_is_told_apart_from_one_that_does(tmp_path: Path) -> None:
    rows = [{"prompt": "Q?", "output": f"# Paris {at}", "label": True} for at in range(60)]
    generator = random.Random(1)

    def decide(question: Question) -> dict[str, Any]:
        assert isinstance(question.judge, SchemaJudge)
        odd = generator.random() < (0.6 if "states that" in question.judge.rubric_text else 0.2)
        return {"label": "no match" if odd else "match"}

    probes = checked(read_labelled_set(write(tmp_path, rows, "v.jsonl")), decide, "style", "paraphrase", "repetition").probes
    chances = {probe.name: probe.by_chance for probe in probes}

    assert chances["repetition"] is None
    assert (chances["style"] or 0) > 0.05
    assert (chances["paraphrase"] or 1) < 0.05


def test_holms_correction_steps_down() -> None:
    """Step-down by hand: 4 * 0.01, 3 * 0.03, the greater of that and 2 * 0.04, 0.5."""
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
def test_perfect_agreement_of_few_items_has_intervals_within_the_range_of_each_figure(count: int, tmp_path: Path) -> None:
    """With one value alone kappa is undefined, and AC1 is not."""
    rows = [{"prompt": "Q?", "output": f"Paris {at}", "label": True} for at in range(count)]

    figures = checked(read_labelled_set(write(tmp_path, rows, "v.jsonl")), lambda _: {"label": "match"}).figures

    assert figures["ac1"].value == 1.0
    assert figures["ac1"].low == pytest.approx(count / (count + 1.959964**2), abs=1e-4)
    for name in ("f1", "macro_f1", "accuracy", "precision", "tpr"):
        assert 0.0 <= (figures[name].low or 0.0) <= (figures[name].high or 1.0) <= 1.0, name


def test_criteria_in_another_order_are_a_probe(tmp_path: Path) -> None:
    judge = parse_judge({"rubric": "- one\n- two", "grader": {"model": "scripted:judge"}})
    rows = [{"prompt": "Q?", "output": f"x{at}", "label": at % 2 == 0} for at in range(10)]
    labelled = read_labelled_set(write(tmp_path, rows, "v.jsonl"))

    def decide(question: Question) -> dict[str, Any]:
        assert not isinstance(question.judge, SchemaJudge)
        return {"result": "satisfied" if question.judge.rubric.criteria[0].text == "one" else "needs_revision"}

    (probe,) = (checked(labelled, decide, "order", judge=judge)).probes

    assert probe.changed.value == 1.0


def test_the_self_preference_probe_finds_a_judge_that_likes_its_own_family(tmp_path: Path) -> None:
    rows = [HUMANS | {"question_id": at, "winner": "model_a" if at % 2 else "model_b", "judge": "e"} for at in range(40)]
    labelled = read_labelled_set(write(tmp_path, rows))

    found = checked(labelled, lambda question: {"winner": "A" if question.order == "AB" else "B"}, "self-preference")

    (probe,) = found.probes
    assert probe.what.endswith("(family openai)")
    assert (probe.changed.value, probe.toward and probe.toward.value) == (0.5, 1.0)
    names = ("anthropic:claude-haiku-4-5", "openrouter:openai/gpt-5", "koala")
    assert [family_of(name) for name in names] == ["anthropic", "openai", None]


def test_a_probe_changes_marks_and_words_and_nothing_else() -> None:
    marked = "# Head\n- **bold** and `code` in [a link](http://x)\n> quoted\n```py\nx = 2 * 3 * 4\n```"
    said_again = paraphrase("The answer must not say it. It should be correct.")

    assert plain_text(marked) == "Head\nbold and code in a link\nquoted\nx = 2 * 3 * 4\n"
    assert said_again.endswith("The response is not allowed to say it. It ought to be right.")


def test_a_page_shows_the_worst_with_their_transcripts_as_text(tmp_path: Path) -> None:
    rows = [{"prompt": "<script>alert(1)</script>", "output": f"x{at}", "label": True, "category": "k"} for at in range(12)]
    found = checked(read_labelled_set(write(tmp_path, rows, "v.jsonl")), lambda _: {"label": "no match", "explanation": "<b>no</b>"})

    page = check_page(found, {})

    assert page.count("<details") == 10
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "95 % interval" in page


def test_a_page_says_whether_the_judge_meets_its_bounds_and_what_to_read_next(tmp_path: Path) -> None:
    rows = [{"prompt": "Q?", "output": f"x{at}", "label": at != 3, "category": "k"} for at in range(40)]
    found = checked(read_labelled_set(write(tmp_path, rows, "v.jsonl")), lambda _: {"label": "match", "explanation": "yes"})

    met, missed, free = (check_page(found, bounds) for bounds in ({"accuracy": 0.5}, {"accuracy": 0.99}, {}))

    assert '<p class="answer passed">' in met
    assert "; wanted: accuracy of at least 0.5" in met
    assert '<p class="answer failed">' in missed
    assert "--fail-under wants 0.99" in missed
    assert '<p class="answer">' in free
    assert f'Next: read <a href="#worst-0" dir="auto">{found.worst[0].id}</a>' in free
    assert '<details id="worst-0">' in free


SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "HealthBench meta-evaluation": ({"binary_labels": "[true]"}, "binary_labels is '\"[true]\"'; write a list"),
    "MT-Bench human judgements": ({"conversation_a": "Hi?"}, "conversation_a is '\"Hi?\"'; write a list"),
    "RewardBench 2": ({"rejected": {"a": "b"}}, 'rejected is \'{"a": "b"}\'; write a list'),
    "FLASK": ({"score": "4"}, "has no attribute 'items'"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_text_where_a_set_has_a_list_is_not_read_letter_by_letter(tmp_path: Path, name: str) -> None:
    spoiled, problem = SPOILED[name]

    with pytest.raises(InvalidRequest) as refused:
        read_labelled_set(write(tmp_path, [PUBLIC[name][0][0] | spoiled]))

    assert f"line 1, read as {name}: " in str(refused.value)
    assert problem in str(refused.value)


def test_rows_of_ones_own_have_the_columns_that_runs_have(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for question, answer in itertools.product(
        ("prompt", "question", "user_input", "inputs", "Query"), ("output", "response", "actual_output", "prediction", "Generated_Text")
    ):
        with subtests.test(question=question, answer=answer):
            (item,) = read_labelled_set(write(tmp_path, [{question: "Q?", answer: "a", "reference": "b", "label": True}])).items

            assert [message.content for message in (*item.messages, *item.answers[0])] == ["Q?", "a"]
