"""Whatever a request names is found, however deep it is nested, and refused where it was not granted."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gradeloop.batches.contract import BatchRequest, Upload
from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import (
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    InvokeRequest,
    OverrideRequest,
    ResumeRequest,
    ThreadRequest,
)
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.grading.grants import NAMES, Grants, Kind, named_in
from gradeloop.judges.contract import JudgingRequest
from gradeloop.monitors.contract import SOURCES, BackfillCall, MonitorDefinition, MonitorTick, Source
from gradeloop.suites.suite import SuiteFile

REQUESTS: tuple[type[BaseModel], ...] = (
    *(ThreadRequest, InvokeRequest, ResumeRequest, DecideRequest, OverrideRequest, ApproveRequest, DenyRequest),
    *(JudgingRequest, Upload, BatchRequest, MonitorDefinition, MonitorTick, BackfillCall, SuiteFile),
)

DATA: dict[str, str] = {
    "AlwaysRule": "key value",
    "AnchorPlan": "sha256",
    "ApproveRequest": "call by",
    "BackfillCall": "monitor since",
    "BatchRequest": "baseline batch_id cases name suite",
    "BucketSource": "bucket prefix",
    "Case": "id description vars prompt label output abstain compared_with follows left_out metadata",
    "Check": "arguments",  # the tool's own; what an assertion in code or a comparison has in them is found
    "CodeText": "code file function config",
    "Context": "text",
    "CriteriaJudge": "id abstain",
    "Criterion": "id description group categories",
    "DecideRequest": "grading_run_id criterion gap by",
    "DeclaredFunction": "name description parameters",  # which nobody runs
    "Defaults": "vars assertions abstain",  # assertions become criteria of cases, in which their models are found
    "DenyRequest": "call by why",
    "DerivedMetric": "name value",
    "Feedback": "opening failing unverified suggested remarks passing closing",
    "FolderSource": "path",  # a monitor's source is what its user has it read
    "Generator": "system_prompt function_choice",
    "Grader": "system_prompt",
    "Group": "group",
    "HiddenMessages": "source name",
    "InvokeRequest": "vars key",
    "Label": "agent_run_id label_value reason created_by cluster output",
    "MetricShare": "name criterion",
    "MonitorDefinition": "name passes stratum strata tenant notify",  # webhooks are the worker's settings
    "MonitorTick": "monitor",
    "NamedGenerator": "system_prompt function_choice label",
    "Options": "provider rubric_prompt transform factuality",  # as assertions
    "OtlpSource": "where",
    "OutputForm": "name json_schema",
    "OverrideRequest": "grading_run_id criterion why by",
    "Priority": "tenant",
    "Prompt": "label text",
    "PromptMessage": "parts",
    "PromptSlot": "path",
    "PromptTemplate": "content",
    "RemoteTool": "name description parameters",  # its own words for the model
    "Rubric": "name instructions language",
    "SchemaJudge": "id name rubric_text output_schema response_xml_key abstain pass_if",
    "SqlSource": "variable query watermark",
    "SuiteFile": "name tests tools scripted",  # files below its folder
    "SuiteMessage": "content name tool_call_id",
    "SuiteTest": "vars assertions abstain id description output metadata",
    "ThreadRequest": "vars",
    "ThreadsSource": "where",
    "ToolCall": "id name arguments invalid",
    "UntilDecided": "pass_if",
    "Upload": "batch_id",
}
"""The texts and the free JSON of requests that name nothing: a new field is either listed here, or in `NAMES`."""


def texts_of(annotation: object) -> Iterator[object]:
    """Yield the parts of a field's type in which anything could be written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return
    parts = () if get_origin(annotation) is Literal else get_args(annotation)
    for part in parts:
        yield from texts_of(part)
    is_data = annotation in {int, float, bool, type(None), ...} or get_origin(annotation) is Literal
    if not parts and not is_data and (isinstance(annotation, type) or annotation is Any or "TypeAlias" in type(annotation).__name__):
        yield annotation


def models_of(annotation: object) -> Iterator[type[BaseModel]]:
    if annotation is Source:
        yield from (kind.model for kind in SOURCES)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_of(part)


def models_below(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Return a model and all that can be nested in it; messages and finished runs are data as a whole."""
    if model not in seen and not issubclass(model, Message | AgentRun):
        seen.add(model)
        for field in model.model_fields.values():
            for inner in models_of(field.annotation):
                models_below(inner, seen)
    return seen


def test_every_field_of_a_request_names_something_or_is_known_to_be_data() -> None:
    seen: set[type[BaseModel]] = set()
    for request in REQUESTS:
        models_below(request, seen)

    unknown = {
        f"{model.__name__}.{name}"
        for model in seen
        for name, field in model.model_fields.items()
        if any(texts_of(field.annotation))
        and name not in DATA.get(model.__name__, "").split()
        and not any(name in NAMES.get(base, {}) for base in model.__mro__)
    }
    fields = {f"{model.__name__}.{name}" for model in seen for name in model.model_fields}

    assert not unknown, "say in NAMES what these name, or list them in DATA"
    assert {f"{model}.{name}" for model, names in DATA.items() for name in names.split()} <= fields, "these are gone"
    assert set(NAMES) <= {base for model in seen for base in model.__mro__}
    assert len(seen) > 40


class Nest:
    """Writes requests with something new in every place that can name something."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw
        self.names: set[tuple[Kind, str]] = set()

    def new(self, kind: Kind, form: str = "n{}") -> str:
        name = form.format(len(self.names))
        self.names.add((kind, name))
        return name

    def one_of(self, *made: Callable[[], Any]) -> Any:
        return self._draw(st.sampled_from(made))()

    def some(self, made: Callable[[], Any], most: int = 2) -> list[Any]:
        return [made() for _ in range(self._draw(st.integers(0, most)))]

    def maybe(self, key: str, made: Callable[[], Any]) -> dict[str, Any]:
        return {key: made()} if self._draw(st.booleans()) else {}

    def plain_model(self) -> dict[str, Any]:
        config = {
            **self.maybe("base_url", lambda: self.new("address", "https://n{}.example/v1")),
            **self.maybe("extra", lambda: {self.new("setting"): {"models": ["data"]}}),
        }
        return {"id": self.new("model", "openai:n{}"), **({"config": config} if config else {})}

    def model(self) -> dict[str, Any]:
        fallback = self.some(self.plain_model)
        return self.plain_model() | ({"fallback": fallback} if fallback else {})

    def remote(self) -> dict[str, Any]:
        return {"activity": self.new("activity"), "task_queue": self.new("queue")}

    def function(self) -> dict[str, Any]:
        return {"function": self.new("tool")}

    def tools(self) -> list[Any]:
        return self.some(lambda: self.one_of(lambda: self.new("tool"), self.remote_tool), 3)

    def remote_tool(self) -> dict[str, Any]:
        return {"name": f"t{len(self.names)}", "description": "x", **self.remote()}

    def code(self) -> dict[str, Any]:
        self.names.add(("code", language := self._draw(st.sampled_from(["python", "javascript"]))))
        return {"language": language, "code": "output"}

    def judge(self) -> dict[str, Any]:
        return dict(self.one_of(self.model, self.remote, self.function))

    def check(self) -> Any:
        return self.one_of(
            lambda: self.new("tool"),
            lambda: {"tool": self.new("tool"), "arguments": {"grader": "data"}, **self.maybe("transform", self.code)},
            self.code_check,
            self.comparison,
        )

    def code_check(self) -> dict[str, Any]:
        self.names.add(("tool", "code_check"))
        return {"tool": "code_check", "arguments": self.code()}

    def comparison(self) -> dict[str, Any]:
        self.names.add(("tool", "comparison_check"))
        return {"tool": "comparison_check", "arguments": {"kind": "select-best", "value": "x", **self.maybe("grader", self.model)}}

    def criterion(self) -> dict[str, Any]:
        kind = self.one_of(
            lambda: {"check": self.check()},
            lambda: self.maybe("grader", self.judge),
            lambda: {"panel": [self.judge(), *self.some(self.judge)]},
            lambda: {"form": "pass_score", "transform": self.code(), **self.maybe("grader", self.judge)},
            lambda: {"form": "similar", "grader": self.model()},
        )
        return {"description": "openai:data on the queue data", **kind}

    def rubric(self) -> dict[str, Any]:
        criteria = [self.criterion(), *self.some(self.criterion)]
        return {"criteria": self.one_of(lambda: criteria, lambda: [{"group": "g", "criteria": criteria}])}

    def grader(self) -> dict[str, Any]:
        return dict(self.one_of(lambda: {**self.maybe("model", self.model), "tools": self.tools()}, self.remote, self.function))

    def generator(self) -> dict[str, Any]:
        return dict(
            self.one_of(
                lambda: {"model": self.model(), "tools": self.tools()},
                self.remote,
                lambda: {"workflow": self.new("activity"), "task_queue": self.new("queue")},
            )
        )

    def thread(self) -> ThreadRequest:
        message = {"role": "user", "content": "openai:data"}
        checkpoint = self.maybe("checkpoint", lambda: {self.new("setting"): {"grader": {"activity": "data"}}})
        made = {"messages": [message], "generator": self.generator(), **checkpoint}
        return ThreadRequest.model_validate(made | self.maybe("rubric", self.rubric) | self.maybe("grader", self.grader))

    def schema_judge(self) -> dict[str, Any]:
        model = self.one_of(lambda: self.maybe("judge_model", self.model), lambda: {"panel": [self.model(), self.model()]})
        votes = {"n_rollouts_per_input": 3, "abstain": {"label": 1}, "escalate": self.model()} if self._draw(st.booleans()) else {}
        return {"rubric_text": "x", **model, **votes}

    def criteria_judge(self) -> dict[str, Any]:
        votes = {"id": "voted", "description": "x", "votes": 3}
        sure = {"abstain": {"criteria.voted": 1}, "escalate": self.model()} if self._draw(st.booleans()) else {}
        return {"rubric": {"criteria": [*self.rubric()["criteria"], votes]}, **self.maybe("grader", self.grader), **sure}

    def judging(self) -> JudgingRequest:
        run = {"id": "r", "transcripts": [{"messages": [{"role": "assistant", "content": "openai:data"}]}]}
        return JudgingRequest.model_validate({"judge": self.one_of(self.schema_judge, self.criteria_judge), "run": run})

    def images(self) -> list[Any]:
        return [{"url": self.new("address", "https://n{}.example/i.png")}]

    def upload(self) -> Upload:
        message = {"role": "user", "content": "x"}
        case = self.one_of(
            lambda: {"output": "x", **self.maybe("images", self.images), **self.maybe("transforms", lambda: [self.code()])},
            lambda: {"generator": {"model": self.model()}, "messages": [message], **self.maybe("images", self.images)},
            lambda: {"generator": self.generator(), "messages": [message], "loop": False},
            lambda: {"judging": self.judging().model_dump(mode="json")},
        )

        made = {"id": "c", "rubric": self.rubric(), **self.maybe("grader", self.grader), **case}
        return Upload.model_validate({"batch_id": "b", "first": 0, "cases": [made]})

    def suite(self) -> SuiteFile:
        test = {
            "output": "x",
            **self.maybe("rubric", self.rubric),
            **self.maybe("grader", self.grader),
            **self.maybe("escalate", self.model),
        }
        made = {"generators": self.some(self.generator), "tests": [test], **self.maybe("defaults", lambda: {"grader": self.grader()})}
        return SuiteFile.model_validate(made)

    def request(self) -> BaseModel:
        def resume() -> ResumeRequest:
            return ResumeRequest.model_validate(self.maybe("model", self.model) | self.maybe("grader", self.model))

        made = self.one_of(self.thread, self.judging, self.upload, self.suite, resume, lambda: Rubric.model_validate(self.rubric()))
        assert isinstance(made, BaseModel)
        return made


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_is_named_anywhere_in_a_request_is_found_and_nothing_else_is(data: st.DataObject) -> None:
    nest = Nest(data.draw)
    request = nest.request()

    everything = Grants(frozenset(get_args(Kind)), frozenset(nest.names), "leave it out")

    assert {(named.kind, named.value) for named in named_in(request)} == nest.names
    assert everything.check(request) is request
    for kind, value in sorted(nest.names):
        others = Grants(frozenset(get_args(Kind)), frozenset(nest.names - {(kind, value)}), "leave it out")
        with pytest.raises(InvalidRequest, match=f"the {kind} '{value}' was not granted; leave it out"):
            others.check(request)
