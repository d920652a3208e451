"""An agent of the OpenAI Agents SDK as the generator of threads.

pip install openai-agents
export OPENAI_API_KEY=...
python examples/agents/openai_agents_agent.py      # serves the task queue `agents`
"""

import asyncio
import os
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

from gradeloop.generators import serve


async def draft(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the agent calls its tools itself."""
    async with AsyncOpenAI() as client:
        model = OpenAIChatCompletionsModel(os.environ.get("AGENT_MODEL", "gpt-5-mini"), client)
        agent = Agent("writer", instructions="You are a careful writer. Answer with the text itself.", model=model)
        result = await Runner.run(agent, [{"role": message["role"], "content": message["content"]} for message in messages])
    return str(result.final_output)


if __name__ == "__main__":
    asyncio.run(serve(draft, "agents"))
