"""A service that has its answers graded: it starts a thread, watches it, and returns the best draft.

gradeloop dev                        # in another terminal: server, worker and UI
export TEMPORAL_ADDRESS=...          # as it prints
python examples/service.py anthropic:claude-haiku-4-5
"""

import asyncio
import sys

from gradeloop.client.client import GradingClient

RUBRIC = """
- the answer names a concrete next step for the customer
- it promises no refund
- it is at most 80 words long
"""


async def answer(client: GradingClient, question: str, model: str) -> str:
    """Return an answer that meets the rubric; raise with the grader's explanation if no draft does."""
    thread = await client.start(
        {
            "messages": [{"role": "user", "content": question}],
            "rubric": RUBRIC,
            "generator": {"model": model, "system_prompt": "You answer the customers of a bicycle shop."},
            "grader": {"model": model},
        }
    )
    async for event in client.watch(thread):
        if event.type == "rubric_evaluation_end":
            print(f"iteration {(event.iteration or 0) + 1}: {event.result}")
    result = await client.result(thread)
    if result.status != "satisfied" or result.output is None:
        raise RuntimeError(f"{thread} ended {result.status}: {result.error or result.evaluations[-1].explanation}")
    return result.output


async def main(model: str) -> None:
    """Answer one question."""
    async with GradingClient.connect() as client:
        print(await answer(client, "The chain of my new bike has snapped after two days. What now?", model))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
