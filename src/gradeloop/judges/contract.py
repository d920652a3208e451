"""Judges on the wire: their configuration, the request, the result, and the typed door to the workflow."""

import hashlib
import json
import re
from collections.abc import Sequence
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError, field_validator, model_validator
from temporalio import workflow

from gradeloop.contract.base import READS_SHARES, Items, OmitEmpty, Strict, Tolerant
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import RUBRIC_BYTES, Rubric
from gradeloop.contract.thread import Grader, Priority
from gradeloop.contract.transcript import RUN_BYTES, STORED_RUN_BYTES, AgentRun, why_unanswered
from gradeloop.errors import InvalidRequest, RunTooLarge, explained
from gradeloop.grading import prompts
from gradeloop.grading.cache_key import key_of_tenant
from gradeloop.grading.prompts import read_prompt_text
from gradeloop.judges.schema import keys_of, refuse_schema, refuse_values, wants_citations
from gradeloop.text import clip, did_you_mean

ResultType = Literal["DIRECT_RESULT", "FAILURE"]


class PassGate(Tolerant):
    """Rule that passes a judgement, and the share that must pass, as given to the command that judged or shows them."""

    pass_if: dict[str, JsonValue]
    """The values that an output must have, by key; a dot leads into an object."""
    pass_rate: OmitEmpty[float | None] = None
    """The share of judged runs, 0 to 1, that has to pass; None where no rate decides, or one that labels correct."""
    allow_errors: float = 0.0
    """The share of judgements, 0 to 1, that may be failures."""


JUDGEMENTS_SCHEMA = "gradeloop.judgements/1"
"""Name of the format in a JSON document of judgements."""


class JudgeResult(Tolerant):
    """One judgement of one run; a `FAILURE` says nothing about the run: `(await judge(run)).output["label"]`."""

    id: str
    """The judgement's id, which is the Temporal workflow's."""
    agent_run_id: str
    rubric_id: str
    rubric_version: int
    output: dict[str, JsonValue]
    """Answer of the judge, in the shape of its schema; empty for a `FAILURE`."""
    result_type: ResultType
    result_metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Rollouts, votes, ties and citations; a `FAILURE` has its `reason`, `raw_text`, and `again`: whether the same may be run again."""
    usage: Usage = Usage()
    model: str | None = None
    """The model that judged; None if only checks decided, or no model was reached."""
    attempts: int = 0
    """Requests that were sent to providers, the failed ones included."""
    prompt_sha256: str | None = None
    """The sha256 of what the judge was sent, the judgement's random code masked; None where a judgement takes several calls."""
    judge_sha256: str | None = None
    """The sha256 of the judge; None in the workflow's own results, to which the Python judge adds it."""
    run_sha256: str | None = None
    """The sha256 of the run as it was judged; None as for `judge_sha256`."""
    batch_id: OmitEmpty[str | None] = None
    """The batch that judged; None where a workflow of the judgement's own did."""
    unsure: OmitEmpty[tuple[str, ...]] = ()
    """The keys with fewer agreeing votes than `abstain` says: neither a pass nor a fail."""
    escalated_from: OmitEmpty[str | None] = None
    """The id of the unsure judgement that this one replaces, by the model of `escalate`; None for any other."""
    passed: OmitEmpty[bool | None] = None
    """Whether it passes by `gate`; None for a `FAILURE`, for an unsure one, and without a gate."""
    gate: OmitEmpty[PassGate | None] = None
    """The rule that the command had; None without one, and in the workflow's own results."""

    @property
    def failed(self) -> bool:
        """Whether there is no output."""
        return self.result_type == "FAILURE"


TEMPLATE_CHARACTERS = 65_536
"""The most characters of all templates of a judge together."""

_REQUIRED = ("agent_run", "rubric", "output_schema")
_OPTIONAL = ("output_format_instructions",)
"""Docent's own, filled with the rules for writing the answer."""

TemplateRole = Literal["system", "user", "assistant"]


class PromptTemplate(Strict):
    """A message of a judge's prompt, with slots in braces."""

    role: TemplateRole
    content: str = Field(min_length=1)


def split_template(text: str) -> list[tuple[str, str | None]]:
    """Split a template into texts, each with the slot behind it; raise ValueError for an unbalanced brace or unknown slot."""
    try:
        fields = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"the template's braces are unbalanced ({error}); write {{{{ and }}}} for braces that are meant as such") from None
    for _, name, spec, conversion in fields:
        if name is not None:
            _refuse_slot(name, spec or "", conversion)
    return [(literal, name) for literal, name, _, _ in fields]


def _refuse_slot(name: str, spec: str, conversion: str | None) -> None:
    """Raise ValueError for a slot that is more, or something else, than one of the known names."""
    known = (*_REQUIRED, *_OPTIONAL)
    if not name:
        raise ValueError(f"the template has a place without a name, {{}}; write one of {', '.join(f'{{{slot}}}' for slot in known)}")
    bare = name.partition(".")[0].partition("[")[0]
    if bare not in known:
        cure = " Braces that are meant as such are doubled." if not name.isidentifier() else ""
        raise ValueError(f"the template has an unknown variable {clip(name)}.{did_you_mean(name, list(known))}{cure}")
    part = "an index" if "[" in name else "an attribute" if bare != name else ""
    if excess := part or (spec and f"a format, {clip(spec)}") or (conversion and f"a conversion, '!{conversion}'"):
        raise ValueError(f"the template's place {clip(name)} has {excess}; write {{{bare}}} alone")


def refuse_templates(templates: Sequence[PromptTemplate], key: str | None) -> None:
    """Raise ValueError where templates lack a slot, or the opening tag of the answer, or cannot be sent.

    `key`: the name of the tags between which the answer stands; None where the provider enforces the schema.
    """
    if not templates:
        raise ValueError("prompt_templates is empty; give at least one message, or leave it out for ours")
    size = sum(len(template.content) for template in templates)
    if size > TEMPLATE_CHARACTERS:
        raise ValueError(f"prompt_templates have {size} characters, {TEMPLATE_CHARACTERS} at most; shorten them")
    parts: list[tuple[str, str | None]] = []
    for at, template in enumerate(templates):
        try:
            parts += split_template(template.content)
        except ValueError as error:
            raise ValueError(f"prompt_templates[{at}]: {error}") from None
    if missing := [name for name in _REQUIRED if name not in {slot for _, slot in parts}]:
        raise ValueError(f"prompt_templates lack {', '.join(f'{{{name}}}' for name in missing)}; write where it is put in")
    if key is not None and not any(f"<{key}>" in text for text, _ in parts):
        raise ValueError(f"no prompt template has the opening tag <{key}>; ask for the answer between <{key}> and </{key}>")
    roles = [template.role for template in templates if template.role != "system"]
    if roles and roles[-1] != "user":
        raise ValueError(
            "the last of prompt_templates is of role 'assistant'; current models take no answer begun for them, end with 'user'"
        )


MAX_ROLLOUTS = 25

ParsingMode = Literal["XML_KEY", "CONSTRAINED_DECODING"]

DEFAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["match", "no match"]},
        "explanation": {"type": "string", "citations": True},
    },
    "required": ["label", "explanation"],
}
"""The schema of a judge without one of its own, the same as Docent's."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
REASONING = ("reasoning", "thinking", "think", "scratchpad")
"""Names of the tags between which a model thinks: what stands there is no answer."""

_DOCENT_PROVIDERS = {"azure_openai": "azure", "anthropic_bedrock": "bedrock"}
"""Our names of the providers that Docent names otherwise."""

_DOCENT_NOTES = ("context_window", "uses_byok")
"""Keys that Docent's own pages write beside a model, ignored here."""


Abstain = OmitEmpty[Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]] | None, READS_SHARES]]
Escalate = OmitEmpty[ModelSpec | None]


def refuse_abstention(abstain: dict[str, float] | None, escalate: ModelSpec | None, voted: Sequence[str], cure: str) -> None:
    """Raise ValueError where `abstain` names a key on which a judgement has no votes, or `escalate` has nothing to do."""
    if escalate is not None and not abstain:
        raise ValueError("escalate names a model for unsure verdicts, and abstain says of none that it is; add abstain: {KEY: SHARE}")
    if odd := next((key for key in abstain or {} if key not in voted), None):
        raise ValueError(f"abstain: {clip(odd)} is not a key with several votes; {cure}.{did_you_mean(odd, list(voted)) if voted else ''}")


class SchemaJudge(Strict):
    """A rubric in words, the schema of the answer, and how to ask."""

    id: Annotated[str, Field(max_length=200)] = ""
    """The rubric's id; by default `rubric-` and the first digits of its sha256."""
    version: Annotated[int, Field(ge=1)] = 1
    name: OmitEmpty[Annotated[str, Field(max_length=200)] | None] = None
    rubric_text: str
    """Question of the judge, and how it decides."""
    output_schema: dict[str, Any] = Field(default_factory=lambda: dict(DEFAULT_SCHEMA))
    """Shape of the answer; by default a label `match` or `no match`, and an explanation with citations."""
    prompt_templates: Items[PromptTemplate] | None = None
    """Messages with `{agent_run}`, `{rubric}`, `{output_schema}` and the tag; literal braces are doubled; one of gradeloop by default."""
    judge_model: ModelSpec | None = None
    """The model that judges; the worker's default grader if it is absent."""
    panel: OmitEmpty[Annotated[tuple[ModelSpec, ...], Field(min_length=2, max_length=MAX_ROLLOUTS)] | None] = None
    """Several models instead of one `judge_model`, each with `n_rollouts_per_input` rollouts."""
    output_parsing_mode: ParsingMode = "XML_KEY"
    """Form of the answer: between tags, or as the provider enforces it."""
    response_xml_key: str = "response"
    """Name of the tags around the answer."""
    output_format: Literal["json", "yaml"] = "json"
    """The format of the answer between the tags."""
    n_rollouts_per_input: Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)] = 1
    """Number of answers to the same question."""
    quorum: OmitEmpty[Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)] | None] = None
    """Number of rollouts that must have a valid answer; by default more than half of them."""
    judge_variant: Literal["majority", "multi-reflect"] = "majority"
    """Decision by the rollouts' majority, or by as many reflections on their answers."""
    rollout_type: Literal["single_turn"] = "single_turn"
    bad_citations: Literal["flag", "fail"] = Field(default="flag", exclude_if=lambda value: value == "flag")
    """Treatment of an answer with an unverified citation: `flag` keeps it, `fail` makes it invalid."""
    require_citations: OmitEmpty[bool] = False
    """Whether every text with `citations: true` needs a verified citation."""
    show_metadata: OmitEmpty[bool] = False
    """Whether the judge sees the run's metadata, which may hold the expected answer."""
    abstain: Abstain = None
    """Least share of agreeing votes by key; a verdict with a smaller one is unsure."""
    escalate: Escalate = None
    """Model that is asked once about unsure verdicts."""
    pass_if: OmitEmpty[Annotated[dict[str, bool | int | float | str], Field(min_length=1)] | None] = None
    """The values that an output must have to pass, by key; by default nothing says what passes."""

    @field_validator("output_parsing_mode", mode="before")
    @classmethod
    def _reads_mode(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return value.upper() if isinstance(value, str) else value

    @field_validator("judge_model", "panel", mode="before")
    @classmethod
    def _reads_models(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return tuple(map(_read_model, value)) if isinstance(value, list | tuple) else _read_model(value)

    @field_validator("rubric_text")
    @classmethod
    def _is_not_empty(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("rubric_text is empty; say what the judge decides, and how")
        if (size := len(value.encode(errors="surrogatepass"))) > RUBRIC_BYTES:
            raise ValueError(f"rubric_text has {size} bytes, {RUBRIC_BYTES} at most; shorten it")
        return value

    @field_validator("output_schema", mode="before")
    @classmethod
    def _is_a_schema(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        refuse_schema(value)
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> "SchemaJudge":
        key = self.response_xml_key
        if not _KEY.fullmatch(key):
            raise ValueError(f"response_xml_key is {clip(key)}; write a tag's name: a letter, then letters, digits, '_', '.', '-'")
        if key in REASONING:
            raise ValueError(f"response_xml_key is {clip(key)}, between whose tags models think; name another")
        if self.prompt_templates is not None:
            refuse_templates(self.prompt_templates, None if self.constrained else key)
        self._refuse_numbers()
        if self.require_citations and not wants_citations(self.output_schema):
            raise ValueError("require_citations is true, and no text of the output_schema has 'citations: true'; add it, or leave this out")
        voted = [".".join(key.path) for key in keys_of(self.output_schema) if key.how == "vote"] if self.rollout_count > 1 else []
        refuse_abstention(self.abstain, self.escalate, voted, "raise n_rollouts_per_input, or name a panel")
        refuse_values(self.output_schema, self.pass_if or {}, "pass_if")
        return self

    @property
    def templates(self) -> tuple[PromptTemplate, ...]:
        """The templates of the messages that are sent: without its own, one message."""
        text = read_prompt_text(f"judge_{'constrained' if self.constrained else 'tagged'}").replace("@key@", self.response_xml_key)
        return self.prompt_templates or (PromptTemplate(role="user", content=text),)

    def _refuse_numbers(self) -> None:
        """Raise ValueError where panel, rollouts and quorum do not fit together."""
        count, own = self.rollout_count, self.n_rollouts_per_input
        if self.panel is not None:
            if self.judge_model is not None:
                raise ValueError("judge_model and panel exclude one another; leave judge_model out, or name it in the panel")
            ids = [model.model_dump_json() for model in self.panel]
            if twin := next((model.id for model in self.panel if ids.count(model.model_dump_json()) > 1), None):
                raise ValueError(f"panel: {twin!r} is there twice; raise n_rollouts_per_input, which counts for each model")
            if count > MAX_ROLLOUTS:
                raise ValueError(f"panel: {len(self.panel)} models with {own} rollouts are {count}, {MAX_ROLLOUTS} at most; take fewer")
        if self.quorum is not None and self.quorum > count:
            what = "n_rollouts_per_input" if self.panel is None else "the number of the panel's rollouts"
            raise ValueError(f"quorum is {self.quorum}, and {what} {count}; a quorum is at most all of them")

    @property
    def rollout_count(self) -> int:
        """Number of rollouts of a judgement: those of all models of a panel together."""
        return self.n_rollouts_per_input * len(self.models)

    @property
    def answers_needed(self) -> int:
        """Number of rollouts that must have a valid answer for a result."""
        return self.quorum or self.rollout_count // 2 + 1

    @property
    def models(self) -> tuple[ModelSpec | None, ...]:
        """The models that judge; None for the worker's default."""
        return self.panel or (self.judge_model,)

    def model_at(self, rollout: int) -> ModelSpec | None:
        """Return the model of a rollout: those of a panel take turns; None for the worker's default."""
        return self.models[rollout % len(self.models)]

    def sample_at(self, rollout: int) -> int:
        """Return which answer of its model a rollout is, from 0."""
        return rollout // len(self.models)

    @property
    def constrained(self) -> bool:
        """Whether the provider enforces the schema."""
        return self.output_parsing_mode == "CONSTRAINED_DECODING"

    def sha256(self) -> str:
        """Return the sha256 of all that decides what it says; a default written out changes nothing."""
        # What only names the judge, or acts on its verdicts afterwards, is left out, and so are defaults. A
        # field that a later version adds therefore changes no sum, and judgements that were paid for are found
        # again.
        naming, afterwards = {"id", "version", "name"}, {"abstain", "escalate", "pass_if"}
        deciding = self.model_dump(mode="json", exclude=naming | afterwards, exclude_none=True, exclude_defaults=True)
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    @property
    def rubric_id(self) -> str:
        """The rubric's id, or one made of its content."""
        return self.id or f"rubric-{self.sha256()[:12]}"


def _read_model(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Turn Docent's `{provider, model_name, reasoning_effort?, served_providers?}` into a model spec."""
    if not isinstance(value, dict) or not value.keys() & {"provider", "model_name"}:
        return value
    known = ["provider", "model_name", "reasoning_effort", "served_providers", *_DOCENT_NOTES]
    if unknown := next((key for key in value if key not in known), None):
        raise ValueError(f"unknown key {clip(str(unknown))}.{did_you_mean(str(unknown), known)}")
    for name in ("provider", "model_name"):
        if not isinstance(value.get(name), str) or not value[name].strip():
            raise ValueError(f"{name} is missing; write it as text, for example provider: openai, model_name: gpt-5-mini")
    config: dict[str, Any] = {}
    if value.get("reasoning_effort") is not None:
        config["reasoning_effort"] = value["reasoning_effort"]
    if value.get("served_providers") is not None:
        if value["provider"] != "openrouter":
            raise ValueError("served_providers is for the provider openrouter; leave it out")
        config["extra"] = {"provider": {"only": value["served_providers"]}}
    provider = _DOCENT_PROVIDERS.get(value["provider"], value["provider"])
    return {"id": f"{provider}:{value['model_name']}", "config": config}


OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "criteria": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "name": {"type": "string"},
                    "passed": {"type": "boolean"},
                    "reason": {"type": "string"},
                    "gap": {"type": "string"},
                },
                "required": ["id", "name", "passed", "reason"],
            },
        },
        "explanation": {"type": "string"},
    },
    "required": ["result", "criteria", "explanation"],
}
"""The schema of a criteria judge's output; `score` is absent for the result `failed`, and rows also have what the rubric asks for."""


def _refuse_filter(grader: Grader) -> Grader:
    if grader.hide:
        raise ValueError("hide marks messages as they join a thread; mark those that are judged here as hidden themselves")
    return grader


OwnGrader = Annotated[Grader, AfterValidator(_refuse_filter)]
"""A grader of what no thread gathers."""


class CriteriaJudge(Strict):
    """A rubric of criteria, and the grader that judges by it."""

    id: Annotated[str, Field(max_length=200)] = ""
    version: Annotated[int, Field(ge=1)] = 1
    rubric: Rubric
    grader: OwnGrader | None = None
    """The grader, as a thread has it: model, system_prompt and tools, or a remote grader."""
    abstain: Abstain = None
    """Least share of agreeing votes by key; a verdict with a smaller one is unsure."""
    escalate: Escalate = None
    """Model that is asked once about unsure verdicts."""

    @model_validator(mode="after")
    def _abstains_on_votes(self) -> "CriteriaJudge":
        voted = [f"criteria.{criterion.id}" for criterion in self.rubric.judged if len(criterion.judges) > 1]
        refuse_abstention(self.abstain, self.escalate, voted, "give the criterion votes or a panel")
        return self

    @field_validator("rubric")
    @classmethod
    def _can_be_judged_alone(cls, value: Rubric) -> Rubric:
        if value.cleared:
            raise ValueError("the rubric has no criteria; say what must hold")
        if value.asked_of_people:
            names = ", ".join(person.id for person in value.asked_of_people)
            raise ValueError(f"a person decides {names}; a judge asks nobody, leave them out or have a grader judge them")
        return value

    @property
    def output_schema(self) -> dict[str, Any]:
        """The schema of its output."""
        return OUTPUT_SCHEMA

    def sha256(self) -> str:
        """Return the sha256 of all that decides how it judges: everything but its id and version."""
        grader = self.grader.model_dump(mode="json", exclude_none=True, exclude_defaults=True) if self.grader else None
        return hashlib.sha256(json.dumps([self.rubric.canonical(), grader], sort_keys=True).encode()).hexdigest()

    @property
    def rubric_id(self) -> str:
        """The rubric's id, or one made of its content."""
        return self.id or f"rubric-{self.sha256()[:12]}"

    @model_validator(mode="before")
    @classmethod
    def _from_rubric(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        """Accept a bare rubric, as text, list or object."""
        if isinstance(value, dict) and ("rubric" in value or not {"criteria", "instructions"} & set(value)):
            return value
        return {"rubric": value} if isinstance(value, str | list | dict | Rubric) else value


JudgeConfig = SchemaJudge | CriteriaJudge
"""A judge of runs, by a schema or by criteria: `parse_judge({"rubric": "- polite", "grader": "openai:gpt-5-mini"})`."""


def parse_judge(value: Any) -> JudgeConfig:  # noqa: ANN401 - raw input of any shape
    """Parse a judge of either kind; one with `rubric_text` or `output_schema` has a schema of its own.

    Raises:
        InvalidRequest: The value is not a judge; the message names field, value and cure.
    """
    if isinstance(value, SchemaJudge | CriteriaJudge):
        return value
    if not isinstance(value, dict | list | str | Rubric):
        raise InvalidRequest(f"the judge is {clip(str(value))}; write a mapping with 'rubric:' or 'rubric_text:'")
    with explained("the judge: "):
        if isinstance(value, dict) and ("rubric_text" in value or "output_schema" in value):
            return SchemaJudge.model_validate(value)
        return CriteriaJudge.model_validate(value)


JUDGE_PROMPT_VERSION = "2"
"""The version of the texts in `prompts/judge_*.md`, raised with every change of one."""


RECORDS_VERSION = "2"
"""The version of the records in which a finished run is put to criteria, raised with every change of `run_as_messages`."""


class JudgingRequest(Strict):
    """The one argument of the workflow `Judging`."""

    judge: SchemaJudge | CriteriaJudge
    run: AgentRun
    repeat: Annotated[int, Field(ge=0)] = 0
    """Number of this judgement of the run by the same judge, from 0."""
    priority: Priority | None = None
    until_decided: OmitEmpty[bool] = False
    """Whether votes and rollouts that cannot change the answer are not asked; by default all are, and their shares are known."""

    @field_validator("judge", mode="before")
    @classmethod
    def _reads_judge(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return parse_judge(value)

    @model_validator(mode="after")
    def _knows_shares(self) -> "JudgingRequest":
        if self.until_decided and (self.judge.abstain or getattr(self.judge, "judge_variant", "majority") != "majority"):
            raise ValueError("until_decided: a judge with abstain or reflections needs all of its votes; leave until_decided out")
        return self


def parse_judging(raw: object) -> JudgingRequest:
    """Validate the workflow's raw argument.

    Raises:
        InvalidRequest: The argument is refused, or its run has no answer; the message names field, value and cure.
        RunTooLarge: The run is too large even for external storage.
    """
    if not isinstance(raw, dict):
        raise InvalidRequest("the request is not an object; send one JSON object with judge and run")
    with explained():
        request = JudgingRequest.model_validate(raw)
    refuse_large(request.run, stored=True)
    refuse_unanswered(request.run)
    return request


def refuse_unanswered(run: AgentRun) -> None:
    """Raise InvalidRequest for a run without an answer: its question would be judged in its place."""
    if (why := why_unanswered(run)) is not None:
        raise InvalidRequest(why)


def refuse_large(run: AgentRun, *, stored: bool) -> None:
    """Raise RunTooLarge where a run does not fit into a history."""
    size, most = len(run.json_bytes()), STORED_RUN_BYTES if stored else RUN_BYTES
    if size > most:
        cure = "split it" if stored else "configure external storage (GRADELOOP_STORAGE), or split it"
        raise RunTooLarge(f"the run {run.id!r} has {size} bytes as JSON, {most} at most; {cure}")


def judging_id(judge: JudgeConfig, run_sha256: str, repeat: int = 0, *, priority: Priority | None = None) -> str:
    """Return the id of a judgement: the same judge, run and repeat of one tenant are one workflow, which is not paid for twice.

    An earlier version of gradeloop gives the same id as long as its prompts have the same version.
    """
    prompt_version = f"{prompts.PROMPT_VERSION}.{RECORDS_VERSION}" if isinstance(judge, CriteriaJudge) else JUDGE_PROMPT_VERSION
    identity = f"{judge.sha256()} {prompt_version} {run_sha256} {repeat}"
    return hashed_id(identity, priority)


def hashed_id(identity: str, priority: Priority | None) -> str:
    """Return the id of the judgement that a text identifies among those of one tenant."""
    digits = hashlib.sha256(identity.encode()).hexdigest()
    return f"judging-{key_of_tenant(digits, priority.tenant if priority else None)}"


JUDGING_WORKFLOW = "Judging"

UNAVAILABLE = "JudgeUnavailable"
"""The type of failure of a judgement that got no judge's answer; the same may be run again."""


@workflow.defn(name=JUDGING_WORKFLOW)
class Judging:
    """The door to one judgement of one finished run; a worker's own class implements it."""

    @workflow.run
    async def run(self, request: JudgingRequest) -> JudgeResult:
        """Judge the run; an answer that is invalid after its repairs is a result of type `FAILURE`.

        Raises:
            ApplicationError: `JudgeUnavailable` where providers or tools failed, so that the same may be run again; `InvalidRequest` and
                `RunTooLarge` before any paid call.
        """
        raise NotImplementedError


def usage_of_failure(details: Sequence[object]) -> Usage:
    """Return the usage in the details of a `JudgeUnavailable` failure."""
    first = details[0] if details else None
    try:
        return Usage.model_validate(first["usage"] if isinstance(first, dict) and "usage" in first else {})
    except ValidationError:
        return Usage()
