"""deepagents' rubric middleware on labelled replies: started in its venv, with what is judged as JSON on stdin.

An agent whose model gives the reply is graded once. Prints a JSON list: what the grader says of each reply by criterion, in the rubric's
order, or null where it gives no verdict or another number of them.
"""

import asyncio
import json
import sys
from typing import Any

from deepagents import RubricMiddleware  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from langchain.agents import create_agent  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from langchain_core.language_models import FakeListChatModel  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv

GIVEN: dict[str, Any] = json.load(sys.stdin)


async def main() -> None:
    criteria: dict[str, str] = GIVEN["criteria"]
    rubric = "\n".join(f"- {text}" for text in criteria.values())
    model = ChatOpenAI(model=GIVEN["model"], base_url=GIVEN["url"], api_key="none", temperature=0, max_tokens=GIVEN["cap"])
    gate = asyncio.Semaphore(GIVEN["at_once"])

    async def one(text: str) -> dict[str, bool] | None:
        told: list[Any] = []
        grading = RubricMiddleware(model=model, max_iterations=1, on_evaluation=told.append)
        agent = create_agent(model=FakeListChatModel(responses=[text]), middleware=[grading])
        asked: Any = {"messages": [{"role": "user", "content": GIVEN["asked"]}], "rubric": rubric}
        async with gate:
            await agent.ainvoke(asked)
        rows = told[-1]["criteria"] if told else []
        if len(rows) != len(criteria):
            return None
        return {name: bool(row["passed"]) for name, row in zip(criteria, rows, strict=True)}

    print(json.dumps(await asyncio.gather(*map(one, GIVEN["texts"]))))


asyncio.run(main())
