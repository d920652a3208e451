"""Tools that look at text: words, tokens, expressions, schemas, pages. They run in processes of their own: some inputs take minutes."""

import functools
from typing import Annotated, Any, Literal

from pydantic import JsonValue

from gradeloop.contract.messages import code_of
from gradeloop.grading.checks import TEXT_CHECK, KindOf, run_text_check
from gradeloop.grading.json_schema import compile_pattern, schema_errors, validate_schema
from gradeloop.text import read_json

Encoding = Literal["o200k_base", "cl100k_base"]


def word_count(draft: str, minimum: int | None = None, maximum: int | None = None) -> dict[str, Any]:
    """Count the draft's words, as white space separates them, and say whether they are within bounds.

    Args:
        minimum: The fewest that pass.
        maximum: The most that pass.
    """
    return _within(len(draft.split()), "words", minimum, maximum)


def count_tokens(draft: str, minimum: int | None = None, maximum: int | None = None, encoding: Encoding = "o200k_base") -> dict[str, Any]:
    """Count the draft's tokens and say whether they are within bounds.

    Args:
        minimum: The fewest that pass.
        maximum: The most that pass.
        encoding: OpenAI's tokenizers; other vendors' models count differently.
    """
    return _within(len(_encoding(encoding).encode_ordinary(draft)), "tokens", minimum, maximum)


def regex_check(
    pattern: str, draft: str, absent: bool = False, whole: bool = False, extract: Literal["text", "code"] = "text"
) -> dict[str, Any]:
    """Say whether the draft matches a regular expression (RE2's syntax: no look-around, no back-references).

    Args:
        pattern: Found anywhere in the draft; (?i) at its beginning ignores case, (?s) has a dot match line ends.
        absent: True passes where it is not found.
        whole: True asks that all of the draft matches.
        extract: `code` looks at the draft's last fenced code block.
    """
    text = code_of(draft) if extract == "code" else draft
    found = compile_pattern(pattern).fullmatch(text) if whole else compile_pattern(pattern).search(text)
    match = {"found": found.group(0)[:200], "at": found.start()} if found else {"found": None}
    return {"ok": (found is None) == absent, **match}


def text_check(
    kind: Annotated[str, KindOf(TEXT_CHECK)], draft: str, value: JsonValue = None, negate: bool = False, threshold: float | None = None
) -> dict[str, Any]:
    """Compare the draft with a text, or look for texts, a pattern or JSON in it.

    Args:
        kind: How; the i in icontains ignores case.
        value: What is looked for: a text; for -all and -any a list of them; a pattern of RE2's; for JSON a JSON Schema, or nothing.
        negate: True passes where it does not hold.
        threshold: The largest distance of levenshtein, the least share of rouge-n and bleu.
    """
    result = run_text_check(draft, {"kind": kind, "value": value, "negate": negate, "threshold": threshold})
    return {"ok": result.passed} | ({"why": result.gap} if result.gap else {}) | ({} if result.share is None else {"share": result.share})


def json_schema_check(schema: dict[str, Any], draft: str) -> dict[str, Any]:
    """Say whether the draft, or its last fenced code block, is JSON that fits a JSON Schema (draft 2020-12), and what does not.

    Args:
        schema: References within itself are followed, others are not; patterns are RE2's.
    """
    validate_schema(schema)
    try:
        value = read_json(code_of(draft))
    except ValueError as error:
        return {"ok": False, "errors": [str(error)]}
    errors = list(schema_errors(schema, value))
    return {"ok": not errors, **({"errors": errors} if errors else {})}


def read_page(encoding: str, html: bool, data: bytes = b"") -> str:
    """Return what a reader of the page sees: of HTML title and text, a line a block.

    Args:
        encoding: What the server says.
        html: Whether it is HTML.
        data: The page.
    """
    text = data.decode(encoding, errors="replace")
    return text_of_html(text) if html else text


def text_of_html(html: str) -> str:
    """Return the text of HTML without its marks, scripts and styles.

    Raises:
        ValueError: It is not HTML that can be read.
    """
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        soup = BeautifulSoup(html, "html.parser")
    except ParserRejectedMarkup:
        raise ValueError("it is not HTML that can be read") from None
    for hidden in soup(["script", "style", "noscript", "template"]):
        hidden.decompose()
    lines = (" ".join(line.split()) for line in soup.get_text("\n").splitlines())
    return "\n".join(line for line in lines if line)


@functools.cache
def _encoding(name: str) -> Any:  # noqa: ANN401 - the package has no types
    import bpe_openai  # type: ignore[import-untyped]  # it has no types

    return bpe_openai.get_encoding(name)


def _within(count: int, what: str, minimum: int | None, maximum: int | None) -> dict[str, Any]:
    for name, bound in (("minimum", minimum), ("maximum", maximum)):
        if bound is not None and bound < 0:
            raise ValueError(f"{name} is {bound}; give a number of {what}")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ValueError(f"minimum {minimum} is above maximum {maximum}; nothing would pass")
    ok = (minimum is None or count >= minimum) and (maximum is None or count <= maximum)
    bounds = {name: value for name, value in (("minimum", minimum), ("maximum", maximum)) if value is not None}
    return {"ok": ok, what: count, **bounds}
