"""Quotes are verbatim or they are none: white space, composed characters and typography aside, nothing is forgiven."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from gradeloop.contract.evaluation import Quote, Verdict
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.grading.quotes import FoldedText, verify_quotes
from tests.rig.threads import draft, grade, request, row, serving

REPORT = "The pump moved 1,250 litres a minute at 3.5 bar, which is more than any other pump that we have tested so far this year."


def looked_up(quote: str, *messages: Message | str, record: int = 0) -> Quote:
    """Return a quote after it was looked up in messages."""
    said = [message if isinstance(message, Message) else Message(role="user", content=message) for message in messages]
    rows = ({"id": "c1", "reason": "r", "passed": True, "gap": None, "quotes": ({"record": record, "quote": quote},)},)
    checked = verify_quotes(Verdict.model_validate({"criteria": rows, "explanation": "e", "result": "satisfied"}), said)
    assert isinstance(checked, Verdict)
    ((found,),) = (answer.quotes or () for answer in checked.criteria)
    return found


EXACT: dict[str, tuple[str, str]] = {
    "a passage": ("The pump moved 1,250 litres", REPORT),
    "white space": ("  The   pump\nmoved\t1,250\u00a0litres ", REPORT),
    "typographic quotes": ('she said "it\'s done" twice', "Then she said “it’s done” twice."),
    "typographic quotes in the quote": ("she said “it’s done” twice", 'Then she said "it\'s done" twice.'),
    "dashes": ("pages 10-12 - all of them", "On pages 10–12 — all of them."),
    "a minus sign": ("it was -5 degrees outside", "Here it was −5 degrees outside."),
    "composed characters": ("the café was closed", "Today the cafe\u0301 was closed."),
    "composed characters in the quote": ("the cafe\u0301 was closed", "Today the café was closed."),
    "Hangul": ("\u1112\u1161\u11ab\u1100\u1173\u11af\u110b\u1175\u110b\u1175\u11b8\u1102\u1175\u1103\u1161", "한글이입니다"),
    "the escapes of the record": ('it says \\"go\\"\\tnow, twice', 'There it says "go"\tnow, twice.'),
    "hidden characters as escapes": ("an in\\u200bvisible word", "It is an in\u200bvisible word."),
    "hidden characters as they are": ("an in\u200bvisible word", "It is an in\u200bvisible word."),
    "12 bytes": (" moved 1,250 l ", REPORT),
    "12 bytes of four characters": ("東京駅前", "彼は東京駅前で待った。"),
    "a whole line": ("yes", "Is it done?\n  yes  \nThen go."),
    "a whole record": ("No.", "No."),
    "a text of JSON": ("ok", '{"status": "ok", "left": 12}'),
    "a text of JSON with its quotation marks": ('"ok"', '{"status": "ok", "left": 12}'),
    "a number of JSON": ("12", '{"status": "ok", "left": [12, 120]}'),
    "a truth of JSON": ("false", '{"done": false}'),
    "a list of JSON": ("[1, 2]", '{"pair": [1, 2], "more": 0}'),
}
"""Quotes that are verbatim, and the text of their record."""

NOT_DELETED = "by the log of that night, the agent did not delete the production database, which it was asked to leave alone"
DELETED = NOT_DELETED.replace("did not delete", "did delete")

OTHERWISE: dict[str, tuple[str, str, str]] = {
    "a lost word that turns it round": (DELETED, "near", NOT_DELETED),
    "another number": ("The pump moved 1,350 litres a minute at 3.5 bar, which is more than any other pump", "near", REPORT),
    "a typing error": ("The pump moved 1,250 litres a minute at 3.5 bar, which is more then any other pump", "near", REPORT),
    "a comma too many": ("which is more than any other pump, that we have tested so far this year", "near", REPORT),
    "another case": ("the pump moved 1,250 litres", "none", REPORT),
    "other words": ("which is less than any pump which nobody ever tested at any time", "none", REPORT),
    "an ellipsis": ("The pump moved … at 3.5 bar", "none", REPORT),
    "11 bytes": ("moved 1,250", "none", REPORT),
    "11 bytes and white space": ("  moved \n 1,250  ", "none", REPORT),
    "a word": ("pump", "none", REPORT),
    "three characters": ("東京駅", "none", "彼は東京駅前で待った。"),
    "a part of a line": ("yes", "none", "Is it done?\nyes, it is\n"),
    "a part of a text of JSON": ("ok", "none", '{"status": "not ok"}'),
    "a key of JSON": ("status", "none", '{"status": "ok"}'),
    "a part of a number of JSON": ("12", "none", '{"left": 120}'),
    "a truth that JSON does not have": ("true", "none", '{"done": false, "why": "it is not true"}'),
    "compatibility characters": ("ﬁve of them were ﬁne", "none", "There five of them were fine."),
    "half of a composed character": ("the cafe was closed", "none", "Today the cafe\u0301 was closed."),
    "nothing": ("", "none", REPORT),
    "white space alone": ("   \n", "none", "a\n\nb"),
}
"""Quotes that are none, what they are instead, and the text of their record."""


def test_a_verbatim_quote_is_found(subtests: pytest.Subtests) -> None:
    for name, (quote, text) in EXACT.items():
        with subtests.test(name=name):
            found = looked_up(quote, text)

            assert (found.quote_match, found.quote_verified, found.quote_nearest) == ("exact", True, None)


def test_whatever_is_not_verbatim_is_no_quote(subtests: pytest.Subtests) -> None:
    for name, (quote, match, text) in OTHERWISE.items():
        with subtests.test(name=name):
            found = looked_up(quote, text)

            assert (found.quote_match, found.quote_verified) == (match, False)
            assert (found.quote_nearest is not None) == (match == "near")


def test_the_passage_that_a_quote_is_near_to_comes_with_it() -> None:
    assert "did not delete" in str(looked_up(DELETED, f"Then: {NOT_DELETED}.").quote_nearest)


@pytest.mark.parametrize("record", [-1, 1, 7])
def test_a_quote_counts_in_the_record_that_it_names_alone(record: int) -> None:
    assert looked_up("The pump moved 1,250 litres", REPORT, "A pump.", record=record).quote_match == "none"


def test_the_value_of_a_tool_calls_argument_is_a_whole_quote() -> None:
    call = ToolCall(id="1", name="delete", arguments={"force": True, "path": "/srv"})
    messages = [Message(role="assistant", content="", tool_calls=(call,)), Message(role="tool", content="3", tool_call_id="1")]

    assert [looked_up(quote, *messages).quote_match for quote in ("true", "/srv", "force", "/sr")] == ["exact", "exact", "none", "none"]
    assert looked_up("3", *messages, record=1).quote_match == "exact"


@given(st.text(max_size=60), st.integers(0, 60), st.integers(1, 60))
def test_whatever_is_copied_from_a_text_has_its_place_there(text: str, start: int, length: int) -> None:
    """Copied between composed characters: a copy may end in the midst of one as little as in the midst of a letter."""
    clusters = _clusters(text)
    quote = "".join(clusters[start : start + length])
    folded = FoldedText(text)
    for wanted in (quote, unicodedata.normalize("NFC", quote), unicodedata.normalize("NFD", quote)):
        span = folded.span(wanted)
        if not wanted.strip():
            assert span is None
        else:
            assert span is not None
            assert FoldedText(text[span[0] : span[1]]).text == FoldedText(wanted).text


def _clusters(text: str) -> Sequence[str]:
    """Return a text's characters, each with what composes with it."""
    found: list[str] = []
    for character in text:
        composes = unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"
        if composes and found:
            found[-1] += character
        else:
            found.append(character)
    return found


CAPPED = "max_iterations_reached"


@pytest.mark.parametrize(("quote", "status"), [(DELETED, CAPPED), ("did not", CAPPED), (NOT_DELETED, "satisfied")])
async def test_only_a_verbatim_quote_satisfies_a_rubric_that_requires_one(client: Client, quote: str, status: str) -> None:
    rubric = {"criteria": [{"description": "The database is left alone", "require_quotes": True}]}
    said: dict[str, Any] = {"role": "user", "content": f"It is plain: {NOT_DELETED}."}
    async with serving(client, draft(), grade(0, row("c1", quotes=[{"record": 0, "quote": quote}]))) as served:
        result = await served.run(request(rubric, said, max_iterations=1))

    assert result.status == status


@pytest.mark.parametrize("key", ["quote_verified", "quote_match", "quote_nearest"])
async def test_a_grader_cannot_say_how_its_quote_matches(client: Client, key: str) -> None:
    rubric = {"criteria": [{"description": "a", "quotes": True}]}
    value = True if key == "quote_verified" else "exact"
    replies = [grade(0, row("c1", quotes=[{"record": 0, "quote": "x", key: value}]), step=step) for step in range(3)]
    async with serving(client, draft(), *replies) as served:
        result = await served.run(request(rubric))

    assert result.status == "grader_error"
    assert f"unknown key '{key}'" in result.evaluations[0].explanation
