"""Docent's own judge on the benchmark's runs: started in Docent's venv, with the provider's address, the runs and how many at once.

Prints one JSON line: wall seconds, CPU seconds, megabytes at the most, and how many judgements failed.
"""

import asyncio
import json
import os
import resource
import sys
import time

URL, RUNS, CONCURRENCY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{URL}/v1"}

from docent._llm_util.llm_svc import BaseLLMService  # type: ignore[import-not-found]  # noqa: E402 - of Docent's venv, after its settings
from docent._llm_util.providers.preference_types import ModelOption  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.agent_run import AgentRun  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.chat.message import AssistantMessage, UserMessage  # type: ignore[import-not-found]  # noqa: E402
from docent.data_models.transcript import Transcript  # type: ignore[import-not-found]  # noqa: E402
from docent.judges import Rubric  # type: ignore[import-not-found]  # noqa: E402
from docent.judges.impl import build_judge  # type: ignore[import-not-found]  # noqa: E402


async def main() -> None:
    said = [UserMessage(content="Which run are you?")]
    runs = [
        AgentRun(transcripts=[Transcript(messages=[*said, AssistantMessage(content=f"I am run number {at}. " * 80)])])
        for at in range(RUNS + 1)
    ]
    model = ModelOption(provider="openai", model_name="gpt-5")
    rubric = Rubric(rubric_text="Say whether the run is good.", judge_model=model, output_format="json")
    judge, gate = build_judge(rubric, BaseLLMService(max_concurrency=CONCURRENCY)), asyncio.Semaphore(CONCURRENCY)

    async def one(run: object) -> bool:
        async with gate:
            return str((await judge(run)).result_type.value) != "DIRECT_RESULT"

    await one(runs.pop())
    wall, cpu = time.perf_counter(), time.process_time()
    failed = sum(await asyncio.gather(*map(one, runs)))
    told = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "failed": failed}
    print(json.dumps(told | {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


asyncio.run(main())
