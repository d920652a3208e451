"""A LangGraph graph as the generator of threads; a deep agent is such a graph, too.

pip install langgraph langchain-openai
export OPENAI_API_KEY=...
python examples/agents/langgraph_agent.py      # serves the task queue `agents`
"""

import asyncio
import os
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from gradeloop.generators import serve

model = ChatOpenAI(model=os.environ.get("AGENT_MODEL", "gpt-5-mini"))


async def write(state: MessagesState) -> dict[str, Any]:
    """Call the model; tools and further nodes are yours to add."""
    return {"messages": [await model.ainvoke([{"role": "system", "content": "You are a careful writer."}, *state["messages"]])]}


graph = StateGraph(MessagesState).add_node("write", write).add_edge(START, "write").add_edge("write", END).compile()


async def draft(messages: list[dict[str, Any]]) -> str:
    """Return the next draft; the graph calls its tools itself."""
    asked: Any = {"messages": [{"role": message["role"], "content": message["content"]} for message in messages]}
    state = await graph.ainvoke(asked)
    return str(state["messages"][-1].text)


if __name__ == "__main__":
    asyncio.run(serve(draft, "agents"))
