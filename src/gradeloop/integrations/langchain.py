"""deepagents' rubric middleware with durable grading: drafting stays the agent's, and each judgement is a workflow on Temporal."""

import asyncio
import copy
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NotRequired
from uuid import uuid4

from pydantic import Field, TypeAdapter
from pydantic_core import to_jsonable_python
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from gradeloop.client.loop_thread import LoopThread
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.messages import FEEDBACK_SOURCE
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.errors import InvalidRequest, JudgeFailed, explained, installed
from gradeloop.grading.prompts import feedback_message
from gradeloop.integrations.standing import Standings, remote_tool, serve_beside, served_tool
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import CriteriaJudge, JudgeResult
from gradeloop.temporal.connect import is_dead, keep_worker_alive, wake_worker
from gradeloop.temporal.process import done_beside
from gradeloop.transcripts.message_forms import parse_messages

with installed("RubricMiddleware needs LangChain; run: pip install 'gradeloop[langchain]'", "langchain", "langchain_core", "langgraph"):
    from langchain.agents.middleware.types import AgentMiddleware, AgentState, ContextT, PrivateStateAttr, ResponseT, hook_config
    from langchain.tools import BaseTool, tool
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.errors import GraphBubbleUp
    from langgraph.runtime import Runtime
    from typing_extensions import TypedDict

    from gradeloop.integrations.chat_model_judge import ACTIVITY, chat_model_judge

_ITERATIONS = TypeAdapter(Annotated[int, Field(ge=1, le=20, strict=True)])
"""The most gradings of one rubric, as deepagents' documentation bounds it."""

RubricResult = Literal["satisfied", "needs_revision", "failed", "max_iterations_reached", "grader_error"]

logger = logging.getLogger("gradeloop")


class CriterionPass(TypedDict):
    """A criterion that passes."""

    name: str
    passed: Literal[True]


class CriterionFail(TypedDict):
    """A criterion that fails, and what is missing."""

    name: str
    passed: Literal[False]
    gap: str


class _Place(TypedDict):
    grading_run_id: str
    iteration: int
    """The number of the grading in its run, from 0."""


class RubricEvaluation(_Place):
    """One grading, as deepagents has it."""

    result: RubricResult
    explanation: str
    criteria: list[CriterionPass | CriterionFail]
    unverified: bool
    """Whether a criterion fails because the grader gave no verdict on it, even in a call for only that one."""


class RubricState(AgentState[Any]):
    """The agent's state with a rubric, and what deepagents' middleware keeps beside it, under the same keys."""

    rubric: NotRequired[str]
    """The criteria, one a line or list item."""
    _rubric_status: NotRequired[Annotated[RubricResult | None, PrivateStateAttr]]
    _rubric_iterations: NotRequired[Annotated[int, PrivateStateAttr]]
    _rubric_evaluations: NotRequired[Annotated[list[RubricEvaluation], PrivateStateAttr]]
    _current_grading_run_id: NotRequired[Annotated[str, PrivateStateAttr]]
    _active_rubric: NotRequired[Annotated[str, PrivateStateAttr]]
    _rubric_begins: NotRequired[Annotated[str | None, PrivateStateAttr]]
    """The id of the last message before the first draft of the grading run."""


class RubricMiddleware(AgentMiddleware[RubricState, ContextT, ResponseT]):
    r"""Grades what an agent is about to return by the state's `rubric`, and sends the agent back to work until every criterion passes.

    It takes the place of deepagents' middleware of the same name, in `create_deep_agent` and `create_agent`; without a rubric it does
    nothing. Each grading is a workflow, which outlives this process: the next call of an interrupted thread takes its verdict.

    Example:
        ```python
        agent = create_deep_agent(model=..., middleware=[RubricMiddleware(model="openai:gpt-5-mini")])
        agent.invoke({"messages": [HumanMessage("Write a haiku.")], "rubric": "- three lines\n- 5-7-5 syllables"})
        ```
    """

    state_schema = RubricState

    def __init__(
        self,
        *,
        model: str | BaseChatModel,
        system_prompt: str | None = None,
        tools: Sequence[BaseTool | Callable[..., Any]] | None = None,
        prepare_messages_for_grader: Callable[[list[AnyMessage]], list[AnyMessage]] | None = None,
        max_iterations: int = 3,
        on_evaluation: Callable[[RubricEvaluation], None] | None = None,
    ) -> None:
        """Keep the settings; the server and its worker are found, or started, by the first grading.

        Args:
            model: The model that judges: `provider:model`, called by gradeloop's worker, or a chat model, called by this process.
            system_prompt: Grading instructions that replace gradeloop's; the trust boundary and the form of the answer stay.
            tools: What the grader may call for evidence, in this process: LangChain's tools, or functions with a docstring.
            prepare_messages_for_grader: Returns the messages that the grader is shown, given the agent's.
            max_iterations: The most gradings of one rubric, 1 to 20.
            on_evaluation: Called with a copy of each evaluation; what it raises is logged and has no effect.

        Raises:
            InvalidRequest: A setting is refused.
        """
        with explained("max_iterations: "):
            self.max_iterations = _ITERATIONS.validate_python(max_iterations)
        self._chat_model = model if isinstance(model, BaseChatModel) else None
        self._model = None if isinstance(model, BaseChatModel) else model
        self._system_prompt, self._on_evaluation = system_prompt, on_evaluation
        self._prepare = prepare_messages_for_grader
        self._tools = [_tool_of(one) for one in tools or ()]
        self._judge_of("the work is done", "queue")

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: RubricState, runtime: Runtime[ContextT]) -> dict[str, Any] | None:  # noqa: ARG002 - as LangChain calls it
        """Begin a grading run, or go on with the one that was interrupted; InvalidRequest where the rubric is refused."""
        if not (text := state.get("rubric")):
            return None
        self._judge_of(text, "queue")
        if state.get("_active_rubric") == text and state.get("_rubric_status") in {None, "needs_revision"}:
            return _with_its_draft(state["messages"], state.get("_rubric_begins"))
        return {
            "_rubric_iterations": 0,
            "_rubric_status": None,
            "_current_grading_run_id": str(uuid4()),
            "_active_rubric": text,
            "_rubric_begins": state["messages"][-1].id if state["messages"] else None,
        }

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: RubricState, runtime: Runtime[ContextT]) -> dict[str, Any] | None:
        """Begin a grading run, as `before_agent` does."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: RubricState, runtime: Runtime[ContextT]) -> dict[str, Any] | None:
        """Grade the agent's work; what needs revision goes back to its model, with the feedback."""
        if not state.get("rubric"):
            return None
        return self._conclude(state, runtime, _thread(os.getpid()).run(self._grade(state, self._begin(state, runtime))))

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: RubricState, runtime: Runtime[ContextT]) -> dict[str, Any] | None:
        """Grade the agent's work, as `after_agent` does."""
        if not state.get("rubric"):
            return None
        return self._conclude(state, runtime, await self._grade(state, self._begin(state, runtime)))

    def _begin(self, state: RubricState, runtime: Runtime[ContextT]) -> _Place:
        run_id = state.get("_current_grading_run_id") or str(uuid4())
        place: _Place = {"grading_run_id": run_id, "iteration": state.get("_rubric_iterations", 0)}
        runtime.stream_writer({"type": "rubric_evaluation_start", **place})
        return place

    def _conclude(self, state: RubricState, runtime: Runtime[ContextT], graded: tuple[RubricEvaluation, str]) -> dict[str, Any]:
        """Tell of an evaluation, and return the update of the state, with the feedback where the agent is to go on."""
        evaluation, feedback = graded
        runtime.stream_writer({"type": "rubric_evaluation_end", **copy.deepcopy(evaluation)})
        try:
            if self._on_evaluation is not None:
                self._on_evaluation(copy.deepcopy(evaluation))
        except GraphBubbleUp:  # the graph pauses there, and the judgement is found again when it goes on
            raise
        except Exception:
            logger.exception("on_evaluation failed")
        done = evaluation["iteration"] + 1
        update = {"_rubric_evaluations": [*state.get("_rubric_evaluations", ()), evaluation], "_rubric_iterations": done}
        if evaluation["result"] != "needs_revision":
            return {**update, "_rubric_status": evaluation["result"]}
        if done >= self.max_iterations:
            return {**update, "_rubric_status": "max_iterations_reached"}
        asked = HumanMessage(feedback, name=FEEDBACK_SOURCE, additional_kwargs={"lc_source": FEEDBACK_SOURCE})
        return {**update, "_rubric_status": "needs_revision", "messages": [asked], "jump_to": "model"}

    async def _grade(self, state: RubricState, place: _Place) -> tuple[RubricEvaluation, str]:
        """Return the evaluation of the agent's work, and the feedback; a fault of the machinery is a `grader_error`, and no verdict."""
        try:
            queue = f"rubric-{place['grading_run_id']}"
            config = self._judge_of(state.get("rubric", ""), queue)
            judged = await self._judge(config, self._run_of(state, place), queue)
            found = {name: judged.output[name] for name in ("result", "explanation", "criteria")}
            row = Evaluation.model_validate({**place, **found, "status": "running", "draft": 0})
        except Exception as error:
            logger.exception("the grader failed")
            why = f"{type(error).__name__}: {error}"
            return {**place, "result": "grader_error", "explanation": why, "criteria": [], "unverified": False}, ""
        criteria, unsure = [_row(one) for one in row.criteria], any(one.unverified for one in row.criteria)
        made: RubricEvaluation = {**place, "result": row.result, "explanation": row.explanation, "criteria": criteria, "unverified": unsure}
        return made, feedback_message(config.rubric, row, [row.explanation]).content

    def _run_of(self, state: RubricState, place: _Place) -> AgentRun:
        """Return the agent's conversation as a finished run; its id has the place, so that each grading is a judgement of its own."""
        messages = self._prepare(list(state["messages"])) if self._prepare else state["messages"]
        plain = [to_jsonable_python(one.model_dump(exclude={"artifact"}), bytes_mode="base64") for one in messages]
        read = parse_messages([{"type": one["type"], "data": one} for one in plain])
        if isinstance(messages[-1], AIMessage) and not read[-1].says_something:
            raise InvalidRequest("the agent's last answer is empty, so that there is nothing to judge")
        structured = state.get("structured_response")
        if structured is not None and not read[-1].is_answer:
            read.append(RunMessage(role="assistant", content=json.dumps(to_jsonable_python(structured), ensure_ascii=False)))
        return AgentRun(id=f"{place['grading_run_id']}/{place['iteration']}", transcripts=(RunTranscript(messages=tuple(read)),))

    def _judge_of(self, rubric: str, queue: str) -> CriteriaJudge:
        """Return the judge of a rubric, which calls what this process serves on a queue; InvalidRequest where something is refused."""
        tools = [remote_tool(**convert_to_openai_tool(one)["function"], queue=queue) for one in self._tools]
        with explained():
            grader = Grader.model_validate({"model": self._model, "system_prompt": self._system_prompt, "tools": tools})
            remote = Grader(activity=ACTIVITY, task_queue=queue) if self._chat_model else None
            return CriteriaJudge.model_validate({"rubric": rubric, "grader": remote or grader})

    async def _judge(self, config: CriteriaJudge, run: AgentRun, queue: str) -> JudgeResult:
        """Judge a run, or wait for its judgement that is under way; meanwhile serve what it calls of this process."""
        standing = await _standings(self._model).get()
        judge = Judge(config, standing.client.temporal, task_queue=standing.queue)
        callers = asyncio.get_running_loop()
        activities: list[Callable[..., Any]] = [_served(one, callers) for one in self._tools]
        if self._chat_model is not None:
            activities = [chat_model_judge(self._chat_model, config.rubric, self._system_prompt, self._tools, callers)]
        await wake_worker(standing.queue, standing.connection)
        name = await judge.start(run)
        await _fail_lost_calls(standing.client.temporal, name)
        served = [serve_beside(standing.connection, queue, activities, at_once=20)] if activities else []
        result = await done_beside(judge.result(name, run), keep_worker_alive(standing.queue, standing.connection), *served)
        if result.failed:
            raise JudgeFailed(str(result.result_metadata.get("reason")))
        return result


@functools.cache  # shared by all middlewares of one model, however many a program makes
def _standings(model: str | None) -> Standings:
    return Standings(Grader.model_validate({"model": model}))


@functools.cache
def _thread(process: int) -> LoopThread:  # noqa: ARG001 - a fork has a thread of its own
    return LoopThread()


# A caller goes on with an interrupted turn by sending its messages again, which then stand behind the
# draft. If they equal the end of what was asked before the draft, this is the same turn: they are removed
# and the draft is graded. Anything else is a new turn, whose draft is still to be written.
def _with_its_draft(messages: Sequence[AnyMessage], begins: str | None) -> dict[str, Any] | None:
    """Return how a run goes on with the draft that was not judged, without what its turn sent again; None where the agent has to draft."""
    draft = max((at for at, one in enumerate(messages) if isinstance(one, AIMessage) and not one.tool_calls), default=0)
    again, before = messages[draft + 1 :], messages[:draft]
    turn = [one.content for one in before if isinstance(one, HumanMessage) and one.name != FEEDBACK_SOURCE]
    own = any(one.id == begins for one in before)
    if not own or [one.content for one in again] != turn[len(turn) - len(again) :]:
        return None
    return {"messages": [RemoveMessage(id=str(one.id)) for one in again], "jump_to": "end"}


def _tool_of(given: BaseTool | Callable[..., Any]) -> BaseTool:
    """Return a tool of LangChain; InvalidRequest where it takes what only the agent's own graph has."""
    made = given if isinstance(given, BaseTool) else tool(given)
    if injected := set(getattr(made.get_input_schema(), "model_fields", {})) - set(made.args):
        raise InvalidRequest(f"the tool {made.name!r} takes {', '.join(sorted(injected))} of the agent's run, and the grader has none")
    return made


def _served(one: BaseTool, callers: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    async def call(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what the model would be shown
        found = await one.ainvoke({"type": "tool_call", "id": "call", "name": one.name, "args": dict(arguments)})
        return to_jsonable_python(getattr(found, "content", found))

    return served_tool(one.name, call, callers)


def _row(row: CriterionRow) -> CriterionPass | CriterionFail:
    return {"name": row.name, "passed": True} if row.passed else {"name": row.name, "passed": False, "gap": row.why_failed}


async def _fail_lost_calls(client: Client, name: str) -> None:
    """Fail those calls of a judgement that a process of this machine was serving when it ended, so that they are made again now."""
    found = await client.get_workflow_handle(name).describe()
    for call in found.raw_description.pending_activities:
        if call.activity_type.name.startswith((ACTIVITY, "tool ")) and is_dead(call.last_worker_identity):
            handle = client.get_async_activity_handle(workflow_id=name, run_id=found.run_id, activity_id=call.activity_id)
            with suppress(RPCError):
                await handle.fail(ApplicationError("the process that served it has ended"))
