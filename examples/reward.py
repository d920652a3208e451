"""A rubric as a reward function: two completions scored, with the rows that their scores come from.

python examples/reward.py anthropic:claude-haiku-4-5
"""

import asyncio
import sys

import gradeloop

RUBRIC = """
- the answer names a concrete next step for the customer
- it promises no refund
- it is at most 80 words long
"""


async def main(model: str) -> None:
    """Score two answers to one question."""
    reward = gradeloop.reward(RUBRIC, model)
    question = "My order has not arrived."
    answers = (
        "We refund you at once!",
        "I am sorry. Please send us the order's number; we ask the carrier today and write to you by noon.",
    )
    for answer, graded in zip(answers, await asyncio.gather(*(reward.graded(question, answer) for answer in answers)), strict=True):
        print(f"{graded.reward if graded.reward is not None else graded.no_verdict}  {answer}")
        for row in graded.rows:
            print(f"    {row['id']} {'passes' if row['passed'] else 'fails: ' + str(row.get('gap'))}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
