"""Providers of promptfoo that are addresses: what they are sent, filled in for every case, and what of the reply is the draft."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import JsonValue

from gradeloop.contract.base import CodeText
from gradeloop.contract.model_spec import HTTP_REQUEST, HttpCall, ModelSpec
from gradeloop.contract.thread import Generator
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.yaml import Location
from gradeloop.grading.templates import fill_value, is_template
from gradeloop.suites.code_files import is_code_file, parse_transform
from gradeloop.suites.findings import as_object
from gradeloop.text import clip

_READ = {"url", "method", "headers", "body", "queryParams", "transformResponse", "responseParser"}
_WITHOUT_EFFECT = {"maxRetries", "timeoutMs", "timeout"}
_METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE"}

_ADDRESS = re.compile(r"https?://")
_PATH = re.compile(r"json(?:\??\.[A-Za-z_$][\w$]*|(?:\?\.)?\[(?:\d+|'[^'\\]*'|\"[^\"\\]*\")\])+")
_STEP = re.compile(r"\.(?P<name>[A-Za-z_$][\w$]*)|\[(?:(?P<at>\d+)|'(?P<one>[^']*)'|\"(?P<two>[^\"]*)\")\]")
_FUNCTION = re.compile(r"^(?:async\s+)?(?:\(.*?\)\s*=>|\w+\s*=>|function\s*\w*\s*\()", re.DOTALL)


@dataclass(frozen=True)
class HttpTarget:
    """An address as a provider names it."""

    model: dict[str, JsonValue]
    """The model that stands for it, its texts not filled in."""
    transform: CodeText | None
    """What makes of the whole reply the draft; None where a path in its JSON says it."""
    ignored: tuple[str, ...]
    """Keys that have no effect here."""


def is_address(name: str) -> bool:
    """Tell whether a provider is an address."""
    return name in {"http", "https"} or _ADDRESS.match(name) is not None


def read_target(name: str, config: Mapping[str, JsonValue], where: Location) -> HttpTarget:
    """Read a provider that is an address.

    Raises:
        InvalidRequest: It has no address, or something in its config has no counterpart.
    """
    if odd := sorted(set(config) - _READ - _WITHOUT_EFFECT):
        known = ", ".join(sorted(_READ))
        cure = f"serve the provider as an activity. Known: {known}"
        raise InvalidRequest(f"{where.at('config', odd[0])}: {clip(odd[0])} of a request has no counterpart; {cure}")
    url = config.get("url", name)
    if not isinstance(url, str) or not _ADDRESS.match(url) or is_template(url):
        raise InvalidRequest(f"{where.at('config', 'url')}: {clip(str(url))} is no address; write it out, http(s)://host/path")
    method = str(config.get("method", "POST" if config.get("body") is not None else "GET")).upper()
    if method not in _METHODS:
        raise InvalidRequest(f"{where.at('config', 'method')}: {clip(method)} is not known; write one of {', '.join(sorted(_METHODS))}")
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **_texts(config.get("queryParams"), where.at("config", "queryParams"))}
    path, transform = _read_response(config.get("transformResponse", config.get("responseParser")), where.at("config", "transformResponse"))
    extra: dict[str, JsonValue] = {"headers": _texts(config.get("headers"), where.at("config", "headers")), "query": dict(query)}
    extra |= {"body": _body(config.get("body")), "path": list(path)}
    with explained(f"{where.at('config')}: "):
        HttpCall.model_validate({"method": method, **_present(extra)})
    base_url = parts._replace(query="", fragment="").geturl()
    model: dict[str, JsonValue] = {"id": f"{HTTP_REQUEST}:{method}", "config": {"base_url": base_url, "extra": _present(extra)}}
    return HttpTarget(model, transform, tuple(sorted(_WITHOUT_EFFECT & set(config))))


def _present(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in fields.items() if value not in (None, {}, [])}


def _texts(value: JsonValue, where: Location) -> dict[str, JsonValue]:
    return {name: item if isinstance(item, str) else json.dumps(item) for name, item in as_object(value, where).items()}


def _body(value: JsonValue) -> JsonValue:
    """Return a body; one that is JSON as text is JSON."""
    if not isinstance(value, str):
        return value
    try:
        read: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, dict | list) else value


def _read_response(value: JsonValue, where: Location) -> tuple[tuple[str | int, ...], CodeText | None]:
    """Return where in the reply's JSON the draft is, or the code that makes it of the reply.

    Raises:
        InvalidRequest: It is neither.
    """
    if value is None:
        return (), None
    if isinstance(value, str) and _PATH.fullmatch(value.strip()):
        steps = _STEP.finditer(value.strip().removeprefix("json").replace("?.[", "[").replace("?.", "."))
        return tuple(int(step["at"]) if step["at"] else step["name"] or step["one"] or step["two"] for step in steps), None
    if is_code_file(value):
        code = parse_transform(value, "get_transform", where)
        if code.language != "javascript":
            raise InvalidRequest(f"{where}: {clip(code.file)} is no JavaScript; write a function (json, text) of it")
        function = f".{code.function}" if code.function else ""
        return (), code.model_copy(update={"code": f"{code.code}\n;{_AROUND_FILE.format(function)}", "function": ""})
    text = parse_transform(value, "get_transform", where).code.strip()
    called = f"({text})(json, text, context)" if _FUNCTION.match(text) else f"({text})"
    return (), CodeText(language="javascript", code=_AROUND.format(called))


_JSON = "(() => {{ try {{ return JSON.parse(output); }} catch (error) {{ return null; }} }})()"
_OUTPUT = "made !== null && typeof made === 'object' && 'output' in made ? made.output : made"
"""An object with `output` stands for that."""

_AROUND = "const made = ((json, text, context) => {0})(" + _JSON + ", output, context);\nreturn " + _OUTPUT + ";"
"""An expression over `json` and `text`, as a transform of ours."""

_AROUND_FILE = (
    "module.exports = ((parser) => (output, context) => {{ const made = parser("
    + _JSON
    + ", output, context); return "
    + _OUTPUT
    + "; }})(module.exports{0});"
)
"""What follows a file with a function of `json` and `text`, which makes it a transform of ours."""


def fill_target(generator: Generator, prompt: str, variables: Mapping[str, JsonValue], where: Location) -> Generator:
    """Return the generator with a case's prompt and variables in what it sends; any other generator as it is.

    Raises:
        InvalidRequest: A text in it is no template, or names an unknown variable.
    """
    model = generator.model
    if model is None or model.provider != HTTP_REQUEST:
        return generator
    given = {**variables, "prompt": prompt}
    extra: dict[str, Any] = {key: fill_value(value, given, f"{where}: {key}") for key, value in model.config.extra.items() if key != "path"}
    if isinstance(extra.get("body"), dict | list):
        extra["body"] = _parsed(extra["body"])
    config = model.config.model_copy(update={"extra": {**model.config.extra, **extra}})
    return generator.model_copy(update={"model": ModelSpec(id=model.id, config=config)})


def _parsed(value: JsonValue) -> JsonValue:
    """Return a body in which a text that is a JSON object or list is that: a chat in the place of `{{ prompt }}` is one."""
    if isinstance(value, dict):
        return {key: _parsed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_parsed(item) for item in value]
    return _body(value)
