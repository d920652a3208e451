"""A web service whose model answers once; `after.py` is the same service with its answers graded.

pip install fastapi uvicorn openai
export OPENAI_API_KEY=...
python examples/fastapi_service/before.py 8000
curl -d '{"question": "My new chain has snapped."}' -H 'content-type: application/json' 127.0.0.1:8000/answers
"""

import os
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

models = AsyncOpenAI()
app = FastAPI(title="Answers")


class Asked(BaseModel):
    """A customer's question."""

    question: str = Field(min_length=1, max_length=4_000)


class Answer(BaseModel):
    """The model's answer."""

    answer: str


async def support(messages: list[dict[str, Any]]) -> str:
    """Return the model's answer to a conversation."""
    chat: Any = [{"role": "system", "content": "You answer the customers of a bicycle shop."}, *messages]
    completion = await models.chat.completions.create(model=os.environ.get("MODEL", "gpt-5-mini"), messages=chat)
    return completion.choices[0].message.content or ""


@app.post("/answers")
async def answer(asked: Asked) -> Answer:
    """Answer a question."""
    return Answer(answer=await support([{"role": "user", "content": asked.question}]))


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
