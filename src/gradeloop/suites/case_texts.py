"""The texts of a suite's cases: ids, prompts with the variables filled in, and what the suite's code makes."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from gradeloop.batches.contract import DRAFT_MARK, Case
from gradeloop.batches.draft_checks import CALL_CHECK
from gradeloop.contract.base import CodeText
from gradeloop.contract.messages import MESSAGE_BYTES, Attachment, Message
from gradeloop.contract.model_spec import HTTP_REQUEST, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, explained_at
from gradeloop.grading import templates
from gradeloop.grading.checks import CHECKS
from gradeloop.sandbox.code_calls import CodeCall, CodeResult, local_code_sandbox
from gradeloop.sandbox.execution import SandboxError
from gradeloop.settings.endpoints import PROTOCOLS, presets_by_name
from gradeloop.suites.chats import MARK, is_like_chat, read_chat, read_image
from gradeloop.suites.code_files import CodeGrant, parse_transform, refuse_code
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.providers import json_body
from gradeloop.suites.suite import Defaults, Prompt, SuiteMessage, SuiteTest
from gradeloop.text import clip

SLUG_CHARACTERS = 32
"""The most characters of a derived id before its ten hexadecimal digits: enough to show what the case is about."""


class CaseIds:
    """Gives every case of a suite an id of its own."""

    def __init__(self) -> None:
        self._places: dict[str, Location] = {}
        self._derived: Counter[str] = Counter()

    def derive(self, test: SuiteTest) -> str:
        """Return a test's own id, or one derived from it; equal tests get `-2`, `-3` in the order of the file."""
        if test.id is not None:
            return test.id
        derived = make_id(test)
        self._derived[derived] += 1
        return derived if self._derived[derived] == 1 else f"{derived}-{self._derived[derived]}"

    def take(self, name: str, spot: Location) -> None:
        """Take an id for a case; raise InvalidRequest, which names both places, where another case has the id."""
        first = self._places.setdefault(name, spot)
        if first is not spot:
            raise InvalidRequest(f"{spot}: the id {clip(name)} is that of {first}, too; give each test an id of its own")


def make_id(test: SuiteTest) -> str:
    """Derive an id from a test's description, variables and messages, or from all of it where it has none of them.

    The id stays the same when prompts, rubric or output change, so that two batches can be compared.
    """
    fields = test.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"metadata"})
    identity = {name: fields[name] for name in ("description", "vars", "messages") if name in fields} or fields
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()[:10]
    title = test.description or next((value for value in test.vars.values() if isinstance(value, str) and value.strip()), "")
    slug = re.sub(r"[^a-z0-9]+", "-", title[:200].lower()).strip("-")[:SLUG_CHARACTERS].rstrip("-")
    return f"{slug}-{digest}" if slug else f"case-{digest}"


SYSTEM_CHARACTERS = 65_536
"""The most characters of a generator's system prompt, as in a thread's request."""


@dataclass(frozen=True)
class CasePrompt:
    """The messages of a case, and the system prompt before them."""

    messages: tuple[Message, ...] = ()
    system: str | None = None
    is_chat: bool = False
    """Whether it was written as messages."""
    images: tuple[Attachment, ...] = ()
    """The images whose labels stand in the messages."""
    blank: bool = False
    """Whether nothing was written, and the message says what the generator gets instead of a prompt: the variables."""

    def between(self, prefix: str, suffix: str) -> "CasePrompt":
        """Return the prompt with a text before its first message and one after its last."""
        messages = list(self.messages)
        if messages and (prefix or suffix):
            messages[0] = messages[0].model_copy(update={"content": prefix + messages[0].content})
            messages[-1] = messages[-1].model_copy(update={"content": messages[-1].content + suffix})
        return replace(self, messages=tuple(messages))

    def as_text(self) -> str:
        """Return the prompt as it was written: a text, or a chat as JSON."""
        if self.is_chat or len(self.messages) != 1 or self.system:
            return self.as_json()
        return "" if self.blank else self.messages[0].content

    def as_json(self) -> str:
        """Return the messages as a JSON chat."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return json.dumps([*system, *({"role": message.role, "content": message.content} for message in self.messages)], ensure_ascii=False)

    def instruct(self, generator: Generator, where: Location) -> Generator:
        """Return the generator with this system prompt after its own; raise InvalidRequest where it takes none, or that is too long."""
        if self.system is None:
            return generator
        if generator.model is None:
            raise InvalidRequest(f"{where}: a message of role 'system' is for a model; leave it out")
        whole = "\n\n".join(text for text in (generator.system_prompt, self.system) if text)
        if len(whole) > SYSTEM_CHARACTERS:
            raise InvalidRequest(f"{where}: the system prompt has {len(whole)} characters, {SYSTEM_CHARACTERS} at most; shorten it")
        return generator.model_copy(update={"system_prompt": whole})


def fill_prompt(
    prompt: Prompt,
    variables: Mapping[str, JsonValue],
    where: Location,
    name: str,
    note: Callable[[str], None] | None = None,
    *,
    may_be_blank: bool = False,
) -> CasePrompt:
    """Fill the variables into a prompt; a text becomes one message of the user.

    An empty text is refused, unless it `may_be_blank`, since the generator is called with the variables themselves.
    """
    messages = prompt.messages or (SuiteMessage(role="user", content=prompt.text or ""),)
    if (
        may_be_blank
        and variables
        and prompt.text is not None
        and not _fill_content(prompt.text, variables, f"{where}: {name}", name, note).strip()
    ):
        shown = json.dumps(variables, ensure_ascii=False, default=str)
        return replace(fill_messages((SuiteMessage(role="user", content=shown),), None, where, f"prompt {name}"), blank=True)
    filled = fill_messages(messages, variables, where, f"prompt {name}", note)
    if prompt.text is None or not templates.is_template(prompt.text) or not is_like_chat(prompt.text):
        return replace(filled, is_chat=bool(prompt.messages))
    chat = read_chat(templates.in_json(filled.messages[0].content, inside=False), where, filled=True)  # JSON once its templates are filled
    with explained_at(where):
        made = Prompt.model_validate({"messages": chat}) if chat else prompt
    return replace(fill_messages(made.messages, None, where, f"prompt {name}"), is_chat=True) if chat else filled


def mentions_conversation(prompt: Prompt | None) -> bool:
    """Tell whether a prompt shows the turns of its conversation before it."""
    return prompt is not None and CONVERSATION in prompt.model_dump_json()


CONVERSATION = "_conversation"
"""The variable that is the turns before: each has `prompt`, `input` and `output`."""


class FollowedCases:
    """The cases of a suite so far, as later ones follow them: conversations, and outputs that are stored under a name.

    What is said in a column, a prompt with a generator and a repetition, is known only there; `talks` says whether a prompt shows it.
    """

    def __init__(self, *, talks: bool) -> None:
        self._talks = talks
        self._said: dict[object, list[JsonValue]] = {}
        """The turns of a conversation."""
        self._ids: dict[str, dict[object, str]] = {}
        """The ids of the cases whose outputs marks stand for, by the mark's name and the column or conversation."""
        self._serial: str | None = None

    def before(self, test: LocatedTest, prompt: Prompt | None, column: tuple[object, ...]) -> LocatedTest:
        """Return a test as it is asked in a column, with the conversation before it where its prompt shows that."""
        turns = list(self._said.get((*column, str(test.conversation)), ())) if test.talks else []
        said = {CONVERSATION: turns} if mentions_conversation(prompt) else {}
        return replace(test, test=test.test.model_copy(update={"vars": {**test.test.vars, **said}})) if said else test

    def follow(self, test: LocatedTest, column: tuple[object, ...], case: Case) -> Case:
        """Return a case with those that it follows, and keep it for later ones.

        Raises:
            InvalidRequest: A text has the character of marks.
        """
        if not case.runs or not (self._talks or self._ids or test.stores or test.serially):
            return case
        asked, talk = templates.late_names(case.model_dump_json()), (*column, str(test.conversation))
        # A mark stands where the output of an earlier case is put in once that is known. A user's text with the
        # same character would be filled with an output that it does not name.
        if not self._ids.keys() >= set(asked):
            raise InvalidRequest(f"{test.spot}: a text has the character U+E020, which marks outputs of other cases; leave it out")
        known = [self._ids[name] for name in asked]  # the case of the same column, else the last one
        follows = {name: ids.get(talk) or ids.get(column) or list(ids.values())[-1] for name, ids in zip(asked, known, strict=True)}
        if test.serially:
            follows |= {"": self._serial} if self._serial else {}
            self._serial = case.id
        if test.stores:
            self._ids.setdefault(test.stores, {})[column] = case.id
        if self._talks and case.messages:
            said, last = self._said.setdefault(talk, []), case.messages[-1].content
            name, chat = f"{DRAFT_MARK}{len(said)}", [{"role": one.role, "content": one.content} for one in case.messages]
            shown = templates.LateText(last) if templates.late_names(last) else last
            said.append({"prompt": shown if len(chat) == 1 else chat, "input": shown, "output": templates.late_mark(name)})  # type: ignore[dict-item]  # chat
            self._ids.setdefault(name, {})[talk] = case.id
        return case.model_copy(update={"follows": follows})


def _fill_content(text: str, variables: Mapping[str, JsonValue] | None, place: str, what: str, note: Callable[[str], None] | None) -> str:
    """Fill the variables into a text; where `note` takes the names of unknown ones, those are empty."""
    if variables is None:
        return text
    try:
        return templates.fill_text(text, variables, place, MESSAGE_BYTES)
    except templates.UnknownVariable:
        missing = templates.unknown_variables(text, variables)
        if note is None or not missing or not _FILLED_ELSEWHERE.isdisjoint(missing):
            raise
    note(f"{what}: {', '.join(map(repr, missing))} is empty in tests that have no such variable")
    return templates.fill_text(text, variables, place, MESSAGE_BYTES, missing)


def _fill_parts(text: str, fill: Callable[[str], str], place: str, images: list[Attachment]) -> str:
    """Fill a message's text, and put the labels of its images, which `images` takes, in their places."""
    parts, at = [], 0
    for mark in MARK.finditer(text):
        images.append(read_image(fill(mark["url"]), mark["detail"], place))
        parts += [fill(text[at : mark.start()]), images[-1].label(len(images))]
        at = mark.end()
    return "".join([*parts, fill(text[at:])])


_FILLED_ELSEWHERE = frozenset({"_conversation", "env"})
"""Variables that promptfoo fills itself, with earlier tests and with the environment: they are never empty in silence."""


def fill_messages(
    raw: Sequence[SuiteMessage],
    variables: Mapping[str, JsonValue] | None,
    where: Location,
    what: str = "messages",
    note: Callable[[str], None] | None = None,
) -> CasePrompt:
    """Fill the variables into messages; without variables the messages are literal, as those of a dataset are.

    Raises:
        InvalidRequest: A variable is missing, a system message is not at the beginning, or a message is invalid.
    """
    system: list[str] = []
    messages: list[Message] = []
    images: list[Attachment] = []
    for at, message in enumerate(raw):
        place = f"{where}: {what}[{at}]" if len(raw) > 1 else f"{where}: {what}"
        content = _fill_parts(message.content, lambda text, at=place: _fill_content(text, variables, at, what, note), place, images)  # type: ignore[misc]  # a default
        if message.role != "system":
            with explained_at(Location(place)):
                messages.append(Message.model_validate(message.model_dump(exclude={"content"}, exclude_none=True) | {"content": content}))
        elif messages:
            raise InvalidRequest(f"{place}: a message of role 'system' stands after others; put it at the beginning")
        else:
            system.append(content)
    return CasePrompt(tuple(messages), "\n\n".join(system) or None, images=tuple(images))


_RESULTS = 2_000
"""The results that are kept while the cases of a suite are read more than once."""


def transforms_of(located_test: LocatedTest, defaults: Defaults, own: Sequence[CodeText], *, allow_code: bool) -> tuple[CodeText, ...]:
    """Return the code that makes of an output what is judged: the generator's `own`, then the test's or the defaults'.

    Raises:
        InvalidRequest: It is not code, or its user has not allowed it.
    """
    spot = located_test.spot.at("options", "transform")
    value = located_test.test.options.transform
    value = defaults.options.transform if value is None else value
    found = () if value is None else (parse_transform(value, "get_transform", spot),)
    transforms = (*own, *found)
    if transforms and not allow_code:
        raise refuse_code(spot, "the transform")
    return transforms


def refuse_unknown_call(rubric: Rubric, asked: Mapping[str, object], where: Location) -> None:
    """Refuse checks of the call that drafts where a case has none, or several."""
    kinds = [str(check.arguments["kind"]) for _, check in rubric.checks(CALL_CHECK)]
    generator = asked.get("generator")
    if kinds and (asked.get("loop") or not isinstance(generator, Generator) or generator.model is None):
        raise InvalidRequest(f"{where}: {kinds[0]} is that of one call that drafts, which this case has not; leave the assertion out")
    probable = next((kind for kind in kinds if kind in CHECKS.rows and CHECKS.rows[kind].needs_logprobs), None)
    if probable and isinstance(generator, Generator) and generator.model is not None:
        for model in generator.model.chain:
            preset = presets_by_name().get(model.provider)
            if model.provider == HTTP_REQUEST or (preset and not PROTOCOLS.find(preset.protocol).log_probs):
                raise InvalidRequest(f"{where}: {probable} needs log probabilities, which {model.provider} does not give; leave one out")


def run_code(code: CodeText, arguments: Sequence[JsonValue], where: Location, what: str, *, allow_code: CodeGrant) -> JsonValue:
    """Call a function of the suite in this machine's sandbox, and return what it returns.

    Raises:
        InvalidRequest: Its user has not allowed it, there is no sandbox, or it raised something.
    """
    if not allow_code.allowed:
        raise refuse_code(where, what)
    if templates.late_names(json.dumps(list(arguments), ensure_ascii=False)):
        raise InvalidRequest(f"{where}: {what} is called before the outputs are known that the test takes of others; write it as a text")
    try:
        (result,) = call_code(code.model_dump_json(), (json.dumps(list(arguments)),), allow_code.imports)
    except SandboxError as error:
        raise InvalidRequest(f"{where}: {what} cannot be run: {error}") from None
    if result.error is not None:
        raise InvalidRequest(f"{where}: {what} has failed: {result.error}")
    return result.value


@lru_cache(maxsize=_RESULTS)
def call_code(code: str, arguments: tuple[str, ...], imports: tuple[Path, ...], keeps: int | None = None) -> list[CodeResult]:
    """Call a function once for each list of arguments, all as JSON; raise SandboxError where this machine has no sandbox for it."""
    text, names = CodeText.model_validate_json(code), ("vars", "context", "others")
    lists = [tuple(json.loads(given)) for given in arguments]
    calls = [CodeCall(text.language, text.code, given, names[: len(given)], text.file, text.function, keeps=keeps) for given in lists]
    return local_code_sandbox(imports).call(calls)


def prompt_of_code(
    code: CodeText, variables: Mapping[str, JsonValue], provider: str | None, where: Location, *, allow_code: CodeGrant
) -> Prompt:
    """Return the prompt that a function makes of a test's variables; raise InvalidRequest unless it is a text or a list of messages."""
    context: JsonValue = {"vars": dict(variables), "provider": {"id": provider, "label": provider}, "config": code.config or {}}
    value = run_code(code, [context], where, f"the prompt {code.file}", allow_code=allow_code)
    if isinstance(value, dict) and "prompt" in value:
        value = value["prompt"]
    if isinstance(value, str) and value.strip():
        return Prompt.model_construct(label=None, text=value, messages=())
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        try:
            return Prompt.model_validate({"messages": value})
        except ValueError as error:
            raise InvalidRequest(f"{where}: the prompt {code.file} returned messages that are none: {clip(str(error), 200)}") from None
    raise InvalidRequest(f"{where}: the prompt {code.file} returned {clip(str(value))}; return a text, or a list of messages")


def output_of_code(code: CodeText, prompt: str, variables: Mapping[str, JsonValue], where: Location, *, allow_code: CodeGrant) -> str:
    """Return a custom provider's answer, from the sandbox without network; raise InvalidRequest where it failed, or gave no output."""
    options: JsonValue = {"config": code.config or {}}
    context: JsonValue = {"vars": dict(variables), "prompt": {"raw": prompt}}
    value = run_code(code, [prompt, options, context], where, f"the provider {code.file}", allow_code=allow_code)
    if isinstance(value, dict):
        if value.get("error"):
            raise InvalidRequest(f"{where}: the provider {code.file} has failed: {clip(str(value['error']), 200)}")
        value = value.get("output")
    if value is None:
        raise InvalidRequest(f"{where}: the provider {code.file} returned no output; return {{output}}")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fill_target(generator: Generator, prompt: str, variables: Mapping[str, JsonValue], where: Location) -> Generator:
    """Return the generator with a case's prompt and variables in what it sends; any other generator as it is.

    Raises:
        InvalidRequest: A text in it is not a template, or names an unknown variable.
    """
    model = generator.model
    if model is None or model.provider != HTTP_REQUEST:
        return generator
    given = {**variables, "prompt": prompt}
    extra: dict[str, Any] = {
        key: templates.fill_value(value, given, f"{where}: {key}") for key, value in model.config.extra.items() if key != "path"
    }
    if isinstance(extra.get("body"), dict | list):
        extra["body"] = _parsed_body(extra["body"])
    config = model.config.model_copy(update={"extra": {**model.config.extra, **extra}})
    return generator.model_copy(update={"model": ModelSpec(id=model.id, config=config)})


def _parsed_body(value: JsonValue) -> JsonValue:
    """Return a body in which a text that is a JSON object or list is that: a chat in the place of `{{ prompt }}` is one."""
    if isinstance(value, dict):
        return {key: _parsed_body(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_parsed_body(item) for item in value]
    return json_body(value)
