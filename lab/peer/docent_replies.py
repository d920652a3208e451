"""Docent's own judge on labelled replies: started in Docent's venv, with what is judged as JSON on stdin.

Prints a JSON list: what it says of each reply by criterion, or null where it gives no verdict.
"""

import asyncio
import json
import os
import sys
from typing import Any

GIVEN: dict[str, Any] = json.load(sys.stdin)
os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": GIVEN["url"]}

from docent._llm_util.llm_svc import BaseLLMService  # type: ignore[import-not-found]  # noqa: E402 - of Docent's venv, after its settings
from docent._llm_util.providers.preference_types import ModelOption  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.agent_run import AgentRun  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.chat.message import AssistantMessage, UserMessage  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.transcript import Transcript  # type: ignore[import-not-found]  # noqa: E402
from docent.judges import Rubric  # type: ignore[import-not-found]  # noqa: E402
from docent.judges.impl import build_judge  # type: ignore[import-not-found]  # noqa: E402

MET = "met"


async def main() -> None:
    criteria: dict[str, str] = GIVEN["criteria"]
    listed = "\n".join(f"- {name}: {text}" for name, text in criteria.items())
    rubric = Rubric(
        rubric_text=f"Decide about the assistant's reply, for each criterion, whether it is met:\n{listed}",
        judge_model=ModelOption(provider="openai", model_name=GIVEN["model"]),
        output_format="json",
        output_schema={
            "type": "object",
            "properties": {name: {"type": "string", "enum": [MET, "not met"]} for name in criteria},
            "required": list(criteria),
        },
    )
    judge, gate = build_judge(rubric, BaseLLMService(max_concurrency=GIVEN["at_once"])), asyncio.Semaphore(GIVEN["at_once"])

    async def one(text: str) -> dict[str, bool] | None:
        said = [UserMessage(content=GIVEN["asked"]), AssistantMessage(content=text)]
        async with gate:
            result = await judge(AgentRun(transcripts=[Transcript(messages=said)]), temperature=0.0, max_new_tokens=GIVEN["cap"])
        if str(result.result_type.value) != "DIRECT_RESULT":
            return None
        return {name: result.output[name] == MET for name in criteria}

    print(json.dumps(await asyncio.gather(*map(one, GIVEN["texts"]))))


asyncio.run(main())
