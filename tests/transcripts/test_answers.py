"""No run without an answer is judged: whatever keys a row has, its answer is shown to the judge, or the row is refused by name."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun, run_as_messages
from gradeloop.errors import InvalidRequest
from gradeloop.judges.sources import thread_as_run
from gradeloop.transcripts.readers import Reading, read_run_file

ASKED = [{"role": "user", "content": "THE QUESTION"}]
QUESTIONS: dict[str, Any] = {
    **dict.fromkeys(("prompt", "question", "query", "instruction", "input", "inputs", "user_input", "request"), "THE QUESTION"),
    **dict.fromkeys(("task", "problem", "text", "user"), "THE QUESTION"),  # which nothing says is one
    **dict.fromkeys(("messages", "conversation", "conversations", "prompt as messages", "input as messages"), ASKED),
    "conversations of ShareGPT": [{"from": "human", "value": "THE QUESTION"}],
}
KNOWN = (
    *("completion", "response", "answer", "output", "actual_output", "model_output", "model_response", "prediction", "generation"),
    *("generated_text", "output_text", "outputs", "final_answer", "assistant", "result"),
)
UNKNOWN = ("predictions", "generated", "reply", "llm_output", "responses", "said", "expected_output", "reference")
ANSWERED = [("user", "THE QUESTION"), ("assistant", "THE ANSWER")]
FORMS: dict[str, Any] = {
    "text": "THE ANSWER",
    "list": ["THE ANSWER"],
    "object": {"text": "THE ANSWER"},
    "message": {"role": "assistant", "content": "THE ANSWER"},
    "messages": [{"role": "assistant", "content": "THE ANSWER"}],
    "data": {"verdict": ["THE ANSWER"], "score": 1},
}


def read(folder: Path, row: object) -> list[AgentRun]:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row))
    return list(read_run_file(path, Reading(answered=True)))


def read_or_refusal(folder: Path, row: object) -> AgentRun | str:
    try:
        (run,) = read(folder, row)
    except InvalidRequest as refused:
        return str(refused)
    return run


def shown(run: AgentRun) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in run_as_messages(run)]


@pytest.mark.slow
def test_of_every_question_and_answer_both_are_shown_or_the_row_is_refused_by_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for question, asked in QUESTIONS.items():
        with subtests.test(question=question):
            for (answer, form), more in itertools.product(
                itertools.product((*KNOWN, *UNKNOWN), FORMS), ({}, {"expected_output": "THE TARGET"})
            ):
                found = read_or_refusal(tmp_path, more | {question.partition(" ")[0]: asked, answer: FORMS[form]})
                if isinstance(found, str):
                    assert answer in found, (answer, form, found)
                    continue
                said = shown(found)
                assert [role for role, text in said if "THE ANSWER" in text] == ["assistant"], (answer, form, said)
                assert [role for role, text in said if "THE QUESTION" in text] == ["user"], (answer, form, said)
                assert not any("THE TARGET" in text for _, text in said)


def test_the_common_pairs_are_read(tmp_path: Path) -> None:
    questions = ("prompt", "question", "query", "instruction", "input", "inputs", "user_input", "request", "messages")
    for question, answer in itertools.product(questions, KNOWN):
        (run,) = read(tmp_path, {question: QUESTIONS[question], answer: "THE ANSWER", "id": "a"})

        assert (shown(run), run.metadata) == (ANSWERED, {}), (question, answer)


def test_a_key_that_may_hold_a_reference_gives_way_to_one_that_holds_an_answer(tmp_path: Path) -> None:
    exact_keys = ("response", "prediction", "model_output", "generated_text", "actual_output")
    for general, exact in itertools.product(("output", "outputs", "answer", "result"), exact_keys):
        (run,) = read(tmp_path, {"question": "THE QUESTION", general: "THE TARGET", exact: "THE ANSWER"})

        assert (shown(run), run.metadata) == (ANSWERED, {general: "THE TARGET"}), (general, exact)


def test_a_conversation_that_goes_on_after_an_answer_has_the_one_beside_it_and_one_that_ends_with_it_keeps_its_own(tmp_path: Path) -> None:
    before = [*ASKED, {"role": "assistant", "content": "Which one?"}]

    (asked_again,) = read(tmp_path, {"messages": [*before, {"role": "user", "content": "This."}], "prediction": "THE ANSWER"})
    (begun,) = read(tmp_path, {"prompt": [*ASKED, {"role": "assistant", "content": "It is"}], "completion": " THE ANSWER"})
    (blank,) = read(tmp_path, {"messages": [*ASKED, {"role": "assistant", "content": ""}], "prediction": "THE ANSWER"})
    (ended,) = read(tmp_path, {"messages": before, "answer": "THE TARGET"})

    assert [shown(run)[-1][1] for run in (asked_again, begun, blank)] == ["THE ANSWER", " THE ANSWER", "THE ANSWER"]
    assert shown(ended)[-1] == ("assistant", "Which one?")


UNANSWERED: dict[str, Any] = {
    "a question": {"input": "THE QUESTION", "gold": "x", "split": "test"},
    "a question of the user": {"messages": ASKED, "gold": "x", "split": "test"},
    "an empty answer": {"messages": [*ASKED, {"role": "assistant", "content": "  "}], "gold": "x", "split": "test"},
    "reasoning alone": {"messages": [*ASKED, {"role": "assistant", "reasoning": "Hm."}], "gold": "x", "split": "test"},
    "an error": {"messages": [*ASKED, {"role": "assistant", "error": {"message": "no key"}}], "gold": "x", "split": "test"},
    "a tool's result": {"messages": [*ASKED, {"role": "tool", "content": "42"}], "gold": "x", "split": "test"},
    "transcripts": {"transcripts": [{"messages": ASKED}], "metadata": {"gold": "x", "split": "test"}},
    "a prompt of HealthBench": {"prompt_id": "p", "prompt": ASKED, "gold": "x", "split": "test"},
    "a conversation": {"conversation": ASKED, "gold": "x", "split": "test"},
    "a request of a batch": {"custom_id": "c", "body": {"messages": ASKED, "gold": "x", "split": "test"}},
}


def test_a_run_without_an_answer_is_refused_with_the_keys_that_were_set_aside_and_the_cure(tmp_path: Path) -> None:
    for name, row in UNANSWERED.items():
        with pytest.raises(InvalidRequest) as refused:
            read(tmp_path, row)

        said = str(refused.value)
        assert "has no answer: no text and no tool call of an assistant; these keys beside its messages were set aside: " in said, name
        assert {"gold", "split"} <= set(said.partition("set aside: ")[2].partition(";")[0].split(", ")), name
        assert "write it as the last message, of role 'assistant', or under the key 'output', or leave the run out" in said, name


def test_a_tool_call_a_file_and_a_refusal_are_answers(tmp_path: Path) -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    said: list[dict[str, Any]] = [{"tool_calls": [call]}, {"refusal": "I cannot."}, {"audio": {"data": "AAAA", "transcript": "Yes."}}]

    for answer in said:
        (run,) = read(tmp_path, {"messages": [*ASKED, {"role": "assistant", "content": None} | answer]})
        assert run.transcripts[0].messages[-1].is_answer


def test_a_thread_without_a_draft_is_no_run() -> None:
    asked = run_as_messages(AgentRun.model_validate({"id": "a", "transcripts": [{"messages": ASKED}]}))

    with pytest.raises(InvalidRequest, match="thread:t: the thread has no draft, so there is nothing to judge; run it first"):
        thread_as_run("t", asked, None)
