"""HTML documents of templates: styles and scripts inside, allowed by their hashes alone."""

import base64
import hashlib
import json
import shlex
import zlib
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pydantic import JsonValue

from gradeloop.contract.base import Strict
from gradeloop.contract.evaluation import DraftPiece
from gradeloop.contract.messages import Usage
from gradeloop.extensions import parts
from gradeloop.files.output import PAGE, replacing, resolve_writable
from gradeloop.reports.markup import rendered, shown
from gradeloop.text import counted, headline, money, percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


FOLDER = Path(__file__).parent / "templates"

STYLES, SCRIPTS = ("page.css",), ("page.js",)
"""The files of every page."""

_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Live(Strict):
    """A page that is served rather than mailed: it looks for changes, and people act on it."""

    token: str
    """A secret of the process that serves it; whatever changes anything has to bring it along."""
    path: str
    """The page's own path."""


def document(
    template: str, *, title: str, scripts: Sequence[str] = (), styles: Sequence[str] = (), live: Live | None = None, **context: object
) -> str:
    """Return a whole document, with a policy that lets nothing in but its own styles and scripts.

    Args:
        template: A template that extends `page.html`.
        title: The title of the window.
        scripts: Names of files beside `page.js`.
        styles: Names of files beside `page.css`.
        live: The facts of a page that is served; None for a file.
        context: The variables of the template.
    """
    from markupsafe import Markup

    css = [_read(name) for name in (*STYLES, *styles)]
    js = [_read(name) for name in (*SCRIPTS, *scripts)]
    fixed = {
        "title": title,
        "policy": policy(css, js, live=live is not None),
        "styles": [Markup(text) for text in css],  # noqa: S704 - our own files
        "scripts": [Markup(text) for text in js],  # noqa: S704 - our own files
        "live": live,
    }
    return _environment().get_template(template).render(fixed | context)


def part(template: str, **context: object) -> str:
    """Return what a template alone renders to."""
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


def segment(text: str) -> str:
    """Return an id as one segment; `.` and `..` would be steps to a browser, whatever their spelling."""
    plain = text.strip(".") and not text.startswith("=")
    return quote(text if plain else f"={text}", safe="")


MEGABYTE = 1_000_000


def checked_page(path: Path | None, *, overwrite: bool = False, suffixes: Sequence[str] = (PAGE,)) -> None:
    """Refuse an output path that is no page, cannot be written, or is a file of others, before anything is read."""
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
    rules += ["connect-src 'self'"] if live else []
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


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
    from markupsafe import Markup

    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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


def in_path(text: str) -> str:
    """Return an id as a part of a path."""
    return quote(text, safe="", errors="replace")


def fenced(pieces: Iterable[DraftPiece]) -> bool:
    """True where a text holds fenced code, so that it is shown in a monospaced font with all its differences."""
    return any("```" in piece.text or "~~~" in piece.text for piece in pieces)


def capitalize_first(text: str) -> str:
    """Return a sentence that begins with a capital letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


HEADLINE_CHARACTERS = 200
"""How much of a long question stands unfolded: two lines of a wide page."""

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
    "in_path": in_path,
    "shell": shlex.quote,
    "counted": counted,
}
