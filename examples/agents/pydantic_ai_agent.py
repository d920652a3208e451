"""A Pydantic AI agent, alone and in a loop around it.

pip install 'pydantic-ai-slim[openai]' 'gradeloop[openai,embedded]'
export OPENAI_API_KEY=...
python examples/agents/pydantic_ai_agent.py "Explain why we never deploy on a Friday."            # alone
python examples/agents/pydantic_ai_agent.py "Explain why we never deploy on a Friday." --graded   # until a judge agrees
"""

import os
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

import gradeloop

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


@gradeloop.loop(rubric="- it says what to do instead", grader=os.environ.get("GRADER", "openai:gpt-5-mini"))
async def writer(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the agent calls its tools itself."""
    *earlier, last = messages
    result = await agent.run(last["content"], message_history=history(earlier))
    return str(result.output)


if __name__ == "__main__":
    task = sys.argv[1]
    if "--graded" in sys.argv:
        graded = writer.sync(task)
        print(f"{graded.status} after {graded.iterations} drafts: {graded.output}")
    else:
        print(agent.run_sync(task).output)
