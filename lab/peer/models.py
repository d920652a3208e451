"""Chat models that give the scripted replies at once; runs in the peer's venv."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from langchain_core.messages import AIMessage, BaseMessage  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from langchain_core.outputs import ChatGeneration, ChatResult  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv

from lab.replies import EXPLANATION, GAP, Case

_ITERATION = re.compile(r"This is grader iteration (\d+)")


class Scripted(BaseChatModel):  # type: ignore[misc,unused-ignore]  # its base is of the peer's venv
    """Answers as the case says, whatever it is asked."""

    role: str
    case: Case

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_options: Any) -> "Scripted":  # noqa: ANN401, ARG002 - the interface of LangChain
        """Take no notice of the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **_options: Any) -> ChatResult:  # noqa: ANN401 - the interface of LangChain
        reply = self._draft(messages) if self.role == "generator" else self._verdict(messages)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **_options: Any) -> ChatResult:  # noqa: ANN401 - the interface of LangChain
        return self._generate(messages)

    def _draft(self, messages: list[BaseMessage]) -> AIMessage:
        return AIMessage(content=_draft(self.case, sum(isinstance(message, AIMessage) for message in messages)))

    def _verdict(self, messages: list[BaseMessage]) -> AIMessage:
        found = _ITERATION.search(str(messages[-1].content))
        if found is None:
            raise LookupError("the grader's message does not say which iteration it is")
        at = int(found[1])
        rows = [dict(row) if row["passed"] else {**row, "gap": GAP} for row in self.case.judged(at)]
        verdict = {"result": self.case.result(at), "explanation": EXPLANATION, "criteria": rows}
        return AIMessage(content="", tool_calls=[{"name": "GraderResponse", "args": verdict, "id": f"call_{at}"}])


@lru_cache
def _draft(case: Case, at: int) -> str:
    return case.draft(at)


@lru_cache
def model_of(name: str) -> Scripted:
    """Return the model of a name like `scripted:grader:3x64`."""
    _, role, case = name.split(":")
    return Scripted(role=role, case=Case.named(case))
