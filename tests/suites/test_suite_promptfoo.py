"""A `promptfooconfig.yaml` is read as it is, or refused by the name and the line of what is not supported."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.cases import build_result
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import BatchSummary
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from rig.pdf import pdf
from tests.rig.suites import cases, refusal, written

NAME = "promptfooconfig.yaml"
ECHO = "prompts: ['{{ q }}']\nproviders: echo\n"
RUN = SuiteFlags(scripted=Path(__file__))


def config(tests: str) -> str:
    """Return a configuration in which the prompt is what is judged."""
    return ECHO + f"tests:\n  - {tests}"


def test_its_providers_prompts_and_variables_make_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    text = """
        description: two models
        prompts:
          - file://two.txt
          - {raw: "Tell {{q}}", label: tell}
          - '[{"role": "system", "content": "Be kind"}, {"role": "user", "content": "{{q}}"}]'
        providers:
          - openai:chat:gpt-5-mini
          - {id: "anthropic:messages:claude-haiku-4-5", label: claude, config: {temperature: 0}}
        tests:
          - {vars: {q: [a, b], list: [1, 2]}, assert: [{type: contains, value: "{{q}}"}]}
    """
    found = cases(tmp_path, text, name=NAME, two_txt="Say {{q}}\n---\nShow {{ q }}\n")

    assert [case.id.split("/", 1)[1] for case in found[:8]] == [
        f"{prompt}/{model}" for prompt in ("two:1", "two:2", "tell", "p4") for model in ("openai:chat:gpt-5-mini", "claude")
    ]
    assert len(found) == 16
    assert {case.messages[0].content for case in found} == {f"{verb}{q}" for verb in ("Say ", "Show ", "Tell ", "") for q in "ab"}
    assert {case.generator.system_prompt for case in found if case.generator and case.prompt == "p4"} == {"Be kind"}
    assert found[1].generator is not None
    assert found[1].generator.model is not None
    assert (found[1].generator.model.id, found[1].generator.model.config.temperature) == ("anthropic:claude-haiku-4-5", 0)
    assert found[0].vars == {"q": "a", "list": [1, 2]}


def test_a_variable_has_the_texts_of_all_files_that_a_pattern_matches(tmp_path: Path) -> None:
    (tmp_path / "articles").mkdir()
    for name in ("b", "a"):
        (tmp_path / "articles" / f"{name}.txt").write_text(f"text of {name}")

    found = cases(tmp_path, config("{vars: {q: 'file://articles/*'}, assert: [{type: contains, value: text}]}"), name=NAME)

    assert [case.vars["q"] for case in found] == ["text of a", "text of b"]
    said = refusal(tmp_path, config("{vars: {q: 'file://articles/*.md'}}"), name=NAME)
    assert "line 4" in said
    assert "no file matches 'file://articles/*.md'; correct the pattern" in said


def test_echo_and_a_given_output_are_judged_without_a_generator(tmp_path: Path) -> None:
    text = ECHO + "defaultTest: {assert: [{type: is-json}]}\ntests: [{vars: {q: x}}, {vars: {q: x}, providerOutput: '1.10'}]"

    first, second = cases(tmp_path, text, name=NAME)

    assert (first.output, first.label, first.messages) == ("x", "echo", ())
    assert (second.output, second.messages[0].content) == ("1.10", "x")


def test_an_assertions_judge_comes_before_the_tests_and_that_before_the_defaults(tmp_path: Path) -> None:
    says: Any = "type: llm-rubric, value: v"
    text = (
        ECHO
        + f"""
defaultTest: {{options: {{provider: scripted:default, rubricPrompt: "default {{{{output}}}}"}}, assert: [{{{says}}}], threshold: 0.25}}
tests:
  - {{vars: {{q: x}}}}
  - {{vars: {{q: y}}, threshold: 0.75, options: {{provider: {{id: scripted:test}}}}, assert: [{{{says}, provider: scripted:own}}]}}
"""
    )
    first, second = cases(tmp_path, text, RUN, name=NAME)

    assert [criterion.grader.id for criterion in first.rubric.criteria if criterion.grader] == ["scripted:default"]
    assert [criterion.grader.id for criterion in second.rubric.criteria if criterion.grader] == ["scripted:test", "scripted:own"]
    assert [criterion.prompt.messages[0].parts[0] for criterion in second.rubric.criteria if criterion.prompt] == ["default ", "default "]
    assert [(item.rubric.gate, item.rubric.threshold) for item in (first, second)] == [("none", 0.25), ("none", 0.75)]


def test_sets_weights_metrics_and_references_are_taken(tmp_path: Path) -> None:
    text = """
        prompts: ["{{ q }}"]
        providers: [echo]
        assertionTemplates: {short: {type: regex, value: "^.{1,9}$"}}
        tests:
          - vars: {q: x}
            assert:
              - $ref: "#/assertionTemplates/short"
              - {type: contains, value: x, metric: Tone of voice, weight: 0}
              - {type: not-contains, value: y, metric: Tone of voice, weight: 2}
              - {type: assert-set, threshold: 0.5, assert: [{type: equals, value: "{{ q }}"}, {$ref: "#/assertionTemplates/short"}]}
    """
    (case,) = cases(tmp_path, text, name=NAME)

    assert [(criterion.id, criterion.weight, criterion.required) for criterion in case.rubric.criteria[:3]] == [
        ("c1", 1, True),
        ("Tone-of-voice", 0, False),
        ("Tone-of-voice-2", 2, True),
    ]
    assert [(group.group, group.threshold) for group in case.rubric.groups] == [("assert[3]", 0.5)]
    assert [criterion.text for criterion in case.rubric.criteria[3:]] == ["it equals 'x'", "it matches '^.{1,9}$'"]


def test_expected_columns_are_assertions(tmp_path: Path) -> None:
    table = """\
q,__expected,__expected2,__expected3,__description,__threshold,__metric,__metadata:a
x,contains: 5 days,"not-icontains-any:a,b",grade: is kind,first,0.5,tone,m
y,"plain: text",is-json,regex:^a:b$,,,,
"""
    first, second = cases(
        tmp_path, ECHO + "defaultTest: {options: {provider: scripted:j}}\ntests: file://t.csv", RUN, name=NAME, t_csv=table
    )

    assert (first.description, first.rubric.threshold, first.vars) == ("first", 0.5, {"q": "x"})
    assert [criterion.id for criterion in first.rubric.criteria] == ["tone", "tone-2", "tone-3"]
    assert [criterion.text for criterion in first.rubric.criteria] == [
        "it contains '5 days'",
        "it contains, in any case, none of 'a,b'",
        "is kind",
    ]
    assert [criterion.text for criterion in second.rubric.criteria] == ["it equals 'plain: text'", "it is JSON", "it matches '^a:b$'"]


def test_tests_may_stand_in_files_and_texts_too(tmp_path: Path) -> None:
    text = ECHO + "defaultTest: file://default.yaml\ntests: [file://a.yaml, 'b.jsonl', {vars: {q: 'file://q.txt'}}]"
    files: dict[str, Any] = {
        "default_yaml": "assert: [{type: contains, value: file://q.txt}]",
        "a_yaml": "- {description: a, vars: {q: 1}}",
        "b_jsonl": '{"vars": {"q": "b"}, "providerOutput": {"a": 1.10}}',
        "q_txt": "long text",
    }
    found = cases(tmp_path, text, name=NAME, **files)

    assert [case.output for case in found] == ["1", '{"a": 1.10}', "long text"]
    assert {case.rubric.criteria[0].text for case in found} == {"it contains 'long text'"}


def test_its_options_are_ours_and_what_has_no_effect_is_told(tmp_path: Path) -> None:
    text = "description: s\ntags: {a: b}\noutputPath: [out.json, out/r.html]\n"
    text += "evaluateOptions: {maxConcurrency: 3, repeat: 2, cache: false, delay: 5}\n"
    suite = read_suite(written(tmp_path, text + asserting("{type: is-json}"), "any.yaml"))

    assert (suite.name, suite.settings.concurrency, suite.settings.cache) == ("s", 3, False)
    assert suite.outputs == (tmp_path / "out.json", tmp_path / "out/r.html")
    assert suite.settings.delay == 5
    assert [note.rpartition(": ")[2] for note in suite.notes] == ["'tags' has no effect here"]
    assert len(list(suite.cases())) == 2


HARMLESS = """
prompts: ['{{ q }}']
providers: [{id: echo, delay: 3, description: why}]
notAKey: 1
evaluateOptions: {timeoutMs: 5, maxEvalTimeMs: 9}
defaultTest:
  options: {timeout: 900000, providers: [x]}
  assert:
    - {type: contains, value: a, description: why it is here, threshold: 0.3}
    - {type: assert-set, config: {}, assert: [{type: is-json}]}
tests: [{vars: {q: a}, repeat: 3}]
"""


def test_a_key_that_promptfoo_ignores_is_ignored_with_a_note(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path, HARMLESS, NAME))
    (case,) = suite.cases()

    assert not case.left_out
    assert len(case.rubric.criteria) == 2
    assert suite.plan.findings.is_whole
    for key in ("notAKey", "timeoutMs", "maxEvalTimeMs", "timeout", "providers", "threshold", "config", "repeat", "delay"):
        assert any(f"{key!r} has no effect here" in note for note in suite.notes), key
    assert sum("'description' has no effect here" in note for note in suite.notes) == 2


def test_a_test_may_leave_the_defaults_assertions_out_and_name_its_transform_as_before(tmp_path: Path) -> None:
    shared = "defaultTest: {assert: [{type: contains, value: a}]}\n"
    options = ("{disableDefaultAsserts: true, postprocess: output.trim()}", "{disableDefaultAsserts: false}")
    tests = ", ".join(f"{{vars: {{q: x}}, options: {option}, assert: [{{type: is-json}}]}}" for option in options)
    found = cases(tmp_path, ECHO + shared + f"tests: [{tests}]", SuiteFlags(allow_code=True), name=NAME)

    assert [[criterion.text for criterion in case.rubric.criteria] for case in found] == [["it is JSON"], ["it contains 'a'", "it is JSON"]]
    assert [[transform.code for transform in case.transforms] for case in found] == [["output.trim()"], []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tests: [{vars: {q: a}, options: {temperature: 0}}]", "options: 'temperature' is not supported; write it into the provider's"),
        ("tests: [{vars: {q: a}, assertScoringFunction: file://x.js}]", "'assertScoringFunction' is not supported; "),
        ("nunjucksFilters: {f: file://x.js}", "'nunjucksFilters' is not supported; "),
        ("evaluateOptions: {filterRange: '0:1'}", "'filterRange' is not supported; "),
    ],
)
def test_a_key_that_promptfoo_heeds_is_refused_with_a_cure(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, ECHO + text, name=NAME)


def test_a_variable_that_names_others_is_filled_with_them(tmp_path: Path) -> None:
    variables = "{q: 'Is {{ it }} in {{city}}?', it: '{{thing}}', city: [Rome, Oslo], thing: 3}"
    tests = f"{{vars: {variables}, assert: [{{type: is-json}}]}}"
    shared = "defaultTest: {vars: {greeting: 'Hello {{ city }}'}}\n"

    found = cases(tmp_path, config(tests) + "\n" + shared, name=NAME)

    assert [case.output for case in found] == ["Is 3 in Rome?", "Is 3 in Oslo?"]
    assert [case.vars["greeting"] for case in found] == ["Hello Rome", "Hello Oslo"]


@pytest.mark.parametrize("value", ["{{ q }}", "{{ other | upper }}", "{{ nobody }}"])
def test_a_variable_that_is_more_of_a_template_is_refused(tmp_path: Path, value: str) -> None:
    told = refusal(tmp_path, config(f"{{vars: {{q: '{value}', other: x}}, assert: [{{type: is-json}}]}}"), name=NAME)

    assert "a variable may name others as {{ name }} and nothing more" in told


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ q | dump }}", '{"a":["<b>",1]}'),
        ("{{ q | dump(1) }}", '{\n "a": [\n  "<b>",\n  1\n ]\n}'),
        ("{{ q | dump('-') }}", '{\n-"a": [\n--"<b>",\n--1\n-]\n}'),
        ("{{ q | dump(0) }}{{ q | dump('-3' | int) }}{{ q | dump('') }}", '{"a":["<b>",1]}' * 3),
        ("{{ q.a | dump(99) }}", f'[\n{" " * 10}"<b>",\n{" " * 10}1\n]'),
        ("{{ q.a | join('-') | replace('b', 'c') }}", "<c>-1"),
        ("{{ q.a | first | escape }}{{ '<i>' }}", "&lt;b&gt;<i>"),
        ("{{ q.a | first | safe | length }}", "3"),
        ("{{ q.a | reverse | list | first }}", "1"),
    ],
)
def test_filters_of_nunjucks_are_those_of_jinja_by_their_names(tmp_path: Path, template: str, filled: str) -> None:
    text = f"prompts: [{json.dumps(template)}]\nproviders: echo\ntests: [{{vars: {{q: {{a: ['<b>', 1]}}}}, assert: [{{type: is-json}}]}}]"

    (case,) = cases(tmp_path, text, name=NAME)

    assert case.output == filled


def test_replace_makes_no_text_without_end(tmp_path: Path) -> None:
    test = f"{{vars: {{q: {'a' * 5000}}}, assert: [{{type: is-json}}]}}"
    text = f"prompts: [\"{{{{ q | replace('a', q) }}}}\"]\nproviders: echo\ntests: [{test}]"

    assert "what `replace` makes has more than 1048576 characters" in refusal(tmp_path, text, name=NAME)


def test_a_pdf_is_read_as_its_text(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    found = cases(tmp_path, config("{vars: {q: file://a.pdf}, assert: [{type: is-json}]}"), name=NAME, a_pdf=pdf("Paid leave: 30 days."))

    assert [case.output for case in found] == ["Paid leave: 30 days."]
    for broken, words in ((b"%PDF-1.7 and no more", "is not a readable PDF"), (pdf(""), "has no text, as scans have none")):
        (tmp_path / "a.pdf").write_bytes(broken)

        assert words in refusal(tmp_path, config("{vars: {q: file://a.pdf}, assert: [{type: is-json}]}"), name=NAME)


def asserting(assertion: str) -> str:
    """Return a configuration with one test that asserts one thing."""
    return config(f"{{vars: {{q: x}}, assert: [{assertion}]}}")


CHAT = """prompts: ['[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]']
providers: [echo]
tests: [{assert: [{type: is-json}]}]"""
OPTIONS = ECHO + "evaluateOptions: "
REFUSED = ("meteor", "guardrails", "classifier", "moderation", "not-gleu", "webhook")
ASSERTED = "{vars: {q: x}, assert: [{type: is-json}]"


def test_what_is_not_supported_is_refused_by_name_and_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        *(
            (asserting(f"{{type: {kind}, value: v}}"), f"line 4, column 29: tests[0].assert[0]: the type '{kind}' is not supported")
            for kind in REFUSED
        ),
        (asserting("{type: equals, value: v, transform: output.trim()}"), "line 4, column 65: tests[0].assert[0].transform: the tr"),
        (asserting("{type: contains, value: file://check.js}"), "assert[0].value: the file"),
        (config(ASSERTED + ", provider: openai:x}"), "tests[0]: 'provider' is not supported; name a provider"),
        (asserting("{$ref: '#/assertionTemplates/no'}"), "'#/assertionTemplates/no' is not among the assertionT"),
        (config("{vars: {q: '{{ now }}'}, assert: [{type: is-json}]}"), "tests[0].vars.q: '{{ now }}' is a template; "),
        (asserting("{type: equals, value: '{{ q | groupby }}'}"), "tests[0].assert[0], line 1: the filter 'groupby' is not taken"),
        (ECHO + "redteam: {}", "line 3, column 10: 'redteam' is not supported"),
        (OPTIONS + "{maxConcurrency: 0}", "line 3, column 35: evaluateOptions.maxConcurrency: Input should be greater"),
        (ECHO + "tests: file://tests.js", "tests: the file 'tests.js' cannot be read"),
        ("prompts: [file://p.js]\nproviders: [echo]", "line 1, column 11: prompts[0]: the file 'p.js' cannot be read"),
        ("prompts: ['{{ q }}']\nproviders: [nowhere:x]", "line 2, column 13: providers[0].provider: 'nowhere:x' is not supported"),
        ("prompts: ['{{ q }}']\nproviders: [file://own.py]", "providers[0]: the file 'own.py' cannot be read"),
        (
            'prompts: [\'[{"role": "user", {{ q | lower }}}]\']\nproviders: [echo]',
            "tests[0]: the chat is not JSON with its variables filled in",
        ),
        (CHAT, "echo gives the prompt back, and this one is a chat"),
    ]
    for text, words in rows:
        with subtests.test(text=text):
            assert words in refusal(tmp_path, text, name=NAME)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("javascript: output.length", "assert[0]: the javascript assertion is code, which runs in a sandbox"),
        ("fn: x", "the javascript assertion is code"),
        ("guardrails: hello", "the type 'guardrails' is not supported"),
        ("contains(0.8): hello", "'threshold' is not supported"),
        ("llm-rubric", "assert[0]: the assertion has no value; write what must hold"),
        ("cost", "the threshold of cost is 'None'; write the most US dollars"),
        ("contains:", "contains has no value"),
        ("file://check.js", "'file://check.js' is code, which a table does not name; write the assertion"),
    ],
)
def test_an_expectation_that_is_not_supported_is_refused_with_its_row(tmp_path: Path, cell: str, words: str) -> None:
    found = refusal(tmp_path, ECHO + "tests: t.csv", name=NAME, t_csv=f"q,__expected\nx,{cell}\n")

    assert found.startswith("the dataset 't.csv', line 2: ")
    assert words in found


def test_a_column_that_is_not_supported_is_refused(tmp_path: Path) -> None:
    assert "line 2: the column '__odd' is not supported" in refusal(tmp_path, ECHO + "tests: t.csv", name=NAME, t_csv="q,__odd\nx,y\n")


def test_columns_may_stand_around_the_prompt(tmp_path: Path) -> None:
    found = cases(tmp_path, ECHO + "tests: t.csv", name=NAME, t_csv="q,__prefix,__suffix,__expected\nx,a ,!,a x!\ny,,,y\n")

    assert [case.output for case in found] == ["a x!", "y"]


def test_a_threshold_in_a_table_counts_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    rows = "q,__expected1,__expected2,__config:__expected1:threshold\nx,llm-rubric: good,llm-rubric(0.8): short,0.5\n"
    (case,) = cases(tmp_path, ECHO + "defaultTest: {options: {provider: openai:gpt-5}}\ntests: t.csv", name=NAME, t_csv=rows)

    assert [criterion.scale.threshold for criterion in case.rubric.criteria if criterion.scale] == [0.5, 0.8]
    assert "a threshold for __expected3, which has no assertion" in refusal(
        tmp_path, ECHO + "tests: t.csv", name=NAME, t_csv=rows.replace("__config:__expected1", "__config:__expected3")
    )


CELL_THRESHOLDS: dict[str, float | None] = {
    **dict.fromkeys(("similar: a", "not-similar: a"), 0.8),
    **dict.fromkeys(("answer-relevance", "context-recall: a", "context-relevance", "context-faithfulness", "rouge-n: a"), 0.75),
    **dict.fromkeys(("not-rouge-n: a", "levenshtein: a", "perplexity", "perplexity-score"), 0.75),
    **dict.fromkeys(("similar(0.3): a", "levenshtein(0.3): a", "context-recall(0.3): a"), 0.3),
    "g-eval: a": 0.7,
    "conversation-relevance": 0.5,
    "bleu: a": None,
    "llm-rubric: a": None,
}
"""The threshold of what a cell begins with, in promptfoo 0.123.1; None where a check has a default of its own, or the judge says pass."""


def test_a_cell_without_a_threshold_has_promptfoos_default_for_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    rows = "q,query,context,__expected\n" + "".join(f"x,y,z,{cell}\n" for cell in CELL_THRESHOLDS)
    text = "prompts: ['{{ q }}']\nproviders: openai:gpt-5\ndefaultTest: {options: {provider: openai:gpt-5}}\ntests: t.csv"
    found = {
        cell: case.rubric.criteria[0] for cell, case in zip(CELL_THRESHOLDS, cases(tmp_path, text, name=NAME, t_csv=rows), strict=True)
    }

    def threshold(criterion: Criterion) -> Any:
        arguments = criterion.check.arguments if criterion.check else {}
        return criterion.scale.threshold if criterion.scale else arguments.get("threshold", arguments.get("value"))

    assert {cell: threshold(criterion) for cell, criterion in found.items()} == CELL_THRESHOLDS | {"bleu: a": "a"}


def test_a_judge_with_a_prompt_needs_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    judged = "{type: llm-rubric, rubricPrompt: 'Is it kind? {{ output }}', provider: openai:gpt-5}"
    (case,) = cases(tmp_path, asserting(judged), name=NAME)

    assert case.rubric.criteria[0].text == "What the rubricPrompt asks for"
    assert case.rubric.criteria[0].prompt is not None


def test_anchors_aliases_and_merge_keys_are_taken(tmp_path: Path) -> None:
    text = """prompts: ['{{ q }}']
providers: [echo]
base: &base {assert: &said [{type: contains, value: x}], vars: {q: x}}
tests:
  - {<<: *base, description: first}
  - {vars: {q: y}, assert: *said}
"""
    suite = read_suite(written(tmp_path, text, NAME), SuiteFlags(skip_unsupported=True))
    first, second = suite.cases()

    assert (first.description, first.output, first.rubric) == ("first", "x", second.rubric)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "the anchor &a has an alias of itself inside"),
        ("a: &a x\nb: [" + "*a, " * 1001 + "*a]", "there are more than 1000 aliases"),
        ("a: &a '" + "x" * 3000 + "'\nb: [" + "*a, " * 500 + "*a]", "the copies that aliases make have more than 1 MiB"),
        ("a: &a [x, x, x, x]\n" + "".join(f"{n}: &{n} [*{p}, *{p}, *{p}, *{p}]\n" for p, n in pairwise("abcdefgh")), "than 1000 aliases"),
        ("a: {<<: [1]}", "the merge key << takes a mapping"),
    ],
)  # fmt: skip
def test_aliases_are_bounded(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text, name=NAME)


def compared(assertions: str, providers: str = "[scripted:a, scripted:b]", more: str = "") -> str:
    """Return a configuration whose test compares what several providers write."""
    return f"prompts: ['Write of {{{{ q }}}}']\nproviders: {providers}\ntests: [{{vars: {{q: [x, y]}}, assert: [{assertions}]}}]\n{more}"


def test_what_is_compared_names_the_other_cases_of_its_test_and_repetition(tmp_path: Path) -> None:
    chosen = "{type: select-best, value: 'the best of {{ q }}', provider: 'scripted:judge', weight: 2, metric: Best}"
    found = cases(tmp_path, compared(chosen, more="evaluateOptions: {repeat: 2}"), RUN, name=NAME)
    names = {case.id.split("/", 1)[0] for case in found}

    assert len(found) == 8
    assert len(names) == 2
    assert {len(case.compared_with) for case in found} == {2}
    assert all(other.split("/")[0] == case.id.split("/")[0] for case in found for other in case.compared_with)
    assert all(other.split("/")[-1] == case.id.split("/")[-1] for case in found for other in case.compared_with)
    (criterion,) = found[0].rubric.criteria
    assert criterion.check is not None
    assert (criterion.id, criterion.weight, criterion.text) == ("Best", 2, "of the test's outputs it is the best by: the best of x")
    assert criterion.check.arguments["value"] == "the best of x"
    assert criterion.check.arguments["grader"] == {"id": "scripted:judge"}


def test_the_weights_of_max_score_are_by_the_type_of_assertions(tmp_path: Path) -> None:
    scored = "{type: max-score, value: {method: sum, weights: {is-json: 3}}, threshold: 1}"
    found = cases(tmp_path, compared(f"{{type: contains, value: a}}, {{type: is-json, metric: Json}}, {scored}"), RUN, name=NAME)
    check = found[0].rubric.criteria[2].check

    assert check is not None
    assert check.arguments == {"kind": "max-score", "method": "sum", "weights": {"Json": 3}, "threshold": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            compared("{type: select-best, value: v, provider: 'scripted:judge'}", "[scripted:a]"),
            "select-best compares the outputs of several prompts or providers",
        ),
        (compared("{type: select-best}"), "assert[0].value: the value of select-best is 'None'; write by what the best is chosen"),
        (compared("{type: max-score}"), "max-score compares the scores of other assertions, and there are none; add one"),
        (compared("{type: is-json}, {type: max-score, value: {method: median}}"), "the method of max-score is 'median'"),
        (compared("{type: is-json}, {type: max-score, value: {by: x}}"), "assert[1].value: 'by' is not supported"),
        (compared("{type: not-select-best, value: v}"), "the type 'not-select-best' is not supported"),
    ],
)
def test_a_comparison_that_compares_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text, RUN, name=NAME)


NAMED = """
description: named
prompts: ["{{text}}"]
providers: [echo]
derivedMetrics:
  - {name: Doubled, value: "Tone * 2"}
  - {name: Mean, value: "(Tone + Facts) / __count"}
  - {name: OfDerived, value: "Doubled + Mean"}
tests:
  - vars: {text: "Ahoy, 7 seas", word: To}
    assert:
      - {type: contains, value: Ahoy, metric: "{{word}}ne"}
      - {type: contains, value: "8", metric: Facts}
      - {type: contains, value: "seas", metric: Tone, weight: 3}
  - vars: {text: "Hello, 8 seas"}
    assert:
      - {type: contains, value: Ahoy, metric: Tone, weight: 2}
      - type: assert-set
        metric: Set
        weight: 2
        assert:
          - {type: contains, value: "8", metric: Facts}
          - {type: contains, value: "9", weight: 3}
"""
PASSING = {"Ahoy, 7 seas": (True, False, True), "Hello, 8 seas": (False, True, False)}


def test_named_and_derived_metrics_are_those_of_promptfoo(tmp_path: Path) -> None:
    """promptfoo 0.123.1 prints these sums and weights for this configuration: Tone 4 of 6, Facts 2 of 3, Set 0.5 of 2."""
    suite = read_suite(written(tmp_path, NAMED, name=NAME))
    table = ColumnTable(BatchSummary(batch_id="b", created="", status="finished", total=2, derived_metrics=suite.settings.derived_metrics))
    for case in suite.cases():
        rows = tuple(
            CriterionRow(id=criterion.id, name=criterion.id, passed=passed, reason="")
            for criterion, passed in zip(case.rubric.criteria, PASSING[str(case.vars["text"])], strict=True)
        )
        table.add(build_result(case, "failed", criteria=rows))

    means = {"Tone": 4 / 6, "Facts": 2 / 3, "Set": 0.5 / 2}
    assert {figure.name: figure.value for figure in table.figures()} == pytest.approx(means | {"Doubled": 8, "Mean": 3, "OfDerived": 11})


def test_a_derived_metric_that_is_no_arithmetic_is_refused_and_left_out_alone(tmp_path: Path) -> None:
    text = NAMED.replace("Tone * 2", "Tone > 1 ? 1 : 0")

    assert "promptfooconfig.yaml" in refusal(tmp_path, text, name=NAME)
    assert "derivedMetrics[0].value" in refusal(tmp_path, text, name=NAME)
    suite = read_suite(written(tmp_path, text, name=NAME), SuiteFlags(skip_unsupported=True))
    assert [metric.name for metric in suite.settings.derived_metrics] == ["Mean", "OfDerived"]
    assert all(not case.left_out for case in suite.cases())
    assert any("not a formula" in note for note in suite.notes)


@pytest.mark.parametrize(
    ("written_metrics", "said"),
    [
        ("{a: b}", "derivedMetrics is"),
        ("[1]", "derivedMetrics[0]: '1' is not a derived metric; write {name: NAME, value: FORMULA}"),
        ("[{name: x}]", "is not a derived metric; write {name: NAME, value: FORMULA}"),
        ("[{name: x, value: 3}]", "is not a derived metric; write {name: NAME, value: FORMULA}"),
        ("[{name: x, value: '1', more: 2}]", "derivedMetrics[0]: unknown key 'more'"),
        (f"[{{name: x, value: '{'1' * 1001}'}}]", "derivedMetrics[0].value: String should have at most 1000 characters"),
        (f"[{', '.join(['{name: x, value: a}'] * 101)}]", "derivedMetrics: there are 101 derived metrics, 100 at most"),
    ],
)
def test_a_derived_metric_that_is_none_is_refused_with_its_place(tmp_path: Path, written_metrics: str, said: str) -> None:
    assert said in refusal(
        tmp_path, config("{vars: {q: x}, assert: [{type: is-json}]}") + f"\nderivedMetrics: {written_metrics}\n", name=NAME
    )
