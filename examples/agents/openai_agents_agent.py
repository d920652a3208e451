"""An agent of the OpenAI Agents SDK, alone and in a loop around it.

pip install openai-agents 'gradeloop[openai,embedded]'
export OPENAI_API_KEY=...
python examples/agents/openai_agents_agent.py "Explain why we never deploy on a Friday."            # alone
python examples/agents/openai_agents_agent.py "Explain why we never deploy on a Friday." --graded   # until a judge agrees
"""

import asyncio
import os
import sys
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

import gradeloop


async def draft(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the agent calls its tools itself."""
    async with AsyncOpenAI() as client:
        model = OpenAIChatCompletionsModel(os.environ.get("AGENT_MODEL", "gpt-5-mini"), client)
        agent = Agent("writer", instructions="You are a careful writer. Answer with the text itself.", model=model)
        result = await Runner.run(agent, [{"role": message["role"], "content": message["content"]} for message in messages])
    return str(result.final_output)


writer = gradeloop.loop(rubric="- it says what to do instead", grader=os.environ.get("GRADER", "openai:gpt-5-mini"))(draft)


if __name__ == "__main__":
    task = sys.argv[1]
    if "--graded" in sys.argv:
        graded = writer.sync(task)
        print(f"{graded.status} after {graded.iterations} drafts: {graded.output}")
    else:
        print(asyncio.run(draft([{"role": "user", "content": task}])))
