"""The providers of promptfoo's configurations, as generators of ours."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import JsonValue, ValidationError

from gradeloop.contract.code_text import CodeText
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import YAML_SUFFIXES
from gradeloop.files.yaml import Location, located_error
from gradeloop.settings.catalog import settings_complaint
from gradeloop.suites.code_files import names_code, parse_transform, read_code_file
from gradeloop.suites.declared import DECLARED_KEYS
from gradeloop.suites.fields import as_list, as_object, refuse_others
from gradeloop.suites.findings import Findings
from gradeloop.suites.http_targets import is_address, read_target
from gradeloop.suites.plan import SuiteGenerator
from gradeloop.suites.prompt_files import own_labels
from gradeloop.suites.providers import SYSTEM_KEYS, ProviderModel, read_provider
from gradeloop.suites.suite import FILE, NamedGenerator, is_file, resolve_files
from gradeloop.text import clip

_KEYS = {"id", "label", "config", "prompts", "transform"}
_CODE_PREFIXES = ("python:", "javascript:")
_WITHOUT_EFFECT = {"delay", "description"}


def parse_generators(
    value: JsonValue, where: Location, scope: FileScope, findings: Findings, own: Mapping[str, JsonValue] | None = None
) -> tuple[SuiteGenerator, ...]:
    """Parse the providers of a configuration; `echo` is the one that returns the prompt.

    Args:
        value: The providers.
        where: Their place.
        scope: The files that they may name.
        findings: Takes what has no counterpart.
        own: Settings of a prompt, which take the place of the providers' own.

    Raises:
        InvalidRequest: A provider has no counterpart.
    """
    entries = ((_configured(entry, own), spot) for entry, spot in _entries(value, where, scope))
    generators = [_parse_or_leave_out(entry, spot, scope, findings) for entry, spot in entries]
    labels = own_labels([generator.label for generator in generators])
    return tuple(replace(generator, label=label) for generator, label in zip(generators, labels, strict=True))


def _entries(value: JsonValue, where: Location, scope: FileScope | None) -> Iterator[tuple[JsonValue, Location]]:
    """Yield the providers with their places: a list, one of them, a mapping of ids to settings, or files of them, which name no others."""
    if isinstance(value, str) and scope is not None and is_file(value) and value.endswith(YAML_SUFFIXES):
        yield from _entries(resolve_files(value, scope, where), where, None)
    elif isinstance(value, dict) and not {"id", "config", "label"} & set(value):
        yield from (({"id": name, **as_object(rest, where.at(name))}, where.at(name)) for name, rest in value.items())
    elif isinstance(value, str | dict):
        yield value, where
    else:
        for at, entry in enumerate(as_list(value, where)):
            yield from _entries(entry, where.at(at), scope) if isinstance(entry, str | dict) else [(entry, where.at(at))]


def _configured(entry: JsonValue, own: Mapping[str, JsonValue] | None) -> JsonValue:
    """Return a provider with the settings of a prompt in the place of its own."""
    fields = {"id": entry} if isinstance(entry, str) else entry
    if not own or not isinstance(fields, dict):
        return entry
    config = fields.get("config")
    return {**fields, "config": {**(config if isinstance(config, dict) else {}), **own}}


def _parse_or_leave_out(value: JsonValue, where: Location, scope: FileScope, findings: Findings) -> SuiteGenerator:
    try:
        generator = _parse(value, where, scope, findings)
        raw = value.get("transform") if isinstance(value, dict) else None
        spot = where.at("transform")
        made = None if raw is None else parse_transform(resolve_files(raw, scope, spot), "get_transform", spot)
        return replace(generator, transform=made)
    except InvalidRequest as error:
        reason = findings.leave_out(error, "not run")
        fields = value if isinstance(value, dict) else {"id": value}
        label = str(fields.get("label") or fields.get("id") or "provider")[:100].strip()
        return SuiteGenerator(label, None, left_out=(reason,), runs=False)


def _parse(value: JsonValue, where: Location, scope: FileScope, findings: Findings) -> SuiteGenerator:
    fields = {"id": value} if isinstance(value, str) else as_object(value, where)
    reasons: list[str] = []
    for key in sorted(set(fields) - _KEYS):
        with findings.leaving_out("no effect" if key in _WITHOUT_EFFECT else "not judged", None if key in _WITHOUT_EFFECT else reasons):
            if key in _WITHOUT_EFFECT:
                findings.note(f"{where.at(key)}: {key} has no effect here")
            else:
                refuse_others({key: fields[key]}, _KEYS, where)
    name, label = str(fields.get("id")), fields.get("label")
    prompts = tuple(map(str, as_list(fields.get("prompts"), where.at("prompts")))) if fields.get("prompts") else None
    named = str(label or name)[:100].strip()
    if name.startswith(FILE) or name.startswith(_CODE_PREFIXES):
        return SuiteGenerator(named, None, left_out=tuple(reasons), prompts=prompts, code=_custom(name, fields.get("config"), scope, where))
    if name == "echo":
        return SuiteGenerator(named, None, left_out=tuple(reasons), prompts=prompts)
    if is_address(name):
        return replace(_address(name, fields, named, scope, where, findings), left_out=tuple(reasons), prompts=prompts)
    config = _with_files(as_object(fields.get("config"), where.at("config")), scope, where.at("config"))
    around = _around(config.pop("prompt", None), where.at("config", "prompt"))
    _drop_own_key(config, where, findings)
    found = read_provider({"id": name, "config": config}, where)
    _leave_temperature_out(found, where, findings)
    reasons += _note_settings(found, where, findings)
    raw: dict[str, JsonValue] = {"label": named, "model": found.spec()}
    raw |= {"system_prompt": found.settings.system} if found.settings.system else {}
    raw |= found.settings.draft.fields(name)
    try:
        generator = NamedGenerator.model_validate(raw)
    except ValidationError as error:
        raise located_error(error, where) from None
    return SuiteGenerator(generator.named, generator.plain(), left_out=tuple(reasons), prompts=prompts, around=around)


def _drop_own_key(config: dict[str, JsonValue], where: Location, findings: Findings) -> None:
    """Leave out a key that stands in the configuration, where what has no counterpart may be: it is sent nowhere, the worker's own is used.

    Raises:
        InvalidRequest: Nothing may be left out.
    """
    for name in {"apiKey", "api_key"} & set(config):
        with findings.leaving_out("no effect"):
            problem = "a key is no part of a configuration; leave it out, the worker's own is used"
            raise InvalidRequest(f"{where.at('config', name)}: config.{name}: {problem}")
        del config[name]


def _address(
    name: str, fields: Mapping[str, JsonValue], label: str, scope: FileScope, where: Location, findings: Findings
) -> SuiteGenerator:
    """Return a provider that is an address.

    Raises:
        InvalidRequest: Something of it has no counterpart.
    """
    place = where.at("config")
    config = as_object(fields.get("config"), place)
    read = {key: resolve_files(value, scope, place.at(key)) for key, value in config.items() if key not in {"url", "headers"}}
    target = read_target(name, {**config, **read}, where)
    for key in target.ignored:
        findings.note(f"{place.at(key)}: {key} has no effect here; the worker's settings decide it")
    try:
        generator = NamedGenerator.model_validate({"label": label, "model": target.model})
    except ValidationError as error:
        raise located_error(error, where) from None
    return SuiteGenerator(generator.named, generator.plain(), reply=target.transform)


def _around(value: JsonValue, where: Location) -> tuple[str, str]:
    """Return the texts that a provider puts before and after a prompt.

    Raises:
        InvalidRequest: It says something else than these.
    """
    fields = as_object(value, where)
    refuse_others(fields, {"prefix", "suffix"}, where)
    return str(fields.get("prefix") or ""), str(fields.get("suffix") or "")


def _with_files(config: dict[str, JsonValue], scope: FileScope, where: Location) -> dict[str, JsonValue]:
    """Return a provider's settings with what the files hold that name functions, the form of answers or a system prompt.

    Raises:
        InvalidRequest: A file cannot be read.
    """
    read = {key for key in config if key in DECLARED_KEYS or key in SYSTEM_KEYS or key == "generationConfig"}
    return {key: resolve_files(value, scope, where.at(key)) if key in read else value for key, value in config.items()}


def _custom(name: str, config: JsonValue, scope: FileScope, where: Location) -> CodeText:
    """Return the function of a custom provider.

    Raises:
        InvalidRequest: It is no file of code, or cannot be read.
    """
    prefix = next((prefix for prefix in _CODE_PREFIXES if name.startswith(prefix)), "")
    path = f"{FILE}{name.removeprefix(prefix).removeprefix(FILE)}"
    if not names_code(path):
        raise InvalidRequest(f"{where}: {clip(name)} names no file of code; end it with .py or .js")
    read = read_code_file(path, scope, where)
    read["function"] = read["function"] or ("call_api" if read["language"] == "python" else "")
    return CodeText.model_validate({**read, "config": config})


def _leave_temperature_out(found: ProviderModel, where: Location, findings: Findings) -> None:
    """Leave a temperature out that the model does not take, with a note: promptfoo sends reasoning models none."""
    temperature = found.settings.config.get("temperature")
    if temperature is None:
        return
    try:
        complaint = settings_complaint(ModelSpec.model_validate(found.spec()))
    except (ValidationError, InvalidRequest):
        return  # refused where the generator is read
    if complaint is not None and complaint.startswith("temperature"):
        del found.settings.config["temperature"]
        findings.note(f"{where.at('config', 'temperature')}: {clip(found.id)} takes no temperature; it is left out, as in promptfoo")


def _note_settings(found: ProviderModel, where: Location, findings: Findings) -> list[str]:
    """Note the settings that have no effect or go into the body unchanged, and return those that are left out."""
    settings, spot = found.settings, where.at("config")
    for key in settings.ignored:
        findings.note(f"{spot.at(*key.split('.'))}: {key} has no effect here; the worker's endpoint decides it")
    if settings.extra:
        findings.note(f"{spot}: {', '.join(settings.extra)} are sent in the request's body unchanged, as the model's extra")
    reasons: list[str] = []
    for key, why in settings.left_out:
        with findings.leaving_out("not judged", reasons):
            raise InvalidRequest(f"{spot.at(*key.split('.'))}: {clip(key)} {why}")
    return reasons
