"""Chats that are written as text: JSON or YAML lists of messages, with templates in them."""

import json
import re
from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from gradeloop.contract.messages import Attachment
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.yaml import Location, read_yaml
from gradeloop.text import clip

MARK = re.compile("\ue010(?P<detail>[a-z]*)\ue011(?P<url>[^\ue012]*)\ue012")
"""The mark of an image in a message's template, until its address is filled in."""

_DATA_URL = "data:image/"


def image_mark(part: JsonValue) -> str | None:
    """Return the mark of a message's part that is an image; None of any other part."""
    if not isinstance(part, dict):
        return None
    detail = ""
    address = part.get("image_url")
    if isinstance(address, dict):
        detail, address = str(address.get("detail") or ""), address.get("url")
    detail = str(part.get("detail") or detail)
    written = next((part[key] for key in ("source", "image", "inlineData", "inline_data") if key in part), None)
    url = address if isinstance(address, str) else _source(written)
    return None if url is None else f"\ue010{detail}\ue011{url}\ue012"


def _source(value: JsonValue) -> str | None:
    """Return the address of an image as Anthropic, Amazon and Google write it."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("url"), str):
        return str(value["url"])
    inner = value.get("source")
    data = inner.get("bytes") if isinstance(inner, dict) else value.get("data")
    kind = value.get("media_type", value.get("mimeType", value.get("mime_type")))
    kind = f"image/{str(value['format']).replace('jpg', 'jpeg')}" if "format" in value else kind
    return f"data:{kind or 'image/png'};base64,{data}" if isinstance(data, str) else None


def read_image(url: str, detail: str, where: str) -> Attachment:
    """Return the image whose address was filled in; a file's `data:` URL inside of another one is that file's.

    Raises:
        InvalidRequest: It is none.
    """
    at = url.rfind(_DATA_URL)
    with explained(f"{where}: "):
        return Attachment.model_validate({"url": url[at:] if at > 0 else url.strip(), "detail": detail or None})


def without_images(value: JsonValue) -> JsonValue:
    """Return a variable as a case keeps it: what an image holds is left out."""
    if not isinstance(value, str) or not value.startswith(_DATA_URL):
        return value
    try:
        return Attachment(url=value).label()
    except ValidationError:
        return value


_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_MARK = re.compile("\ue000(\\d+)\ue001")
"""The mark of a template while the text around it is read."""

_LIKE_YAML = re.compile(r"-\s+(?:role|content)\s*:")
_ROLES = {"developer": "system", "model": "assistant", "ai": "assistant", "human": "user"}
_KNOWN_ROLES = {"system", "user", "assistant", "tool", *_ROLES}
_CURE = "put templates into its strings, or write {{ name | dump }}"


def is_like_chat(text: str) -> bool:
    """Tell whether a text begins as a chat does."""
    plain = text.strip()
    return (plain.startswith("[") and ('"role"' in plain or "'role'" in plain)) or bool(_LIKE_YAML.match(plain))


def read_chat(text: str, where: Location, *, filled: bool = False) -> list[JsonValue] | None:
    """Return the messages of a text that is a chat in JSON or YAML, their templates unfilled.

    Returns:
        The messages; None where the text is not a chat, or is none before its templates are filled.

    Raises:
        InvalidRequest: The text begins as a chat does and cannot be read, or a message has what is not text.
    """
    if not is_like_chat(text):
        return None
    try:
        found = _read_json(text.strip(), where) if text.strip().startswith("[") else _read_yaml(text.strip(), where)
    except InvalidRequest:
        if filled or not _TEMPLATE.search(text):
            raise
        return None
    if is_chat(found):
        return parse_chat(found, where)
    if isinstance(found, list) and all(isinstance(item, dict) and {"role", "content"} <= set(item) for item in found):
        roles = [str(item["role"]) for item in found if isinstance(item, dict)]
        odd = next(role for role in roles if role not in _KNOWN_ROLES)
        raise InvalidRequest(f"{where}: the role {clip(odd)} of a message is not known; write system, user or assistant")
    return None


def is_chat(value: JsonValue) -> bool:
    """Tell whether a value is a list of messages, each with a role."""
    roles = [item.get("role") if isinstance(item, dict) else None for item in value] if isinstance(value, list) else []
    return bool(roles) and all(isinstance(role, str) and role in _KNOWN_ROLES for role in roles)


def parse_chat(value: JsonValue, where: Location) -> list[JsonValue]:
    """Return messages as ours: `developer` is the system's role, parts of text are joined. Raise InvalidRequest for any other part."""
    return [_message(item, where) for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _message(raw: dict[str, JsonValue], where: Location) -> JsonValue:
    role = str(raw["role"])
    content = raw.get("content", raw.get("parts"))
    if isinstance(content, list):
        content = "\n".join(_texts(content, where))
    kind = {"type"} if raw.get("type") == "message" else set()
    rest = {key: item for key, item in raw.items() if key not in {"content", "parts", *kind}}
    return rest | {"role": _ROLES.get(role, role), "content": "" if content is None else content}


def _texts(parts: list[JsonValue], where: Location) -> Iterator[str]:
    for part in parts:
        if (image := image_mark(part)) is not None:
            yield image
            continue
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") or next(iter(part), "") if isinstance(part, dict) else part
            raise InvalidRequest(f"{where}: a message has a part {clip(str(kind))}, which is not text; write what it shows as text")
        yield text


def _read_json(text: str, where: Location) -> JsonValue:
    marked, templates = _mark(text)
    try:
        return _restore(json.loads(marked), templates)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{where}: the chat is not JSON with its variables filled in; {_CURE}") from None


def _read_yaml(text: str, where: Location) -> JsonValue:
    marked, templates = _mark(text)
    try:
        return _restore(read_yaml(marked, "the chat"), templates)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None


def _mark(text: str) -> tuple[str, list[str]]:
    templates: list[str] = []

    def keep(match: re.Match[str]) -> str:
        templates.append(match[0])
        return f"\ue000{len(templates) - 1}\ue001"

    return _TEMPLATE.sub(keep, text), templates


def _restore(value: JsonValue, templates: list[str]) -> JsonValue:
    if isinstance(value, str):
        return _MARK.sub(lambda match: templates[int(match[1])] if int(match[1]) < len(templates) else match[0], value)
    if isinstance(value, list):
        return [_restore(item, templates) for item in value]
    return {key: _restore(item, templates) for key, item in value.items()} if isinstance(value, dict) else value
