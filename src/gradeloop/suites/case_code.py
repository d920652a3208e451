"""Code of a suite as its cases are made: transforms, prompts, tests and providers that are functions."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pydantic import JsonValue

from gradeloop.contract.code_text import CodeText
from gradeloop.contract.http_call import HTTP_REQUEST
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.grading.call_checks import CALL_CHECK
from gradeloop.grading.checks import CHECKS
from gradeloop.sandbox.code_calls import CodeCall, CodeResult, local_code_sandbox
from gradeloop.sandbox.execution import SandboxError
from gradeloop.settings.endpoints import PROTOCOLS, presets_by_name
from gradeloop.suites.code_files import parse_transform, refuse_code
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.suite import Defaults, Prompt
from gradeloop.text import clip

_RESULTS = 2_000
"""The results that are kept while the cases of a suite are read more than once."""


def transforms_of(located_test: LocatedTest, defaults: Defaults, own: Sequence[CodeText], *, allow_code: bool) -> tuple[CodeText, ...]:
    """Return the code that makes of an output what is judged: the generator's `own`, then the test's or the defaults'.

    Raises:
        InvalidRequest: It is no code, or its user has not allowed it.
    """
    spot = located_test.spot.at("options", "transform")
    value = located_test.test.options.transform
    value = defaults.options.transform if value is None else value
    found = () if value is None else (parse_transform(value, "get_transform", spot),)
    transforms = (*own, *found)
    if transforms and not allow_code:
        raise refuse_code(spot, "the transform")
    return transforms


def refuse_unknown_call(rubric: Rubric, asked: Mapping[str, object], where: Location) -> None:
    """Refuse checks of the call that drafts where a case has none, or several."""
    kinds = [
        str(criterion.check.arguments["kind"]) for criterion in rubric.checked if criterion.check and criterion.check.tool == CALL_CHECK
    ]
    generator = asked.get("generator")
    if kinds and (asked.get("loop") or not isinstance(generator, Generator) or generator.model is None):
        raise InvalidRequest(f"{where}: {kinds[0]} is that of one call that drafts, which this case has not; leave the assertion out")
    probable = next((kind for kind in kinds if kind in CHECKS.rows and CHECKS.rows[kind].needs_logprobs), None)
    if probable and isinstance(generator, Generator) and generator.model is not None:
        for model in generator.model.chain:
            preset = presets_by_name().get(model.provider)
            if model.provider == HTTP_REQUEST or (preset and not PROTOCOLS.find(preset.protocol).log_probs):
                raise InvalidRequest(f"{where}: {probable} needs log probabilities, which {model.provider} does not give; leave one out")


def run_code(code: CodeText, arguments: Sequence[JsonValue], where: Location, what: str, *, allow_code: bool) -> JsonValue:
    """Call a function of the suite in this machine's sandbox, and return what it returns.

    Raises:
        InvalidRequest: Its user has not allowed it, there is no sandbox, or it raised something.
    """
    if not allow_code:
        raise refuse_code(where, what)
    try:
        result = _call(code.model_dump_json(), json.dumps(list(arguments)))
    except SandboxError as error:
        raise InvalidRequest(f"{where}: {what} cannot be run: {error}") from None
    if result.error is not None:
        raise InvalidRequest(f"{where}: {what} has failed: {result.error}")
    return result.value


@lru_cache(maxsize=_RESULTS)
def _call(code: str, arguments: str) -> CodeResult:
    text = CodeText.model_validate_json(code)
    given = json.loads(arguments)
    names = ("vars", "context")[: len(given)]
    call = CodeCall(text.language, text.code, tuple(given), names, text.file, text.function)
    return local_code_sandbox().call([call])[0]


def prompt_of_code(
    code: CodeText, variables: Mapping[str, JsonValue], provider: str | None, where: Location, *, allow_code: bool
) -> Prompt:
    """Return the prompt that a function makes of a test's variables: a text, or a list of messages.

    Raises:
        InvalidRequest: It failed, or returned neither.
    """
    context: JsonValue = {"vars": dict(variables), "provider": {"id": provider, "label": provider}, "config": code.config or {}}
    value = run_code(code, [context], where, f"the prompt {code.file}", allow_code=allow_code)
    if isinstance(value, dict) and "prompt" in value:
        value = value["prompt"]
    if isinstance(value, str) and value.strip():
        return Prompt.model_construct(label=None, text=value, messages=())
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        try:
            return Prompt.model_validate({"messages": value})
        except ValueError as error:
            raise InvalidRequest(f"{where}: the prompt {code.file} returned messages that are none: {clip(str(error), 200)}") from None
    raise InvalidRequest(f"{where}: the prompt {code.file} returned {clip(str(value))}; return a text, or a list of messages")


def output_of_code(code: CodeText, prompt: str, variables: Mapping[str, JsonValue], where: Location, *, allow_code: bool) -> str:
    """Return what a custom provider answers to a prompt; it runs in the sandbox, so it reaches no network.

    Raises:
        InvalidRequest: It failed, or returned no output.
    """
    options: JsonValue = {"config": code.config or {}}
    context: JsonValue = {"vars": dict(variables), "prompt": {"raw": prompt}}
    value = run_code(code, [prompt, options, context], where, f"the provider {code.file}", allow_code=allow_code)
    if isinstance(value, dict):
        if value.get("error"):
            raise InvalidRequest(f"{where}: the provider {code.file} has failed: {clip(str(value['error']), 200)}")
        value = value.get("output")
    if value is None:
        raise InvalidRequest(f"{where}: the provider {code.file} returned no output; return {{output}}")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
