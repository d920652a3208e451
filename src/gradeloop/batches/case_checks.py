"""Results about a case's output that need no model: transforms, and checks of text, code and the drafting call."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from pydantic import JsonValue
from pydantic_core import to_json

from gradeloop.batches.after_each import hook_call
from gradeloop.batches.contract import Case
from gradeloop.batches.draft_checks import CALL_CHECK, CALLED, COMPARISON_CHECK
from gradeloop.contract.criterion import Check, Criterion
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import MESSAGE_BYTES, CallForm, code_of
from gradeloop.contract.thread import Generator
from gradeloop.grading.checks import CHECKS, FINISHED, TEXT_CHECK, CheckedDraft, run_check, run_text_checks, valid_kind
from gradeloop.grading.code_checks import (
    CODE_CHECK,
    called_value,
    calls_functions,
    code_call,
    parse_code_check,
    read_assertion,
    read_context,
    read_text,
)
from gradeloop.grading.grants import named_in
from gradeloop.sandbox.code_calls import CodeSandbox, Language
from gradeloop.sandbox.execution import SandboxError
from gradeloop.sandbox.processes import await_in_process
from gradeloop.text import NESTING_DEPTH, depth, read_json, whole_characters

OWN_CHECKS = frozenset({TEXT_CHECK, CODE_CHECK, CALL_CHECK, COMPARISON_CHECK})
"""The checks that a batch decides without calling a tool."""


@dataclass(frozen=True)
class CheckedOutput:
    """The judged output of a case, with the outcomes of its checks."""

    output: str
    checks: dict[str, CheckOutcome] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    """The transformed outputs that graders see, by criterion that has its own transform."""


def has_checks(case: Case) -> bool:
    """Tell whether anything of a case is decided without a model or a tool."""
    return bool(case.transforms or case.rubric.checks(*OWN_CHECKS)) or any(criterion.transform for criterion in case.rubric.judged)


async def refuse_undecidable(case: Case, code: CodeSandbox) -> None:
    """Refuse a case whose checks could decide about no output at all.

    Raises:
        ValueError: A check is invalid, its language has no sandbox here, or its file cannot be loaded; the message names it.
    """
    await _text_outcomes(case, "")
    for criterion, check in case.rubric.checks(CALL_CHECK, COMPARISON_CHECK):
        with _deciding(criterion, check):
            valid_kind(check.tool, check.arguments)
    try:
        for language in {named.value for named in named_in(case) if named.kind == "code"}:
            await asyncio.to_thread(code.engine, cast("Language", language))
        named = [*case.transforms, *(parse_code_check(check.arguments) for _, check in case.rubric.checks(CODE_CHECK))]
        calls = [*(code_call(text, None, {}) for text in named), *(hook_call(hook, None) for hook in case.after_each)]
        await asyncio.to_thread(code.refuse_unloadable, calls)
    except SandboxError as error:
        raise ValueError(str(error)) from None


async def find(case: Case, drafted: CheckedDraft, code: CodeSandbox) -> CheckedOutput:
    """Transform an output and run the checks of its case, all code of a language in one start of the sandbox.

    Raises:
        ValueError: A transform or a check cannot decide; the message names it.
    """
    values = [_value_of(case, drafted), *await _transformed(case, drafted, code)]
    value = values[-1]
    output = value if isinstance(value, str) else drafted.text if not case.transforms else to_json(value).decode()
    own = await _given_to_checks(case, drafted, values, code)
    found = await _text_outcomes(case, output, {name: _as_text(item) for name, item in own.items()})
    ended = CALLED if case.generator and case.generator.functions and calls_functions(drafted.text, _form(case.generator)) else FINISHED
    draft = replace(drafted, ended=ended)
    for criterion, check in case.rubric.checks(CALL_CHECK):
        with _deciding(criterion, check):
            found[criterion.id] = run_check(CALL_CHECK, draft, check.arguments)
    given = {criterion.id: own.get(criterion.id, value) for criterion, _ in case.rubric.checks()}
    shown = {criterion.id: _as_text(own[criterion.id]) for criterion in case.rubric.judged if criterion.id in own}
    return CheckedOutput(output, found | await _code_outcomes(case, drafted, given, code), shown)


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def context_of(case: Case, drafted: CheckedDraft | None = None) -> dict[str, JsonValue]:
    """Return what functions of a case find as `context`."""
    chat = [{"role": message.role, "content": message.content} for message in case.messages]
    prompt = chat[0]["content"] if len(chat) == 1 else to_json(chat).decode()
    provider = {"id": case.generator.model.id, "label": case.label} if case.generator and case.generator.model else {"label": case.label}
    context: dict[str, Any] = {
        "vars": case.vars,
        "prompt": prompt,
        "test": {"vars": case.vars, "description": case.description},
        "provider": provider,
        "logProbs": None,
    }
    if drafted is not None and drafted.spent is not None:
        spent = drafted.spent
        tokens = {"prompt": spent.input, "completion": spent.output, "total": spent.tokens}
        context["providerResponse"] = {
            "output": drafted.text,
            "cost": spent.cost_usd,
            "latencyMs": round(spent.seconds * 1000),
            "tokenUsage": tokens,
        }
    return context


def _form(generator: Generator) -> CallForm:
    return generator.shown_as or "chat"


def _value_of(case: Case, drafted: CheckedDraft) -> JsonValue:
    """Return an output as code finds it: parsed where the generator was asked for JSON, or calls functions as an object."""
    if _is_structured(case):
        return _parsed(drafted.text)
    if case.generator is not None and case.generator.functions:
        return called_value(drafted.text, _form(case.generator))
    return drafted.text


def _is_structured(case: Case) -> bool:
    """Tell whether the generator was asked for JSON, which code then finds parsed."""
    if case.generator and case.generator.output_form:
        return case.generator.output_form.json_schema is not None and _form(case.generator) != "google"  # whose JSON stays text
    extra = case.generator.model.config.extra if case.generator and case.generator.model else {}
    asked = extra.get("response_format") or (extra.get("text") or {}).get("format")  # type: ignore[union-attr]  # looked at below
    return isinstance(asked, dict) and str(asked.get("type")).startswith("json")


def _parsed(output: str) -> JsonValue:
    try:
        value: JsonValue = read_json(output)
    except ValueError:
        return output
    return value


async def _transformed(case: Case, drafted: CheckedDraft, code: CodeSandbox) -> list[JsonValue]:
    """Return what each transform of a case makes, the later of what the earlier made."""
    context, value, made = context_of(case, drafted), _value_of(case, drafted), list[JsonValue]()
    for transform in case.transforms:
        (result,) = await _called(code, [code_call(transform, value, context)])
        try:
            value = read_text(result)
        except ValueError as error:
            raise ValueError(f"the transform could not be made: {error}") from None
        if depth(value) > NESTING_DEPTH:
            raise ValueError(f"the transform could not be made: what it returned is nested more than {NESTING_DEPTH} deep")
        value = whole_characters(value) if isinstance(value, str) else value
        if len(to_json(value)) > MESSAGE_BYTES:
            raise ValueError(f"the transform could not be made: it returned more than {MESSAGE_BYTES} bytes")
        made.append(value)
    return made


async def _called(code: CodeSandbox, calls: Sequence[Any]) -> list[Any]:
    try:
        return await asyncio.to_thread(code.call, calls)
    except SandboxError as error:
        raise ValueError(f"the sandbox failed: {error}") from None


async def _given_to_checks(case: Case, drafted: CheckedDraft, values: list[JsonValue], code: CodeSandbox) -> dict[str, JsonValue]:
    """Return what the checks and graders with a transform of their own are given, by criterion.

    A transform is given the last of the `values`, which are the draft and what each transform made; one that finds a context may be given
    an earlier one.
    """
    made = [(criterion.id, check.transform) for criterion, check in case.rubric.checks() if check.transform]
    made += [(criterion.id, criterion.transform) for criterion in case.rubric.judged if criterion.transform]
    if not made:
        return {}
    context, given = context_of(case, drafted), dict[str, JsonValue]()
    results = await _called(code, [code_call(transform, values[-(transform.finds_context or 1)], context) for _, transform in made])
    for (name, transform), result in zip(made, results, strict=True):
        try:
            found = read_text(result)
            given[name] = {"answer": values[-1], "context": read_context(found)} if transform.finds_context else found
        except ValueError as error:
            raise ValueError(f"the transform of {name} could not be made: {error}") from None
    return given


async def _text_outcomes(case: Case, output: str, texts: Mapping[str, str] = MappingProxyType({})) -> dict[str, CheckOutcome]:
    """Run the text checks on the output, or on what their own transforms made of it, by criterion."""
    named = [(criterion.id, _with_functions(case, check)) for criterion, check in case.rubric.checks(TEXT_CHECK)]
    outcomes: dict[str, Any] = {}
    for text in dict.fromkeys(texts.get(name, output) for name, _ in named):
        same = [(name, check) for name, check in named if texts.get(name, output) == text]
        checks = [{"id": name, "arguments": check.arguments, "extract": check.extract} for name, check in same]
        outcomes |= await await_in_process(run_text_checks, {"output": text, "checks": checks})
    return {name: CheckOutcome.model_validate(outcome) for name, outcome in outcomes.items()}


def _with_functions(case: Case, check: Check) -> Check:
    """Return a check of function calls with the functions that the generator has, where it names none of its own."""
    functions = case.generator.functions if case.generator else ()
    kind = CHECKS.rows.get(str(check.arguments.get("kind")))
    if not functions or kind is None or not kind.takes_functions or check.arguments.get("value") is not None:
        return check
    declared: list[JsonValue] = [function.model_dump(include={"name", "parameters"}) for function in functions]
    return check.model_copy(update={"arguments": {**check.arguments, "value": declared}})


async def _code_outcomes(case: Case, drafted: CheckedDraft, values: Mapping[str, JsonValue], code: CodeSandbox) -> dict[str, CheckOutcome]:
    checks = [(criterion, check, parse_code_check(check.arguments)) for criterion, check in case.rubric.checks(CODE_CHECK)]
    if not checks:
        return {}
    context, calls = context_of(case, drafted), []
    for criterion, check, code_check in checks:
        given = values[criterion.id]  # of a text its last block of code, where the check asks for that
        given = code_of(given) if check.extract == "code" and isinstance(given, str) else given
        calls.append(code_call(code_check, given, {**context, **code_check.context}))
    outcomes = {}
    for (criterion, check, code_check), result in zip(checks, await _called(code, calls), strict=True):
        with _deciding(criterion, check):
            outcomes[criterion.id] = read_assertion(result, code_check)
    return outcomes


@contextmanager
def _deciding(criterion: Criterion, check: Check) -> Iterator[None]:
    """Raise ValueError that names a check where it could not decide."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"the check {check.tool} of {criterion.id} could not decide: {error}") from None
