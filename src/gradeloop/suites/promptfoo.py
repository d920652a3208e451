"""Configurations of promptfoo, read as suites."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.contract.base import CodeText
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.named_metrics import MOST_DERIVED, DerivedMetric
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import YAML_SUFFIXES, require_files
from gradeloop.files.yaml import Location, explained_at, located_error, read_yaml
from gradeloop.settings.catalog import settings_complaint
from gradeloop.suites.chats import is_chat, parse_chat, read_chat
from gradeloop.suites.code_files import FILE, LANGUAGES, names_code, parse_transform, read_code_file
from gradeloop.suites.datasets import LocatedTest, match_files, read_csv
from gradeloop.suites.flags import TEXT_SUFFIXES, SuiteFlags
from gradeloop.suites.hooks import CHANGED, Hooks, read_hooks
from gradeloop.suites.plan import CaseRubrics, NamedPrompt, Plan, Suite, SuiteGenerator, SuiteModels, parse_grader
from gradeloop.suites.promptfoo_tests import PromptfooTests, RawTest, parse_times, with_variables
from gradeloop.suites.providers import DECLARED_KEYS, SYSTEM_KEYS, ProviderModel, is_address, read_provider, read_target
from gradeloop.suites.suite import NamedGenerator, Prompt, SuiteSettings, is_file, read_text, resolve_files
from gradeloop.suites.unsupported import UnsupportedFeatures, as_list, as_object, keys_of, refuse_others
from gradeloop.text import clip, distinct

_CODE_PREFIXES = ("python:", "javascript:")


def parse_generators(
    value: JsonValue, where: Location, scope: FileScope, findings: UnsupportedFeatures, own: Mapping[str, JsonValue] | None = None
) -> tuple[SuiteGenerator, ...]:
    """Parse the providers of a configuration; `echo` is the one that returns the prompt.

    `own`: settings of a prompt, which take the place of the providers' own.

    Raises:
        InvalidRequest: A provider is not supported.
    """
    entries = ((_configured(entry, own), spot) for entry, spot in _entries(value, where, scope))
    generators = [_parse_or_leave_out(entry, spot, scope, findings) for entry, spot in entries]
    labels = distinct([generator.label for generator in generators])
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


def _parse_or_leave_out(value: JsonValue, where: Location, scope: FileScope, findings: UnsupportedFeatures) -> SuiteGenerator:
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


def _parse(value: JsonValue, where: Location, scope: FileScope, findings: UnsupportedFeatures) -> SuiteGenerator:
    fields = {"id": value} if isinstance(value, str) else as_object(value, where)
    reasons: list[str] = []
    fields = findings.heeded(fields, keys_of("provider"), where, reasons)
    name, label = str(fields.get("id")), fields.get("label")
    prompts = tuple(map(str, as_list(fields.get("prompts"), where.at("prompts")))) if fields.get("prompts") else None
    named = str(label or name)[:100].strip()
    if name.startswith(FILE) or name.startswith(_CODE_PREFIXES):
        return SuiteGenerator(named, None, left_out=tuple(reasons), prompts=prompts, code=_custom(name, fields.get("config"), scope, where))
    if name == "echo":
        return SuiteGenerator(named, None, left_out=tuple(reasons), prompts=prompts)
    if is_address(name):
        return replace(_address(name, fields, named, scope, where, findings), left_out=tuple(reasons), prompts=prompts)
    place = where.at("config")
    config = {
        key: resolve_files(item, scope, place.at(key)) if key in {*DECLARED_KEYS, *SYSTEM_KEYS, "generationConfig"} else item
        for key, item in as_object(fields.get("config"), place).items()
    }
    texts = as_object(config.pop("prompt", None), place.at("prompt"))
    refuse_others(texts, {"prefix", "suffix"}, place.at("prompt"))
    around = (str(texts.get("prefix") or ""), str(texts.get("suffix") or ""))
    _drop_own_key(config, where, findings)
    found = read_provider({"id": name, "config": config}, where)
    _leave_temperature_out(found, where, findings)
    reasons += _note_settings(found, where, findings)
    raw: dict[str, JsonValue] = {"label": named, "model": found.spec()}
    raw |= {"system_prompt": found.settings.system} if found.settings.system else {}
    raw |= found.settings.draft.fields(name)
    with explained_at(where):
        generator = NamedGenerator.model_validate(raw)
    return SuiteGenerator(generator.named, generator.plain(), left_out=tuple(reasons), prompts=prompts, around=around)


def _drop_own_key(config: dict[str, JsonValue], where: Location, findings: UnsupportedFeatures) -> None:
    """Leave out a key that stands in the configuration: it is sent nowhere, the worker's own is used."""
    for name in {"apiKey", "api_key"} & set(config):
        with findings.leaving_out("no effect"):
            problem = "a key is not part of a configuration; leave it out, the worker's own is used"
            raise InvalidRequest(f"{where.at('config', name)}: config.{name}: {problem}")
        del config[name]


def _address(
    name: str, fields: Mapping[str, JsonValue], label: str, scope: FileScope, where: Location, findings: UnsupportedFeatures
) -> SuiteGenerator:
    """Return a provider that is an address."""
    place = where.at("config")
    config = as_object(fields.get("config"), place)
    read = {key: resolve_files(value, scope, place.at(key)) for key, value in config.items() if key not in {"url", "headers"}}
    target = read_target(name, {**config, **read}, where)
    for key in target.ignored:
        findings.note(f"{place.at(key)}: {key} has no effect here; the worker's settings decide it")
    with explained_at(where):
        generator = NamedGenerator.model_validate({"label": label, "model": target.model})
    return SuiteGenerator(generator.named, generator.plain(), reply=target.transform)


def _custom(name: str, config: JsonValue, scope: FileScope, where: Location) -> CodeText:
    """Return the function of a custom provider."""
    prefix = next((prefix for prefix in _CODE_PREFIXES if name.startswith(prefix)), "")
    path = f"{FILE}{name.removeprefix(prefix).removeprefix(FILE)}"
    if not names_code(path):
        raise InvalidRequest(f"{where}: {clip(name)} names no file of code; end it with .py or .js")
    read = read_code_file(path, scope, where)
    read["function"] = read["function"] or ("call_api" if read["language"] == "python" else "")
    return CodeText.model_validate({**read, "config": config})


def _leave_temperature_out(found: ProviderModel, where: Location, findings: UnsupportedFeatures) -> None:
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


def _note_settings(found: ProviderModel, where: Location, findings: UnsupportedFeatures) -> list[str]:
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


_PROMPTFOO_KEYS = {"providers", "targets", "defaultTest", "evaluateOptions", "scenarios", "assertionTemplates", "outputPath"}
"""Keys that make a file promptfoo's, unless it has a key of ours."""

_GRADELOOP_KEYS = {"generators", "grader", "rubric", "defaults"}
_KEY = re.compile(r"(?:^|_)(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:_|$)")
_OPTIONS = {"maxConcurrency": "concurrency", "repeat": "repeat", "cache": "cache", "delay": "delay"}


@dataclass(frozen=True)
class PromptfooConfig:
    """A configuration with the places of its values."""

    value: dict[str, JsonValue]
    path: Path
    spot: Location
    scope: FileScope
    hooks: Hooks = Hooks()  # noqa: RUF009 - frozen
    prompts: tuple[NamedPrompt, ...] = ()
    tests: list[RawTest | LocatedTest] | None = None
    """The tests as a hook left them; None where they are read from the file."""
    made: Mapping[str, Location] = field(default_factory=dict)
    """The places of values that a hook made."""

    def at(self, key: str) -> tuple[JsonValue, Location]:
        """Return the value of a key, and its place."""
        return self.value.get(key), self.made.get(key) or self.spot.at(key)


def is_promptfoo(path: Path, value: Mapping[str, JsonValue]) -> bool:
    """Tell whether a file is promptfoo's, by its name or its keys."""
    return path.stem.startswith("promptfooconfig") or (not _PROMPTFOO_KEYS.isdisjoint(value) and _GRADELOOP_KEYS.isdisjoint(value))


def build_promptfoo_suite(config: PromptfooConfig, flags: SuiteFlags, findings: UnsupportedFeatures) -> Suite:
    """Build a suite from a configuration; raise InvalidRequest for what is invalid, or not supported and not taken by `findings`."""
    value = config.value
    hooks, left_out = read_hooks(*config.at("extensions"), config.scope, flags.grant(config.scope), findings)
    findings.heeded({key: item for key, item in value.items() if key != "$schema"}, keys_of("configuration"), config.spot, left_out)
    findings.heeded({"redteam": None} if "redteam" in value else {}, keys_of("redteam"), config.spot)
    config = _before_all(replace(config, hooks=hooks), findings)
    settings, repeat = _settings(config, findings)
    name = value.get("description")
    if flags.scripted:
        require_files((flags.scripted,), "scripted")
    return Suite(
        name=name[:200] if isinstance(name, str) and name.strip() else None,
        path=config.path,
        settings=settings,
        tools=require_files(flags.tools, "tools"),
        scripted=flags.scripted,
        outputs=tuple(_outputs(config)),
        plan=_build_plan(config, flags, repeat, findings, left_out),
        flags=flags,
    )


def _before_all(config: PromptfooConfig, findings: UnsupportedFeatures) -> PromptfooConfig:
    """Return the configuration as `beforeAll` leaves it, with its prompts."""
    prompts = _prompts(config, findings)
    if not (called := config.hooks.of("beforeAll")):
        return replace(config, prompts=name_prompts(prompts))
    spot = Location(f"{called[-1].spot}: what beforeAll left")
    reader = PromptfooTests(config.scope, {}, findings=findings, allow_code=config.hooks.grant)
    tests = list(reader.raw(config.value.get("tests") or [], config.spot.at("tests")))
    texts: list[JsonValue] = [{"raw": _written(named), "label": named.label or _written(named)} for named in prompts]
    values: list[JsonValue] = [test.value for test in tests if isinstance(test, RawTest)]
    default = {"assert": [], **_default_test(config)}
    given: dict[str, JsonValue] = {**config.value, "prompts": texts, "tests": values, "defaultTest": default}
    (left,) = config.hooks.call("beforeAll", "suite", [given])
    if isinstance(left, InvalidRequest):
        raise left
    made = {key: spot.at(key) for key in CHANGED if left.get(key) != given.get(key)}
    named = [
        one
        for at, entry in enumerate(as_list(left.get("prompts"), spot.at("prompts")))
        for one in ([prompts[texts.index(entry)]] if entry in texts else parse_prompt(entry, config.scope, spot.at("prompts", at)))
    ]
    known = {json.dumps(test.value, sort_keys=True): test for test in tests if isinstance(test, RawTest)}
    kept: list[RawTest | LocatedTest] = [test for test in tests if isinstance(test, LocatedTest)]
    for at, entry in enumerate(as_list(left.get("tests"), spot.at("tests"))):
        same = known.get(json.dumps(entry, sort_keys=True)) or RawTest(as_object(entry, place := spot.at("tests", at)), place)
        kept.append(replace(same, spot=replace(same.spot)))  # tests are told from one another by their places
    value = {**config.value, **{key: left.get(key) for key in made}}
    return replace(config, value=value, prompts=name_prompts(named), tests=kept, made=made)


def _default_test(config: PromptfooConfig) -> dict[str, JsonValue]:
    """Return the `defaultTest`, which may be a file."""
    value, where = config.at("defaultTest")
    return as_object(resolve_files(value, config.scope, where) if is_file(value) else value, where)


def _build_plan(config: PromptfooConfig, flags: SuiteFlags, repeat: int, findings: UnsupportedFeatures, left_out: list[str]) -> Plan:
    scope, place, default = config.scope, config.at("defaultTest")[1], _default_test(config)
    options = as_object(default.get("options"), place.at("options"))
    reader = PromptfooTests(
        scope,
        as_object(*config.at("assertionTemplates")),
        expands=not options.get("disableVarExpansion"),
        findings=findings,
        allow_code=flags.grant(scope),
        transform_vars=options.get("transformVars"),
        options=options,
        conversation=as_object(default.get("metadata"), place).get("conversationId"),
        hooks=config.hooks,
        default=with_variables(default, scope, place) if config.hooks.listed else {},
    )
    defaults, reasons = reader.defaults(default, place)
    reader = replace(reader, shared=defaults.vars)
    defaults = defaults.model_copy(update={"vars": _environment(config, findings) | defaults.vars})
    prompts, generators = config.prompts, _generators(config, findings)
    reader = replace(reader, prompts=tuple(map(_written, prompts)) or ("",))
    return Plan(
        prompts=prompts,
        generators=generators,
        by_prompt=_by_prompt(config, prompts, generators, findings),
        allows_unknown=True,
        after_each=tuple(hook.code for hook in config.hooks.of("afterEach")),
        metadata=as_object(default.get("metadata"), place.at("metadata")),
        defaults=defaults,
        rubrics=CaseRubrics(
            defaults, place, grader_given=flags.grader is not None, findings=findings, asks_nothing=True, allow_code=flags.grant(scope)
        ),
        tests=lambda: _tests(config, replace(reader, stored={})),
        models=SuiteModels(scripted=flags.scripted is not None, checks=flags.check, allow_code=flags.allow_code),
        repeat=flags.repeat or repeat,
        grader=parse_grader(flags.grader),
        loop=flags.loop,
        findings=findings,
        left_out=(*left_out, *reasons),
    )


def _written(named: NamedPrompt) -> str:
    """Return a prompt as promptfoo hands it to code: its text, its messages as JSON, or the code that makes it."""
    messages = [message.model_dump(mode="json", exclude_defaults=True) for message in named.prompt.messages]
    return named.code.code if named.code else named.prompt.text or json.dumps(messages, ensure_ascii=False)


def _tests(config: PromptfooConfig, reader: PromptfooTests) -> Iterator[LocatedTest]:
    """Yield the tests, then those of scenarios; without either there is one test without variables."""
    tests, where = config.at("tests")
    scenarios, place = config.at("scenarios")
    if config.tests:
        yield from reader.read(config.tests)
    elif (tests is not None and config.tests is None) or not scenarios:
        yield from reader.read(reader.raw([{}] if tests is None or config.tests == [] else tests, where))
    yield from reader.read(reader.scenarios(scenarios, place))


def _prompts(config: PromptfooConfig, findings: UnsupportedFeatures) -> list[NamedPrompt]:
    """Return the prompts; one that cannot be read is left out, and its cases are not run."""
    prompts: list[NamedPrompt] = []
    for entry, where in prompt_entries(*config.at("prompts")):
        try:
            prompts += parse_prompt(entry, config.scope, where)
        except InvalidRequest as error:
            reason = findings.leave_out(error, "not run")
            prompts.append(NamedPrompt("", Prompt(text="(left out)"), left_out=(reason,)))
    return prompts


def _generators(
    config: PromptfooConfig, findings: UnsupportedFeatures, own: Mapping[str, JsonValue] | None = None
) -> tuple[SuiteGenerator, ...]:
    """Return the providers; `own` are settings of a prompt, which take the place of theirs."""
    key = "targets" if "targets" in config.value else "providers"
    value, where = config.at(key)
    return parse_generators(value, where, config.scope, findings, own)


def _by_prompt(
    config: PromptfooConfig, prompts: tuple[NamedPrompt, ...], generators: tuple[SuiteGenerator, ...], findings: UnsupportedFeatures
) -> dict[tuple[str, str], SuiteGenerator]:
    """Return the providers of the prompts with settings of their own, by the labels of both."""
    labels = [generator.label for generator in generators]
    return {
        (prompt.label, label): generator
        for prompt in prompts
        if prompt.config
        for label, generator in zip(labels, _generators(config, findings, prompt.config), strict=True)
    }


def _environment(config: PromptfooConfig, findings: UnsupportedFeatures) -> dict[str, JsonValue]:
    """Return the variables that `env` sets, as `env` of the templates; one that is named as keys are is never taken from a file."""
    value, where = config.at("env")
    found: dict[str, JsonValue] = {}
    for name, item in as_object(value, where).items():
        with findings.leaving_out("no effect"):
            if _KEY.search(name.upper()):
                raise InvalidRequest(f"{where.at(name)}: a key is not part of a configuration; set {name} in the worker's environment")
            found[name] = item
    return {"env": found} if found else {}


def _settings(config: PromptfooConfig, findings: UnsupportedFeatures) -> tuple[SuiteSettings, int]:
    """Return the settings in `evaluateOptions`, and the number of runs of every case."""
    value, where = config.at("evaluateOptions")
    options = as_object(value, where)
    findings.heeded(options, keys_of("evaluateOptions"), where)
    raw = {ours: options[theirs] for theirs, ours in _OPTIONS.items() if options.get(theirs) is not None}
    repeat = parse_times(raw.pop("repeat", None), where.at("repeat")) or 1
    derived = _derived_metrics(config, findings)
    try:
        return SuiteSettings.model_validate({**raw, "derived_metrics": derived}), repeat
    except ValidationError as error:
        theirs = next(name for name, ours in _OPTIONS.items() if ours == error.errors()[0]["loc"][0])
        raise InvalidRequest(f"{where.at(theirs)}: {explain(error).partition(': ')[2]}") from None


_MISSHAPEN = {"model_type", "missing", "string_type", "string_too_short"}
"""The mistakes of a derived metric that has not even the keys of one."""


def _derived_metrics(config: PromptfooConfig, findings: UnsupportedFeatures) -> tuple[DerivedMetric, ...]:
    """Return the derived metrics whose formulas are arithmetic; others are code, which runs nowhere."""
    given, where = config.at("derivedMetrics")
    values = as_list(given, where) if given is not None else []
    if len(values) > MOST_DERIVED:
        raise InvalidRequest(f"{where}: there are {len(values)} derived metrics, {MOST_DERIVED} at most; leave some out")
    metrics: list[DerivedMetric] = []
    for at, value in enumerate(values):
        with findings.leaving_out("no effect"):
            try:
                metrics.append(DerivedMetric.model_validate(value))
            except ValidationError as error:
                if error.errors()[0]["type"] not in _MISSHAPEN:
                    raise located_error(error, where.at(at)) from None
                written = clip(json.dumps(value, ensure_ascii=False))
                raise InvalidRequest(f"{where.at(at)}: {written} is not a derived metric; write {{name: NAME, value: FORMULA}}") from None
    return tuple(metrics)


def _outputs(config: PromptfooConfig) -> Iterator[Path]:
    value, where = config.at("outputPath")
    for name in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(name, str):
            raise InvalidRequest(f"{where}: {clip(str(name))} is not a path; write the file's name")
        yield config.scope.find(name, where)


CODE_SUFFIXES = (*LANGUAGES, ".rb", ".sh", ".go", ".exe")
"""The suffixes of files of code."""

_SEPARATOR = "---"
"""The line between two prompts of a text file."""

_SCHEME = re.compile(r"(?P<name>[a-z][a-z0-9+.-]*)://\S+")
_EXECUTABLE = "exec:"


def _parse_text(text: str, chat: JsonValue, label: str | None, where: Location) -> Prompt:
    """Return the prompt that a text or a chat is; a JSON or YAML list of messages is a chat."""
    messages = read_chat(text, where) if chat is None else parse_chat(chat, where)
    with explained_at(where):
        return Prompt.model_validate(({"text": text} if messages is None else {"messages": messages}) | {"label": label})


def prompt_entries(value: JsonValue, where: Location) -> Iterator[tuple[JsonValue, Location]]:
    """Yield the entries of `prompts` with their places: a list, one of them, or a mapping of files to labels.

    Without any, the variable `prompt` is the prompt, as in promptfoo.
    """
    if isinstance(value, dict) and {"raw", "id", "label"}.isdisjoint(value):
        for name, label in value.items():
            yield {"id": name, "label": label}, where.at(name)
        return
    for at, entry in enumerate(["{{prompt}}"] if value is None else value if isinstance(value, list) else [value]):
        yield entry, where.at(at) if isinstance(value, list) else where


def parse_prompt(value: JsonValue, scope: FileScope, where: Location) -> list[NamedPrompt]:
    """Parse an entry, which may name several prompts, labelled or not; raise InvalidRequest where it cannot be read, or used."""
    fields: dict[str, JsonValue] = value if isinstance(value, dict) else {"id": value}
    name = str(fields.get("raw", fields.get("id")))
    if names_code(code := name if is_file(name) else f"{FILE}{name}") and "\n" not in name:
        return [_code_prompt(fields, code, scope, where)]
    config = as_object(fields.get("config"), where.at("config")) or None
    return [NamedPrompt(prompt.label or "", prompt, config=config) for prompt in _find(value, scope, where)]


def _code_prompt(fields: dict[str, JsonValue], name: str, scope: FileScope, where: Location) -> NamedPrompt:
    """Return a prompt that a function makes."""
    refuse_others(fields, {"raw", "id", "label", "config"}, where)
    read = read_code_file(name, scope, where)
    if read["language"] == "python" and not read["function"]:
        raise InvalidRequest(f"{where}: {clip(name)} names no function; write the one that makes the prompt, as {name}:function")
    code = CodeText.model_validate({**read, "config": fields.get("config")})
    own = f"{Path(code.file).stem}{'-' + code.function if code.function else ''}"
    label = fields["label"] if isinstance(fields.get("label"), str) else own
    return NamedPrompt(str(label)[:100].strip(), Prompt(text=name), code)


def name_prompts(prompts: list[NamedPrompt]) -> tuple[NamedPrompt, ...]:
    """Return the prompts with a label of its own for every one."""
    labels = distinct([prompt.label or f"p{at}" for at, prompt in enumerate(prompts, 1)])
    return tuple(replace(prompt, label=label) for label, prompt in zip(labels, prompts, strict=True))


def _find(value: JsonValue, scope: FileScope, where: Location) -> Iterator[Prompt]:
    """Yield the prompts of one entry."""
    fields = {"id": value} if isinstance(value, str) else as_object(value, where)
    refuse_others(fields, {"raw", "id", "label", "config"}, where)
    text = fields.get("raw", fields.get("id"))
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}: it has no text; write it as raw, or name a file as id")
    label = str(fields["label"])[:100].strip() if fields.get("label") else None
    if not is_file(text) and ("raw" in fields or not names_file(text, scope, where)):
        yield _parse_text(text, None, label, where)
        return
    for path in _paths(text, scope, where):
        found = list(_read(path, where))
        name = label or path.stem
        for number, (part, chat) in enumerate(found, 1):
            yield _parse_text(part, chat, name if len(found) == 1 else f"{name}:{number}", where)


def names_file(text: str, scope: FileScope, where: Location) -> bool:
    """Tell whether a text without `file://` names files: by its suffix, a `*`, or as a file or folder that is there.

    Raises:
        InvalidRequest: It names a prompt that is stored elsewhere, or a program.
    """
    plain = text.strip()
    if scheme := _SCHEME.fullmatch(plain):
        raise InvalidRequest(
            f"{where}: {clip(text)} names a prompt at {scheme['name']}, which is not fetched; save its text as a file, and name that"
        )
    if plain.startswith(_EXECUTABLE):
        raise InvalidRequest(f"{where}: {clip(text)} is a program, which is not run; write the prompt's text, or name a file of it")
    if not plain or len(plain.splitlines()) > 1 or "{{" in plain or "{%" in plain:
        return False
    base = without_function(plain)
    if not any(character.isspace() for character in plain):
        return base.lower().endswith((*TEXT_SUFFIXES, *CODE_SUFFIXES)) or ("*" in plain and "/" in plain) or _is_there(plain, scope)
    return base.lower().endswith((*TEXT_SUFFIXES, *CODE_SUFFIXES)) and _is_there(base, scope)


def without_function(name: str) -> str:
    """Return the path in `prompt.py:function`."""
    base, colon, function = name.rpartition(":")
    return base if colon and function.isidentifier() and base.lower().endswith(CODE_SUFFIXES) else name


def _is_there(name: str, scope: FileScope) -> bool:
    try:
        return (scope.folder / name).exists()
    except (OSError, ValueError):
        return False


def _paths(name: str, scope: FileScope, where: Location) -> list[Path]:
    """Return the files that a name stands for: a file, the files of a folder, or those that a pattern matches."""
    plain = name.removeprefix(FILE)
    if without_function(plain).lower().endswith(CODE_SUFFIXES):
        raise InvalidRequest(f"{where}: {clip(name)} is code, which is not run here; a prompt's file ends with {', '.join(TEXT_SUFFIXES)}")
    found = match_files(plain, scope, where)
    if len(found) == 1 and found[0].is_dir():
        found = [scope.check(path, path.name, where) for path in sorted(found[0].iterdir()) if not path.name.startswith(".")]
    paths = [path for path in found if not path.is_dir()]
    if not paths or not all(path.is_file() for path in paths):
        raise InvalidRequest(f"{where}: the prompt {clip(name)} does not exist; name a file, relative to the configuration's folder")
    for path in paths:
        if path.suffix.lower() not in TEXT_SUFFIXES:
            raise InvalidRequest(
                f"{where}: {clip(path.name)} of {clip(name)} is not supported; a prompt's file ends with {', '.join(TEXT_SUFFIXES)}"
            )
    return paths


def _read(path: Path, where: Location) -> Iterator[tuple[str, JsonValue]]:
    """Yield the prompts of a file: the text of each, and its messages where YAML holds them."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        for line, row in read_csv(path, f"{where}: the prompts {clip(path.name)}"):
            text = row.get("prompt", next(iter(row.values()), ""))
            if not text.strip():
                raise InvalidRequest(f"{where}: {clip(path.name)}, line {line}: the prompt is empty; write it into the column 'prompt'")
            yield text, None
        return
    text = read_text(path, where)
    if suffix in {".yaml", ".yml"} and read_chat(text, where) is None:
        value = read_yaml(path, f"{where}: the prompt")
        yield (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), value if is_chat(value) else None
        return
    yield from ((part, None) for part in _parts(suffix, text))


def _parts(suffix: str, text: str) -> list[str]:
    if suffix == ".jsonl":
        return [line for line in text.split("\n") if line.strip()]
    parts: list[list[str]] = [[]]
    for line in text.splitlines() if suffix == ".txt" else [text]:
        if line.strip() == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for lines in parts if (part := "\n".join(lines).strip())]
