"""Provider ids and settings of promptfoo, as models of ours."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import JsonValue

from gradeloop.contract.base import CodeText
from gradeloop.contract.messages import CHOICES, CallForm
from gradeloop.contract.model_spec import HTTP_REQUEST, HttpCall
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.yaml import Location
from gradeloop.grading.templates import is_template
from gradeloop.settings.endpoints import MISTRAL_URL, OF_GENERATION, presets_by_name
from gradeloop.suites.code_files import is_code_file, parse_transform
from gradeloop.suites.unsupported import as_object
from gradeloop.text import clip

FUNCTION_KEYS = frozenset({"tools", "functions"})
CHOICE_KEYS = frozenset({"tool_choice", "toolChoice", "function_call", "toolConfig", "tool_config"})
FORM_KEYS = frozenset(
    {
        *("response_format", "responseFormat", "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema"),
        *("responseMimeType", "response_mime_type", "output_format", "output_config", "text"),
    }
)
DECLARED_KEYS = FUNCTION_KEYS | CHOICE_KEYS | FORM_KEYS
"""Keys of a provider's `config` that this module reads."""

_CURE = "leave it out, or serve the provider as an activity"


@dataclass
class DraftSettings:
    """The functions and the form of the answer that a provider's `config` declares."""

    functions: list[JsonValue] = field(default_factory=list)
    choice: str | None = None
    form: dict[str, JsonValue] | None = None
    legacy: bool = False
    """Whether the functions are those of OpenAI's older API, whose calls are shown in another form."""

    def read(self, key: str, value: JsonValue) -> Iterator[str]:
        """Read one key, and yield why something of it is not supported."""
        if is_template(json.dumps(value)):
            yield f"is filled from variables, which is not done here; {_CURE}"
        elif key in FUNCTION_KEYS:
            self.legacy = self.legacy or key == "functions"
            yield from self._read_functions(value)
        elif key in CHOICE_KEYS:
            yield from self._read_choice(value)
        else:
            yield from self._read_form(key, value)

    def fields(self, name: str) -> dict[str, JsonValue]:
        """Return the settings as those of a generator; `name` is the provider's."""
        found: dict[str, JsonValue] = {"functions": list(self.functions)} if self.functions else {}
        found |= {"function_choice": self.choice} if self.choice is not None else {}
        found |= {"output_form": self.form} if self.form is not None else {}
        return found | ({"shown_as": _shown_as(name, legacy=self.legacy)} if found else {})

    def _read_functions(self, value: JsonValue) -> Iterator[str]:
        for tool in value if isinstance(value, list) else [value]:
            if isinstance(tool, list):  # a file of several
                yield from self._read_functions(tool)
            elif isinstance(tool, dict):
                yield from self._read_tool(tool)
            else:
                yield f"has {clip(str(tool))}, which is not a function; {_CURE}"

    def _read_tool(self, tool: dict[str, JsonValue]) -> Iterator[str]:
        declared = tool.get("functionDeclarations", tool.get("function_declarations"))
        rest = set(tool) - {"functionDeclarations", "function_declarations"}
        if declared is not None:
            yield from self._read_functions(declared)
            yield from (_run_by_vendor(kind) for kind in sorted(rest))
            return
        inner = tool.get("function", tool.get("toolSpec"))
        function = inner if isinstance(inner, dict) else tool
        kind = str(tool.get("type", "function"))
        if kind not in {"function", "custom"} or not isinstance(function.get("name"), str):
            yield _run_by_vendor(kind if "type" in tool else next(iter(tool), "it"))
            return
        schema = next((function[key] for key in ("parameters", "input_schema", "inputSchema") if function.get(key) is not None), None)
        if isinstance(schema, dict) and isinstance(schema.get("json"), dict) and "type" not in schema:
            schema = schema["json"]
        written: dict[str, JsonValue] = {"name": function["name"], "description": function.get("description")}
        written |= {"parameters": plain_schema(schema), "strict": function.get("strict")}
        self.functions.append({key: item for key, item in written.items() if item is not None})

    def _read_choice(self, value: JsonValue) -> Iterator[str]:
        fields: dict[str, JsonValue] = value if isinstance(value, dict) else {"type": value}
        yield from self._read_functions(fields["tools"]) if "tools" in fields else ()
        fields = _innermost({key: item for key, item in fields.items() if key != "tools"} if "toolChoice" in fields else fields)
        if set(fields) == {"tools"}:
            return
        names = fields.get("allowedFunctionNames", fields.get("allowed_function_names"))
        kind = str(fields.get("mode", fields.get("type", ""))).lower()
        alone = names[0] if isinstance(names, list) and len(names) == 1 and kind == "any" else None
        named = fields.get("name", alone)
        choice = named if isinstance(named, str) else {"any": "required"}.get(kind, kind)
        odd = set(fields) - {"mode", "type", "name", "allowedFunctionNames", "allowed_function_names"}
        if odd or (names and alone is None) or (named is None and choice not in CHOICES):
            yield f"is {clip(json.dumps(value))}, which is not supported; write auto, none, required or the name of a function"
        else:
            self.choice = choice

    def _read_form(self, key: str, value: JsonValue) -> Iterator[str]:
        if key.lower().replace("_", "") == "responsemimetype":
            if value == "application/json":
                self.form = self.form or {}
            elif value != "text/plain":
                yield f"is {clip(str(value))}, which is not supported; {_CURE}"
            return
        fields = value if isinstance(value, dict) else {}
        if key in {"text", "output_config"} and set(fields) == {"format"}:
            fields = fields["format"] if isinstance(fields["format"], dict) else {}
        if key.lower().replace("_", "").endswith("schema"):
            fields = {"type": "json_schema", "schema": value}
        inner = fields.get("json_schema")
        whole = {**fields, **inner} if isinstance(inner, dict) else fields
        schema = whole.get("schema")
        if fields.get("type") == "text" and set(fields) == {"type"}:
            return
        if fields.get("type") == "json_object" and set(fields) == {"type"}:
            self.form = {}
        elif fields.get("type") == "json_schema" and isinstance(schema, dict):
            named = {key: whole[key] for key in ("name", "strict") if whole.get(key) is not None}
            self.form = {**named, "json_schema": plain_schema(schema)}
        else:
            yield f"is {clip(json.dumps(value))}, which is not supported; {_CURE}"


_AROUND = ("functionCallingConfig", "function_calling_config", "toolChoice", "function", "tool")
"""Keys around a choice."""


def _innermost(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a choice without the objects around it; Amazon's `{auto: {}}` has its kind as a key."""
    for key in _AROUND:
        if isinstance(inner := fields.get(key), dict):
            return _innermost(inner)
    kind = next((key for key in ("auto", "any") if isinstance(fields.get(key), dict)), None)
    return fields if kind is None else {"type": kind}


def _run_by_vendor(kind: str) -> str:
    return f"names {clip(kind)}, which its vendor runs, at a cost that is not counted; {_CURE}"


def _shown_as(name: str, *, legacy: bool) -> CallForm:
    """Return as whose API promptfoo shows what a provider of a name answers."""
    if legacy:
        return "function_call"
    if ":responses:" in name:
        return "responses"
    if name.startswith(("google:", "palm:", "gemini:", "google_genai:", "vertex:gemini")):
        return "google"
    if name.startswith(("anthropic:", "vertex:claude")) or (name.startswith("bedrock:") and "anthropic." in name):
        return "anthropic"
    return "bedrock" if name.startswith("bedrock:") and "amazon.nova" in name else "chat"


_TYPES = {"OBJECT", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "NULL"}
"""Google's own spelling of the types of JSON Schema."""


def plain_schema(value: JsonValue) -> JsonValue:
    """Return a schema with the names of types as JSON Schema spells them."""
    if isinstance(value, list):
        return [plain_schema(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = value.get("type")
    plain: dict[str, JsonValue] = {"type": kind.lower()} if isinstance(kind, str) and kind in _TYPES else {}
    return {key: plain_schema(item) for key, item in value.items()} | plain


SYSTEM_KEYS = ("systemInstruction", "system_instruction", "instructions", "systemPrompt", "system")


@dataclass
class ProviderSettings:
    """The settings in a provider's `config`."""

    config: dict[str, JsonValue] = field(default_factory=dict)
    """The model's settings by our names."""
    extra: dict[str, JsonValue] = field(default_factory=dict)
    """The settings that go into the request's body unchanged."""
    system: str | None = None
    """The system prompt."""
    draft: DraftSettings = field(default_factory=DraftSettings)
    """The functions that the answer may call, and its form."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Keys that change the answer and are not supported, each with why."""
    ignored: list[str] = field(default_factory=list)
    """Keys that have no effect here."""


@dataclass(frozen=True)
class ProviderModel:
    """A model with its settings, as a provider of promptfoo names it."""

    id: str
    settings: ProviderSettings

    def spec(self) -> dict[str, Any]:
        """Return the model as a request has it."""
        config = self.settings.config | ({"extra": self.settings.extra} if self.settings.extra else {})
        return {"id": self.id} | ({"config": config} if config else {})


def parse_provider(provider: JsonValue, where: str | Location) -> dict[str, Any]:
    """Parse a provider of promptfoo, `"openai:chat:gpt-5-mini"` or `{id, config}`, into a model.

    Raises:
        InvalidRequest: The provider or one of its settings is not supported.
    """
    found = read_provider(provider, where)
    if found.settings.system is not None:
        raise InvalidRequest(f"{where}.provider: a judge takes no system prompt from its config; write it into the rubricPrompt")
    if asked := next(iter(found.settings.draft.fields(found.id)), None):
        raise InvalidRequest(f"{where}: a judge answers in a form of its own; leave the settings of {asked} out")
    for key, why in found.settings.left_out:
        raise InvalidRequest(f"{where}.provider: config.{key} {why}")
    return found.spec()


def read_provider(provider: JsonValue, where: str | Location) -> ProviderModel:
    """Read a provider with its whole config; raise InvalidRequest where it is none of a chat, or names an address or a key."""
    fields = {"id": provider} if isinstance(provider, str) else as_object(provider, f"{where}.provider")
    fields = as_object(fields["text"], where) if "id" not in fields and isinstance(fields.get("text"), dict) else fields
    fields = {"id": fields["text"]} if "id" not in fields and isinstance(fields.get("text"), str) else fields
    name = str(fields.get("id"))
    prefix, ours = _prefix(name, f"{where}.provider")
    model = name.removeprefix("vertex:") if prefix.startswith("vertex:") else name[len(prefix) :]
    config = as_object(fields.get("config"), f"{where}.provider.config")
    settings = ProviderSettings()
    base_url = _base_url(config, ours, f"{where}.provider")
    rest = {key: value for key, value in config.items() if key not in {"apiBaseUrl", "apiHost"}}
    _refuse_endpoint(rest, ours, f"{where}.provider")
    if ours == "sagemaker":  # its model's own form of a reply, which the endpoint reads
        settings.ignored += [key for key in ("responseFormat",) if key in rest]
        rest.pop("responseFormat", None)
    _read_settings(rest, settings, google=ours == "google_genai")
    if ours == "mistral" and not base_url:
        base_url = MISTRAL_URL
    if base_url:
        settings.config["base_url"] = base_url
        return ProviderModel(f"openai_compatible:{model}", settings)
    return ProviderModel(f"{ours}:{model}", settings)


def is_setting(key: str, value: JsonValue) -> bool:
    """Tell whether a key of a provider's `config` changes what its model answers."""
    settings = ProviderSettings()
    _read_settings({key: value}, settings, google=False)
    return bool(settings.config or settings.left_out or settings.system or settings.draft.fields(""))


def not_a_chat(name: str) -> str | None:
    """Return what a provider is that is none of a chat; None for one that is, as far as its name says."""
    kinds = _names()["not_chats"]
    parts = name.split(":")
    found = [kinds[part] for part in (*parts[:2], ":".join(parts[:2])) if part in kinds]
    return str(found[0]) if found else None


def _prefix(name: str, where: str) -> tuple[str, str]:
    kind = not_a_chat(name)
    if kind is not None:
        raise InvalidRequest(f"{where}: {clip(name)} is {kind}, none of a chat; leave it out, or serve it as an activity")
    prefixes = _names()["prefixes"]
    found = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
    if found is None or (not name[len(found) :].strip() and not found.startswith("vertex:")):
        known = ", ".join(sorted({prefix.partition(":")[0] for prefix in prefixes}))
        raise InvalidRequest(f"{where}: {clip(name)} is not supported; known ids begin with {known}")
    return found, str(prefixes[found])


def _base_url(config: Mapping[str, JsonValue], ours: str, where: str) -> str | None:
    """Return the address that a config names, which the worker's settings must allow; None where the provider's own counts."""
    host, url = config.get("apiHost"), config.get("apiBaseUrl")
    if ours == "azure" and isinstance(host, str):
        return f"https://{host}/openai/v1"
    if isinstance(host, str):
        url = f"https://{host}/v1"
    if url is None:
        return None
    if not isinstance(url, str):
        raise InvalidRequest(f"{where}: config.apiBaseUrl is {clip(str(url))}; write the address as text")
    if ours in {"anthropic", "google_genai", "bedrock", "vertex"}:
        raise InvalidRequest(f"{where}: config.apiBaseUrl of {ours} is set by the worker; {_endpoint_cure(ours)}")
    return url.rstrip("/")


def _refuse_endpoint(config: Mapping[str, JsonValue], ours: str, where: str) -> None:
    preset = presets_by_name().get(ours)
    if config.get("apiKeyEnvar") in (preset.keys if preset else (f"{ours.upper().replace('-', '_')}_API_KEY",)):
        config = {key: value for key, value in config.items() if key != "apiKeyEnvar"}
    if odd := next((key for key in config if key in _names()["of_endpoints"]["names"]), None):
        what = "a key" if "key" in odd.lower() else "how it is called"
        raise InvalidRequest(f"{where}: config.{odd} says {what}, which only the worker's settings may; {_endpoint_cure(ours)}")


def _endpoint_cure(ours: str) -> str:
    return f"give gradeloop.toml a [providers.NAME] with protocol, base_url, key and headers, and write NAME:model instead of {ours}:model"


def _read_settings(config: Mapping[str, JsonValue], found: ProviderSettings, *, google: bool, path: str = "") -> None:
    # A setting is translated, ignored, read by its meaning or left out, as the tables say. What none of them
    # knows goes to the API as it is, since providers have more settings than any table.
    names = _names()
    for key, value in config.items():
        if value is None:
            continue
        ours = names["settings"].get(key)
        if ours is not None:
            found.config[ours] = value
        elif key in names["parts"]["names"] and isinstance(value, dict):
            _read_settings(value, found, google=google, path=f"{path}{key}.")
        elif key in names["without_effect"]["names"] or key == "apiKeyEnvar":
            found.ignored.append(f"{path}{key}")
        elif _reads_by_meaning(key, value, found, path):
            continue
        elif key in names["left_out"]["names"] or (google and path and key not in OF_GENERATION):
            found.left_out.append((f"{path}{key}", "is not supported; leave it out, or serve the provider as an activity"))
        elif key == "extra" and isinstance(value, dict):
            found.extra |= value
        else:
            found.extra[key] = value


def _reads_by_meaning(key: str, value: JsonValue, found: ProviderSettings, path: str) -> bool:
    """Read a setting of several spellings; tell whether it is one."""
    if key in DECLARED_KEYS:
        found.left_out += [(f"{path}{key}", why) for why in found.draft.read(key, value)]
    elif key in SYSTEM_KEYS:
        _read_system(value, key, found)
    elif key in _THINKING:
        _read_thinking(key, value, found)
    else:
        return False
    return True


_THINKING = ("reasoning", "thinking", "thinkingConfig", "thinking_config")


def _read_thinking(key: str, value: JsonValue, found: ProviderSettings) -> None:
    fields = value if isinstance(value, dict) else {"type": value}
    effort = fields.get("effort", fields.get("thinkingLevel"))
    budget = fields.get("budget_tokens", fields.get("thinkingBudget", fields.get("thinking_budget")))
    kind = fields.get("type")
    if isinstance(effort, str):
        found.config["reasoning_effort"] = effort.lower()
    elif isinstance(budget, int):
        found.config["thinking"] = budget if budget > 0 else "disabled" if budget == 0 else "adaptive"
    elif kind in {"disabled", "adaptive"}:
        found.config["thinking"] = kind
    elif set(fields) - {"summary", "includeThoughts", "include_thoughts"}:
        found.left_out.append((key, f"is {clip(json.dumps(value))}; write a budget of tokens, or an effort"))


def _read_system(value: JsonValue, key: str, found: ProviderSettings) -> None:
    texts = list(_texts(value))
    if texts and not any(text.startswith("file://") for text in texts):
        found.system = "\n".join(texts)
    else:
        found.left_out.append((key, "is not a string; write the system prompt as text"))


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from _texts(value.get("parts", value.get("text")))


@cache
def _names() -> dict[str, Any]:
    return tomllib.loads(files("gradeloop.suites").joinpath("provider_names.toml").read_text(encoding="utf-8"))


_READ = {"url", "method", "headers", "body", "queryParams", "transformResponse", "responseParser"}
_DECIDED_BY_SETTINGS = {"maxRetries", "timeoutMs", "timeout"}
_METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE"}

_ADDRESS = re.compile(r"https?://")
_PATH = re.compile(r"json(?:\??\.[A-Za-z_$][\w$]*|(?:\?\.)?\[(?:\d+|'[^'\\]*'|\"[^\"\\]*\")\])+")
_FUNCTION = re.compile(r"^(?:async\s+)?(?:\(.*?\)\s*=>|\w+\s*=>|function\s*\w*\s*\()", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[A-Za-z_$][\w$]*)|\[(?:(?P<at>\d+)|'(?P<one>[^']*)'|\"(?P<two>[^\"]*)\")\]")


@dataclass(frozen=True)
class HttpTarget:
    """An address as a provider names it."""

    model: dict[str, JsonValue]
    """The model that stands for it, its texts not filled in."""
    transform: CodeText | None
    """Code that makes the draft of the whole reply; None if a path in its JSON names it."""
    ignored: tuple[str, ...]
    """Keys that have no effect here."""


def is_address(name: str) -> bool:
    """Tell whether a provider is an address."""
    return name in {"http", "https"} or _ADDRESS.match(name) is not None


def read_target(name: str, config: Mapping[str, JsonValue], where: Location) -> HttpTarget:
    """Read a provider that is an address; raise InvalidRequest where it has no address, or something in its config is not supported."""
    if odd := sorted(set(config) - _READ - _DECIDED_BY_SETTINGS):
        known = ", ".join(sorted(_READ))
        cure = f"serve the provider as an activity. Known: {known}"
        raise InvalidRequest(f"{where.at('config', odd[0])}: {clip(odd[0])} of a request is not supported; {cure}")
    url = config.get("url", name)
    if not isinstance(url, str) or not _ADDRESS.match(url) or is_template(url):
        raise InvalidRequest(f"{where.at('config', 'url')}: {clip(str(url))} is not an address; write it out, http(s)://host/path")
    method = str(config.get("method", "POST" if config.get("body") is not None else "GET")).upper()
    if method not in _METHODS:
        raise InvalidRequest(f"{where.at('config', 'method')}: {clip(method)} is not known; write one of {', '.join(sorted(_METHODS))}")
    parts = urlsplit(url)
    query = {
        **dict(parse_qsl(parts.query, keep_blank_values=True)),
        **_as_texts(config.get("queryParams"), where.at("config", "queryParams")),
    }
    path, transform = _read_response(config.get("transformResponse", config.get("responseParser")), where.at("config", "transformResponse"))
    extra: dict[str, JsonValue] = {"headers": _as_texts(config.get("headers"), where.at("config", "headers")), "query": dict(query)}
    extra |= {"body": json_body(config.get("body")), "path": list(path)}
    with explained(f"{where.at('config')}: "):
        HttpCall.model_validate({"method": method, **_present(extra)})
    base_url = parts._replace(query="", fragment="").geturl()
    model: dict[str, JsonValue] = {"id": f"{HTTP_REQUEST}:{method}", "config": {"base_url": base_url, "extra": _present(extra)}}
    return HttpTarget(model, transform, tuple(sorted(_DECIDED_BY_SETTINGS & set(config))))


def json_body(value: JsonValue) -> JsonValue:
    """Return a body; one that is JSON as text is JSON."""
    if not isinstance(value, str):
        return value
    try:
        read: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, dict | list) else value


def _present(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in fields.items() if value not in (None, {}, [])}


def _as_texts(value: JsonValue, where: Location) -> dict[str, JsonValue]:
    return {name: item if isinstance(item, str) else json.dumps(item) for name, item in as_object(value, where).items()}


def _read_response(value: JsonValue, where: Location) -> tuple[tuple[str | int, ...], CodeText | None]:
    """Return where in the reply's JSON the draft is, or the code that makes it of the reply; raise InvalidRequest where it is neither."""
    if value is None:
        return (), None
    if isinstance(value, str) and _PATH.fullmatch(value.strip()):
        steps = _STEP.finditer(value.strip().removeprefix("json").replace("?.[", "[").replace("?.", "."))
        return tuple(int(step["at"]) if step["at"] else step["name"] or step["one"] or step["two"] for step in steps), None
    if is_code_file(value):
        code = parse_transform(value, "get_transform", where)
        if code.language != "javascript":
            raise InvalidRequest(f"{where}: {clip(code.file)} is not JavaScript; write a function (json, text) of it")
        function = f".{code.function}" if code.function else ""
        return (), code.model_copy(update={"code": f"{code.code}\n;{_AROUND_FILE.format(function)}", "function": ""})
    text = parse_transform(value, "get_transform", where).code.strip()
    called = f"({text})(json, text, context)" if _FUNCTION.match(text) else f"({text})"
    return (), CodeText(language="javascript", code=_AROUND_VALUE.format(called))


_JSON = "(() => {{ try {{ return JSON.parse(output); }} catch (error) {{ return null; }} }})()"
_OUTPUT = "made !== null && typeof made === 'object' && 'output' in made ? made.output : made"
"""An object with `output` stands for that."""

_AROUND_VALUE = "const made = ((json, text, context) => {0})(" + _JSON + ", output, context);\nreturn " + _OUTPUT + ";"
"""An expression over `json` and `text`, as a transform of ours."""

_AROUND_FILE = (
    "module.exports = ((parser) => (output, context) => {{ const made = parser("
    + _JSON
    + ", output, context); return "
    + _OUTPUT
    + "; }})(module.exports{0});"
)
"""The end of a file with a function of `json` and `text`, which makes it a transform of ours."""
