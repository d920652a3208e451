"""Conversions: promptfoo's assertions and Mastra's scorers become rubrics, promptfoo's configurations become suites."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, JsonValue

from gradeloop.contract.criterion import PromptMessage, PromptSlot
from gradeloop.contract.rubric import Rubric, without_marker
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import inline_files
from gradeloop.files.yaml import Location, read_placed
from gradeloop.grading.templates import unknown_variables
from gradeloop.suites.case_texts import fill_prompt
from gradeloop.suites.chats import MARK
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from gradeloop.suites.plan import NamedPrompt, Suite, SuiteGenerator
from gradeloop.suites.promptfoo import PromptfooConfig, build_promptfoo_suite, is_promptfoo
from gradeloop.suites.unsupported import UnsupportedFeatures, as_object, refuse_others
from gradeloop.text import clip, counted, one_line

Source = Literal["promptfoo", "mastra"]


def convert_file(
    path: Path, source: Source | None, test: int, outside: Sequence[Path] = (), note: Callable[[str], None] = lambda _: None
) -> Rubric:
    """Convert a file of promptfoo or Mastra into a rubric; `note` takes what has no effect in it.

    Raises:
        InvalidRequest: The file cannot be read, is of neither, or has something that is not supported.
    """
    if not path.is_file():
        raise InvalidRequest(f"the file {str(path)!r} does not exist; name one")
    raw, placed = read_placed(path, "the file", aliases=True)
    where = Location(f"the file {str(path)!r}", (), placed)
    if (source or _detect(raw)) == "promptfoo":
        return from_promptfoo(raw, test=test, scope=FileScope.of(path, outside), note=note)
    return from_mastra(inline_files(raw, FileScope.of(path, outside), where))


def _detect(value: JsonValue) -> Source:
    items = value if isinstance(value, list) else [value]
    keys = {key for item in items if isinstance(item, dict) for key in item}
    if keys & {"assert", "tests", "type", "defaultTest"}:
        return "promptfoo"
    if keys & {"criteria", "scorers", "description"}:
        return "mastra"
    raise InvalidRequest("the file is neither promptfoo's (tests, assert) nor Mastra's (criteria, scorers); say whose with --from")


_TEST_PARTS = ("tests", "scenarios", "defaultTest", "assertionTemplates")


def from_promptfoo(
    value: JsonValue, *, test: int = 0, scope: FileScope | None = None, note: Callable[[str], None] = lambda _: None
) -> Rubric:
    """Convert the assertions of a test into a rubric, its `vars` filled in.

    Every assertion is one criterion, however many lines its `value` has, answered as `{reason, pass, score}` in a call of its own, or
    decided by a check. Without a threshold of the test all must pass, but those of weight 0; with one only the mean of the scores decides.

    Args:
        value: A configuration, a test, a list of assertions, or an assertion.
        test: The number of the configuration's test, from 0; one whose variables are lists counts as the tests that these make.
        scope: The files that it may name; those of this folder by default.
        note: Takes what has no effect in it.

    Raises:
        InvalidRequest: Something is not supported; the message names it.
    """
    if isinstance(value, list) or (isinstance(value, dict) and "type" in value):
        value = {"assert": value if isinstance(value, list) else [value]}
    fields = as_object(value, "the file")
    parts: dict[str, JsonValue] = {key: fields[key] for key in _TEST_PARTS if key in fields} if "tests" in fields else {"tests": [fields]}
    config = PromptfooConfig(parts, Path(), Location(), scope or FileScope.of(Path("promptfooconfig.yaml")))
    plan = build_promptfoo_suite(config, SuiteFlags(check=True), UnsupportedFeatures()).plan
    tests = list(plan.tests())
    if not 0 <= test < len(tests):
        raise InvalidRequest(f"test {test} is not there; they run from 0 to {len(tests) - 1}")
    chosen = tests[test].test
    built = plan.rubrics.build(tests[test], {**plan.defaults.vars, **chosen.vars})
    for text in plan.findings.notes:
        note(text)
    return built.rubric.model_copy(update={"name": chosen.description})


_SCORER_KEYS = {"criteria", "id", "name", "description", "model", "options"}
_GATE_KEYS = {"scorers", "strategy", "parallel"}


def from_mastra(value: JsonValue) -> Rubric:
    """Convert a scorer, or the scorers of `isTaskComplete`, into a rubric that scores 1 where it is met, else 0.

    Criteria are required unless they say `required: false`; where none is required, all are. A scorer without criteria asks no model
    and scores 1. Unlike Mastra's, a marker is one only where white space follows: `3.5 stars` stays.

    Args:
        value: `{criteria, model, options}`, or `{scorers, strategy}`; criteria are a text with one a line, or a list of
            `{id?, description, required?}`.

    Raises:
        InvalidRequest: Something is not supported; the message names it.
    """
    if not isinstance(value, dict):
        value = {"criteria": value}
    raw: dict[str, Any] = {"scoring": "binary"}
    if "scorers" in value:
        raw |= _gate(value)
    else:
        refuse_others(value, _SCORER_KEYS, Location("the scorer"))
        raw["criteria"] = _graded(value, "")
    with explained("the scorers make no rubric: "):
        return Rubric.model_validate(raw)


def _gate(value: dict[str, JsonValue]) -> dict[str, Any]:
    refuse_others(value, _GATE_KEYS, Location("isTaskComplete"))
    strategy, scorers = value.get("strategy", "all"), value["scorers"]
    if strategy not in {"all", "any"}:
        raise InvalidRequest(f"strategy: {clip(str(strategy))} is not supported; write all or any")
    if not isinstance(scorers, list):
        raise InvalidRequest(f"scorers is {clip(str(scorers))}; it must be a list")
    groups = [_scorer(scorer, at) for at, scorer in enumerate(scorers)]
    empty = [group for group in groups if not group["criteria"]]  # each of which scores 1
    criteria = [] if empty and strategy == "any" else [group for group in groups if group["criteria"]]
    return {"gate": "any" if strategy == "any" else "required", "criteria": criteria}


def _scorer(value: JsonValue, at: int) -> dict[str, Any]:
    where = f"scorers[{at}]"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object with criteria")
    refuse_others(value, _SCORER_KEYS, Location(where))
    name = value.get("name") or value.get("id") or f"scorer {at + 1}"
    return {"group": name, "criteria": _graded(value, f"{where}.")}


def _graded(scorer: dict[str, JsonValue], where: str) -> list[Any]:
    """Return the criteria of a scorer, each with the scorer's model, where it names one."""
    value, model = scorer.get("criteria"), scorer.get("model")
    if isinstance(value, str | None):
        value = [without_marker(line.strip()) for line in (value or "").splitlines() if any(map(str.isalnum, line))]
    if not isinstance(value, list):
        raise InvalidRequest(f"{where}criteria is {clip(str(value))}; it must be a text or a list")
    if (options := scorer.get("options")) not in (None, {}, {"scale": 1}):
        raise InvalidRequest(f"{where}options: {clip(str(options))} is not supported; a score is 0 or 1, leave the scale out")
    vendor, _, name = model.partition("/") if isinstance(model, str) else ("", "", "")
    if model is not None and not name:
        raise InvalidRequest(f"{where}model: {clip(str(model))} is not a name of a model; write it as vendor/model")
    grader = {} if model is None else {"grader": f"{'google_genai' if vendor == 'google' else vendor}:{name}"}
    return [_criterion(criterion, grader, f"{where}criteria[{at}]") for at, criterion in enumerate(value)]


def _criterion(value: JsonValue, grader: dict[str, str], where: str) -> JsonValue:
    """Return a criterion that is optional where it says `required: false`, and by no other value: Mastra compares with `!== false`."""
    if not isinstance(value, dict):
        return {"description": value, **grader} if grader else value
    refuse_others(value, {"id", "description", "required"}, Location(where))
    return {**value, **({"required": value["required"] is not False} if "required" in value else {}), **grader}


def as_yaml(rubric: Rubric) -> str:
    """Return a rubric as YAML in the short form that a person would write."""
    from ruamel.yaml import YAML

    raw = json.loads(rubric.model_dump_json(exclude_none=True, exclude_defaults=True))
    raw["criteria"] = raw.get("criteria") or []
    for fields, criterion in zip(raw["criteria"], rubric.criteria, strict=True):
        if criterion.prompt:
            fields["prompt"] = _written_prompt(criterion.prompt.messages)
    if rubric.prompt:
        raw["prompt"] = _written_prompt(rubric.prompt.messages)
    written = io.StringIO()
    YAML().dump(raw, written)
    return written.getvalue()


def _written_prompt(messages: tuple[object, ...]) -> JsonValue:
    parsed = [message for message in messages if isinstance(message, PromptMessage)]
    texts = ["".join(part.written if isinstance(part, PromptSlot) else part for part in message.parts) for message in parsed]
    if len(parsed) == 1 and parsed[0].role == "user":
        return texts[0]
    return [{"role": message.role, "content": text} for message, text in zip(parsed, texts, strict=True)]


def convert_configuration(path: Path, outside: Sequence[Path] = ()) -> str:
    """Return a configuration of promptfoo as the YAML of a suite of ours that makes the same cases; comments say what changed.

    `outside`: the folders besides its own in which it may name files.

    Raises:
        InvalidRequest: It is not a configuration of promptfoo, or something in it is not supported.
    """
    value, _ = read_placed(path, "the configuration")
    if not isinstance(value, dict) or not is_promptfoo(path, value):
        raise InvalidRequest(f"{str(path)!r} is not a configuration of promptfoo: it has neither its name nor providers; name one")
    suite = read_suite(path, outside=outside)
    return _Migration(suite, value).text()


class _Migration:
    """The suite that a configuration becomes, as YAML with comments."""

    def __init__(self, suite: Suite, theirs: dict[str, JsonValue]) -> None:
        from ruamel.yaml.comments import CommentedMap

        self._suite = suite
        self._plan = suite.plan
        self._theirs = theirs
        self._echo = bool(self._plan.generators) and all(generator.generator is None for generator in self._plan.generators)
        self._whole: Any = CommentedMap()
        self._unasked = sum(1 for located_test in self._plan.tests() if not self._asks(located_test))

    def text(self) -> str:
        """Return the YAML."""
        from ruamel.yaml import YAML

        self._refuse_own_settings()
        if not any(map(self._asks, self._plan.tests())):
            raise InvalidRequest(f"{str(self._suite.path)!r} has no test with assertions, and a suite of ours judges every test; add some")
        self._whole.yaml_set_start_comment("\n".join(self._beginning()))
        self._put_settings()
        if not self._echo:
            self._put("prompts", [_prompt(prompt, at) for at, prompt in enumerate(self._plan.prompts, 1)], self._about_prompts())
            self._put("generators", [_generator(one) for one in self._plan.generators], self._about_generators())
        self._put("defaults", _fields(self._plan.defaults), "defaultTest in promptfoo" if "defaultTest" in self._theirs else "")
        self._put_tests()
        written = io.StringIO()
        writer = YAML()
        writer.width = 140
        writer.dump(self._whole, written)
        return written.getvalue()

    def _refuse_own_settings(self) -> None:
        """Raise InvalidRequest where a provider has what a generator of ours has not."""
        if not self._echo and any(generator.generator is None for generator in self._plan.generators):
            raise InvalidRequest(
                f"{str(self._suite.path)!r}: providers: echo is beside models, and a suite of ours judges given outputs apart; "
                "take it out, and convert it as a configuration of its own"
            )
        if any(MARK.search(message.content) for prompt in self._plan.prompts for message in prompt.prompt.messages):
            raise InvalidRequest("an image in a prompt is not in a suite of ours; run the configuration as it is")
        if self._plan.by_prompt:
            raise InvalidRequest("the config of a prompt is not in a suite of ours; run the configuration as it is")
        for one in self._plan.generators:
            own = {"prompts": one.prompts, "transform": one.transform, "transformResponse": one.reply, "prompt": any(one.around)}
            if odd := next((name for name, value in own.items() if value), None):
                raise InvalidRequest(f"the provider {clip(one.label)}: {odd} is not in a suite of ours; run the configuration as it is")

    def _refuse_unknown(self, variables: dict[str, JsonValue], where: Location) -> None:
        """Raise InvalidRequest where a test lacks a variable of a prompt, which is empty only in promptfoo."""
        for named in self._plan.prompts:
            for text in (named.prompt.text or "", *(message.content for message in named.prompt.messages)):
                if missing := unknown_variables(text, variables):
                    why = "an empty variable is not in a suite of ours; run the configuration as it is"
                    raise InvalidRequest(f"{where}: prompt {clip(named.label)}: {missing[0]!r} is not there, and {why}")

    def _asks(self, located_test: LocatedTest) -> bool:
        """Return whether anything is asked about the output of a test."""
        return bool(self._plan.defaults.assertions or located_test.test.assertions)

    def _beginning(self) -> Iterator[str]:
        yield f"Converted from promptfoo's {self._suite.path.name}; it makes the same cases."
        path = self._suite.path
        yield from (one_line(item.message).replace(str(path), path.name) for item in self._plan.findings.items)
        if self._unasked:
            yield f"{counted(self._unasked, 'test')} without assertions left out: a suite of ours judges every test."
        if "assertionTemplates" in self._theirs:
            yield "The assertionTemplates are written out where they are used."
        if self._suite.outputs:
            names = " ".join(f"-o {path.name}" for path in self._suite.outputs)
            yield f"outputPath is given when the suite is run: gradeloop eval FILE {names}"
        if self._echo:
            yield "The provider echo gives the prompt back: the filled prompts are the outputs of the tests."

    def _put_settings(self) -> None:
        self._put("name", self._suite.name)
        for name, value in _fields(self._suite.settings).items():
            self._put(name, value, "derivedMetrics in promptfoo" if name == "derived_metrics" else "evaluateOptions in promptfoo")
        self._put("repeat", self._plan.repeat if self._plan.repeat > 1 else None, "evaluateOptions in promptfoo")

    def _put(self, key: str, value: Any, comment: str = "") -> None:  # noqa: ANN401 - whatever YAML can hold
        if value in (None, [], {}):
            return
        self._whole[key] = value
        if comment:
            self._whole.yaml_set_comment_before_after_key(key, before=comment)

    def _about_prompts(self) -> str:
        raw = self._theirs.get("prompts")
        if raw is None:
            return "promptfoo's own where it has none: the variable prompt"
        texts = {prompt.prompt.text for prompt in self._plan.prompts}
        entries = raw if isinstance(raw, list) else [raw]
        names = [entry.get("raw", entry.get("id")) if isinstance(entry, dict) else entry for entry in entries]
        files = [one_line(name)[:80] for name in names if isinstance(name, str) and name not in texts and "\n" not in name]
        return f"from {', '.join(files)}" if files else ""

    def _about_generators(self) -> str:
        models = [(one.label, one.generator.model.id) for one in self._plan.generators if one.generator and one.generator.model]
        return "the labels are promptfoo's names of the models" if any(label != model for label, model in models) else ""

    def _put_tests(self) -> None:
        from ruamel.yaml.comments import CommentedSeq

        tests = CommentedSeq()
        source, own = "", f"the suite {str(self._suite.path)!r}"
        for _, group in groupby(self._plan.tests(), key=lambda located_test: (located_test.spot.file, located_test.spot.path)):
            same = list(group)
            comments = [f"from {_file(same[0].spot)}"] if _file(same[0].spot) not in {source, own} else []
            source = _file(same[0].spot)
            comments += [f"the lists in vars made {counted(len(same), 'test')} of this one"] if len(same) > 1 else []
            for at, located_test in enumerate(asked for asked in same if self._asks(asked)):
                for raw in self._tests_of(located_test):
                    tests.append(raw)
                    if at == 0 and comments:
                        tests.yaml_set_comment_before_after_key(len(tests) - 1, before="\n".join(comments))
                        comments = []
        self._whole["tests"] = tests

    def _tests_of(self, located_test: LocatedTest) -> Iterator[dict[str, Any]]:
        """Yield a test as ours, one for each prompt that is judged itself; raise InvalidRequest where ours have no place for something."""
        test = located_test.test
        own: dict[str, object] = {"prompts": located_test.prompts, "providers": located_test.providers}
        own |= {"storeOutputAs": located_test.stores, "runSerially": located_test.serially, "conversationId": located_test.conversation}
        own |= {"options.repeat": located_test.repeat, "options.prefix": located_test.around[0], "options.suffix": located_test.around[1]}
        if odd := next((name for name, value in own.items() if value), None):
            raise InvalidRequest(f"{located_test.spot}: {odd} of one test is not in a suite of ours; run the configuration as it is")
        variables = {**self._plan.defaults.vars, **test.vars}
        self._refuse_unknown(variables, located_test.spot)
        if not self._echo or test.output is not None:
            yield _fields(test)
            return
        for named in self._plan.prompts:
            filled = fill_prompt(named.prompt, variables, located_test.spot, clip(named.label))
            if len(filled.messages) != 1:
                raise InvalidRequest(f"{located_test.spot}: echo gives the prompt back, and this one is a chat; write it as one text")
            yield _fields(test) | {"output": filled.messages[0].content}


def _file(spot: Location) -> str:
    """Return the file of a place, without the line that rows of a table have in its name."""
    return spot.file.partition(", line ")[0]


def _fields(model: BaseModel) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(model.model_dump_json(by_alias=True, exclude_defaults=True, exclude_none=True))
    return fields


def _prompt(named: NamedPrompt, at: int) -> Any:  # noqa: ANN401 - a text or a mapping
    """Return a prompt as a person would write it: a bare text if its label is the default one."""
    fields = _fields(named.prompt)
    own = named.prompt.label or (named.label if named.label != f"p{at}" else None)
    if own is None and set(fields) == {"text"}:
        return fields["text"]
    return ({"label": own} if own else {}) | {name: value for name, value in fields.items() if name != "label"}


def _generator(named: SuiteGenerator) -> Any:  # noqa: ANN401 - a text or a mapping
    fields = _fields(named.generator) if named.generator else {}
    model = fields.get("model")
    if isinstance(model, dict) and set(model) == {"id"}:
        fields["model"] = model["id"]
    return fields["model"] if set(fields) == {"model"} and fields["model"] == named.label else {"label": named.label} | fields
