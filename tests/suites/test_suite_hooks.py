"""The hooks of a promptfoo configuration change its suite and its tests as they do in promptfoo, in the sandbox."""

from pathlib import Path
from typing import Any

import pytest

from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import check_suite, read_suite
from tests.rig.suites import cases, refusal, written

NAME = "promptfooconfig.yaml"
ALLOWED = SuiteFlags(allow_code=True)
SUITE = """
    prompts: ['Say {{ q }}', {raw: 'Tell {{ q }}', label: tell}]
    providers: [echo]
    defaultTest: {vars: {tone: kind}, assert: [{type: contains, value: a}]}
    tests: [{vars: {q: [a, aa]}}, {vars: {q: b}, assert: [{type: contains, value: b}]}]
"""


def with_hooks(*names: str, suite: str = SUITE) -> str:
    """Return a suite with hooks."""
    return f"{suite}\n    extensions: {[f'file://{name}' for name in names]}\n"


def texts(found: list[Any]) -> list[list[str]]:
    """Return the criteria of cases."""
    return [[criterion.text for criterion in case.rubric.criteria] for case in found]


@pytest.mark.slow
def test_before_all_changes_prompts_tests_and_defaults(tmp_path: Path) -> None:
    code = """
        module.exports = {
          beforeAll: (context, { hookName }) => {
            const { suite } = context;
            suite.prompts = [suite.prompts[1], { raw: `New {{ q }} by ${hookName}`, label: 'new' }];
            suite.tests = [...suite.tests, { vars: { q: `after ${suite.tests.length}` } }];
            suite.defaultTest.assert.push({ type: 'contains', value: 'new' });
            return context;
          },
        };
    """
    found = cases(tmp_path, with_hooks("h.js:beforeAll"), ALLOWED, name=NAME, h_js=code)

    assert [case.output for case in found if case.prompt == "new"] == [f"New {q} by beforeAll" for q in ("a", "aa", "b", "after 2")]
    assert [case.output for case in found if case.prompt == "tell"][-1] == "Tell after 2"
    assert {tuple(text) for text in texts(found)} == {
        ("it contains 'a'", "it contains 'new'"),
        ("it contains 'a'", "it contains 'new'", "it contains 'b'"),
    }


@pytest.mark.slow
def test_before_all_changes_only_its_parts_of_a_suite_for_the_hook_after_it(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "x_js": "exports.beforeAll = ({ suite }) => ({ suite: { prompts: suite.prompts, tests: suite.tests, providers: ['none'] } });",
        "y_py": """
            def beforeAll(context, options):
                suite = context["suite"]
                suite["tests"] = [{"vars": {"q": f"{suite['providers']} {suite['defaultTest']}"}}]
                return context
        """,
    }
    found = cases(tmp_path, with_hooks("x.js:beforeAll", "y.py:beforeAll"), ALLOWED, name=NAME, **files)

    assert [case.output for case in found] == ["Say ['echo'] None", "Tell ['echo'] None"]


@pytest.mark.slow
def test_before_each_changes_a_test_with_each_of_its_listed_variables(tmp_path: Path) -> None:
    code = """
        def beforeEach(context, options):
            test = context["test"]
            test["vars"] = {**test["vars"], "q": f"{test['vars']['q']} ({test['vars']['tone']})"}
            test["assert"] = [*test["assert"], {"type": "contains", "value": "file://more.txt"}]
            return {"test": test}
    """
    found = cases(tmp_path, with_hooks("h.py:beforeEach"), ALLOWED, name=NAME, h_py=code, more_txt="more")

    assert [case.output for case in found[::2]] == ["Say a (kind)", "Say aa (kind)", "Say b (kind)"]
    assert texts(found[::2]) == [["it contains 'a'", "it contains 'more'"]] * 2 + [
        ["it contains 'a'", "it contains 'b'", "it contains 'more'"]
    ]
    assert [case.vars["tone"] for case in found] == ["kind"] * 6


@pytest.mark.slow
def test_a_hook_that_drops_an_assertion_of_the_defaults_has_its_way(tmp_path: Path) -> None:
    own = "{ ...test.vars, list: ['x', 'y'] }"
    code = f"exports.beforeEach = ({{ test }}) => ({{ test: {{ ...test, assert: test.assert.slice(1), vars: {own} }} }});"
    found = cases(tmp_path, with_hooks("h.js:beforeEach"), ALLOWED, name=NAME, h_js=code)

    assert texts(found) == [[], [], [], [], ["it contains 'b'"], ["it contains 'b'"]]
    assert found[0].vars["list"] == ["x", "y"]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("h.js:hook", "module.exports = async (hookName, context) => { if (hookName === 'beforeEach') context.test.vars.q += '!'; };"),
        ("h.js", "module.exports = (hookName, context) => { if (context.test) context.test.vars.q += '!'; return null; };"),
        (
            "h.mjs:other",
            "export const other = (name, { test }) => test && { test: { ...test, vars: { ...test.vars, q: `${test.vars.q}!` } } };",
        ),
        (
            "h.py:hook",
            "def hook(name, context):\n    if name == 'beforeEach':\n        context['test']['vars']['q'] += '!'\n        return context\n",
        ),
        (
            "h.py",
            "def get_transform(name, context):\n    return context | {'test': {'vars': {'q': 'x!'}}} if 'test' in context else None\n",
        ),
    ],
)
def test_a_function_of_another_name_is_called_for_all_hooks_with_the_name_first(tmp_path: Path, file: str, code: str) -> None:
    found = cases(tmp_path, with_hooks(file), ALLOWED, name=NAME, **{file.partition(":")[0].replace(".", "_"): code})

    assert [case.output for case in found[:2]] == (["Say x!", "Tell x!"] if file == "h.py" else ["Say a!", "Tell a!"])


@pytest.mark.slow
def test_hooks_are_called_in_order_each_with_what_those_before_it_left(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        f"{name}_js": f"exports.beforeEach = (context) => {{ context.test.vars.q += '{name}'; return context; }};" for name in "xy"
    }
    found = cases(tmp_path, with_hooks("x.js:beforeEach", "y.js:beforeEach"), ALLOWED, name=NAME, **files)

    assert [case.output for case in found[::2]] == ["Say axy", "Say aaxy", "Say bxy"]


@pytest.mark.slow
def test_hooks_see_scenarios_and_rows_of_tables_whose_texts_stay_data(tmp_path: Path) -> None:
    suite = """
    prompts: ['Say {{ q }}']
    providers: [echo]
    defaultTest: {vars: {tone: 'very {{ q }}'}}
    tests: rows.csv
    scenarios: [{config: [{vars: {q: s}}], tests: [{vars: {r: t}}]}]
    """
    code = "exports.beforeEach = ({ test }) => { if (test.vars.q === 's') test.vars.q += test.vars.r; };"
    (tmp_path / "rows.csv").write_text("q,__expected\n{{ no }},contains: file://x.js\n")
    found = cases(tmp_path, with_hooks("h.js:beforeEach", suite=suite), ALLOWED, name=NAME, h_js=code)

    assert [case.output for case in found] == ["Say {{ no }}", "Say st"]
    assert texts(found) == [["it contains 'file://x.js'"], []]


def test_a_hook_that_changes_nothing_leaves_the_cases_as_they_are(tmp_path: Path) -> None:
    code = "module.exports = () => {};"
    hooked = read_suite(written(tmp_path, with_hooks("h.js"), NAME, h_js=code), ALLOWED)

    assert [case.model_copy(update={"after_each": ()}) for case in hooked.cases()] == cases(tmp_path, SUITE, name=NAME)
    assert [note for note in hooked.notes if "h.js is called for all hooks but afterAll" in note]


@pytest.mark.parametrize(
    ("hook", "code", "words"),
    [
        (
            "h.js:beforeAll",
            "exports.beforeAll = () => { throw new Error('no database') };",
            "beforeAll of h.js has failed: Error: no database; ",
        ),
        (
            "h.py:beforeEach",
            "def beforeEach(context, options):\n    return 1 / 0\n",
            "has failed: ZeroDivisionError: division by zero (line 2); ",
        ),
        (
            "h.js:beforeEach",
            "exports.beforeEach = () => ({ vars: {} });",
            "returned \"{'vars': {}}\"; return the context with its test, or",
        ),
        (
            "h.js:beforeAll",
            "exports.beforeAll = ({ suite }) => ({ suite: { ...suite, tests: 'none' } });",
            "what beforeAll left: tests is 'none'; it must",
        ),
        (
            "h.js:beforeAll",
            "exports.beforeAll = ({ suite }) => ({ suite: { ...suite, tests: [{ vars: 3 }] } });",
            "what beforeAll left: tests[0]",
        ),
        ("h.rb:beforeAll", "", "is code in a language that is not run; write it in JavaScript or Python"),
        ("h.txt", "", "names no file of code; write file://hooks.js:beforeAll"),
    ],
)
def test_a_hook_that_fails_or_is_not_run_is_refused_with_its_line_and_a_cure(tmp_path: Path, hook: str, code: str, words: str) -> None:
    told = refusal(tmp_path, with_hooks(hook), ALLOWED, name=NAME, **{hook.partition(":")[0].replace(".", "_"): code})

    assert words in told
    assert told.startswith("the suite 'promptfooconfig.yaml', line 7, column 14: extensions[0]: ")


def test_hooks_are_code_that_runs_once_it_is_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, with_hooks("h.js:beforeAll"), NAME, h_js="exports.beforeAll = () => { throw new Error('it ran') };")
    told = refusal(tmp_path, with_hooks("h.js:beforeAll"), name=NAME)

    assert (
        "extensions[0]: the hook h.js is code, which runs in a sandbox; read it, then run its suite with: gradeloop eval --allow-code"
        in told
    )
    assert (check_suite(path, SuiteFlags()).verdict, check_suite(path, ALLOWED).verdict) == ("in part", "refused")


def test_cases_carry_the_hooks_after_them_with_the_metadata_of_their_test(tmp_path: Path) -> None:
    suite = """
    prompts: ['Say {{ q }}']
    providers: [echo]
    defaultTest: {metadata: {team: a, level: 1}}
    tests: [{vars: {q: b}, metadata: {level: 2}}, {vars: {q: c}}]
    """
    names = ("h.js:afterEach", "h.js:afterAll", "h.js:beforeEach", "all.py")
    files: dict[str, Any] = {
        "h_js": "exports.afterEach = () => {}; exports.beforeEach = () => {};",
        "all_py": "def get_transform(*given): pass",
    }
    hooked = read_suite(written(tmp_path, with_hooks(*names, suite=suite), NAME, **files), ALLOWED)
    found = list(hooked.cases())

    assert [[(code.file, code.function) for code in case.after_each] for case in found] == [
        [("h.js", "afterEach"), ("all.py", "get_transform")]
    ] * 2
    assert [case.metadata for case in found] == [{"team": "a", "level": 2}, {"team": "a", "level": 1}]
    assert [note for note in hooked.notes if "afterAll is not run; what it does with the results, do with the files of -o" in note] != []


def test_a_hook_after_each_is_code_that_its_user_allows(tmp_path: Path) -> None:
    assert "the hook h.js is code, which runs in a sandbox" in refusal(tmp_path, with_hooks("h.js:afterEach"), name=NAME, h_js="1")


@pytest.mark.slow
def test_each_of_many_tests_is_changed_once(tmp_path: Path) -> None:
    suite = "prompts: ['{{ q }}']\nproviders: [echo]\ntests:\n" + "".join(f"  - {{vars: {{q: v{at}}}}}\n" for at in range(230))
    code = "exports.beforeEach = (context) => { context.test.vars.q += '!'; return context; };"
    found = cases(tmp_path, suite + "extensions: ['file://h.js:beforeEach']\n", ALLOWED, name=NAME, h_js=code)

    assert [case.vars["q"] for case in found] == [f"v{at}!" for at in range(230)]
