"""Configurations of promptfoo, written as suites of ours."""

import io
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, read_placed
from gradeloop.grading.templates import unknown_variables
from gradeloop.suites.case_prompts import fill_prompt
from gradeloop.suites.chat_images import MARK
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.load import read_suite
from gradeloop.suites.plan import NamedPrompt, Suite, SuiteGenerator
from gradeloop.suites.promptfoo import is_promptfoo
from gradeloop.text import clip, counted, one_line


def convert_configuration(path: Path, outside: Sequence[Path] = ()) -> str:
    """Return a configuration of promptfoo as the YAML of a suite of ours that makes the same cases; comments say what changed.

    Args:
        path: The configuration.
        outside: The folders besides its own in which it may name files.

    Raises:
        InvalidRequest: It is no configuration of promptfoo, or something in it has no counterpart.
    """
    value, _ = read_placed(path, "the configuration")
    if not isinstance(value, dict) or not is_promptfoo(path, value):
        raise InvalidRequest(f"{str(path)!r} is no configuration of promptfoo: it has neither its name nor providers; name one")
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
        """Raise InvalidRequest where a test lacks a variable of a prompt, which is empty in promptfoo alone."""
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
        yield from (one_line(item.message) for item in self._plan.findings.items)
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
        """Yield a test as ours; where the prompt itself is judged, one for each prompt.

        Raises:
            InvalidRequest: The test has something that a suite of ours does not.
        """
        test = located_test.test
        own: dict[str, object] = {"prompts": located_test.prompts, "providers": located_test.providers}
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
    """Return a prompt as a person would write it: a text alone where its label is the one that it gets anyway."""
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
