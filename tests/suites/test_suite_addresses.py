"""Providers that are addresses: what is sent for every case, where the draft is, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.sandbox.code_calls import CodeCall
from gradeloop.suites.flags import SuiteFlags
from tests.rig.suites import cases, refusal

NAME = "promptfooconfig.yaml"
ALLOWED = SuiteFlags(allow_code=True)
TESTS = "\ntests: [{vars: {q: 'why \"now\"'}, assert: [{type: is-json}]}]"


def config(settings: dict[str, Any], prompts: str = "['Say {{ q }}']", name: str = "http://localhost:1/a") -> str:
    return f"prompts: {prompts}\nproviders: [{{id: '{name}', config: {json.dumps(settings)}}}]{TESTS}"


def sent(folder: Path, text: str, flags: SuiteFlags = SuiteFlags(), **files: str) -> dict[str, Any]:  # noqa: B008 - frozen
    """Return the model of the one case."""
    (case,) = cases(folder, text, flags, name=NAME, **files)
    assert case.generator is not None
    assert case.generator.model is not None
    return case.generator.model.model_dump(exclude_defaults=True)


def test_the_prompt_and_the_variables_are_filled_into_the_body_and_the_headers(tmp_path: Path) -> None:
    settings = {"method": "post", "headers": {"X-Q": "{{ q }}"}, "body": {"text": "{{ prompt }}", "n": 1}, "queryParams": {"v": "{{ q }}"}}
    model = sent(tmp_path, config(settings, name="http://localhost:1/a?k=1"))

    assert (model["id"], model["config"]["base_url"]) == ("http_request:POST", "http://localhost:1/a")
    assert model["config"]["extra"] == {
        "headers": {"X-Q": 'why "now"'},
        "query": {"k": "1", "v": 'why "now"'},
        "body": {"text": 'Say why "now"', "n": 1},
    }


def test_an_empty_prompt_is_for_what_is_called_with_the_variables(tmp_path: Path) -> None:
    text = config({"body": {"question": "{{ q }}", "prompt": "{{ prompt }}"}}, prompts="['{{ message }}']")
    (case,) = cases(tmp_path, text, name=NAME)

    assert case.generator is not None
    assert case.generator.model is not None
    assert case.generator.model.config.extra == {"body": {"question": 'why "now"', "prompt": ""}}
    assert [message.content for message in case.messages] == ['{"q": "why \\"now\\""}']
    said = refusal(tmp_path, f"prompts: ['{{{{ message }}}}']\nproviders: ['scripted:x']{TESTS}", name=NAME)
    assert "the content of a message of role 'user' is empty" in said


def test_a_chat_in_the_prompts_place_is_one_and_a_body_as_text_is_json(tmp_path: Path) -> None:
    chat = '[{raw: \'[{"role": "user", "content": "{{ q }}"}]\'}]'
    model = sent(tmp_path, config({"body": '{"messages": "{{ prompt }}"}'}, prompts=chat))

    assert model["config"]["extra"] == {"body": {"messages": [{"role": "user", "content": 'why "now"'}]}}


@pytest.mark.parametrize(
    ("response", "path"),
    [("json.a", ["a"]), ("json.a[0].b", ["a", 0, "b"]), ("json?.a?.[1]", ["a", 1]), ("json['a b'][2]", ["a b", 2]), (None, None)],
)
def test_a_path_in_the_replys_json_needs_no_code(tmp_path: Path, response: str | None, path: list[Any] | None) -> None:
    extra = sent(tmp_path, config({"transformResponse": response, "body": "x"}))["config"]["extra"]

    assert list(extra.get("path", [])) == (path or [])


REPLY = '{"a": {"b": "yes"}}'


@pytest.mark.parametrize(
    ("response", "made"),
    [
        ("json.a.b.toUpperCase()", "YES"),
        ("text.length", len(REPLY)),
        ("(json, text) => ({ output: json.a.b + text.length })", f"yes{len(REPLY)}"),
        ("function (json) { return json.a }", {"b": "yes"}),
        ("file://parser.js", "yes!"),
        ("file://parsers.js:second", "second yes"),
    ],
)
def test_code_makes_the_output_of_the_reply_in_the_sandbox_after_trust(tmp_path: Path, response: str, made: Any) -> None:
    from gradeloop.grading.code_checks import code_call, read_text
    from gradeloop.sandbox.code_calls import local_code_sandbox
    from gradeloop.sandbox.execution import SandboxError

    files: dict[str, Any] = {
        "parser_js": "module.exports = (json, text) => { return { output: json.a.b + '!' } }",
        "parsers_js": "module.exports = { second: (json) => 'second ' + json.a.b }",
    }
    text = config({"transformResponse": response, "body": "x"})
    assert "run its suite with: gradeloop eval --allow-code" in refusal(tmp_path, text, name=NAME, **files)
    (case,) = cases(tmp_path, text, ALLOWED, name=NAME, **files)
    call: CodeCall = code_call(case.transforms[0], REPLY, {})
    try:
        (result,) = local_code_sandbox().call([call])
    except SandboxError as error:
        pytest.skip(str(error))

    assert read_text(result) == made


def test_what_a_request_cannot_have_is_refused_by_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"headers": {"Authorization": "Bearer x"}}, "'Authorization' holds a key, which no request names"),
        ({"tls": {"caPath": "a"}}, "'tls' of a request is not supported; serve the provider as an activity"),
        ({"request": "POST / HTTP/1.1"}, "'request' of a request is not supported"),
        ({"transformRequest": "x"}, "'transformRequest' of a request is not supported"),
        ({"url": "ftp://a"}, "'ftp://a' is not an address"),
        ({"url": "http://{{ q }}/"}, "is not an address; write it out"),
        ({"method": "BREW"}, "'BREW' is not known"),
        ({"body": {"a": "{{ nobody }}"}}, "'nobody' is undefined"),
    ]
    for settings, why in rows:
        with subtests.test(settings=settings):
            assert why in refusal(tmp_path, config(settings), name=NAME)
