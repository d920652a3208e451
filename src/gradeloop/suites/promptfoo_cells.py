"""A row of promptfoo's CSV as a test: `__expected` columns are assertions, written as text.

Facts of their shapes: promptfoo 0.123.1, `src/csv.ts`.
"""

import re
from collections.abc import Iterator

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.spot import Spot
from gradeloop.suites.datasets import Row, number_of

_EXPECTED = re.compile(r"__expected\d*")
_CONFIG = re.compile(r"__config:(?P<column>__expected\d*):threshold")
_ASSERTION = re.compile(r"(?P<type>(?:not-)?[a-z][a-z-]*)(?:\((?P<threshold>\d+(?:\.\d+)?)\))?(?::(?P<value>.*))?", re.DOTALL)
_OTHER_NAMES = {"fn": "javascript", "eval": "javascript", "grade": "llm-rubric"}
_TYPES = {
    *("agent-rubric", "answer-relevance", "bleu", "classifier", "contains", "contains-all", "contains-any", "contains-html"),
    *("contains-json", "contains-sql", "contains-xml", "context-faithfulness", "context-recall", "context-relevance"),
    *("conversation-relevance", "cost", "equals", "factuality", "finish-reason", "g-eval", "gleu", "guardrails", "icontains"),
    *("icontains-all", "icontains-any", "is-html", "is-json", "is-refusal", "is-sql", "is-valid-function-call"),
    *("is-valid-openai-function-call", "is-valid-openai-tools-call", "is-xml", "javascript", "latency", "levenshtein"),
    *("llm-rubric", "pi", "meteor", "model-graded-closedqa", "model-graded-factuality", "moderation", "perplexity"),
    *("perplexity-score", "python", "regex", "rouge-n", "ruby", "similar", "starts-with", "tool-call-f1", "skill-used"),
    *("search-rubric", "webhook", "word-count"),
}
"""What a cell may begin with; each of those that have no counterpart is refused by its name."""


def test_of_cells(row: Row) -> dict[str, JsonValue]:
    """Return a CSV row as a raw test.

    Raises:
        InvalidRequest: A column or an assertion has no counterpart.
    """
    told: dict[str, JsonValue] = {"vars": {}}
    variables: dict[str, JsonValue] = {}
    asserted: dict[str, dict[str, JsonValue]] = {}
    thresholds: dict[str, JsonValue] = {}
    metric: dict[str, JsonValue] = {}
    for name, cell in ((name, str(cell)) for name, cell in row.value.items()):
        if not name.startswith("__"):
            variables[name] = cell
        elif _EXPECTED.fullmatch(name):
            asserted |= {name: _assertion(cell.strip(), row.spot.at(name))} if cell.strip() else {}
        elif found := _CONFIG.fullmatch(name):
            thresholds |= {found["column"]: number_of(cell, row.spot.at(name))} if cell.strip() else {}
        elif name in {"__description", "__providerOutput"}:
            told |= {name.removeprefix("__"): cell} if cell else {}
        elif name == "__threshold":
            told |= {"threshold": number_of(cell, row.spot.at(name))} if cell.strip() else {}
        elif name == "__metric":
            metric = {"metric": cell} if cell else {}
        elif not name.startswith("__metadata"):
            raise InvalidRequest(f"{row.spot}: the column {clip(name)} has no counterpart; leave it out")
    return told | {"vars": variables, "assert": list(_configured(asserted, thresholds, row.spot, metric))}


def _configured(
    asserted: dict[str, dict[str, JsonValue]], thresholds: dict[str, JsonValue], where: Spot, metric: dict[str, JsonValue]
) -> Iterator[JsonValue]:
    """Yield the assertions, each with the threshold that a column of its own gives it."""
    names = ("__expected", "__expected1")  # two names of one column
    for column, told in asserted.items():
        own = next((thresholds.pop(name) for name in (column, *(names if column in names else ())) if name in thresholds), None)
        yield told | metric | ({} if own is None else {"threshold": own})
    if left := next(iter(thresholds), None):
        raise InvalidRequest(f"{where}: a threshold for {left}, and nothing is expected there; leave it out, or write what is")


def _assertion(text: str, where: Spot) -> dict[str, JsonValue]:
    """Return what a cell says, `contains: 5 days`; a text without a type is what the output has to equal."""
    found = _ASSERTION.fullmatch(text)
    kind = _OTHER_NAMES.get(found["type"], found["type"]) if found else ""
    if found is None or kind.removeprefix("not-") not in _TYPES:
        return {"type": "equals", "value": text}
    value = (found["value"] or "").strip()
    threshold = {} if found["threshold"] is None else {"threshold": number_of(found["threshold"], where)}
    return {"type": kind, **({"value": value} if value else {}), **threshold}
