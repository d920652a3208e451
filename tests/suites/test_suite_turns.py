"""Conversations of promptfoo's configurations: outputs that later tests take, turns before them, and chats that a loop makes."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.contract import Case
from gradeloop.grading.templates import fill_late
from gradeloop.suites.flags import SuiteFlags
from tests.rig.suites import cases, refusal

NAME = "promptfooconfig.yaml"
TALK = """
prompts:
  - 'Before:{% for turn in _conversation %} [{{ turn.input }} -> {{ turn.output }}]{% endfor %} Now: {{ q }}'
providers: ["openai:gpt-5-mini"]
tests:
  - vars: {q: one}
  - vars: {q: two}
  - {vars: {q: other}, metadata: {conversationId: c2}}
  - vars: {q: three}
"""
CHAT = """[{% for turn in _conversation %}{"role": "user", "content": {{ turn.input | dump }}},
{"role": "assistant", "content": "{{ turn.output }}"},{% endfor %}{"role": "user", "content": "{{ q }}"}]"""


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def told(read: list[Case], outputs: dict[str, str]) -> list[Any]:
    """Return the messages of cases as a worker fills them, by the ids of the cases that they follow."""
    filled = [fill_late(case.model_dump(mode="json"), {name: outputs[other] for name, other in case.follows.items()}) for case in read]
    return [[(message["role"], message["content"]) for message in case["messages"]] for case in filled]


def test_a_prompt_shows_the_turns_of_its_own_conversation(tmp_path: Path) -> None:
    one, two, other, three = read = cases(tmp_path, TALK, name=NAME)
    found = told(read, {one.id: 'A "1"', two.id: "A 2"})

    assert [list(case.follows.values()) for case in read] == [[], [one.id], [], [one.id, two.id]]
    assert found[0] == [("user", "Before: Now: one")]
    assert found[1] == [("user", 'Before: [Before: Now: one -> A "1"] Now: two')]
    assert found[2] == [("user", "Before: Now: other")]
    assert found[3][0][1].endswith('[Before: [Before: Now: one -> A "1"] Now: two -> A 2] Now: three')
    assert other.vars == {"q": "other"}
    assert three.messages[0].content != found[3][0][1]


def test_a_loop_makes_a_chat_of_the_turns_whatever_they_hold(tmp_path: Path) -> None:
    config = TALK.replace("'Before:", "file://chat.json\n#'")
    read = cases(tmp_path, config, name=NAME, chat_json=CHAT)
    found = told(read, {read[0].id: 'say "x"\n', read[1].id: "A 2"})

    assert found[0] == [("user", "one")]
    assert found[1] == [("user", "one"), ("assistant", 'say "x"\n'), ("user", "two")]
    assert found[3] == [("user", "one"), ("assistant", 'say "x"\n'), ("user", "two"), ("assistant", "A 2"), ("user", "three")]


def test_a_loop_over_a_variable_makes_a_chat(tmp_path: Path) -> None:
    loop = '{% for h in hist %}{"role":"user","content":"{{ h }}"},{% endfor %}'
    chat = f'[{{"role":"system","content":"S"}},{loop}{{"role":"user","content":"{{{{ text }}}}"}}]'
    config = """
prompts: ["file://c.json"]
providers: ["openai:gpt-5-mini"]
tests: [{vars: {text: x, hist: [a, b]}, options: {disableVarExpansion: true}, assert: [{type: contains, value: a}]}]
"""
    (case,) = cases(tmp_path, config, name=NAME, c_json=chat)

    assert [message.content for message in case.messages] == ["a", "b", "x"]
    assert case.generator is not None
    assert case.generator.system_prompt == "S"
    broken = refusal(tmp_path, config.replace("hist: [a, b]", "hist: ['\"', b]"), name=NAME, c_json=chat)
    assert "the chat is not JSON with its variables filled in; put templates into its strings, or write {{ name | dump }}" in broken


STORED = """
prompts: ['Say {{ q }}', 'Sing {{ q }}']
providers: ["openai:gpt-5-mini"]
tests:
  - {vars: {q: one}, options: {storeOutputAs: first}}
  - {vars: {q: 'more than {{ first }}'}, assert: [{type: contains, value: '{{ first }}'}, {type: llm-rubric, value: 'not {{ first }}'}]}
  - {vars: {q: alone}, options: {runSerially: true}}
  - {vars: {q: last}, options: {runSerially: true}}
"""


def test_an_output_is_filled_into_the_prompts_and_assertions_of_later_tests_with_the_same_prompt(tmp_path: Path) -> None:
    read = cases(tmp_path, STORED, name=NAME)
    first = [case.id for case in read[:2]]
    found = told(read, {name: f"<{at}>" for at, name in enumerate(case.id for case in read)})

    assert [list(case.follows.values()) for case in read[:4]] == [[], [], [first[0]], [first[1]]]
    assert [messages[0][1] for messages in found[2:4]] == ["Say more than <0>", "Sing more than <1>"]
    assert "<1>" in json.dumps(fill_late(read[3].rubric.model_dump(mode="json"), {"first.1": "<1>"}))
    assert [list(case.follows.values()) for case in read[4:]] == [[], [read[4].id], [read[5].id], [read[6].id]]
    assert read[4].vars == {"q": "alone"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{{ first }}'}, assert", "{{ second }}'}, assert", "a variable may name others as {{ name }} and nothing more"),
        (
            "'Say {{ q }}'",
            "'Say {{ first | upper }}{{ q }}'",
            "it reads the output of another case, which is not known yet; write {{ name }} alone",
        ),
        ("storeOutputAs: first", "storeOutputAs: 1", "options.storeOutputAs: '1' is not a name of a variable; write letters"),
        ("'Say {{ q }}'", "'file://p.js'", "is called before the outputs are known that the test takes of others; write it as a text"),
        ("q: one", 'q: "\\uE0200x\\uE021"', "a text has the character U+E020, which marks outputs of other cases; leave it out"),
    ],
)
def test_what_cannot_be_known_is_refused_by_name(tmp_path: Path, old: str, new: str, says: str) -> None:
    flags = SuiteFlags(allow_code=True)
    assert says in refusal(tmp_path, STORED.replace(old, new), flags, name=NAME, p_js="module.exports = ({vars}) => vars.q;")


def test_a_test_that_follows_one_that_flags_leave_out_is_refused_by_name(tmp_path: Path) -> None:
    said = refusal(tmp_path, STORED, SuiteFlags(filters=("more-*",)), name=NAME)
    assert "follows 'one-" in said
    assert "which the flags leave out; select it, too" in said


def test_a_test_that_wants_no_turns_is_shown_none(tmp_path: Path) -> None:
    read = cases(tmp_path, TALK.replace("- vars: {q: two}", "- {vars: {q: two}, options: {disableConversationVar: true}}"), name=NAME)

    assert (read[1].follows, read[1].messages[0].content) == ({}, "Before: Now: two")


def test_the_tests_of_a_scenario_are_a_conversation(tmp_path: Path) -> None:
    config = (
        TALK.partition("tests:")[0]
        + "scenarios:\n  - {config: [{}], tests: [{vars: {q: a}}, {vars: {q: b}}]}\n  - {config: [{}], tests: [{vars: {q: c}}]}"
    )
    read = cases(tmp_path, config, name=NAME)

    assert [list(case.follows.values()) for case in read] == [[], [read[0].id], []]
