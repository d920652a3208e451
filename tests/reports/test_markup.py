"""Drafts in Markdown as HTML: what is rendered, what stays as it was written, and that no payload is ever a tag of its own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.reports.html import MOST_CHARACTERS, is_safe, rendered
from tests.rig.page_payloads import PAYLOADS

FORMS = (
    "# {}",
    "**{}**",
    "- {}\n- two",
    "> {}",
    "```html\n{}\n```",
    "```{}\ncode\n```",
    "    {}",
    "`{}`",
    "| a |\n| --- |\n| {} |",
    "[a]({}) *x*",
    "[a](<{}>) *x*",
    "![a]({}) *x*",
    "<{}> *x*",
    "[a]: {}\n\n[a] *x*",
    '[a](http://good.example "{}")',
    "{}\n\n***",
)
"""Every place of Markdown that a payload may stand in."""

ADDRESSES = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "data:text/html,x",
    "vbscript:x",
    "file:///etc/passwd",
    "//attack.example",
    "#main",
    "/",
)


def test_no_payload_in_markdown_is_more_than_text(subtests: pytest.Subtests) -> None:
    for form in FORMS:
        with subtests.test(form):
            for payload in PAYLOADS:
                html = rendered(form.replace("{}", payload))

                assert html is None or is_safe(str(html)), payload
                assert html is None or not re.search(
                    r"<(?!/?(?:p|br|hr|strong|em|s|[uo]l|li|blockquote|pre|code|span|table|t[a-z]+|a)\b)", html
                )


@given(st.text(st.sampled_from("<>&\"'`*_[]()!#|-\n :;=/aj\\"), max_size=60))
def test_whatever_is_rendered_is_on_the_lists(text: str) -> None:
    html = rendered(text)

    assert html is None or is_safe(str(html))


def test_links_lead_to_the_web_or_to_mail_alone(subtests: pytest.Subtests) -> None:
    for address in ADDRESSES:
        with subtests.test(address):
            html = str(rendered(f"*x* [a]({address}) ![b]({address})"))

            assert "href" not in html
            assert 'href="https://good.example/a?b=1&amp;c"' in str(rendered("*x* [a](https://good.example/a?b=1&c)"))


def test_pictures_are_links_so_that_nothing_is_loaded() -> None:
    assert "<img" not in str(rendered("*x* ![pixel](https://attack.example/p.gif)"))


def test_what_is_not_on_the_lists_is_not_safe(subtests: pytest.Subtests) -> None:
    for html in ["<img src=x>", '<p onclick="x">', '<a href="javascript:x">', "<!-- x -->", "<script>", '<p style="x">', "<?x?>"]:
        with subtests.test(html):
            assert not is_safe(html)


def test_code_is_highlighted_by_classes_and_stays_code() -> None:
    html = str(rendered("```python\nif a < 1:  # <b>\n    pass\n```"))

    assert '<span class="hl-k">if</span>' in html
    assert "&lt;b&gt;" in html
    assert 'class="language-' in html
    assert 'class="language-' not in str(rendered('```"><b>\nx\n```'))


def test_a_draft_without_markdown_or_beyond_the_limit_stays_as_it_was_written() -> None:
    assert rendered("Dear customer,\n\nwe are sorry.\n") is None
    assert rendered("2 < 3 and a_b") is None
    assert rendered("**x** " * MOST_CHARACTERS) is None


def test_headings_are_no_headings_of_the_page_and_lines_stay_lines() -> None:
    assert '<p class="md-h1">Title</p>' in str(rendered("# Title\n\none\ntwo"))
    assert "one<br" in str(rendered("# Title\n\none\ntwo"))


def test_invisible_characters_are_shown_as_escapes() -> None:
    assert "\\u202e" in str(rendered("**a\u202eb**"))
