"""The peer's workflow, written as its own documentation writes one; runs in the peer's venv."""

from typing import Any

from deepagents import RubricMiddleware  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from temporalio import workflow
from temporalio.deepagents import create_temporal_deep_agent  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv


@workflow.defn
class GradedAgent:
    """A deep agent that revises until its rubric is satisfied."""

    @workflow.run
    async def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer the task and return the last draft."""
        grading = RubricMiddleware(model=request["grader"], max_iterations=request["max_iterations"])
        agent = create_temporal_deep_agent(model=request["generator"], middleware=[grading])
        task = {"messages": [{"role": "user", "content": request["task"]}], "rubric": request["rubric"]}
        messages = (await agent.ainvoke(task))["messages"]
        return {"output": messages[-1].content, "messages": len(messages)}
