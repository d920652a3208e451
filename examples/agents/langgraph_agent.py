"""A LangGraph graph as the generator of threads; a deep agent is such a graph, too.

pip install langgraph langchain-openai
export OPENAI_API_KEY=...
python examples/agents/langgraph_agent.py      # serves the task queue `agents`
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from gradeloop.generators import serve

model = ChatOpenAI(model=os.environ.get("AGENT_MODEL", "gpt-5-mini"))


async def write(state: MessagesState) -> dict[str, Any]:
    """Call the model; tools and further nodes are yours to add."""
    return {"messages": [await model.ainvoke([{"role": "system", "content": "You are a careful writer."}, *state["messages"]])]}


graph = StateGraph(MessagesState).add_node("write", write).add_edge(START, "write").add_edge("write", END).compile()


async def draft(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield the next draft as the graph writes it."""
    sent = [{"role": message["role"], "content": message["content"]} for message in messages]
    async for piece, _ in graph.astream({"messages": sent}, stream_mode="messages"):
        yield str(piece.text)


if __name__ == "__main__":
    asyncio.run(serve(draft, "agents"))
