"""Configurations of promptfoo as suites of ours: the same cases, with comments where something changed."""

from pathlib import Path

import pytest

from gradeloop.batches.contract import Case
from gradeloop.errors import InvalidRequest
from gradeloop.suites.convert import convert_configuration
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from tests.rig.suites import written

WHOLE = """
description: letters
prompts: [file://ask.txt, {label: short, raw: "Hi {{name}}, 1.10"}]
providers:
  - openai:chat:gpt-5-mini
  - {id: anthropic:messages:claude-haiku-4-5, label: claude, config: {temperature: 0.5}}
evaluateOptions: {maxConcurrency: 3, repeat: 2, delay: 7}
outputPath: out.json
tags: {team: a}
assertionTemplates: {polite: {type: llm-rubric, value: "Is polite to {{name}}", provider: openai:gpt-5}}
defaultTest:
  vars: {greeting: Dear}
  assert: [{$ref: "#/assertionTemplates/polite"}]
  options: {provider: openai:gpt-5-mini}
tests:
  - {vars: {name: [Ada, Grace], count: "007", note: "yes"}, description: "one: two", metadata: {kind: a}}
  - {vars: {name: Linus}, threshold: 0.5, assert: [{type: contains, value: "{{name}}", weight: 2}]}
  - rows.csv
"""
ROWS = "name,__expected,__metadata:kind\nBarbara,contains:Barbara,b\n"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keys, so that the cases can be built; nothing is called."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, "sk-0000000000")


def built(path: Path) -> list[Case]:
    return list(read_suite(path, SuiteFlags()).cases())


def converted(path: Path) -> Path:
    """Convert a configuration, write the suite beside it, and return its path."""
    suite = path.with_name("converted-suite.yaml")
    suite.write_text(convert_configuration(path))
    return suite


def test_a_converted_suite_makes_the_same_cases(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE, "promptfooconfig.yaml", ask_txt="Write {{greeting}} {{name}}", rows_csv=ROWS)

    before, after = read_suite(path), read_suite(converted(path))

    assert list(after.cases()) == list(before.cases())
    assert len(list(after.cases())) == 4 * 2 * 2 * 2
    assert (after.name, after.settings, after.plan.repeat) == (before.name, before.settings, before.plan.repeat)


def test_what_changed_is_said_where_it_changed(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE, "promptfooconfig.yaml", ask_txt="Write {{greeting}} {{name}}", rows_csv=ROWS)

    text = converted(path).read_text()

    assert text.startswith("# Converted from promptfoo's promptfooconfig.yaml; it makes the same cases.\n")
    for comment in (
        ": 'tags' has no effect here",
        "# The assertionTemplates are written out where they are used.",
        "# outputPath is given when the suite is run: gradeloop eval FILE -o out.json",
        "# from file://ask.txt",
        "# the labels are promptfoo's names of the models",
        "# defaultTest in promptfoo",
        "# the lists in vars made 2 tests of this one",
    ):
        assert f"{comment}\n" in text, comment
    assert "rows.csv'\n" in next(line + "\n" for line in text.splitlines() if "from the dataset" in line)


def test_the_prompts_of_echo_are_outputs(tmp_path: Path) -> None:
    text = "prompts: ['Dear {{name}}']\nproviders: [echo]\ntests: [{vars: {name: [Ada, Grace]}, assert: [{type: contains, value: Dear}]}]"
    path = written(tmp_path, text, "promptfooconfig.yaml")

    before, after = built(path), built(converted(path))

    assert [case.output for case in after] == ["Dear Ada", "Dear Grace"] == [case.output for case in before]
    assert [case.rubric for case in after] == [case.rubric for case in before]


def test_tests_without_assertions_are_left_out_and_counted(tmp_path: Path) -> None:
    text = (
        "prompts: ['Say {{name}}']\nproviders: [openai:gpt-5]\ntests: [{vars: {name: Ada}}, {vars: {name: Bo}, assert: [{type: is-json}]}]"
    )
    path = written(tmp_path, text, "promptfooconfig.yaml")
    bare = written(tmp_path, text.replace(", assert: [{type: is-json}]", ""), "promptfooconfig-bare.yaml")

    suite = converted(path)

    assert "# 1 test without assertions left out: a suite of ours judges every test.\n" in suite.read_text()
    assert [case.vars["name"] for case in built(suite)] == ["Bo"]
    with pytest.raises(InvalidRequest, match="has no test with assertions, and a suite of ours judges every test"):
        convert_configuration(bare)


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "tests: [{output: x, rubric: '- y'}]")

    with pytest.raises(InvalidRequest, match="is not a configuration of promptfoo"):
        convert_configuration(path)


CONFIGURATIONS = {
    "a table and its expectations": "prompts: ['Say {{name}}']\nproviders: [openai:gpt-5]\ntests: rows.csv",
    "a chat of messages": """
prompts: ['[{"role": "system", "content": "Be {{mood}}."}, {"role": "user", "content": "{{question}}"}]']
providers: [openai:chat:gpt-5-mini]
defaultTest: {vars: {mood: brief}, assert: [{type: llm-rubric, value: "Is {{mood}}"}]}
tests: [{vars: {question: "Why?"}}, {vars: {question: "When?", mood: loud}}]
""",
    "all kinds of rows": """
prompts: ['Answer {{question}}']
providers: [{id: google:gemini-2.5-flash, config: {temperature: 0}}]
tests:
  - vars: {question: "Two and two?"}
    threshold: 0.6
    assert:
      - {type: contains-any, value: [four, "4"]}
      - {type: not-icontains, value: sorry, weight: 3}
      - {type: regex, value: "[0-9]+", metric: number}
      - {type: is-json, value: {type: object, required: [sum]}}
      - {type: factuality, value: It is four, provider: anthropic:messages:claude-haiku-4-5}
      - {type: assert-set, threshold: 0.5, assert: [{type: equals, value: "4"}, {type: starts-with, value: F}]}
""",
    "an instruction to the judge": """
prompts: ['Write to {{name}}']
providers: [openrouter:mistralai/mistral-small]
defaultTest:
  options: {provider: openai:gpt-5-mini, rubricPrompt: 'Judge {{output}} by {{rubric}}, and answer with JSON.'}
tests: [{vars: {name: Ada}, assert: [{type: llm-rubric, value: Is polite}]}]
""",
    "texts in files": """
prompts: [file://ask.txt]
providers: [anthropic:messages:claude-haiku-4-5]
tests:
  - {vars: {greeting: Dear, name: file://name.txt}, assert: [{type: llm-rubric, value: Is kind}]}
""",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_makes_the_same_cases_once_it_is_converted(tmp_path: Path, name: str) -> None:
    files = {"ask_txt": "Write {{greeting}} {{name}}", "name_txt": "Grace", "rows_csv": ROWS}
    path = written(tmp_path, CONFIGURATIONS[name], "promptfooconfig.yaml", **files)

    before, after = (
        [(case.messages, case.output, case.rubric, case.grader) for case in cases] for cases in (built(path), built(converted(path)))
    )

    assert after == before
    assert after
