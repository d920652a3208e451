"""Assertions in code, by the call of the draft, by meaning, and those that promptfoo has a model grade, as they are read from a file."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.case_checks import find
from gradeloop.contract.criterion import PromptSlot
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.grading.checks import CheckedDraft
from gradeloop.sandbox.code_calls import local_code_sandbox
from gradeloop.suites.assertions import assertion_types
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from tests.rig.suites import cases, refusal, written

NAME = "promptfooconfig.yaml"
ALLOWED = SuiteFlags(allow_code=True, scripted=Path(__file__))


def config(assertion: str, provider: str = "echo", variables: str = "{q: x}") -> str:
    """Return a configuration with one test and one assertion."""
    return f"prompts: ['{{{{ q }}}}']\nproviders: {provider}\ntests:\n  - {{vars: {variables}, assert: [{assertion}]}}\n"


def test_code_is_refused_until_its_user_allows_it(tmp_path: Path) -> None:
    text = config("{type: javascript, value: 'output.length > 3'}")

    assert refusal(tmp_path, text, name=NAME) == (
        "the suite 'promptfooconfig.yaml', line 4, column 29: tests[0].assert[0]: the javascript assertion is code, "
        "which runs in a sandbox; read it, then run its suite with: gradeloop eval --allow-code"
    )


def test_inline_code_is_a_check_with_its_threshold_and_config(tmp_path: Path) -> None:
    (case,) = cases(
        tmp_path,
        config("{type: not-python, value: 'len(output) > {{ n }}', threshold: 0.5, config: {a: 1}, weight: 2}", variables="{q: x, n: 3}"),
        ALLOWED,
        name=NAME,
    )
    (criterion,) = case.rubric.criteria

    assert criterion.check is not None
    assert criterion.check.tool == "code_check"
    assert criterion.check.arguments == {
        "language": "python", "code": "len(output) > 3", "threshold": 0.5, "config": {"a": 1}, "negate": True
    }  # fmt: skip
    assert (criterion.weight, criterion.text) == (2, "python does not hold: 'len(output) > 3'")


@pytest.mark.parametrize(
    ("value", "language", "function"),
    [
        ("file://a.py", "python", "get_assert"),
        ("file://a.py:mine", "python", "mine"),
        ("file://a.js", "javascript", ""),
        ("file://a.ts", "javascript", ""),
    ],
)
def test_a_file_of_code_is_read_with_its_function(tmp_path: Path, value: str, language: str, function: str) -> None:
    files: dict[str, Any] = {"a_py": "def get_assert(output, context):\n    return True\n", "a_js": "module.exports = () => true;\n"}
    files["a_ts"] = "export default (): boolean => true;\n"
    (case,) = cases(tmp_path, config(f"{{type: {language}, value: '{value}'}}"), ALLOWED, name=NAME, **files)
    check = case.rubric.criteria[0].check

    assert check is not None
    assert (check.arguments["language"], check.arguments["function"]) == (language, function)
    assert check.arguments["file"] == value.removeprefix("file://").removesuffix(":mine")


def test_a_file_in_a_language_that_is_not_run_is_refused_by_it(tmp_path: Path) -> None:
    text = config("{type: javascript, value: 'file://a.rb'}")

    assert "'file://a.rb' is code in a language that is not run; write it in JavaScript or Python" in refusal(
        tmp_path, text, ALLOWED, name=NAME, a_rb="true"
    )


def test_the_call_of_the_draft_is_checked_by_latency_cost_and_finish_reason(tmp_path: Path) -> None:
    text = config("{type: latency, threshold: 500}, {type: cost, threshold: 0.01}, {type: finish-reason, value: stop}", "scripted:m")
    (case,) = cases(tmp_path, text, ALLOWED, name=NAME)

    assert [criterion.text for criterion in case.rubric.criteria] == [
        "the draft takes at most 500 milliseconds",
        "the draft costs at most 0.01 US dollars",
        "the draft ends for the reason 'stop'",
    ]


def test_perplexity_is_a_check_of_the_call_as_in_promptfoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nowhere")
    some = "{type: perplexity, threshold: 5}, {type: not-perplexity, threshold: 5}, {type: perplexity-score, threshold: 0.2}"
    text = config(f"{some}, {{type: not-perplexity-score, threshold: 0.2}}, {{type: perplexity}}", "openai:chat:gpt-4.1-mini")
    (case,) = cases(tmp_path, text, ALLOWED, name=NAME)

    assert [criterion.text for criterion in case.rubric.criteria] == [
        "the perplexity of the draft is at most 5",
        "the perplexity of the draft is above 5",
        "1 / (1 + the perplexity of the draft) is at least 0.2",
        "1 / (1 + the perplexity of the draft) is below 0.2",
        "the perplexity of the draft is known",
    ]


@pytest.mark.parametrize(
    "provider", ["anthropic:messages:claude-haiku-4-5", "bedrock:anthropic.claude-haiku-4-5", "vertex:claude-haiku-4-5"]
)
def test_perplexity_of_a_model_without_log_probabilities_is_refused_by_its_name(tmp_path: Path, provider: str) -> None:
    text = config("{type: perplexity, threshold: 5}", provider)

    assert "tests[0]: perplexity needs log probabilities, which " in refusal(tmp_path, text, ALLOWED, name=NAME)


@pytest.mark.parametrize(("threshold", "why"), [("-1", "from 1 on"), ("'{{ q }}'", "the threshold of perplexity is")])
def test_a_threshold_of_perplexity_is_a_number(tmp_path: Path, threshold: str, why: str) -> None:
    assert why in refusal(tmp_path, config(f"{{type: perplexity, threshold: {threshold}}}", "openai:gpt-4.1"), ALLOWED, name=NAME)


def test_an_output_that_was_given_has_no_latency(tmp_path: Path) -> None:
    assert "latency is that of one call that drafts, which this case has not; leave the assertion out" in refusal(
        tmp_path, config("{type: latency, threshold: 500}"), name=NAME
    )


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("", "openai:text-embedding-3-large"),
        (", provider: 'openai:embedding:text-embedding-3-small'", "openai:text-embedding-3-small"),
        (", provider: {embedding: {id: 'google:embedding:gemini-embedding-001'}}", "google_genai:gemini-embedding-001"),
    ],
)
def test_similar_names_an_embedding_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, model: str) -> None:
    for variable in ("OPENAI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, "x")
    (case,) = cases(tmp_path, config(f"{{type: similar, value: 'as {{{{ q }}}}'{provider}}}"), name=NAME)
    (criterion,) = case.rubric.criteria

    assert isinstance(criterion.grader, ModelSpec)
    assert (criterion.form, criterion.grader.id, criterion.references) == ("similar", model, ("as x",))
    assert criterion.score is not None
    assert criterion.score.threshold == 0.75
    assert case.grader is None


def test_an_embedding_model_that_is_not_called_is_refused(tmp_path: Path) -> None:
    text = config("{type: similar, value: a, provider: 'cohere:embedding:x'}")

    assert "'cohere:embedding:x' is not an embedding model that is called here" in refusal(tmp_path, text, name=NAME)


def test_a_model_graded_type_is_a_criterion_with_a_prompt_of_ours(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in (*(row.name for row in assertion_types() if row.question), "model-graded-factuality", "not-factuality"):
        with subtests.test(kind=kind):
            text = config(
                f"{{type: {kind}, value: it is true, provider: 'scripted:own'}}", variables="{q: x, context: the facts, query: why}"
            )
            (case,) = cases(tmp_path, text, ALLOWED, name=NAME)
            (criterion,) = case.rubric.criteria

            assert (criterion.form, criterion.negate) == ("pass_score", kind.startswith("not-"))
            assert criterion.prompt is not None
            assert isinstance(criterion.grader, ModelSpec)
            assert criterion.grader.id == "scripted:own"
            if kind.startswith("context-"):
                assert isinstance(criterion.description, dict)
                assert criterion.description["context"] == "the facts"


def test_a_type_about_a_context_needs_that_variable(tmp_path: Path) -> None:
    text = config("{type: context-faithfulness, threshold: 0.8}")

    assert "context-faithfulness is about the variable context, which the test does not have; give it in vars" in refusal(
        tmp_path, text, ALLOWED, name=NAME
    )


CATEGORY = "'Is {{completion}} as {{ideal}} to {{ input }}? Answer {category, reason}'"


@pytest.mark.parametrize(
    ("keys", "options", "scores"),
    [
        (f", rubricPrompt: {CATEGORY}", "", {"A": 1, "B": 1, "C": 1, "D": 0, "E": 1}),
        (f", rubricPrompt: {CATEGORY}", "{factuality: {superset: 0.5, disagree: 0.2}}", {"A": 1, "B": 0.5, "C": 1, "D": 0.2, "E": 1}),
        ("", "{factuality: {subset: 0}}", {"A": 0, "B": 1, "C": 1, "D": 0, "E": 1}),
        (", rubricPrompt: 'Is {{output}} as {{rubric}}?'", "", {}),
        ("", "", {}),
    ],
)
def test_a_prompt_for_factuality_may_ask_for_a_category(tmp_path: Path, keys: str, options: str, scores: dict[str, float]) -> None:
    text = config(f"{{type: factuality, value: it is so, provider: 'scripted:own'{keys}}}").replace(
        "vars:", f"options: {options}, vars:", 1
    )
    (case,) = cases(tmp_path, text.replace("options: , ", ""), ALLOWED, name=NAME)
    (criterion,) = case.rubric.criteria

    assert criterion.categories == scores
    parts = criterion.prompt.messages[0].parts if criterion.prompt else ()
    if "completion" in keys:
        assert [part.of for part in parts if isinstance(part, PromptSlot)] == ["output", "rubric", "transcript"]
    if scores and not keys:
        assert "The categories: A: subset, B: superset, C: agree, D: disagree, E: differButFactual." in str(parts[0])


@pytest.mark.parametrize("content", ["Judge {{output}} by {{rubric}}.", "You judge answers."])
def test_a_system_message_with_what_is_judged_is_sent_as_the_users(tmp_path: Path, content: str) -> None:
    chat = f"[{{role: system, content: '{content}'}}, {{role: user, content: 'Is {{{{output}}}} right?'}}]"
    (case,) = cases(tmp_path, config(f"{{type: llm-rubric, value: x, provider: 'scripted:own', rubricPrompt: {chat}}}"), ALLOWED, name=NAME)
    prompt = case.rubric.criteria[0].prompt

    assert prompt is not None
    assert [message.role for message in prompt.messages] == ["user" if "output" in content else "system", "user"]


CONTEXTS = [
    ("JSON.parse(output).docs.join(' ')", {}),
    ("(output, {vars}) => JSON.parse(output).docs.concat(vars.q)", {}),
    ("const read = JSON.parse(output);\\nreturn read.docs", {}),
    ("file://c.js:docs", {"c_js": "module.exports = {docs: (output) => JSON.parse(output).docs};\n"}),
    ("file://c.py", {"c_py": "import json\ndef get_transform(output, context):\n    return json.loads(output)['docs']\n"}),
]


@pytest.mark.parametrize(("code", "files"), CONTEXTS)
async def test_a_context_is_what_its_transform_finds_in_the_output(tmp_path: Path, code: str, files: dict[str, Any]) -> None:
    if (chosen := local_code_sandbox().choice()).programs is None:
        pytest.skip(f"no sandbox for programs works here: {chosen.why_not()}")
    transform = "options: {transform: 'JSON.parse(output).said'}, "
    assertion = f"{{type: context-faithfulness, provider: 'scripted:own', contextTransform: \"{code}\"}}"
    text = config(assertion, variables="{q: x, query: why, context: replaced}").replace("vars:", f"{transform}vars:", 1)
    (case,) = cases(tmp_path, text, ALLOWED, name=NAME, **files)
    (criterion,) = case.rubric.criteria

    found = await find(case, CheckedDraft('{"said": "yes", "docs": ["a", "b"]}'), local_code_sandbox())

    assert criterion.description == {"criterion": "The answer claims nothing that the context does not have", "query": "why"}
    assert criterion.prompt is not None
    slots = [part.written for part in criterion.prompt.messages[0].parts if isinstance(part, PromptSlot)]
    assert slots == ["{{ rubric }}", "{{ output.context }}", "{{ output.answer }}"]
    shown = json.loads(found.shown[criterion.id])
    assert (found.output, shown["answer"]) == ("yes", "yes")
    assert shown["context"].split() in (["a", "b"], ["a", "b", "x"])


def test_a_list_of_an_llm_rubric_is_one_criterion_of_several_lines(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, config("{type: llm-rubric, value: [It is kind, It is short], provider: 'scripted:own'}"), ALLOWED, name=NAME)

    assert [criterion.text for criterion in case.rubric.criteria] == ["- It is kind\n- It is short"]


@pytest.mark.parametrize("kind", ["meteor", "guardrails", "moderation", "classifier", "not-classifier", "gleu"])
def test_a_type_that_is_not_supported_is_refused_by_its_name_and_with_a_cure(tmp_path: Path, kind: str) -> None:
    message = refusal(tmp_path, config(f"{{type: {kind}, value: x}}"), name=NAME)

    assert f"the type '{kind}' is not supported; " in message
    assert "a function of the worker's tools" not in message


def test_what_a_variable_holds_is_no_template_of_the_criterion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    (case,) = cases(
        tmp_path,
        "prompts: ['{{ q }}']\nproviders: echo\ntests: file://t.csv\ndefaultTest: {assert: [{type: similar, value: '{{ q }}'}]}\n",
        SuiteFlags(),
        name=NAME,
        t_csv="q\n{{ secret }}\n",
    )

    assert case.rubric.criteria[0].references == ("{{ secret }}",)


def test_a_transform_of_the_test_or_the_defaults_makes_what_is_judged(tmp_path: Path) -> None:
    text = """
        prompts: ['{{ q }}']
        providers: echo
        defaultTest: {options: {transform: 'output.trim()'}, assert: [{type: equals, value: x}]}
        tests:
          - {vars: {q: x}}
          - {vars: {q: y}, options: {transform: 'file://t.py'}}
          - {vars: {q: z}, options: {transform: 'file://t.py:own'}}
    """
    python = "def get_transform(output, context):\n    return output\n"
    found = [case.transforms[0] for case in cases(tmp_path, text, ALLOWED, name=NAME, t_py=python)]

    assert [(code.language, code.code[:6], code.function) for code in found] == [
        ("javascript", "output", ""),
        ("python", "def ge", "get_transform"),
        ("python", "def ge", "own"),
    ]
    assert "the transform is code, which runs in a sandbox; read it, then run its suite with: gradeloop eval --allow-code" in refusal(
        tmp_path, text, name=NAME, t_py=python
    )


def test_prompts_tests_variables_and_providers_that_are_code_are_made_in_the_sandbox(tmp_path: Path) -> None:
    text = """
        prompts: ['file://p.py:chat', 'p.js', 'plain {{ q }}']
        providers: [{id: 'file://provider.py', label: mine, transform: 'output.trim()', config: {mark: '!'}}, 'file://provider.js']
        tests: ['file://tests.py:make', {path: 'file://tests.js', config: {q: c}}]
        defaultTest: {options: {transformVars: '({...vars, twice: vars.q + vars.q})'}, assert: [{type: contains, value: '{{ q }}'}]}
    """
    files: dict[str, Any] = {
        "p_py": "def chat(context):\n    return [{'role': 'user', 'content': 'chat ' + context['vars']['twice']}]\n",
        "p_js": "module.exports = async ({vars}) => `text ${vars.q}`;\n",
        "tests_py": "def make():\n    return [{'vars': {'q': q}} for q in 'ab']\n",
        "tests_js": "module.exports = (config) => [{vars: {q: config.q}}];\n",
        "provider_py": "def call_api(prompt, options, context):\n    return {'output': prompt + options['config']['mark']}\n",
        "provider_js": "module.exports = class { id() { return 'js'; } async callApi(prompt) { return {output: `js ${prompt}`}; } };\n",
    }
    found = cases(tmp_path, text, ALLOWED, name=NAME, **files)

    assert len(found) == 3 * 3 * 2
    assert [case.output for case in found[:6]] == ["chat aa!", "js chat aa", "text a!", "js text a", "plain a!", "js plain a"]
    assert {case.vars["q"] for case in found} == {"a", "b", "c"}
    assert [len(case.transforms) for case in found[:2]] == [1, 0]


def test_variables_that_are_files_of_code_are_what_their_functions_return(tmp_path: Path) -> None:
    text = """
        prompts: ['{{ a }} {{ b }} {{ c }}', 'only {{ q }}']
        providers: [echo]
        defaultTest: {vars: {c: 'file://c.mjs'}}
        tests: [{vars: {a: 'file://a.py', q: '{{ a }}?', b: 'file://b.js'}, assert: [{type: contains, value: '{{ q }}'}]}]
    """
    files: dict[str, Any] = {
        "a_py": "def get_var(name, prompt, others):\n    return {'output': f'{name} of {sorted(others)}'}\n",
        "b_js": "module.exports = async (name, prompt, others) => ({output: `${name} after ${others.a}`});\n",
        "c_mjs": "export default (name) => ({output: `${name}: {{ q }}`});\n",
    }
    both, only = cases(tmp_path, text, ALLOWED, name=NAME, **files)
    dependent = {**files, "b_js": "module.exports = (name, prompt) => ({output: prompt});\n"}

    assert both.vars == {"a": "a of ['c', 'q']", "b": "b after a of ['c', 'q']", "c": "c: a of ['c', 'q']?", "q": "a of ['c', 'q']?"}
    assert only.output == "only a of ['c', 'q']?"
    assert "vars.b: what b.js returns differs from prompt to prompt" in refusal(tmp_path, text, ALLOWED, name=NAME, **dependent)
    assert "is code, which runs in a sandbox; read it" in refusal(tmp_path, text, name=NAME, **files)
    for returned in ("{'error': 'no such row'}", "{}", "'text'"):
        wrong = {**files, "a_py": f"def get_var(*_):\n    return {returned}\n"}
        assert re.search(r"vars\.a: a\.py returned .+; return \{output\}", refusal(tmp_path, text, ALLOWED, name=NAME, **wrong))


@pytest.mark.slow
def test_a_variable_in_typescript_is_what_it_returns_or_is_refused_with_the_node_that_it_needs(tmp_path: Path) -> None:
    asked = ["node", "--print", "require('module').stripTypeScriptTypes('let a: 1')"]  # Debian builds Node without it
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    able = subprocess.run(asked, capture_output=True, text=True, check=False).returncode == 0
    text = "prompts: ['{{ a }}']\nproviders: [echo]\ntests: [{vars: {a: 'file://a.ts'}, assert: [{type: contains, value: x}]}]"
    code = "export default (name: string): { output: string } => ({ output: `${name} typed` });\n"

    if able:
        assert [case.output for case in cases(tmp_path, text, ALLOWED, name=NAME, a_ts=code)] == ["a typed"]
        return
    told = refusal(tmp_path, text, ALLOWED, name=NAME, a_ts=code)
    assert told.startswith("the suite 'promptfooconfig.yaml', line 3, column 20: tests[0].vars.a: the variable a.ts has failed: ")
    why = r"a\.ts is TypeScript, which (needs Node 22\.13 or newer|this Node was built without); write it in JavaScript, or install "
    assert re.search(why, told)


@pytest.mark.slow
def test_a_default_variable_that_is_code_is_called_for_rows_of_a_table_whose_texts_are_data(tmp_path: Path) -> None:
    text = """
        prompts: ['{{ a }} {{ q }}']
        providers: [echo]
        defaultTest: {vars: {a: 'file://a.py'}, assert: [{type: contains, value: a}]}
        tests: rows.csv
    """
    a = "def get_var(name, prompt, others):\n    return {'output': f'{name} after {others[\"q\"]}'}\n"
    (tmp_path / "rows.csv").write_text("q\none\nfile://a.py\n")
    found = cases(tmp_path, text, ALLOWED, name=NAME, a_py=a)

    assert [case.output for case in found] == ["a after one one", "a after file://a.py file://a.py"]


def test_a_suite_of_our_own_refuses_code_as_a_variable(tmp_path: Path) -> None:
    for value in ("'file://p.py'", "{deep: ['file://p.py:f']}"):
        text = f"tests: [{{output: x, vars: {{q: {value}}}, assert: [{{type: contains, value: x}}]}}]"
        assert "is code, which is not run; write its value out" in refusal(tmp_path, text, ALLOWED, p_py="def f(*_):\n    return 'x'\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompts: p.py\nproviders: echo\ntests: [{vars: {q: x}}]", "'file://p.py' names no function; write the one that makes the prompt"),
        (
            "prompts: 'p.py:no'\nproviders: echo\ntests: [{vars: {q: x}}]",
            "the prompt p.py has failed: LookupError: p.py has no function no",
        ),
        ("prompts: 'p.py:none'\nproviders: echo\ntests: [{vars: {q: x}}]", "the prompt p.py returned 'None'; return a text"),
        (
            "prompts: x\nproviders: 'file://p.py'\ntests: [{vars: {q: x}}]",
            "the provider p.py has failed: LookupError: p.py has no function",
        ),
        ("prompts: x\nproviders: echo\ntests: 'file://p.py:none'", "p.py returned no tests; return a list of them"),
    ],
)
def test_code_that_makes_nothing_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text, ALLOWED, name=NAME, p_py="def none(*_):\n    return None\n")


@pytest.mark.parametrize(
    "text",
    ["prompts: 'p.py:f'\nproviders: echo", "prompts: x\nproviders: 'file://p.py'", "prompts: x\nproviders: echo\ntests: 'file://p.py:f'"],
)
def test_code_that_makes_cases_is_refused_until_its_user_allows_it(tmp_path: Path, text: str) -> None:
    assert "is code, which runs in a sandbox; read it, then run its suite with: gradeloop eval --allow-code" in refusal(
        tmp_path, text, name=NAME, p_py="def f(*_):\n    raise SystemExit('it ran')\n"
    )


def test_a_recorded_conversation_is_what_its_relevance_is_graded_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    said = "_conversation: [{input: why, output: 'Because of the {{ rain }}.'}]"
    assertion = "{type: conversation-relevance, threshold: 0.7, config: {windowSize: 3}}"
    text = config(assertion, variables=f"{{q: x, {said}}}") + f"  - {{vars: {{q: x}}, assert: [{assertion}]}}"
    with_it, without = cases(tmp_path, text, name=NAME)

    assert "Because of the {{ rain }}." in str(with_it.rubric.criteria[0].description)
    assert "Because" not in str(without.rubric.criteria[0].description)


def test_each_test_shows_its_own_context_where_the_assertion_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    text = config("{type: context-faithfulness}", variables="{q: x, query: y, context: the first}")
    text += "  - {vars: {q: x, query: y, context: the second}, assert: [{type: context-faithfulness}]}"
    first, second = cases(tmp_path, text, name=NAME)

    assert "the first" in str(first.rubric.criteria[0].description)
    assert "the second" in str(second.rubric.criteria[0].description)


def test_a_file_of_code_is_known_by_its_path_below_the_suites_folder(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/a.js").write_text("module.exports = () => true;\n")
    (case,) = cases(tmp_path, config("{type: javascript, value: 'file://checks/a.js'}"), ALLOWED, name=NAME)
    check = case.rubric.criteria[0].check

    assert check is not None
    assert check.arguments["file"] == "checks/a.js"


@pytest.mark.slow
def test_prompts_and_tests_made_by_code_import_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/words.py").write_text("WORD = 'kind'\n")
    (tmp_path / "lib/prompt.py").write_text("from words import WORD\n\ndef ask(context):\n    return WORD + ' ' + context['vars']['q']\n")
    (tmp_path / "tests.py").write_text("from lib import words\n\ndef tests():\n    return [{'vars': {'q': words.WORD}}]\n")
    text = "prompts: ['file://lib/prompt.py:ask']\nproviders: echo\ntests: 'file://tests.py:tests'\n"
    (case,) = cases(tmp_path, text, ALLOWED, name=NAME)

    assert case.output == "kind kind"


def test_what_code_may_import_is_the_suites_folder_and_those_that_are_named(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path, config("{type: equals, value: x}"), NAME), replace(ALLOWED, imports=(tmp_path / "venv",)))
    unallowed = read_suite(tmp_path / NAME, replace(ALLOWED, allow_code=False))

    assert suite.plan.rubrics.allow_code.imports == (tmp_path.resolve(), tmp_path / "venv")
    assert unallowed.plan.rubrics.allow_code.imports == ()


@pytest.mark.parametrize("private", ["HOME", "GRADELOOP_STATE_DIR", "TMPDIR"])
def test_a_suites_folder_that_holds_what_is_private_is_not_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str, subtests: pytest.Subtests
) -> None:
    path = written(tmp_path, config("{type: equals, value: x}"), NAME)
    for place, hidden in ((tmp_path, False), (tmp_path / "below/it", False), (tmp_path / ".below", True), (tmp_path.parent / "z", True)):
        with subtests.test(place=place):
            place.mkdir(parents=True, exist_ok=True)
            monkeypatch.setenv(private, str(place))
            monkeypatch.setattr("tempfile.tempdir", None)

            assert read_suite(path, ALLOWED).plan.rubrics.allow_code.imports == ((tmp_path.resolve(),) if hidden else ())
