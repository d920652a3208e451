"""A suite is read into cases, the same ones each time, or refused with file, line, field and cure."""

import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from gradeloop.cli.schemas import json_schemas
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.checks import TEXT_CHECK, kinds_of
from gradeloop.suites import plan
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from gradeloop.suites.suite import SuiteFile, SuiteTest
from tests.rig.suites import cases, refusal, written

EXAMPLES = Path(__file__).parents[2] / "examples"

MATRIX = """
    prompts: ["Say {{ word }}", {label: kind, messages: [{role: system, content: "Be {{ mood }}"}, {role: user, content: "{{ word }}?"}]}]
    generators: ["scripted:a", {label: b, model: "scripted:b", system_prompt: Short.}]
    grader: scripted:judge
    defaults: {vars: {mood: kind}, rubric: "- it says {{ word }}"}
    tests: [{id: one, vars: {word: yes-1}}, {id: two, vars: {word: "{{ x }}", mood: cross}}]
    repeat: 2
    scripted: replies.yaml
"""
GIVEN = "grader: scripted:judge\nscripted: replies.yaml\nrubric: '- it is kind'\n"
TWICE = "column 29: tests[1]: the id 'a' is that of the suite 'suite.yaml', line 4, column 9: tests[0], too; give each test"


def test_cases_are_prompts_times_generators_times_tests_times_repetitions(tmp_path: Path) -> None:
    found = cases(tmp_path, MATRIX)

    assert [case.id for case in found[:8]] == [
        *("one/p1/scripted:a/1", "one/p1/scripted:a/2", "one/p1/b/1", "one/p1/b/2"),
        *("one/kind/scripted:a/1", "one/kind/scripted:a/2", "one/kind/b/1", "one/kind/b/2"),
    ]
    assert len(found) == len({case.id for case in found}) == 16
    assert {(case.prompt, case.label) for case in found} == {(p, g) for p in ("p1", "kind") for g in ("scripted:a", "b")}


def test_variables_stand_in_prompts_messages_and_rubric_and_are_no_templates_themselves(tmp_path: Path) -> None:
    found = {case.id: case for case in cases(tmp_path, MATRIX, SuiteFlags(repeat=1))}

    assert [message.content for message in found["one/p1/b"].messages] == ["Say yes-1"]
    assert found["two/kind/b"].messages[0].content == "{{ x }}?"
    assert found["two/kind/b"].rubric.criteria[0].text == "it says {{ x }}"
    assert found["two/kind/b"].vars == {"mood": "cross", "word": "{{ x }}"}


def test_a_system_message_of_a_prompt_comes_after_the_generators_own(tmp_path: Path) -> None:
    found = {case.id: case.generator for case in cases(tmp_path, MATRIX, SuiteFlags(repeat=1))}

    assert [(item.system_prompt if item else "") for item in (found["one/p1/b"], found["one/kind/b"], found["one/kind/scripted:a"])] == [
        "Short.",
        "Short.\n\nBe kind",
        "Be kind",
    ]


def test_a_given_output_is_judged_as_it_is_by_no_generator(tmp_path: Path) -> None:
    suite = GIVEN + 'generators: ["scripted:a"]\nprompts: ["Ask {{ q }}"]\ntests: [{id: a, vars: {q: x}, output: "{{ q }} 1.10 "}]'

    (case,) = cases(tmp_path, suite)

    assert (case.output, case.generator, case.label) == ("{{ q }} 1.10 ", None, None)
    assert [message.content for message in case.messages] == ["Ask x"]


def test_a_tests_messages_stand_instead_of_the_prompts(tmp_path: Path) -> None:
    said = "[{role: user, content: hi}, {role: assistant, content: hello}, {role: user, content: 'bye {{ q }}'}]"
    suite = GIVEN + f'generators: ["scripted:a"]\nprompts: [x, y]\ntests: [{{id: a, vars: {{q: z}}, messages: {said}}}]'

    (case,) = cases(tmp_path, suite)

    assert [message.content for message in case.messages] == ["hi", "hello", "bye z"]


def test_a_tests_own_rubric_replaces_and_its_assertions_come_after(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, list[str], str, float | None]] = [
        ("rubric: '- d'", "", ["d"], "required", None),
        ("rubric: '- d'", "rubric: '- t'", ["t"], "required", None),
        ("rubric: '- d', threshold: 0.5", "", ["d"], "required", 0.5),
        ("rubric: '- d', threshold: 0.5", "threshold: 0.75", ["d"], "required", 0.75),
        ("rubric: '- d'", "assert: [{type: contains, value: x}]", ["it contains 'x'"], "required", None),
        ("assert: [{type: is-json}]", "assert: [{type: contains, value: x}]", ["it is JSON", "it contains 'x'"], "required", None),
        ("assert: [{type: contains, value: d}]", "rubric: '- t'", ["t"], "required", None),
        ("assert: [{type: contains, value: d}], threshold: 0.5", "", ["it contains 'd'"], "none", 0.5),
    ]
    for defaults, test, criteria, gate, threshold in rows:
        with subtests.test(defaults=defaults):
            suite = f"grader: scripted:j\nscripted: replies.yaml\ndefaults: {{{defaults}}}\ntests: [{{id: a, output: x, {test}}}]"

            (case,) = cases(tmp_path, suite)

            assert [criterion.text for criterion in case.rubric.criteria] == criteria
            assert (case.rubric.gate, case.rubric.threshold) == (gate, threshold)


def test_a_made_id_stays_when_prompts_rubric_and_output_change(tmp_path: Path) -> None:
    first = cases(tmp_path, GIVEN + "tests: [{vars: {q: Où est-ce?}, output: a}, {vars: {q: Où est-ce?}, output: b}, {output: c}]")
    again = cases(tmp_path, GIVEN.replace("kind", "cross") + "tests: [{vars: {q: Où est-ce?}, output: z}]\nprompts: ['{{ q }}']")

    assert [case.id for case in first] == ["o-est-ce-d561ece8b8", "o-est-ce-d561ece8b8-2", "case-78747a7501"]
    assert again[0].id == first[0].id


def test_loop_is_for_drafts_and_a_tests_own_word_counts_more_than_the_suites(tmp_path: Path) -> None:
    suite = GIVEN + "generators: [scripted:a]\nprompts: [x]\nloop: true\nmax_iterations: 5\n"
    suite += "tests: [{id: a}, {id: b, loop: false}, {id: c, output: x}, {id: d, max_iterations: 2}]"

    assert [(case.loop, case.max_iterations) for case in cases(tmp_path, suite)] == [(True, 5), (False, 5), (False, 3), (True, 2)]
    assert {case.loop for case in cases(tmp_path, suite, SuiteFlags(loop=False))} == {False}


def test_the_command_lines_grader_takes_the_files_place_but_not_that_of_a_criterion(tmp_path: Path) -> None:
    suite = """
        scripted: replies.yaml
        grader: scripted:file
        defaults: {options: {provider: scripted:default}}
        tests:
          - {id: a, output: x, rubric: "- r"}
          - {id: b, output: x, rubric: "- r", grader: scripted:test}
          - {id: c, output: x, rubric: {criteria: [{description: r, grader: scripted:own}]}}
          - {id: d, output: x, assert: [{type: llm-rubric, value: r}]}
          - {id: e, output: x, assert: [{type: llm-rubric, value: r, provider: scripted:own}]}
          - {id: f, output: x, assert: [{type: contains, value: r}]}
    """

    def judges(flags: SuiteFlags) -> list[str | None]:
        found = []
        for case in cases(tmp_path, suite, flags):
            own: Any = case.rubric.criteria[0].grader
            found.append(own.id if own else case.grader.model.id if case.grader and case.grader.model else None)
        return found

    assert judges(SuiteFlags()) == ["scripted:file", "scripted:test", "scripted:own", "scripted:default", "scripted:own", None]
    assert judges(SuiteFlags(grader="scripted:flag")) == [*["scripted:flag"] * 2, "scripted:own", "scripted:flag", "scripted:own", None]


def test_a_model_that_nobody_names_is_the_first_with_a_key_and_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    suite = read_suite(written(tmp_path, "prompts: [a]\ntests: [{id: a, rubric: '- r'}, {id: b, output: x, assert: [{type: is-json}]}]"))

    first, second = suite.cases()

    assert (first.generator and first.generator.model) == (first.grader and first.grader.model)
    assert (second.generator, second.grader) == (None, None)
    assert [note.partition(":")[0] for note in suite.notes] == ["grader", "generator"]
    assert all(note.endswith("because ANTHROPIC_API_KEY is set") for note in suite.notes)


def test_texts_may_stand_in_files_relative_to_the_suite(tmp_path: Path) -> None:
    suite = """
        prompts: ["file://ask.txt", "file://chat.yaml", {label: named, text: "file://ask.txt"}]
        generators: [scripted:a]
        grader: scripted:j
        scripted: replies.yaml
        rubric: file://rubric.md
        tests: [{id: a, vars: {document: "file://ask.txt"}, assert: [{type: llm-rubric, value: "file://rubric.md"}]}, {id: b, rubric: "file://r.yaml"}]
    """
    files: dict[str, Any] = {
        "ask_txt": "Say hi",
        "chat_yaml": "[{role: user, content: Hi}]",
        "rubric_md": "- one\n- two\n",
        "r_yaml": "criteria: [three]",
    }
    found = {case.id: case for case in cases(tmp_path, suite, **files)}

    assert list(found) == ["a/ask", "a/chat", "a/named", "b/ask", "b/chat", "b/named"]
    assert found["a/ask"].vars == {"document": "Say hi"}
    assert [criterion.text for criterion in found["a/ask"].rubric.criteria] == ["- one\n- two"]
    assert [criterion.text for criterion in found["b/chat"].rubric.criteria] == ["three"]


@pytest.mark.parametrize(
    ("only", "first", "ids"),
    [
        (("ref*",), None, ["refund", "refuse"]),
        (("fund", "x"), None, ["refund"]),
        (("[a-q]*",), None, ["open"]),
        ((), 2, ["refund", "refuse"]),
        (("*e*",), 2, ["refund", "refuse"]),
    ],
)
def test_cases_are_selected_by_patterns_parts_and_number(tmp_path: Path, only: tuple[str, ...], first: int | None, ids: list[str]) -> None:
    suite = GIVEN + "tests: [{id: refund, output: a}, {id: refuse, output: a}, {id: open, output: a}]"

    assert [case.id for case in cases(tmp_path, suite, SuiteFlags(filters=only, limit=first))] == ids


def test_the_cases_are_the_same_each_time_that_they_are_read(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path, MATRIX))

    assert list(suite.cases()) == list(suite.cases())


def test_settings_tools_and_replies_are_given_back(tmp_path: Path) -> None:
    text = (
        GIVEN
        + "name: s\nconcurrency: 7\nbudget: {max_tokens: 5}\nmax_errors: 2\nmax_error_rate: 0.5\npass_rate: 0.9\n"
        + "retries: 0\ncache: false\ndelay: 9\npriority: {tenant: acme}\n"
    )
    suite = read_suite(
        written(tmp_path, text + "tools: t.py\ntests: [{output: x}]", t_py="", u_py=""), SuiteFlags(tools=(tmp_path / "u.py",))
    )

    assert (suite.name, [path.name for path in suite.tools], suite.scripted) == ("s", ["t.py", "u.py"], tmp_path / "replies.yaml")
    assert suite.settings.model_dump(exclude={"budget"}, exclude_unset=True) | {"derived_metrics": ()} == {
        "concurrency": 7,
        "max_errors": 2,
        "max_error_rate": 0.5,
        "pass_rate": 0.9,
        "retries": 0,
        "cache": False,
        "delay": 9,
        "priority": {"tenant": "acme"},
        "derived_metrics": (),
    }
    assert suite.settings.budget is not None


def test_what_is_wrong_is_told_with_its_place_and_cure(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("tets: []", "the suite 'suite.yaml', line 1, column 1: unknown key 'tets'. Did you mean 'tests'?"),
        (GIVEN + "tests:\n  - id: a\n    ouput: x", "line 6, column 5: tests[0]: unknown key 'ouput'. Did you mean 'output'?"),
        (GIVEN + "tests:\n  - output: x\ncases:\n  - id: a", "line 6, column 1: unknown key 'cases'. Did you mean 'cache'?"),
        (GIVEN + "tests:\n  - {id: a, output: 1.10}", "line 5, column 21: tests[0].output: YAML reads '1.1' as no text; quote it"),
        (GIVEN + "tests:\n  - {id: 7, output: x}", "line 5, column 10: tests[0].id: Input should be a valid string, got '7'"),
        (GIVEN + "tests:\n  - {output: x, threshold: 80}", "line 5, column 28: tests[0].threshold: 80 is outside of 0 to 1"),
        (GIVEN + "tests: [{output: x, rubric: '- a', assert: [{type: is-json}]}]", "tests[0]: rubric and assert exclude each other"),
        (GIVEN + "tests:\n  - output: x\n    rubric: {criteria: [a, {group: g, criteria: [{nam: b}]}]}", "line 6, column 50: tests.0"),
        (GIVEN + "defaults: {rubric: '- x'}\ntests: [{output: x}]", "rubric: defaults has a rubric or assert, too; keep one of them"),
        (GIVEN + "generators: [scripted:a, scripted:a]\ntests: [{output: x}]", "generators[1]: the label 'scripted:a' is there twice"),
        (GIVEN + "tests: [{id: a, output: x}, {id: a, output: y}]", TWICE),
        (GIVEN + "tests: []", "tests: there are no tests; write them here, or name a file"),
        (GIVEN, "tests: there are no tests"),
        (GIVEN + "tests: other.csv", "tests[0]: the dataset 'other.csv' does not exist; name a file"),
        (GIVEN + "tests: [other.xlsx]", "tests[0]: 'other.xlsx' is not a dataset. Known: .csv, .jsonl, .json, .yaml, .yml."),
        (GIVEN + "prompts: ['{{ q }}']\ntests: [{id: a, output: x}]", "tests[0]: prompt 'p1': 'q' is undefined; the variables are: none"),
        (GIVEN + "generators: [scripted:a]\ntests: [{id: a}]", "tests[0]: there is nothing to answer; give the suite prompts"),
        (GIVEN + "tests: [{id: a, output: x, loop: true}]", "tests[0]: loop needs a generator; a given output is only judged"),
        ("grader: scripted:j\ntests: [{output: x, rubric: '- a'}]", "grader.model: 'scripted:j' needs a file of replies"),
        ("scripted: replies.yaml\ntests: [{output: x}]", "tests[0]: there is nothing to judge by; give the test a rubric or assert"),
        (
            GIVEN + "tests: [{output: x, assert: [{type: meteor}]}]",
            "line 4, column 30: tests[0].assert[0]: the type 'meteor' is not supported",
        ),
        (GIVEN + "tests: [{output: x, assert: [{type: regex, value: '(a'}]}]", "assert[0].value: the pattern '(a' is refused"),
        (GIVEN + "prompts: [a, 3]\ntests: [{output: x}]", "line 4, column 14: prompts[1]: "),
        (GIVEN + "prompts: ['file://no.txt']\ntests: [{output: x}]", "line 4, column 11: prompts[0]: the file 'no.txt' cannot be read"),
        (GIVEN + "tests: [{output: x, vars: {q: 1}, rubric: 'file://no.md'}]", "the rubric 'no.md' does not exist; name a file"),
        (GIVEN + "repeat: 0\ntests: [{output: x}]", "line 4, column 9: repeat: Input should be greater than or equal to 1, got '0'"),
        (GIVEN + "tools: no.py\ntests: [{output: x}]", "tools: 'no.py' does not exist; name a file"),
        ("- a", "it is not a mapping; write 'prompts:', 'rubric:' and 'tests:' with their values"),
    ]
    for suite, words in rows:
        with subtests.test(suite=suite):
            assert words in refusal(tmp_path, suite)


UNDEFINED = "'who' is undefined; the variables are: q"
SIXTH = "(for the suite 'suite.yaml', line 6, column 5: tests[0])"
ROW = "(for the dataset 'rows.csv', line 2)"
ROWS = "tests:\n  - {id: a, output: x, vars: {q: 1}"
ASSERT = "assert:\n      - {type: llm-rubric, value: fine}\n      - "


def test_an_unknown_variable_is_told_with_file_test_and_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        (
            f"rubric: {{criteria: [fine, 'names {{{{ who }}}}']}}\n{ROWS}}}",
            f"the suite 'suite.yaml', line 4, column 9: rubric: criteria[1].description: {UNDEFINED} {SIXTH}",
        ),
        (
            f"{ROWS}, rubric: 'names {{{{ who }}}}'}}",
            f"the suite 'suite.yaml', line 5, column 46: tests[0].rubric: criteria[0].description: {UNDEFINED}",
        ),
        (
            f"{ROWS}, assert: [{{type: llm-rubric, value: 'names {{{{ who }}}}'}}]}}",
            f"the suite 'suite.yaml', line 5, column 73: tests[0].assert[0].value: {UNDEFINED}",
        ),
        (
            f"{ROWS}, assert: [{{type: assert-set, assert: [{{type: is-json}}, {{type: llm-rubric, value: 'names {{{{ who }}}}'}}]}}]}}",
            f"tests[0].assert[0].assert[1].value: {UNDEFINED}",
        ),
        (
            f"{ROWS}, assert: [{{type: llm-rubric, value: a, rubricPrompt: '{{{{ output }}}} {{{{ who }}}}'}}]}}",
            f"tests[0].assert[0].rubricPrompt: {UNDEFINED}",
        ),
        (
            f"defaults: {{assert: [{{type: llm-rubric, value: 'names {{{{ who }}}}'}}]}}\n{ROWS}}}",
            f"line 4, column 47: defaults.assert[0].value: {UNDEFINED} {SIXTH}",
        ),
        (
            f"prompts: ['{{{{ who }}}}']\nrubric: '- a'\n{ROWS}}}",
            f"the suite 'suite.yaml', line 7, column 5: tests[0]: prompt 'p1': {UNDEFINED}",
        ),
        (
            "rubric: 'names {{ who }}'\ntests: rows.csv",
            f"the suite 'suite.yaml', line 4, column 9: rubric: criteria[0].description: {UNDEFINED} {ROW}",
        ),
    ]
    for suite, words in rows:
        with subtests.test(suite=suite):
            (tmp_path / "rows.csv").write_text("q,output\n1,x\n")

            assert words in refusal(tmp_path, f"scripted: replies.yaml\ngrader: scripted:j\n# what is judged\n{suite}")


def test_an_unknown_variable_of_promptfoos_is_told_so_too(tmp_path: Path) -> None:
    config = """
prompts: ["Write about {{ topic }}"]
providers: [openai:gpt-5-mini]
defaultTest:
  assert:
    - {type: llm-rubric, value: fine}
    - type: llm-rubric
      value: "names {{ nobody }}"
tests:
  - vars: {topic: a}
"""
    path = tmp_path / "promptfooconfig.yaml"
    path.write_text(config)

    with pytest.raises(InvalidRequest) as caught:
        list(read_suite(path).cases())

    assert str(caught.value).startswith(f"the suite {str(path)!r}, line 8, column 14: defaultTest.assert[1].value: 'nobody' is undefined")
    assert str(caught.value).endswith(f"(for the suite {str(path)!r}, line 10, column 5: tests[0])")


def test_where_nothing_is_selected_what_there_is_is_named(tmp_path: Path) -> None:
    suite = GIVEN + "tests: [" + ", ".join(f"{{id: t{at}, output: x}}" for at in range(12)) + "]"

    assert refusal(tmp_path, suite, SuiteFlags(filters=("z*",))).endswith("its cases are t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 2 more")


def test_a_case_of_more_than_a_mebibyte_is_refused_with_its_size(tmp_path: Path) -> None:
    rows = '{"id": "big", "output": "' + "x" * 2**20 + '"}\n'

    assert "line 1: the case 'big' has 1048895 bytes as JSON, 1048576 at most" in refusal(
        tmp_path, GIVEN + "tests: rows.jsonl", rows_jsonl=rows
    )


def test_one_case_past_the_edge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_CASES", 2)
    suite = GIVEN + "tests: [{output: a}, {output: b}, {output: c}]"

    assert len(cases(tmp_path, suite, SuiteFlags(limit=2))) == 2
    assert "the suite 'suite.yaml' has more than 2 cases; split it into several suites" in refusal(tmp_path, suite)


def test_a_hundred_thousand_is_the_edge() -> None:
    assert plan.MAX_CASES == 100_000


@pytest.mark.slow
def test_editors_are_told_the_files_format(tmp_path: Path) -> None:
    schema = json_schemas("Suite")
    check = jsonschema.Draft202012Validator(schema)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert all("description" in field for field in schema["properties"].values())
    assert not list(check.iter_errors(read_yaml(EXAMPLES / "suite" / "suite.yaml", "the suite")))
    assert not list(check.iter_errors(read_yaml(written(tmp_path, MATRIX), "the suite")))
    assert list(check.iter_errors({"tests": [{"ouput": "x"}]}))


@pytest.mark.parametrize(("name", "ids"), [
    ("suite/suite.yaml", ["refund", "broken", "delivery", "size", "late", "opening-hours"]),
    ("promptfoo/promptfooconfig.yaml", ["ada-e525ea7a95", "grace-821c1ed148", "too-late-a1d741242b"]),
])  # fmt: skip
def test_the_examples_are_read(name: str, ids: list[str]) -> None:
    assert [case.id for case in read_suite(EXAMPLES / name).cases()] == ids


def test_the_pages_suite_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLES.parent / "docs" / "suites.md").read_text()
    block, declaring = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    first, second = cases(tmp_path, f"{declaring}prompts: [x]\ntests: [{{rubric: '- it is good'}}]", SuiteFlags(check=True))

    assert first.generator is not None
    assert second.generator is not None
    assert (first.generator.functions[0].name, second.generator.output_form is not None) == ("weather", True)

    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(key, "x")

    found = cases(tmp_path, block, cases_csv="question\nWhy?\n")

    assert [case.id.partition("/")[0] for case in found[::2]] == ["why-86adaf376d", "refund", "are-you-open-today-7eab06dd9b"]
    fields = {*SuiteFile.model_fields, *(entry.alias or name for name, entry in SuiteTest.model_fields.items())} - {"name"}
    assert not [field for field in fields if f"`{field}`" not in page]
    assert all(f"`{kind}`" in (EXAMPLES.parent / "docs/tools/text_check.md").read_text() for kind in kinds_of(TEXT_CHECK))
    assert f"{plan.MAX_CASES:,} cases a suite" in page


def test_the_concurrency_has_bounds_and_one_name(tmp_path: Path) -> None:
    assert read_suite(written(tmp_path, GIVEN + "concurrency: 7\ntests: [{output: x}]")).settings.concurrency == 7
    assert "concurrency: Input should be less than or equal to 1000, got '2000'" in refusal(
        tmp_path, GIVEN + "concurrency: 2000\ntests: [{output: x}]"
    )
    assert "unknown key 'at_once'" in refusal(tmp_path, GIVEN + "at_once: 7\ntests: [{output: x}]")
