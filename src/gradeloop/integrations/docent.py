"""Docent's names for judges and agent runs: its programs run with the import changed, and their judgements are durable."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Literal, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from pydantic import Field, model_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.transcript import AgentRun as FinishedRun
from gradeloop.contract.transcript import Citation
from gradeloop.errors import InvalidRequest, explained
from gradeloop.integrations.standing import Standings
from gradeloop.judges import contract
from gradeloop.judges.citations import citations_of
from gradeloop.judges.client import Judge
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.judges.sources import with_model
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import keep_worker_alive
from gradeloop.temporal.process import done_beside
from gradeloop.transcripts.json_access import UnreadableMessage
from gradeloop.transcripts.registry import parse_runs

__all__ = [
    "AgentRun", "AssistantMessage", "BaseJudge", "BaseLLMService", "Docent", "JudgeResult", "JudgeResultWithCitations", "JudgeVariant",
    "ModelOption", "OutputParsingMode", "PromptTemplateMessage", "ResultType", "Rubric", "SystemMessage", "ToolCall", "ToolMessage",
    "Transcript", "UserMessage", "build_judge",
]  # fmt: skip

Result = TypeVar("Result")
Metadata = dict[str, Any]

_OWN_NAMES = {"google_genai": "google", "azure": "azure_openai", "bedrock": "anthropic_bedrock"}
"""Docent's names of the providers that are named otherwise here."""


JudgeVariant = StrEnum("JudgeVariant", {"MAJORITY": "majority", "MULTI_REFLECT": "multi-reflect"})
"""The way in which the rollouts of a judgement become one output."""
OutputParsingMode = StrEnum("OutputParsingMode", {"CONSTRAINED_DECODING": "constrained_decoding", "XML_KEY": "xml_key"})
"""The place of the answer in what a model says: all of it, or what stands between tags."""
PromptTemplateMessage = contract.PromptTemplate
ResultType = Enum("ResultType", {"DIRECT_RESULT": "DIRECT_RESULT", "FAILURE": "FAILURE"})
"""The kind of a result; a `FAILURE` says nothing about the run."""


class ModelOption(Strict):
    """A model that judges: its provider as Docent names it, and its name there."""

    provider: str
    model_name: str
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = None
    served_providers: list[str] | None = None


class Rubric(Strict):
    """A judge as Docent writes it down: `Rubric(rubric_text="The agent names Paris.")`; a field that is refused is a `ValueError`."""

    id: str = Field(default_factory=lambda: str(uuid4()))
    version: int = 1
    n_rollouts_per_input: int = 1
    judge_variant: JudgeVariant = JudgeVariant.MAJORITY
    rollout_type: Literal["single_turn"] = "single_turn"
    prompt_templates: list[PromptTemplateMessage] = Field(default_factory=list)
    rubric_text: str
    output_schema: dict[str, Any] = Field(default_factory=lambda: dict(contract.DEFAULT_SCHEMA))
    judge_model: ModelOption = ModelOption(provider="openai", model_name="gpt-5.6-luna", reasoning_effort="low")
    output_parsing_mode: OutputParsingMode = OutputParsingMode.XML_KEY
    response_xml_key: str = "response"
    output_format: Literal["json", "yaml"] = "yaml"

    @model_validator(mode="after")
    def _is_a_judge(self) -> "Rubric":
        try:
            templates = self.judge().templates
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        if "prompt_templates" not in self.model_fields_set:
            object.__setattr__(self, "prompt_templates", [*templates])
        return self

    def judge(self, **config: float | None) -> contract.SchemaJudge:
        """Return the rubric as gradeloop's own judge, with settings of the model's calls; InvalidRequest where one is refused."""
        given = {key: value for key, value in config.items() if value is not None}
        with explained():
            judge = contract.SchemaJudge.model_validate(self.model_dump(exclude={"prompt_templates"} - self.model_fields_set))
            if (model := judge.judge_model) is None or not given:
                return judge
            spec = ModelSpec.model_validate({"id": model.id, "config": model.config.model_dump(exclude_none=True) | given})
            return judge.model_copy(update={"judge_model": spec})


class ToolCall(Strict):
    """A call of a tool by an assistant."""

    id: str
    function: str
    arguments: dict[str, Any]
    type: Literal["function"] | None = None
    parse_error: str | None = None
    view: dict[str, Any] | None = None


class _Message(Strict):
    id: str | None = None
    content: str | list[dict[str, Any]]
    """A text, or Docent's objects of type `text` and `reasoning`."""
    metadata: Metadata | None = None


class SystemMessage(_Message):
    """A message of the system."""

    role: Literal["system"] = "system"


class UserMessage(_Message):
    """A message of a user."""

    role: Literal["user"] = "user"
    tool_call_id: list[str] | None = None


class AssistantMessage(_Message):
    """A message of the agent."""

    role: Literal["assistant"] = "assistant"
    model: str | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(_Message):
    """The result of a tool's call."""

    role: Literal["tool"] = "tool"
    tool_call_id: str | None = None
    function: str | None = None
    error: dict[str, Any] | None = None


class _Described(Strict):
    id: str = Field(default_factory=lambda: str(uuid4()))
    name: str | None = None
    description: str | None = None
    metadata: Metadata = Field(default_factory=dict)


class Transcript(_Described):
    """One conversation of a run."""

    transcript_group_id: str | None = None
    created_at: datetime | None = None
    messages: list[SystemMessage | UserMessage | AssistantMessage | ToolMessage]


class AgentRun(_Described):
    """A finished run of an agent: its transcripts, and data about it that a judge does not see."""

    transcripts: list[Transcript] = Field(min_length=1)
    transcript_groups: list[dict[str, Any]] = Field(default_factory=list)

    def finished(self, *, named: bool) -> FinishedRun:
        """Return the run as gradeloop's judges take it: by its id, or where nobody gave one and it is not `named`, by its content."""
        value = self.model_dump(mode="json")
        for shape, dumped in ((self, value), *zip(self.transcripts, value["transcripts"], strict=True)):
            if not named and "id" not in shape.model_fields_set:
                del dumped["id"]
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        try:
            (found,) = parse_runs(value, f"run-{digest[:32]}")
        except UnreadableMessage as error:
            raise InvalidRequest(f"the run {self.id!r}: {error}") from None
        return found


class JudgeResult(Strict):
    """One judgement; `result_metadata` has gradeloop's facts about it, and the `errors` of a `FAILURE`."""

    id: str = Field(default_factory=lambda: str(uuid4()))
    agent_run_id: str
    rubric_id: str
    rubric_version: int
    output: dict[str, Any]
    result_metadata: Metadata | None = None
    result_type: ResultType
    value: str | None = None


class JudgeResultWithCitations(JudgeResult):
    """A judgement whose texts with `citations: true` are objects: the text, and what it cites."""

    @classmethod
    def from_judge_result(cls, result: JudgeResult, schema: dict[str, Any], agent_run: AgentRun) -> "JudgeResultWithCitations":
        """Return a result with its citations looked up in the run; one of a message or metadata that is not there is left out."""
        run = agent_run.finished(named=True)

        def cited(text: str) -> dict[str, Any]:
            found = [one for one in citations_of([("", text)], run) if one.verified or one.transcript_id]
            return {"text": text, "citations": [_inline(text, one, run) for one in found]}

        return cls(**result.model_dump(exclude={"output"}), output=_replaced(schema, result.output, cited))


def _replaced(schema: dict[str, Any], value: Any, cited: Callable[[str], object]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return an output with its texts that may hold citations replaced."""
    if isinstance(value, dict):
        return {key: _replaced(schema.get("properties", {}).get(key, {}), inner, cited) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(schema.get("items", {}), item, cited) for item in value]
    return cited(value) if isinstance(value, str) and schema.get("citations") else value


def _inline(text: str, found: Citation, run: FinishedRun) -> Metadata:
    """Return a citation in Docent's shape, whose places count UTF-16 code units as browsers do."""
    target, _, key = found.target.partition("M.")
    transcript, _, block = target.partition("B")
    item: Metadata = {"agent_run_id": run.id, "collection_id": ""}
    item |= {"transcript_id": run.transcripts[int(transcript[1:])].id} if target[0] == "T" else {}
    item |= {"block_idx": int(block)} if block else {}
    kind = "agent_run_metadata" if target[0] == "R" else "block_metadata" if block else "transcript_metadata"
    item |= {"item_type": kind, "metadata_key": key} if key else {"item_type": "block_content", "content_idx": None}
    quoted = {"target_start_idx": None, "target_end_idx": None, "start_pattern": found.quote, "end_pattern": None}
    start, end = (len(text[:at].encode("utf-16-le", "surrogatepass")) // 2 for at in (found.start, found.end))
    span = quoted if found.quote and found.verified else None
    return {"start_idx": start, "end_idx": end, "target": {"item": item, "text_range": span}}


class BaseLLMService:
    """The worker that judges, at most `max_concurrency` runs of this service at once: the environment's, or one that is started."""

    def __init__(self, max_concurrency: int = 100) -> None:
        self.max_concurrency = max_concurrency
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._standings: dict[str, Standings] = {}

    async def judged(self, config: contract.SchemaJudge, run: FinishedRun) -> contract.JudgeResult:
        """Judge a run; one that is being judged is waited for, and one that was judged is read, unless that was a `FAILURE`."""
        with_model(config, None, scripted=False)  # refuses a model without a key
        async with self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_concurrency)):
            client, queue, connection, _ = await self._standings.setdefault(config.model_dump_json(), Standings(config)).get()
            judge = Judge(config, client.temporal, task_queue=queue)
            return await done_beside(judge(run, retry=True), keep_worker_alive(queue, connection))


class BaseJudge:
    """A judge to be called on runs, as `build_judge` returns it."""

    def __init__(self, cfg: Rubric, llm_svc: BaseLLMService) -> None:
        self.cfg = cfg
        self.llm_svc = llm_svc

    async def __call__(self, agent_run: AgentRun, **settings: float) -> JudgeResult:
        """Judge a run; without a judge's answer the result is a `FAILURE`.

        Args:
            agent_run: The run.
            settings: `temperature`, `max_new_tokens` and `timeout`, in seconds, of the model's calls; gradeloop's defaults where not given.

        Raises:
            ServerUnreachable: No server answers.
            WorkerFailed: No worker starts.
        """
        about: Metadata = {"agent_run_id": agent_run.id, "rubric_id": self.cfg.id, "rubric_version": self.cfg.version}
        try:
            config = self.cfg.judge(max_tokens=settings.pop("max_new_tokens", None), **settings)
            found = await self.llm_svc.judged(config, agent_run.finished(named=False))
        except InvalidRequest as error:
            return JudgeResult(**about, output={}, result_type=ResultType.FAILURE, result_metadata=_failure("invalid_prompt", error))
        facts = {**found.result_metadata, "usage": found.usage.model_dump(mode="json"), "model": found.model}
        if found.failed:
            facts |= _failure("no_response" if facts.get("again") else "validation_failed", facts.get("reason"))
        return JudgeResult(**about, id=found.id, output=found.output, result_type=ResultType(found.result_type), result_metadata=facts)


def _failure(kind: str, reason: object) -> Metadata:
    return {"errors": [{"type": "LLMException", "user_message": str(reason), "error_type_id": kind}]}


def build_judge(rubric: Rubric, llm_svc: BaseLLMService, docent_collection_id: str | None = None) -> BaseJudge:  # noqa: ARG001 - Docent's
    """Return a judge to be called on runs: `result = await judge(agent_run)`."""
    return BaseJudge(rubric, llm_svc)


class Docent:
    """The client of the rubrics in this project's store, where `gradeloop judge registry` keeps them; `api_key` is taken and not used.

    Its methods raise `InvalidRequest` where a rubric is refused or not there, and `StoreUnavailable` where the store is away.
    """

    def __init__(self, *, api_key: str | None = None) -> None:
        del api_key

    def create_rubric(self, collection_id: str, rubric: Rubric) -> str:
        """Keep a rubric as version 1, and return its id; `gradeloop judge registry add` adds the next version."""
        if rubric.version != 1:
            raise InvalidRequest(f"rubric.version is {rubric.version}; a new rubric has version 1")
        return _waited(JudgeRegistry(own_store()).create_rubric(collection_id, rubric.judge())).id

    def get_rubric(self, collection_id: str, rubric_id: str, version: int | None = None) -> Rubric:
        """Return a version of a rubric, the newest by default; one that has what Docent's have not is refused."""
        judge = _waited(JudgeRegistry(own_store()).get_rubric(collection_id, rubric_id, version))
        fields = judge.model_dump(mode="json", exclude={"name"}, exclude_none=True, exclude_defaults=True) | {"version": judge.version}
        odd = ", ".join(sorted(fields.keys() - Rubric.model_fields.keys()))
        if odd or not isinstance(judge, contract.SchemaJudge) or judge.judge_model is None:
            why = f"has {odd}, which no rubric of Docent's has" if odd else "names no judge_model"
            raise InvalidRequest(f"the rubric {rubric_id!r} {why}; judge with gradeloop.Judge.from_registry")
        provider, _, model = judge.judge_model.id.partition(":")
        config = judge.judge_model.config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        served = config.pop("extra", {}).get("provider", {}).get("only")
        option = {"provider": _OWN_NAMES.get(provider, provider), "model_name": model, "served_providers": served, **config}
        own = {"judge_model": option, "output_parsing_mode": judge.output_parsing_mode.lower(), "output_format": judge.output_format}
        with explained(f"the rubric {rubric_id!r}: "):
            return Rubric.model_validate(fields | own)

    def get_judge(self, collection_id: str, rubric_id: str, version: int | None = None) -> BaseJudge:
        """Return the judge of a rubric's version, the newest by default."""
        return build_judge(self.get_rubric(collection_id, rubric_id, version), BaseLLMService())

    def list_rubrics(self, collection_id: str) -> list[Metadata]:
        """Return the rubrics of a collection, each with `rubric_id`, newest `version`, `sha256`, `kind`, and when it `changed`."""
        return [row.model_dump(mode="json") for row in _waited(JudgeRegistry(own_store()).list_rubrics(collection_id))]


def _waited(work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for work of the store, also where an event loop runs."""
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(asyncio.run, work).result()
