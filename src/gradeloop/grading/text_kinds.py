"""Further kinds of text checks, as promptfoo names them: distances, overlaps, markup, SQL, refusals, tool calls."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import JsonValue

from gradeloop.text import clip

Measure = Callable[[str, JsonValue, float], tuple[bool, float | None, str]]
"""Returns whether a text passes at a threshold, its share of the score where there is one, and what was found."""

CHARACTERS = 100_000
"""The most characters of two texts whose distance is measured, and of markup and SQL that is parsed."""

THRESHOLDS: Mapping[str, float] = {"levenshtein": 5, "rouge-n": 0.75, "bleu": 0.5}
"""The kinds that take a threshold, with their default, as in promptfoo: a distance of at most 5, a share of at least 0.75 or 0.5."""


def levenshtein(draft: str, value: JsonValue, most: float) -> tuple[bool, float | None, str]:
    """Measure how many characters must be inserted, removed or replaced."""
    from rapidfuzz.distance import Levenshtein

    wanted = str(value)
    _refuse_long(draft, wanted)
    distance = Levenshtein.distance(draft, wanted)
    return distance <= most, None, f"the distance is {distance}, {most:g} at most"


def rouge_n(draft: str, value: JsonValue, least: float) -> tuple[bool, float | None, str]:
    """Measure the overlap of single words with the reference: ROUGE-1's F-measure."""
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]  # it has no types

    wanted = str(value)
    _refuse_long(draft, wanted)
    score = float(RougeScorer(["rouge1"]).score(wanted, draft)["rouge1"].fmeasure)
    return score >= least, score, f"the overlap of words is {score:.2f}, {least:g} at least"


def bleu(draft: str, value: JsonValue, least: float) -> tuple[bool, float | None, str]:
    """Measure the overlap of runs of one to four words with the references: a sentence's BLEU, from 0 to 1."""
    from sacrebleu import sentence_bleu

    references = [str(item) for item in (value if isinstance(value, list) else [value])]
    _refuse_long(draft, *references)
    score = min(float(sentence_bleu(draft, references).score) / 100, 1.0)
    return score >= least, score, f"its BLEU is {score:.2f}, {least:g} at least"


def word_count(draft: str, value: JsonValue) -> str | None:
    """Return why the number of words does not fit: a number, or `{min, max}`."""
    count = len(draft.split())
    least, most = _bounds(value)
    if (least is not None and count < least) or (most is not None and count > most):
        wanted = str(least) if least == most else f"{'' if least is None else least} to {'' if most is None else most}".strip()
        return f"it has {count} words, wanted {wanted}"
    return None


_PACKAGES = {"rouge-n": "rouge_score", "bleu": "sacrebleu", "is-sql": "sqlglot", "contains-sql": "sqlglot"}


def validate_kind(kind: str, value: JsonValue, threshold: JsonValue) -> None:
    """Raise ValueError where a value or a threshold is unfit for a kind, or its package is missing."""
    if kind in _PACKAGES and find_spec(_PACKAGES[kind]) is None:
        raise ValueError(f"{kind} needs a package that is not installed; run: pip install 'gradeloop[metrics]'")
    if threshold is not None and kind not in THRESHOLDS:
        raise ValueError(f"{kind} has no threshold; leave it out")
    if threshold is not None:
        as_number(threshold, kind)
    if kind == "word-count":
        _bounds(value)
    elif kind in {"is-sql", "contains-sql"}:
        _validate_sql(value)
    elif kind in MEASURES:
        texts = value if isinstance(value, list) and kind == "bleu" else [value]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"the value of {kind} is {clip(str(value))}; write the text that it is compared with")


def _bounds(value: JsonValue) -> tuple[int | None, int | None]:
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


def is_refusal(draft: str, _: JsonValue) -> str | None:
    """Return why a text is no refusal; one without words is one."""
    begins = draft.strip()[:REFUSAL_CHARACTERS].replace("\u2019", "'")
    return None if not begins or _REFUSALS.search(begins) else f"it refuses nothing; found {clip(draft, 200)}"


def is_xml(draft: str, value: JsonValue) -> str | None:
    """Return why a text is no XML, or lacks an element that is required, as a path of names with dots."""
    root = _xml(draft.strip())
    if isinstance(root, str):
        return root
    return _missing_elements(root, value)


def contains_xml(draft: str, value: JsonValue) -> str | None:
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
        return f"it is no XML: {error}"


def _missing_elements(root: Any, value: JsonValue) -> str | None:  # noqa: ANN401 - an element
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


def contains_html(draft: str, _: JsonValue) -> str | None:
    """Return why no HTML is in a text."""
    return None if _TAG.search(draft) else "there is no HTML in it"


def is_html(draft: str, _: JsonValue) -> str | None:
    """Return why a text is not HTML from its first to its last character."""
    text = draft.strip()
    begins = _TAG.match(text) or text.startswith("<!--")
    return None if begins and text.endswith(">") else f"it is no HTML; found {clip(draft, 200)}"


def is_sql(draft: str, value: JsonValue) -> str | None:
    """Return why a text is no SQL of a dialect, or uses tables or columns that are not allowed."""
    return _sql_problem(draft, value)


_SQL_BLOCK = re.compile(r"```(?:sql)?[ \t]*\n(?P<code>.*?)```", re.DOTALL | re.IGNORECASE)


def contains_sql(draft: str, value: JsonValue) -> str | None:
    """Return why no SQL is in a text: in a fenced block, or as all of it."""
    blocks = [found["code"] for found in _SQL_BLOCK.finditer(draft)]
    problems = [_sql_problem(block, value) for block in blocks or [draft]]
    return None if None in problems else problems[0]


_DIALECTS = {
    "mysql": "mysql", "mariadb": "mysql", "postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite", "bigquery": "bigquery",
    "snowflake": "snowflake", "transactsql": "tsql", "redshift": "redshift", "hive": "hive", "trino": "trino", "athena": "athena",
    "db2": "", "flinksql": "", "noql": "",
}  # fmt: skip
_SQL_KEYS = {"databaseType", "allowedTables", "allowedColumns"}


def _validate_sql(value: JsonValue) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or set(value) - _SQL_KEYS:
        raise ValueError(f"the value of is-sql is {clip(str(value))}; write {{databaseType, allowedTables, allowedColumns}}")
    if (name := value.get("databaseType")) is not None and str(name).lower() not in _DIALECTS:
        raise ValueError(f"databaseType is {clip(str(name))}; known: {', '.join(_DIALECTS)}")


def _sql_problem(text: str, value: JsonValue) -> str | None:
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
        return f"it is no SQL: {clip(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)}"
    if not parsed or any(isinstance(statement, exp.Command) or not isinstance(statement, _statements()) for statement in parsed):
        return "it is no SQL"
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


@dataclass(frozen=True)
class JsonReader:
    """What calls of functions are read and checked with."""

    read: Callable[[str], Any]
    """Parses a text as JSON; raises ValueError where it is none."""
    errors: Callable[[dict[str, Any], object], Iterator[str]]
    """Yields what of a value does not fit a JSON Schema."""

    def value(self, text: str) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the JSON that a text is; None where it is none."""
        try:
            return self.read(text)
        except ValueError:
            return None


def valid_tool_calls(draft: str, value: JsonValue, reader: JsonReader) -> str | None:
    """Return why a text is no list of tool calls as OpenAI's API has them, whose arguments fit the tools' schemas."""
    calls = reader.value(draft)
    if isinstance(calls, dict) and isinstance(calls.get("tool_calls"), list):
        calls = calls["tool_calls"]
    if not isinstance(calls, list) or not calls:
        return "it is no list of tool calls"
    for call in calls:
        function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
        if problem := _call_problem(function, value, reader):
            return problem
    return None


def valid_function_call(draft: str, value: JsonValue, reader: JsonReader) -> str | None:
    """Return why a text is no function call as OpenAI's API has it, whose arguments fit the function's schema."""
    call = reader.value(draft)
    if isinstance(call, dict) and isinstance(call.get("function_call"), dict):
        call = call["function_call"]
    return _call_problem(call, value, reader)


def _call_problem(call: object, value: JsonValue, reader: JsonReader) -> str | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "it is no function call: it has no name"
    arguments = call.get("arguments")
    read = reader.value(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(read, dict):
        return f"the arguments of {clip(call['name'])} are no JSON object"
    known = {str(function.get("name")): function.get("parameters") for function in _functions(value)}
    if known and call["name"] not in known:
        return f"there is no function {clip(call['name'])} among {', '.join(known)}"
    schema = known.get(call["name"])
    return "; ".join(reader.errors(schema, read)) or None if isinstance(schema, dict) else None


def _functions(value: JsonValue) -> Iterator[Mapping[str, Any]]:
    for tool in value if isinstance(value, list) else []:
        if isinstance(tool, dict):
            inner = tool.get("function")
            yield inner if isinstance(inner, dict) else tool


def _refuse_long(*texts: str) -> None:
    for text in texts:
        if len(text) > CHARACTERS:
            raise ValueError(f"a text has more than {CHARACTERS} characters, whose distance is not measured")


def as_number(value: JsonValue, what: str) -> float:
    """Return a threshold as a number.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the threshold of {what} is {clip(json.dumps(value))}; write a number")
    return float(value)


SIMPLE: Mapping[str, Callable[[str, JsonValue], str | None]] = {
    "word-count": word_count,
    "is-refusal": is_refusal,
    "is-xml": is_xml,
    "contains-xml": contains_xml,
    "is-html": is_html,
    "contains-html": contains_html,
    "is-sql": is_sql,
    "contains-sql": contains_sql,
}
"""The kinds that hold or do not."""

CALLS: Mapping[str, Callable[[str, JsonValue, JsonReader], str | None]] = {
    "is-valid-openai-tools-call": valid_tool_calls,
    "is-valid-openai-function-call": valid_function_call,
    "is-valid-function-call": valid_function_call,
}
"""The kinds that read calls of functions."""

MEASURES: Mapping[str, Measure] = {"levenshtein": levenshtein, "rouge-n": rouge_n, "bleu": bleu}
"""The kinds that measure, and compare with a threshold."""

SENTENCES: Mapping[str, tuple[str, str]] = {
    "levenshtein": ("it differs by few characters from", "it does not differ by few characters alone from"),
    "rouge-n": ("it has most words of", "it does not have most words of"),
    "bleu": ("it reads much like", "it does not read much like"),
    "word-count": ("its number of words is", "its number of words is not"),
    "is-refusal": ("it is a refusal", "it is no refusal"),
    "is-xml": ("it is XML", "it is no XML"),
    "contains-xml": ("it contains XML", "it contains no XML"),
    "is-html": ("it is HTML", "it is no HTML"),
    "contains-html": ("it contains HTML", "it contains no HTML"),
    "is-sql": ("it is SQL", "it is no SQL"),
    "contains-sql": ("it contains SQL", "it contains no SQL"),
    "is-valid-openai-tools-call": ("it is a valid list of tool calls", "it is no valid list of tool calls"),
    "is-valid-openai-function-call": ("it is a valid function call", "it is no valid function call"),
    "is-valid-function-call": ("it is a valid function call", "it is no valid function call"),
}
"""What each kind says where it holds, and where it does not."""
