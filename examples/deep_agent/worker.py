"""A LangChain deep agent as the generator: it drafts on a worker of its own, gradeloop grades, and the feedback goes back to it.

python -m venv agent
agent/bin/pip install deepagents temporalio
gradeloop dev                                    # in another terminal: server, worker and UI
export TEMPORAL_ADDRESS=...                      # as it prints
agent/bin/python examples/deep_agent/worker.py anthropic:claude-haiku-4-5
gradeloop run examples/deep_agent/task.yaml      # in a third terminal

The agent keeps no state between two drafts: each call has the whole conversation, so a restart of this worker loses at most the
draft in flight. This file imports nothing of gradeloop; a worker in another language needs the same few lines.
"""

import asyncio
import sys
from typing import Any

from deepagents import create_deep_agent  # type: ignore[import-not-found,unused-ignore]  # installed for this example alone
from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found,unused-ignore]  # as above
from temporalio import activity
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker

TASK_QUEUE = "deep-agent"

INSTRUCTIONS = "You are a careful writer. Answer with the text itself. Where feedback on a draft follows, fix what it names."


class DeepAgent:
    """The agent as an activity: it takes the conversation and returns the next draft."""

    def __init__(self, model: str | BaseChatModel) -> None:
        self._agent = create_deep_agent(model=model, system_prompt=INSTRUCTIONS)

    @activity.defn(name="deep_agent")
    async def draft(self, request: dict[str, Any]) -> str:
        """Return the next draft; the agent plans and calls its tools itself."""
        messages: Any = [{"role": message["role"], "content": message["content"]} for message in request["messages"]]
        state = await self._agent.ainvoke({"messages": messages})
        return str(state["messages"][-1].text)


async def main(model: str) -> None:
    """Serve drafts until interrupted."""
    client = await Client.connect(**ClientConfig.load_client_connect_config())
    worker = Worker(client, task_queue=TASK_QUEUE, activities=[DeepAgent(model).draft], max_concurrent_activities=10)
    print(f"serving the activity deep_agent on the task queue {TASK_QUEUE}", flush=True)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
