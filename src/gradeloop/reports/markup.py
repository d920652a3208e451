"""Drafts in Markdown as HTML: no tag of theirs is one, and what is rendered is checked against a list before it is shown."""

import re
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markupsafe import Markup

MOST_CHARACTERS = 60_000
"""The longest text that is rendered; a longer one is shown as it was written, so that a page is made in time."""

MOST_CODE = 20_000
"""The longest block of code that is highlighted."""

LANGUAGES = frozenset(
    {
        *("bash", "c", "cpp", "css", "diff", "go", "html", "ini", "java", "javascript", "js", "json", "kotlin", "markdown", "php"),
        *("py", "python", "rb", "ruby", "rust", "sh", "sql", "swift", "toml", "ts", "typescript", "xml", "yaml"),
    }
)
"""The languages that are highlighted; the lexers of others are not tried on what a model wrote."""

_MAYBE = re.compile(r"[*_`#|~\[<>]|^[ \t]*(?:[-+]|\d{1,9}[.)])[ \t]|^(?: {4}|\t)|^[-=]{2,}|https?:", re.MULTILINE)
"""What a text has that is more than paragraphs."""

_LINK = re.compile(r"(?:https?://|mailto:)[^\s<>\"']+", re.IGNORECASE)

_PLAIN = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak", "hardbreak"}

TAGS = frozenset(
    {
        *("p", "br", "hr", "strong", "em", "s", "ul", "ol", "li", "blockquote", "pre", "code", "span"),
        *("table", "thead", "tbody", "tr", "th", "td", "a"),
    }
)
"""The elements that a rendered draft may have."""

ATTRIBUTES = {"class": re.compile(r"[a-z0-9 -]*"), "href": _LINK, "rel": re.compile("[a-z ]+"), "start": re.compile(r"\d{1,9}")}
"""The attributes that they may have, with the form of their values."""


_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control, direction, zero-width and tag characters, and surrogates. Joiners stay: scripts and emoji need them."""


def shown(text: str) -> str:
    """Return a text with its invisible characters as escapes."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\r\n", "\n"))


def rendered(text: str) -> "Markup | None":
    """Return a text as HTML; None where it has no Markdown in it, is too long, or would render to what is not on the lists."""
    from markupsafe import Markup

    if len(text) > MOST_CHARACTERS or not _MAYBE.search(text):
        return None
    parser = _parser()
    tokens = parser.parse(shown(text))
    if _is_plain(tokens):
        return None
    html = str(parser.renderer.render(tokens, parser.options, {}))
    return Markup(html) if is_safe(html) else None  # noqa: S704 - every tag and attribute was checked against the lists


def is_safe(html: str) -> bool:
    """Return whether a text of HTML has no element, attribute or address that is not on the lists."""
    check = _Check(convert_charrefs=True)
    check.feed(html)
    check.close()
    return check.safe


class _Check(HTMLParser):
    """Reads HTML, and notes whether all of it is on the lists."""

    safe = True

    def handle_starttag(self, tag: str, attrs: "list[tuple[str, str | None]]") -> None:
        """Check an element and its attributes."""
        known = all(name in ATTRIBUTES and ATTRIBUTES[name].fullmatch(value or "") for name, value in attrs)
        self.safe = self.safe and tag in TAGS and known

    def handle_comment(self, data: str) -> None:  # noqa: ARG002 - the parser's own name
        """Refuse a comment."""
        self.safe = False

    def handle_decl(self, decl: str) -> None:  # noqa: ARG002 - the parser's own name
        """Refuse a declaration."""
        self.safe = False

    def unknown_decl(self, data: str) -> None:  # noqa: ARG002 - the parser's own name
        """Refuse a marked section."""
        self.safe = False

    def handle_pi(self, data: str) -> None:  # noqa: ARG002 - the parser's own name
        """Refuse an instruction."""
        self.safe = False


def _is_plain(tokens: "Sequence[Token]") -> bool:
    return all(token.type in _PLAIN and _is_plain(token.children or ()) for token in tokens)


@cache
def _parser() -> "MarkdownIt":
    """Return the parser: HTML off, no pictures, addresses of the web and of mail alone, code highlighted by classes."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlighted, "maxNesting": 12})
    parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    parser.validateLink = lambda url: _LINK.fullmatch(url) is not None  # type: ignore[method-assign]  # its own way to say so
    parser.core.ruler.push("bare", _strip)
    return parser


def _strip(state: object) -> None:
    """Make headings paragraphs, so that a draft has no part in the outline of the page, and take alignments off cells."""
    for token in _walk(state.tokens):  # type: ignore[attr-defined]  # a StateCore
        if token.type == "heading_open":
            token.attrs = {"class": f"md-{token.tag}"}
        if token.type in {"heading_open", "heading_close"}:
            token.tag = "p"
        elif token.type == "link_open":
            token.attrs = {"href": token.attrs.get("href", ""), "rel": "noopener noreferrer nofollow"}
        elif token.type == "fence":
            token.info = language if (language := token.info.strip().lower()) in LANGUAGES else ""
        elif token.type in {"th_open", "td_open"}:
            token.attrs = {}


def _walk(tokens: "Sequence[Token]") -> "list[Token]":
    return [inner for token in tokens for inner in (token, *_walk(token.children or ()))]


def _highlighted(code: str, language: str, _attributes: str) -> str:
    """Return a block of code with its words in spans; an empty text where it is not highlighted, and then escaped by the parser."""
    name = language.lower()
    if name not in LANGUAGES or len(code) > MOST_CODE:
        return ""
    from pygments import highlight  # type: ignore[import-untyped]  # it ships no types
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]  # as above
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]  # as above

    return str(highlight(code, get_lexer_by_name(name, stripnl=False), HtmlFormatter(nowrap=True, classprefix="hl-")))
