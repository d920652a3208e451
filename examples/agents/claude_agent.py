"""An agent of the Claude Agent SDK as the generator of threads.

pip install claude-agent-sdk
export ANTHROPIC_API_KEY=...
python examples/agents/claude_agent.py      # serves the task queue `agents`
"""

import asyncio
import os
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from gradeloop.generators import serve

OPTIONS = ClaudeAgentOptions(
    model=os.environ.get("AGENT_MODEL", "claude-haiku-4-5"),
    system_prompt="You are a careful writer. Answer with the text itself.",
    tools=[],  # name what the agent may do on this machine, such as ["Read", "Grep"]; it asks nobody
    setting_sources=[],
)


def prompt(messages: list[dict[str, Any]]) -> str:
    """Return the conversation as one prompt: the SDK starts each query anew, and takes no earlier answers."""
    *earlier, last = messages
    turns = "\n\n".join(f'<message role="{message["role"]}">\n{message["content"]}\n</message>' for message in earlier)
    return f"The conversation so far:\n\n{turns}\n\nNow answer this:\n\n{last['content']}" if earlier else last["content"]


async def draft(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the agent calls its tools itself."""
    answer: str | None = None
    async for message in query(prompt=prompt(messages), options=OPTIONS):
        if isinstance(message, ResultMessage):
            if message.is_error or message.result is None:
                raise RuntimeError(f"the agent ended with {message.subtype}: {message.result}")
            answer = message.result
    if answer is None:
        raise RuntimeError("the agent ended without a result")
    return answer


if __name__ == "__main__":
    asyncio.run(serve(draft, "agents"))
