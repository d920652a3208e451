"""HTML documents that stand alone: one file, no request, scripts and styles named by their hashes."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradeloop.strict import Strict

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FOLDER = Path(__file__).parent / "templates"

STYLES, SCRIPTS = ("page.css",), ("page.js",)
"""Of every page."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control, direction, zero-width and tag characters, and halves of some. Joiners stay: scripts and emoji need them."""

_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Live(Strict):
    """A page that is served rather than mailed: it looks for changes, and people steer from it."""

    token: str
    """Of the process that serves it; what changes anything has to bring it along."""
    path: str
    """The page's own."""


def document(
    template: str, *, title: str, scripts: Sequence[str] = (), styles: Sequence[str] = (), live: Live | None = None, **context: object
) -> str:
    """Return a whole document, with a policy that lets nothing in but its own styles and scripts.

    Args:
        template: Extends `page.html`.
        title: Of the window.
        scripts: Names of files beside `page.js`.
        styles: Names of files beside `page.css`.
        live: Where the page is served.
        context: What the template shows.
    """
    from markupsafe import Markup

    css = [_read(name) for name in (*STYLES, *styles)]
    js = [_read(name) for name in (*SCRIPTS, *scripts)]
    held = {
        "title": title,
        "policy": policy(css, js, live=live is not None),
        "styles": [Markup(each) for each in css],  # noqa: S704 - our own files
        "scripts": [Markup(each) for each in js],  # noqa: S704 - our own files
        "live": live,
    }
    return _environment().get_template(template).render(held | context)


def part(template: str, **context: object) -> str:
    """Return what a template alone renders to."""
    return _environment().get_template(template).render({"live": None} | context)


def policy(styles: Sequence[str], scripts: Sequence[str], *, live: bool) -> str:
    """Return the Content-Security-Policy of a page with these styles and scripts."""
    parts = ["default-src 'none'", f"style-src {_hashes(styles)}", f"script-src {_hashes(scripts)}", "img-src data:"]
    parts += ["connect-src 'self'"] if live else []
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def shown(text: str) -> str:
    """Return a text with the characters that nobody sees as escapes that everybody sees."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\r\n", "\n"))


def data(value: object) -> "Markup":
    """Return a value as JSON that can stand in a script element."""
    from markupsafe import Markup

    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_IN_SCRIPT))  # noqa: S704 - escaped


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from gradeloop.reports.filters import FILTERS

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= FILTERS | {"data": data}
    return environment


def _finalized(value: object) -> object:
    """Have whatever a template puts out be seen; what is marked up already was put out before."""
    from markupsafe import Markup

    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
