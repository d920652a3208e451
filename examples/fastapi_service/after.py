"""A web service whose answers are graded and revised before they are sent; `before.py` is the same service without that.

pip install fastapi uvicorn 'gradeloop[openai,embedded]'
export OPENAI_API_KEY=...
python examples/fastapi_service/after.py 8000
curl -d '{"question": "My new chain has snapped."}' -H 'content-type: application/json' 127.0.0.1:8000/answers
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

import gradeloop


@asynccontextmanager
async def serving(_: FastAPI) -> AsyncIterator[None]:
    """Close the loop at the end of the service."""
    yield
    await support.close()


models = AsyncOpenAI()
app = FastAPI(title="Graded answers", lifespan=serving)


class Asked(BaseModel):
    """A customer's question."""

    question: str = Field(min_length=1, max_length=4_000)


class Answer(BaseModel):
    """An answer that meets the rubric."""

    answer: str
    drafts: int


@gradeloop.loop(
    rubric="- the answer names a concrete next step for the customer\n- it promises no refund",
    grader=os.environ.get("GRADER", "openai:gpt-5-mini"),
)
async def support(messages: list[dict[str, Any]]) -> str:
    """Return the model's answer to a conversation."""
    chat: Any = [{"role": "system", "content": "You answer the customers of a bicycle shop."}, *messages]
    completion = await models.chat.completions.create(model=os.environ.get("MODEL", "gpt-5-mini"), messages=chat)
    return completion.choices[0].message.content or ""


@app.post("/answers")
async def answer(asked: Asked) -> Answer:
    """Answer a question; 502 where no draft meets the rubric."""
    result = await support([{"role": "user", "content": asked.question}])
    if result.status != "satisfied" or result.output is None:
        raise HTTPException(502, result.error or f"the answer is {result.status}")
    return Answer(answer=result.output, drafts=result.iterations)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
