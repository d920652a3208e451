"""Deterministic checks follow promptfoo's documents, a gap names the wanted and the found, and bad arguments give no verdict."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from gradeloop.contract.criterion import Criterion
from gradeloop.grading.checks import TEXT_CHECK, kinds_of, run_text_check
from gradeloop.grading.text_checks import BEGINNINGS

ORDER: dict[str, JsonValue] = {"type": "object", "required": ["sku"]}

TOOLS: JsonValue = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}}]

TABLE: list[tuple[str, JsonValue, str, str, str]] = [
    ("equals", "1.10", "1.10", "1.1", "wanted '1.10', found '1.1'"),
    ("equals", {"a": [1, True]}, '{ "a": [1.0, true] }', '{"a": [1, 1]}', "wanted '{\"a\": [1, true]}', found"),
    ("equals", True, "true", "True", "wanted 'true', found 'True'"),
    ("contains", "5 days", "in 5 days.", "in 5 Days.", "'5 days' is not in it; found 'in 5 Days.'"),
    ("contains", 5, "in 5 days", "soon", "'5' is not in it"),
    ("icontains", "5 days", "in 5 DAYS", "soon", "'5 days' is not in it; found 'soon'"),
    ("contains-all", ["a", "b"], "ba", "ac", "not in it: 'b'; found 'ac'"),
    ("contains-all", ' a, "b, c" ', "a b, c", "a b c", "not in it: 'b, c'"),
    ("icontains-all", ["A", "b"], "aB", "a", "not in it: 'b'"),
    ("contains-any", ["a", "b"], "b", "c", "none of these is in it: 'a', 'b'; found 'c'"),
    ("icontains-any", "A,b", "a", "c", "none of these is in it: 'A', 'b'"),
    ("starts-with", "Dear ", "Dear Ann", "Oh dear", "wanted 'Dear ' at the beginning, found 'Oh dear'"),
    ("regex", "^[0-9]+$", "12", "a12", "nothing matches '^[0-9]+$'; found 'a12'"),
    ("is-json", None, ' [1, {"a": null}] ', "[1,]", "no JSON: "),
    ("is-json", ORDER, '{"sku": 1}', "{}", "'sku' is a required property"),
    ("is-json", None, "1", "NaN", "no JSON: NaN is not JSON"),
    ("contains-json", None, 'so: {"a": {"b": 1}}.', "a {b} c", "there is no JSON object or list in it"),
    ("levenshtein", "kitten", "sitting", "a dog that barks", "the distance is 1"),
    ("rouge-n", "the cat sat on the mat", "The cat sat on a mat.", "dogs bark", "the overlap of words is 0.00, 0.75 at least"),
    ("bleu", ["the cat sat on the mat", "x"], "the cat sat on the mat", "dogs bark at night", "its BLEU is 0.0"),
    ("word-count", 3, "one two three", "one two", "it has 2 words, wanted 3"),
    ("word-count", {"min": 2, "max": 3}, "one two", "one", "it has 1 words, wanted 2 to 3"),
    ("is-refusal", None, "I\u2019m sorry, but I cannot help with that.", "Five days.", "it refuses nothing; found 'Five days.'"),
    ("is-xml", "a.b", "<a><b>1</b></a>", "<a>1</a>", "there is no element 'a.b'"),
    ("is-xml", None, "<a/>", "<a>", "it is not XML: "),
    ("contains-xml", None, "so: <a><b/></a>.", "a < b", "there is no XML in it"),
    ("is-html", None, "<!doctype html><html><body>x</body></html>", "x <b>y</b>", "it is not HTML"),
    ("contains-html", None, "x <b>y</b>", "1 < 2", "there is no HTML in it"),
    ("is-sql", None, "SELECT a FROM t WHERE b = 1", "please select all", "it is not SQL"),
    (
        "is-sql",
        {"databaseType": "PostgreSQL", "allowedTables": ["select::null::t"]},
        "SELECT 1 FROM t",
        "SELECT 1 FROM u",
        "it uses 'u', which allowedTables does not name",
    ),
    ("contains-sql", None, "so:\n```sql\nSELECT 1\n```\n", "nothing", "it is not SQL"),
    (
        "is-valid-openai-tools-call",
        TOOLS,
        '[{"type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]',
        '[{"type": "function", "function": {"name": "add", "arguments": "{}"}}]',
        "'a' is a required property",
    ),
    (
        "is-valid-openai-function-call",
        None,
        '{"name": "add", "arguments": "{}"}',
        '{"name": "add", "arguments": "no"}',
        "the arguments of 'add' are not a JSON object",
    ),
    (
        "is-valid-function-call",
        TOOLS,
        '{"name": "add", "arguments": {"a": 1}}',
        '{"name": "sub", "arguments": {}}',
        "there is no function 'sub' among add",
    ),
    ("contains-json", ORDER, '{} and {"sku": 1}', 'only {"a": 1}', "'sku' is a required property"),
]


@pytest.mark.slow
def test_a_text_passes_or_the_gap_says_why(subtests: pytest.Subtests) -> None:
    for kind, value, good, bad, gap in TABLE:
        with subtests.test(kind=kind):
            arguments: dict[str, JsonValue] = {"kind": kind, "value": value}

            assert run_text_check(good, arguments).passed
            assert not run_text_check(bad, arguments).passed
            assert gap in (run_text_check(bad, arguments).gap or "")
            assert run_text_check(good, arguments).gap is None


def test_negated_it_is_turned_round(subtests: pytest.Subtests) -> None:
    for kind, value, good, bad, _ in TABLE:
        with subtests.test(kind=kind):
            arguments: dict[str, JsonValue] = {"kind": kind, "value": value, "negate": True}

            assert run_text_check(bad, arguments).passed
            assert not run_text_check(good, arguments).passed
            assert "not" in (run_text_check(good, arguments).gap or "") or "no" in (run_text_check(good, arguments).gap or "")


def test_every_kind_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(kinds_of(TEXT_CHECK))


def test_arguments_that_cannot_be_used_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"kind": "contain", "value": "x"}, "there is no kind 'contain'. Did you mean 'contains'?"),
        ({"value": "x"}, "there is no kind 'None'"),
        ({"kind": "contains"}, "contains has no value; write what is looked for"),
        ({"kind": "contains", "value": ""}, "the value of contains is empty, which every text has in it"),
        ({"kind": "contains", "value": ["x"]}, "the value of contains is"),
        ({"kind": "contains-all", "value": []}, "'[]' is not a list of texts"),
        ({"kind": "contains-any", "value": " , "}, "is not a list of texts"),
        ({"kind": "contains-any", "value": [["x"]]}, "the value of an item is"),
        ({"kind": "regex", "value": "(?<=x+)y"}, "is refused: "),
        ({"kind": "is-json", "value": "x"}, "'x' is not a JSON Schema; write an object"),
        ({"kind": "is-json", "value": {"type": "objekt"}}, "the schema is none: $.type"),
        ({"kind": "contains", "value": "x", "negate": "yes"}, "negate is 'yes'; write true or false"),
        ({"kind": "contains", "value": "x", "ignore": 1}, "unknown argument 'ignore'; give kind, value, negate and threshold"),
    ]
    for arguments, words in rows:
        with subtests.test(arguments=arguments), pytest.raises(ValueError, match=re.escape(words)):
            run_text_check("x", arguments)


def test_a_schema_without_an_end_and_a_text_with_too_many_beginnings_are_no_verdict() -> None:
    endless: dict[str, JsonValue] = {"$ref": "#"}

    with pytest.raises(ValueError, match="refers to itself without end"):
        run_text_check("1", {"kind": "is-json", "value": endless})
    with pytest.raises(ValueError, match=f"more than {BEGINNINGS} beginnings of JSON"):
        run_text_check("{" * (BEGINNINGS + 1), {"kind": "contains-json"})


@given(st.text(), st.text(min_size=1), st.text())
def test_what_is_in_a_text_is_found_whatever_stands_around_it(before: str, value: str, after: str) -> None:
    assert run_text_check(before + value + after, {"kind": "contains", "value": value}).passed
    assert run_text_check(before + value + after, {"kind": "icontains", "value": value}).passed
    assert run_text_check(value + after, {"kind": "starts-with", "value": value}).passed


def test_a_gap_is_short_however_long_the_text_is() -> None:
    found = run_text_check("x" * 100_000, {"kind": "contains-all", "value": [str(at) * 1000 for at in range(1, 10)]})

    assert len(found.gap or "") < 2_500


def test_it_is_a_criterion_as_it_stands() -> None:
    parsed = Criterion.model_validate(
        {"description": "d", "check": {"tool": "text_check", "arguments": {"kind": "contains", "value": "x"}}}
    )

    assert parsed.check is not None
    assert run_text_check("x", parsed.check.arguments).passed


PATTERNS: tuple[tuple[str, str, bool], ...] = (
    (r"^(?<year>\d{4})$", "2026", True),
    (r"^(?<year>\d{4})$", "٢٠٢٦", False),
    (r"^\w+$", "é", False),
    (r"^\s+$", "\u00a0\ufeff", True),
    (r"^[\s,]+$", "\u2003,", True),
    (r"\S", "\u00a0", False),
    (r"a.c", "a\u2028c", False),
    (r"a[.]c", "abc", False),
    (r"abc$", "abc\n", False),
    (r"(?=\w)abc$", "abc\n", False),
    (r"^\/\u0041\x42\cJ\-$", "/AB\n-", True),
    (r"^\u{3}$", "uuu", True),
    (r"^[^]$", "\n", True),
    (r"[[]x", "[x", True),
    (r"(?=\d)x|a(?!b)", "ac", True),
    (r"(?=\d)x|a(?!b)", "ab", False),
    (r"(?<q>['\"]).*\k<q>", "say 'it'", True),
    (r"(a+)-\1$", "aa-aaa", False),
    (r"(?<!\$)\b5\b", "$5", False),
    (r"(?=.)[\s.$]\u0041$", "$A", True),
    (r"(?i)ABC", "abc", True),
)


@pytest.mark.parametrize(("pattern", "text", "found"), PATTERNS)
def test_a_pattern_means_what_it_means_in_javascript(pattern: str, text: str, found: bool) -> None:
    assert run_text_check(text, {"kind": "regex", "value": pattern}).passed is found


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed, and the patterns are JavaScript's")
def test_node_reads_the_patterns_so() -> None:
    rows = [[pattern, text, found] for pattern, text, found in PATTERNS if not pattern.startswith("(?i)")]
    program = "const odd = JSON.parse(process.argv[1]).filter(([p, t, f]) => new RegExp(p).test(t) !== f); console.log(JSON.stringify(odd))"
    told = subprocess.run(["node", "-e", program, json.dumps(rows)], capture_output=True, text=True, check=True)

    assert json.loads(told.stdout) == []
