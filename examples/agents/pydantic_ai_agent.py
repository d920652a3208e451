"""A Pydantic AI agent as the generator of threads.

pip install 'pydantic-ai-slim[openai]'
export OPENAI_API_KEY=...
python examples/agents/pydantic_ai_agent.py      # serves the task queue `agents`
"""

import asyncio
import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from gradeloop.generators import serve

agent = Agent(
    os.environ.get("AGENT_MODEL", "openai-chat:gpt-5-mini"), instructions="You are a careful writer. Answer with the text itself."
)


def history(messages: list[dict[str, Any]]) -> list[ModelMessage]:
    """Return earlier messages as Pydantic AI has them."""
    return [
        ModelResponse([TextPart(message["content"])])
        if message["role"] == "assistant"
        else ModelRequest([UserPromptPart(message["content"])])
        for message in messages
    ]


async def draft(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the agent calls its tools itself."""
    *earlier, last = messages
    result = await agent.run(last["content"], message_history=history(earlier))
    return str(result.output)


if __name__ == "__main__":
    asyncio.run(serve(draft, "agents"))
