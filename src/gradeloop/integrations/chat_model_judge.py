"""A LangChain chat model as a remote grader: an agent that is asked by gradeloop's prompt, and whose answer is read as strictly."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.exceptions import ModelAPIError, ModelConnectionError, ModelRateLimitError, ModelTimeoutError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import STORED_RUN_BYTES, draft_index, request_index
from gradeloop.generators import call_in
from gradeloop.grading.answer_form import AnswerForm
from gradeloop.grading.prompts import JudgedDraft, build_grader_prompt
from gradeloop.grading.scoring import call_groups
from gradeloop.grading.verdicts import GraderConversation, parse_verdict

ACTIVITY = "judge"
"""The type of the activity."""

STEPS = 50  # to one answer, of the model and of its tools: twice the turns of a model of gradeloop's own
PASSING = (ModelAPIError, ModelConnectionError, ModelRateLimitError, ModelTimeoutError)
_FORM = AnswerForm(by="tags", budget=STORED_RUN_BYTES)
"""Tags, which every model can write, and records that are never cut: there is no tool here that would show the rest."""


def chat_model_judge(
    model: BaseChatModel, rubric: Rubric, system_prompt: str | None, tools: Sequence[BaseTool], callers: asyncio.AbstractEventLoop
) -> Callable[[Mapping[str, Any]], Awaitable[JsonValue]]:
    """Return the activity that judges by a rubric, in one conversation; limits and outages are waited for, up to Temporal's time-out."""

    async def converse(question: Mapping[str, Any]) -> JsonValue:
        messages = [Message.model_validate(message) for message in question["messages"]]
        asked, draft = tuple(criterion["id"] for criterion in question["criteria"]), draft_index(messages)
        group = next(group for group in call_groups(rubric) if group.ids == asked)
        judged = JudgedDraft(messages, request_index(messages, draft), draft, {}, secrets.token_hex(16))
        tag = f"verdict-{secrets.token_hex(8)}"
        prompt = build_grader_prompt(rubric, group, judged, instructions=system_prompt, form=_FORM, tag=tag)
        middleware = [ModelRetryMiddleware(max_retries=1_000, retry_on=PASSING, on_failure="error"), ToolRetryMiddleware(max_retries=0)]
        agent = create_agent(model, tools, system_prompt=prompt.system, middleware=middleware, checkpointer=False)
        said: list[Any] = [HumanMessage("\n\n".join(one.content for one in prompt.messages))]
        conversation, answers = GraderConversation(), list[str]()
        while not conversation.ended:
            try:
                said = (await agent.ainvoke({"messages": said}, {"recursion_limit": STEPS}))["messages"]
            except Exception as error:
                raise ApplicationError(f"{type(error).__name__}: {error}", type="chat_model", non_retryable=True) from error
            reading = parse_verdict(said[-1].text, group, conversation.pending or None, earlier=answers, tag=tag)
            answers.append(said[-1].text)
            following = conversation.take(reading, group.ids)
            if isinstance(following, Message):
                said.append(HumanMessage(following.content))
        if conversation.verdict is None:
            raise ApplicationError(conversation.error or "no verdict", type="malformed_verdict", non_retryable=True)
        return conversation.verdict.model_dump(mode="json", include={"criteria", "explanation", "result"})

    @activity.defn(name=ACTIVITY)
    async def judge(question: Mapping[str, Any]) -> JsonValue:
        return await call_in(callers, converse(question))

    return judge
