"""HTML documents of templates: styles and scripts inside, allowed only by their hashes."""

import base64
import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Iterable, Sequence
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pydantic import JsonValue

from gradeloop.contract.base import Strict
from gradeloop.contract.evaluation import DraftPiece
from gradeloop.contract.messages import Usage
from gradeloop.extensions import parts
from gradeloop.files.output import PAGE, replacing, resolve_writable
from gradeloop.text import counted, headline, money, percent

if TYPE_CHECKING:
    from jinja2 import Environment
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
"""Signs that a text has more than paragraphs."""

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


# What a model wrote is rendered by a parser that knows no HTML. Then the result is read back, and compared with
# lists of elements and attributes. The second step trusts nothing of the first: a fault of the parser or of the
# highlighter shows the text as it was written, and never runs. The page's policy would still refuse a script
# that passed both.
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
        """Refuse a comment, a declaration, a marked section or an instruction."""
        self.safe = False

    unknown_decl = handle_comment
    handle_decl = handle_pi = handle_comment  # type: ignore[assignment]  # whose one argument has another name


def _is_plain(tokens: "Sequence[Token]") -> bool:
    return all(token.type in _PLAIN and _is_plain(token.children or ()) for token in tokens)


@cache
def _parser() -> "MarkdownIt":
    """Return the parser: HTML off, no pictures, only addresses of the web and of mail, code highlighted by classes."""
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


FOLDER = Path(__file__).parent / "templates"

_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Live(Strict):
    """A page that is served rather than mailed: it looks for changes, and people act on it."""

    token: str
    """A secret of the process that serves it; whatever changes anything has to bring it along."""
    path: str
    """The page's own path."""


def document(template: str, *, title: str, scripts: Sequence[str] = (), live: Live | None = None, **context: object) -> str:
    """Return a whole document, with a policy that lets nothing in but its own styles and scripts.

    Args:
        template: A template that extends `page.html`.
        title: The title of the window.
        scripts: Names of files beside `page.js`.
        live: The facts of a page that is served, which has `live.js` and `live.css`, too; None for a file.
        context: The variables of the template.
    """
    from markupsafe import Markup

    css = [_read(name) for name in ("page.css", *(["live.css"] if live else []))]
    js = [_read(name) for name in ("page.js", *scripts, *(["live.js"] if live else []))]
    fixed = {
        "title": title,
        "policy": policy(css, js, live=live is not None),
        "styles": [Markup(text) for text in css],  # noqa: S704 - our own files
        "scripts": [Markup(text) for text in js],  # noqa: S704 - our own files
        "live": live,
    }
    return _environment().get_template(template).render(fixed | context)


def part(template: str, **context: object) -> str:
    """Return a template rendered without a page around it."""
    return _environment().get_template(template).render({"live": None} | context)


def thread_path(thread_id: str) -> str:
    """Return the path of a thread's page."""
    return f"/threads/{segment(thread_id)}"


def batch_path(batch_id: str) -> str:
    """Return the path of a batch's page."""
    return f"/batches/{segment(batch_id)}"


def case_path(batch_id: str, case_id: str) -> str:
    """Return the path of a case's page."""
    return f"{batch_path(batch_id)}/cases/{segment(case_id)}"


def read_id(encoded: str) -> str:
    """Return the id in a segment of a path; decoded once, so that `%2525` is the id `%25`."""
    return unquote(encoded).removeprefix("=")


# Ids are chosen by users. Browsers take `.` and `..` as steps in any spelling, `%2e` too, so an id that
# consists only of dots gets a `=` before it. An id that begins with `=` gets a second one, so that no two ids
# share a path.
def segment(text: str) -> str:
    """Return an id as one segment; `.` and `..` would be steps to a browser, whatever their spelling."""
    plain = text.strip(".") and not text.startswith("=")
    return quote(text if plain else f"={text}", safe="")


MEGABYTE = 1_000_000


def checked_page(path: Path | None, *, overwrite: bool = False, suffixes: Sequence[str] = (PAGE,)) -> None:
    """Refuse an output path that is not a page, cannot be written, or is a file of others, before anything is read."""
    if path is not None:
        resolve_writable(path, suffixes, overwrite=overwrite)


def write_page(path: Path, page: str) -> str:
    """Write a page in one step, so that nobody finds half of it, and return its size as text."""
    content = page.encode(errors="replace")
    with replacing(path) as file:
        file.write(content.decode())
    return f"{len(content) / MEGABYTE:.1f} MB" if len(content) >= MEGABYTE else f"{max(len(content) // 1000, 1)} KB"


def policy(styles: Sequence[str], scripts: Sequence[str], *, live: bool) -> str:
    """Return the Content-Security-Policy of a page with these styles and scripts."""
    rules = ["default-src 'none'", f"style-src {_hashes(styles)}", f"script-src {_hashes(scripts)}", "img-src data:"]
    rules += ["connect-src 'self'", "form-action 'self'"] if live else ["form-action 'none'"]
    return "; ".join([*rules, "base-uri 'none'"])


def data(value: object) -> "Markup":
    """Return a value as JSON that can stand in a script element."""
    from markupsafe import Markup

    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_IN_SCRIPT))  # noqa: S704 - escaped


def packed(value: object) -> str:
    """Return a value as JSON, in zlib's format, as base64: what the script of a page unpacks where it is needed."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode()


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


@cache
def _folders() -> tuple[Path, ...]:
    """Return where templates, styles and scripts are: the core's first, then those of extensions."""
    return (FOLDER, *parts(lambda extension: extension.templates))


@cache
def _read(name: str) -> str:
    return next(path for folder in _folders() if (path := folder / name).is_file()).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_folders()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= FILTERS | {"data": data, "packed": packed}
    return environment


def _finalized(value: object) -> object:
    """Escape the invisible characters of every value of a template; markup has passed here before."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def score(value: float | None) -> str:
    """Return a score with two decimals; nothing if there is none."""
    return "" if value is None else f"{value:.2f}"


def cost(usage: Usage) -> str:
    """Return what calls cost; nothing if it is unknown or zero."""
    return money(usage.cost_usd)


def tokens(usage: Usage) -> str:
    """Return the tokens of calls, in and out, where servers report them."""
    if usage.tokens is None:
        return "tokens not reported"
    cached = f" ({usage.cached:,} cached)" if usage.cached else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def seconds(value: float | None) -> str:
    """Return a duration: in milliseconds below a second, in minutes and seconds from two minutes on."""
    if value is None:
        return ""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {int(value % 60)} s"  # noqa: PLR2004 - as the sentence says


def when(time: str) -> str:
    """Return a UTC time to the second: `2026-11-22 06:38:32 UTC`; any other text as it is."""
    zone = " UTC" if time.endswith(("Z", "+00:00")) else ""
    return f"{time[:10]} {time[11:19]}{zone}" if zone and time[10:11] == "T" else time


def as_json(value: JsonValue) -> str:
    """Return a value as JSON over several lines; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def fenced(pieces: Iterable[DraftPiece]) -> bool:
    """True where a text holds fenced code, so that it is shown in a monospaced font with all its differences."""
    return any("```" in piece.text or "~~~" in piece.text for piece in pieces)


def capitalize_first(text: str) -> str:
    """Return a sentence that begins with a capital letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


HEADLINE_CHARACTERS = 200
"""Characters of a long question that stand unfolded: two lines of a wide page."""

FILTERS = {
    "capitalize_first": capitalize_first,
    "fenced": fenced,
    "headline": partial(headline, limit=HEADLINE_CHARACTERS),
    "markdown": rendered,
    "score": score,
    "percent": percent,
    "money": cost,
    "tokens": tokens,
    "seconds": seconds,
    "when": when,
    "as_json": as_json,
    "in_path": partial(quote, safe="", errors="replace"),
    "shell": shlex.quote,
    "counted": counted,
}
