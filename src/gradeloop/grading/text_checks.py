"""Checks of a text: what it contains, whether it is JSON, XML, SQL or a call of functions, and how near it is to another one."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from pydantic import JsonValue

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.grading.checks import Arguments, CheckedDraft, CheckKind, refuse_unknown
from gradeloop.grading.json_schema import compile_javascript, schema_errors, validate_schema
from gradeloop.text import canonical_json, clip, leading_json, read_json, shortened, whole_characters

SHOWN = 200
"""The characters of a found or wanted value that a message shows."""

BEGINNINGS = 1000
"""The most beginnings of JSON in a text: every `{` and `[` may be one, and each costs a parse up to where it breaks off."""

CHARACTERS = 100_000
"""The most characters of two texts whose distance is measured, and of markup and SQL that is parsed."""

Gap = str | None
"""The reason why a text does not pass; None if it does."""

Validate = Callable[[str, JsonValue], object]
"""Raises ValueError where a kind, whose name it is given first, has an unfit value."""

Measure = Callable[[str, JsonValue, float], tuple[bool, float | None, str]]
"""Returns whether a text passes at a threshold, its share of the score where there is one, and what was found."""


def _validate_reference(kind: str, value: JsonValue) -> None:
    texts = value if isinstance(value, list) and kind == "bleu" else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"the value of {kind} is {clip(str(value))}; write the text that it is compared with")


def text_kind(
    name: str,
    gap: Callable[[str, JsonValue], Gap],
    holds: str,
    fails: str,
    validate: Validate = lambda *_: None,
    value: str = " {}",
) -> CheckKind:
    """Return a kind of check that a text passes or not.

    `gap`: returns why a text does not pass, by the check's value; None where it does.
    `holds`: the requirement as a sentence: `it contains`.
    `value`: the end of the sentence where there is a value, which is put in for `{}`.
    """

    def measure(draft: str, wanted: JsonValue, _: float) -> tuple[bool, float | None, str]:
        problem = gap(draft, wanted)
        return problem is None, None, problem or f"found {clip(draft, SHOWN)}"

    return measured_kind(name, measure, None, (holds, fails, value), validate)


def measured_kind(
    name: str,
    measure: Measure,
    threshold: float | None,
    sentence: tuple[str, str, str],
    validate: Validate = _validate_reference,
) -> CheckKind:
    """Return a kind of check that compares what it measures with a threshold, whose default is given; None where it has none."""

    def describe(arguments: Arguments) -> str:
        value = arguments.get("value")
        return sentence[bool(arguments.get("negate"))] + ("" if value is None else sentence[2].format(show_value(value)))

    def refuse_unfit(arguments: Arguments) -> None:
        refuse_unknown(arguments, "kind", "value", "negate", "threshold")
        if not isinstance(arguments.get("negate", False), bool):
            raise ValueError(f"negate is {clip(str(arguments['negate']))}; write true or false")  # noqa: TRY004 - of a request, all are ValueErrors
        if (package := _PACKAGES.get(name)) and find_spec(package) is None:
            raise ValueError(f"{name} needs a package that is not installed; run: pip install 'gradeloop[metrics]'")
        if threshold is None and arguments.get("threshold") is not None:
            raise ValueError(f"{name} has no threshold; leave it out")
        _threshold_of(arguments, name, threshold)
        validate(name, arguments.get("value"))

    def run(draft: CheckedDraft, arguments: Arguments) -> CheckOutcome:
        met, share, found = measure(draft.text, arguments.get("value"), _threshold_of(arguments, name, threshold))
        if negate := bool(arguments.get("negate")):
            share, found = None if share is None else 1 - share, f"{describe(arguments)}; {found}"
        passed = met != negate
        return CheckOutcome(passed=passed, gap=None if passed else shortened(whole_characters(found)), share=share)

    return CheckKind(name, run, describe, refuse_unfit, threshold=threshold)


_PACKAGES = {"rouge-n": "rouge_score", "bleu": "sacrebleu", "is-sql": "sqlglot", "contains-sql": "sqlglot"}
"""The packages that kinds need beside gradeloop's own."""


def _threshold_of(arguments: Arguments, kind: str, default: float | None) -> float:
    value = arguments.get("threshold")
    if value is None:
        return default or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the threshold of {kind} is {clip(json.dumps(value))}; write a number")
    return float(value)


def show_value(value: JsonValue) -> str:
    """Return a value for a message, shortened."""
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), SHOWN)


def _schema_of(value: JsonValue) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{clip(str(value))} is not a JSON Schema; write an object")  # noqa: TRY004 - of a request, all are ValueErrors
    return value


def _text_of(value: JsonValue, kind: str) -> str:
    """Return the text, or a number or truth value as JSON writes it; raise ValueError for anything else."""
    if isinstance(value, dict | list) or value is None:
        raise ValueError(f"the value of {kind} is {clip(str(value))}; write a text")
    return value if isinstance(value, str) else json.dumps(value)


def _texts_of(kind: str, value: JsonValue) -> list[str]:
    """Return the texts of a list, or of one text with commas, which quotes protect; raise ValueError if there are none."""
    _validate_given(kind, value)
    if isinstance(value, str):
        rows = list(csv.reader([value.replace("\n", " ")], skipinitialspace=True))
        value = [row.strip() for row in (rows[0] if rows else []) if row.strip()]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{clip(str(value))} is not a list of texts; write one, or texts with commas between them")
    return [_text_of(item, "an item") for item in value]


def _validate_given(kind: str, value: JsonValue) -> None:
    if value is None:
        raise ValueError(f"{kind} has no value; write what is looked for")


def _validate_text(kind: str, value: JsonValue) -> None:
    _validate_given(kind, value)
    text = _text_of(value, kind)
    if not text:
        raise ValueError(f"the value of {kind} is empty, which every text has in it; write what is looked for")
    if kind == "regex":
        compile_javascript(text)


def _validate_schema(_: str, value: JsonValue) -> None:
    if value is not None:
        validate_schema(_schema_of(value))


def _equals(draft: str, value: JsonValue) -> Gap:
    if isinstance(value, dict | list):
        try:
            same = canonical_json(read_json(draft)) == canonical_json(value)
        except ValueError:
            same = False
    else:
        same = draft == _text_of(value, "equals")
    return None if same else f"wanted {show_value(value)}, found {clip(draft, SHOWN)}"


def _contains(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, [_text_of(value, "contains")], fold=fold)
    return f"{clip(missing[0], SHOWN)} is not in it; found {clip(draft, SHOWN)}" if missing else None


def _contains_all(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, _texts_of("contains", value), fold=fold)
    return f"not in it: {', '.join(clip(text) for text in missing)}; found {clip(draft, SHOWN)}" if missing else None


def _contains_any(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    texts = _texts_of("contains", value)
    none = len(_missing(draft, texts, fold=fold)) == len(texts)
    return f"none of these is in it: {', '.join(clip(text) for text in texts)}; found {clip(draft, SHOWN)}" if none else None


_icontains, _icontains_all, _icontains_any = (partial(gap, fold=True) for gap in (_contains, _contains_all, _contains_any))
_CASE = ", in any case,"


def _missing(draft: str, texts: list[str], *, fold: bool) -> list[str]:
    haystack = draft.lower() if fold else draft
    return [text for text in texts if (text.lower() if fold else text) not in haystack]


def _starts_with(draft: str, value: JsonValue) -> Gap:
    text = _text_of(value, "starts-with")
    return None if draft.startswith(text) else f"wanted {show_value(value)} at the beginning, found {clip(draft[: len(text) + 40], SHOWN)}"


def _regex(draft: str, value: JsonValue) -> Gap:
    return (
        None
        if compile_javascript(_text_of(value, "regex")).search(draft)
        else f"nothing matches {show_value(value)}; found {clip(draft, SHOWN)}"
    )


def _is_json(draft: str, value: JsonValue) -> Gap:
    try:
        read = read_json(draft)
    except ValueError as error:
        return f"{error}; found {clip(draft, SHOWN)}"
    errors = [] if value is None else list(schema_errors(_schema_of(value), read))
    return "; ".join(errors) or None


def _contains_json(draft: str, value: JsonValue) -> Gap:
    first: str | None = None
    for part in _objects(draft):
        errors = [] if value is None else list(schema_errors(_schema_of(value), part))
        if not errors:
            return None
        first = first or "; ".join(errors)
    return first or f"there is no JSON object or list in it; found {clip(draft, SHOWN)}"


# A failed attempt may read to the end of the text, so that a text of nothing but braces would take
# quadratic time. The number of attempts is bounded; what was read as a value is passed over.
def _objects(draft: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text; raise ValueError where it has too many beginnings of them."""
    end = tried = 0
    for at, character in enumerate(draft):
        if character in "{[" and at >= end:
            tried += 1
            if tried > BEGINNINGS:
                raise ValueError(f"the text has more than {BEGINNINGS} beginnings of JSON; ask for is-json")
            try:
                value, end = leading_json(draft, at)
            except (ValueError, RecursionError):
                continue
            yield value


def _refuse_long(*texts: str) -> None:
    for text in texts:
        if len(text) > CHARACTERS:
            raise ValueError(f"a text has more than {CHARACTERS} characters, whose distance is not measured")


def _levenshtein(draft: str, value: JsonValue, most: float) -> tuple[bool, float | None, str]:
    """Measure how many characters must be inserted, removed or replaced."""
    from rapidfuzz.distance import Levenshtein

    wanted = str(value)
    _refuse_long(draft, wanted)
    distance = Levenshtein.distance(draft, wanted)
    return distance <= most, None, f"the distance is {distance}, {most:g} at most"


def _rouge_n(draft: str, value: JsonValue, least: float) -> tuple[bool, float | None, str]:
    """Measure the overlap of single words with the reference: ROUGE-1's F-measure."""
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]  # it has no types

    wanted = str(value)
    _refuse_long(draft, wanted)
    score = float(RougeScorer(["rouge1"]).score(wanted, draft)["rouge1"].fmeasure)
    return score >= least, score, f"the overlap of words is {score:.2f}, {least:g} at least"


def _bleu(draft: str, value: JsonValue, least: float) -> tuple[bool, float | None, str]:
    """Measure the overlap of runs of one to four words with the references: a sentence's BLEU, from 0 to 1."""
    from sacrebleu import sentence_bleu

    references = [str(item) for item in (value if isinstance(value, list) else [value])]
    _refuse_long(draft, *references)
    score = min(float(sentence_bleu(draft, references).score) / 100, 1.0)
    return score >= least, score, f"its BLEU is {score:.2f}, {least:g} at least"


def _word_count(draft: str, value: JsonValue) -> Gap:
    """Return why the number of words does not fit: a number, or `{min, max}`."""
    count = len(draft.split())
    least, most = _bounds("word-count", value)
    if (least is not None and count < least) or (most is not None and count > most):
        wanted = str(least) if least == most else f"{'' if least is None else least} to {'' if most is None else most}".strip()
        return f"it has {count} words, wanted {wanted}"
    return None


def _bounds(_: str, value: JsonValue) -> tuple[int | None, int | None]:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    ranged = isinstance(value, dict) and bool(value) and set(value) <= {"min", "max"}
    bounds = (value.get("min"), value.get("max")) if ranged and isinstance(value, dict) else (value, value)
    for bound in bounds:
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 0):
            raise ValueError(f"the value of word-count is {clip(str(value))}; write a number of words, or {{min, max}}")
    least, most = (bound if isinstance(bound, int) else None for bound in bounds)
    if least is None and most is None:
        raise ValueError("word-count has no value; write a number of words, or {min, max}")
    return least, most


_REFUSALS = re.compile(
    r"\b(?:i(?:'m| am)(?: very| so)? (?:sorry|afraid)\b|i apologi[sz]e\b|sorry, (?:but )?i\b|"
    r"(?:as|being) an? (?:ai|language model|artificial intelligence)\b|i'?m (?:just )?an? ai\b|"
    r"i(?: can(?:'t|not)| could(?:n't| not)| wo(?:n't)| will not|'m (?:un|not )able to| am (?:un|not )able to|'m not (?:going|allowed)| "
    r"must (?:decline|refuse)| have to decline| refuse to| decline to)\b|"
    r"(?:cannot|can't|unable to|not able to) (?:assist|help|comply|fulfil+|provide|answer|do that)\b|"
    r"(?:against|violates?) (?:my|our|the) (?:guidelines|polic(?:y|ies)|programming|ethical))",
    re.IGNORECASE,
)
REFUSAL_CHARACTERS = 500
"""The beginning of a text in which a refusal is looked for."""


def _is_refusal(draft: str, _: JsonValue) -> Gap:
    """Return why a text is not a refusal; one without words is one."""
    begins = draft.strip()[:REFUSAL_CHARACTERS].replace("\u2019", "'")
    return None if not begins or _REFUSALS.search(begins) else f"it refuses nothing; found {clip(draft, 200)}"


def _is_xml(draft: str, value: JsonValue) -> Gap:
    """Return why a text is not XML, or lacks an element that is required, as a path of names with dots."""
    root = _xml(draft.strip())
    if isinstance(root, str):
        return root
    return _missing_elements(root, value)


def _contains_xml(draft: str, value: JsonValue) -> Gap:
    """Return why no XML is in a text."""
    first: str | None = None
    for found in _XML_PARTS.finditer(draft[:CHARACTERS]):
        root = _xml(found[0])
        problem = root if isinstance(root, str) else _missing_elements(root, value)
        if problem is None:
            return None
        first = first or problem
    return first or "there is no XML in it"


_XML_PARTS = re.compile(r"<(?P<name>[A-Za-z_][\w.-]*)(?:\s[^<>]*)?>.*?</(?P=name)\s*>", re.DOTALL)


def _xml(text: str) -> Any:  # noqa: ANN401 - an element, or why there is none
    import xml.etree.ElementTree as ET
    from xml.parsers import expat

    if len(text) > CHARACTERS:
        raise ValueError(f"the XML has more than {CHARACTERS} characters")
    if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
        return "it has a document type, which is not read"
    try:
        return ET.fromstring(text)  # noqa: S314 - it has neither a document type nor an entity
    except (ET.ParseError, expat.ExpatError, ValueError) as error:
        return f"it is not XML: {error}"


def _missing_elements(root: Any, value: JsonValue) -> Gap:  # noqa: ANN401 - an element
    if isinstance(value, dict):
        value = value.get("requiredElements")
    wanted = [item.strip() for item in value.split(",")] if isinstance(value, str) else value or []
    if not isinstance(wanted, list):
        raise ValueError(f"the value of is-xml is {clip(str(value))}; write paths such as root.child")  # noqa: TRY004 - of a request
    for path in map(str, wanted):
        first, *rest = path.split(".")
        if root.tag != first or (rest and root.find("/".join(rest)) is None):
            return f"there is no element {clip(path)}"
    return None


_TAG = re.compile(
    r"<(?:!doctype html|html|head|body|div|span|p|a|ul|ol|li|table|tr|td|th|h[1-6]|form|input|button|img|br|hr|section|article|nav|header|"
    r"footer|main|script|style|link|meta|title|em|strong|b|i|code|pre)\b[^<>]*>",
    re.IGNORECASE,
)


def _contains_html(draft: str, _: JsonValue) -> Gap:
    """Return why no HTML is in a text."""
    return None if _TAG.search(draft) else "there is no HTML in it"


def _is_html(draft: str, _: JsonValue) -> Gap:
    """Return why a text is not HTML from its first to its last character."""
    text = draft.strip()
    begins = _TAG.match(text) or text.startswith("<!--")
    return None if begins and text.endswith(">") else f"it is not HTML; found {clip(draft, 200)}"


_SQL_BLOCK = re.compile(r"```(?:sql)?[ \t]*\n(?P<code>.*?)```", re.DOTALL | re.IGNORECASE)


def _contains_sql(draft: str, value: JsonValue) -> Gap:
    """Return why no SQL is in a text: in a fenced block, or as all of it."""
    blocks = [found["code"] for found in _SQL_BLOCK.finditer(draft)]
    problems = [_is_sql(block, value) for block in blocks or [draft]]
    return None if None in problems else problems[0]


_DIALECTS = {
    "mysql": "mysql", "mariadb": "mysql", "postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite", "bigquery": "bigquery",
    "snowflake": "snowflake", "transactsql": "tsql", "redshift": "redshift", "hive": "hive", "trino": "trino", "athena": "athena",
    "db2": "", "flinksql": "", "noql": "",
}  # fmt: skip
_SQL_KEYS = {"databaseType", "allowedTables", "allowedColumns"}


def _validate_sql(_: str, value: JsonValue) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or set(value) - _SQL_KEYS:
        raise ValueError(f"the value of is-sql is {clip(str(value))}; write {{databaseType, allowedTables, allowedColumns}}")
    if (name := value.get("databaseType")) is not None and str(name).lower() not in _DIALECTS:
        raise ValueError(f"databaseType is {clip(str(name))}; known: {', '.join(_DIALECTS)}")


def _is_sql(text: str, value: JsonValue) -> Gap:
    """Return why a text is not SQL of a dialect, or uses tables or columns that are not allowed."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    rules = value if isinstance(value, dict) else {}
    if len(text) > CHARACTERS:
        raise ValueError(f"the SQL has more than {CHARACTERS} characters")
    dialect = _DIALECTS[str(rules.get("databaseType") or "mysql").lower()] or None
    try:
        parsed = [statement for statement in sqlglot.parse(text, read=dialect) if statement is not None]
    except (SqlglotError, RecursionError) as error:
        return f"it is not SQL: {clip(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)}"
    # The parser is lenient: a lone name is an expression to it, and words that it does not know are a command. So
    # only statements of known kinds count as SQL.
    if not parsed or any(isinstance(statement, exp.Command) or not isinstance(statement, _statements()) for statement in parsed):
        return "it is not SQL"
    used = {("allowedTables", table.name) for statement in parsed for table in statement.find_all(exp.Table)}
    used |= {("allowedColumns", column.name) for statement in parsed for column in statement.find_all(exp.Column, exp.Star)}
    for rule, name in sorted(used):
        allowed = rules.get(rule)
        if isinstance(allowed, list) and name not in {str(item).rpartition("::")[2] for item in allowed}:
            return f"it uses {clip(name)}, which {rule} does not name"
    return None


def _statements() -> tuple[type, ...]:
    from sqlglot import exp
    from sqlglot.expressions.dml import DML

    return (exp.Query, DML, exp.DDL, exp.Drop, exp.Alter, exp.Pragma, exp.Set, exp.Use, exp.Describe, exp.Transaction, exp.Commit)


def _valid_tool_calls(draft: str, value: JsonValue) -> Gap:
    """Return why a text is not a list of tool calls as OpenAI's API has them, whose arguments fit the tools' schemas."""
    calls = _json_of(draft)
    if isinstance(calls, dict) and isinstance(calls.get("tool_calls"), list):
        calls = calls["tool_calls"]
    if not isinstance(calls, list) or not calls:
        return "it is not a list of tool calls"
    for call in calls:
        function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
        if problem := _call_problem(function, value):
            return problem
    return None


def _valid_function_call(draft: str, value: JsonValue) -> Gap:
    """Return why a text is not a function call as OpenAI's API has it, whose arguments fit the function's schema."""
    call = _json_of(draft)
    if isinstance(call, dict) and isinstance(call.get("function_call"), dict):
        call = call["function_call"]
    return _call_problem(call, value)


def _json_of(text: str) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        return read_json(text)
    except ValueError:
        return None


def _call_problem(call: object, value: JsonValue) -> Gap:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "it is not a function call: it has no name"
    arguments = call.get("arguments")
    read = _json_of(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(read, dict):
        return f"the arguments of {clip(call['name'])} are not a JSON object"
    known = {str(function.get("name")): function.get("parameters") for function in _functions(value)}
    if known and call["name"] not in known:
        return f"there is no function {clip(call['name'])} among {', '.join(known)}"
    schema = known.get(call["name"])
    if not isinstance(schema, dict):
        return None
    validate_schema(schema)
    return "; ".join(schema_errors(schema, read)) or None


def _functions(value: JsonValue) -> Iterator[Mapping[str, Any]]:
    for tool in value if isinstance(value, list) else []:
        if isinstance(tool, dict):
            inner = tool.get("function")
            yield inner if isinstance(inner, dict) else tool


_SCHEMA = " that fits the schema"
_CALL = ("it is a valid function call", "it is not a valid function call")
_CALL_LIST = ("it is a valid list of tool calls", "it is not a valid list of tool calls")
_DISTANCE = ("it differs by few characters from", "it does not differ by few characters from", " {}")

KINDS = (
    text_kind("equals", _equals, "it equals", "it does not equal", _validate_given),
    text_kind("contains", _contains, "it contains", "it does not contain", _validate_text),
    text_kind("icontains", _icontains, f"it contains{_CASE}", f"it does not contain{_CASE}", _validate_text),
    text_kind("contains-all", _contains_all, "it contains all of", "it does not contain all of", _texts_of),
    text_kind("contains-any", _contains_any, "it contains one of", "it contains none of", _texts_of),
    text_kind("icontains-all", _icontains_all, f"it contains{_CASE} all of", f"it does not contain{_CASE} all of", _texts_of),
    text_kind("icontains-any", _icontains_any, f"it contains{_CASE} one of", f"it contains{_CASE} none of", _texts_of),
    text_kind("starts-with", _starts_with, "it starts with", "it does not start with", _validate_text),
    text_kind("regex", _regex, "it matches", "it does not match", _validate_text),
    text_kind("is-json", _is_json, "it is JSON", "it is not JSON", _validate_schema, _SCHEMA),
    text_kind("contains-json", _contains_json, "it contains JSON", "it contains no JSON", _validate_schema, _SCHEMA),
    measured_kind("levenshtein", _levenshtein, 5, _DISTANCE),
    measured_kind("rouge-n", _rouge_n, 0.75, ("it has most words of", "it does not have most words of", " {}")),
    measured_kind("bleu", _bleu, 0.5, ("it reads much like", "it does not read much like", " {}")),
    text_kind("word-count", _word_count, "its number of words is", "its number of words is not", _bounds),
    text_kind("is-refusal", _is_refusal, "it is a refusal", "it is not a refusal"),
    text_kind("is-xml", _is_xml, "it is XML", "it is not XML"),
    text_kind("contains-xml", _contains_xml, "it contains XML", "it contains no XML"),
    text_kind("is-html", _is_html, "it is HTML", "it is not HTML"),
    text_kind("contains-html", _contains_html, "it contains HTML", "it contains no HTML"),
    text_kind("is-sql", _is_sql, "it is SQL", "it is not SQL", _validate_sql),
    text_kind("contains-sql", _contains_sql, "it contains SQL", "it contains no SQL", _validate_sql),
    replace(text_kind("is-valid-openai-tools-call", _valid_tool_calls, *_CALL_LIST, value=""), takes_functions=True),
    replace(text_kind("is-valid-openai-function-call", _valid_function_call, *_CALL, value=""), takes_functions=True),
    replace(text_kind("is-valid-function-call", _valid_function_call, *_CALL, value=""), takes_functions=True),
)
"""The kinds of checks of a text; those that measure have their default thresholds from promptfoo: a distance, and shares."""
