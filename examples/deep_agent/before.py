"""A deep agent whose work is graded by deepagents' own middleware; `after.py` is the same program with one import changed.

python examples/deep_agent/before.py google_genai:gemini-3.5-flash anthropic:claude-haiku-4-5
"""

import sys
from typing import Any

from deepagents import RubricMiddleware, create_deep_agent
from deepagents.middleware.rubric import RubricEvaluation
from langchain.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver


def tell(evaluation: RubricEvaluation) -> None:
    """Print an evaluation with what is missing."""
    print(f"draft {evaluation['iteration']}: {evaluation['result']}")
    for row in evaluation["criteria"]:
        if row["passed"] is False:
            print(f"  {row['name']}: {row['gap']}")


def main(model: str, grader: str) -> None:
    """Have a haiku written until it passes."""
    grading: RubricMiddleware[Any, Any] = RubricMiddleware(model=grader, max_iterations=3, on_evaluation=tell)
    agent = create_deep_agent(model=model, middleware=[grading], checkpointer=InMemorySaver())
    asked: Any = {"messages": [HumanMessage("Write a haiku about spring.")], "rubric": "- three lines\n- names a month"}
    found = agent.invoke(asked, {"configurable": {"thread_id": "haiku"}})
    print(found["messages"][-1].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
