"""The bare SDK on the benchmark's runs, for somebody who needs no more than the reply: no schema is checked, nothing is kept.

Started as a process of its own with the provider's address, the runs and how many at once; prints one JSON line.
"""

import asyncio
import json
import resource
import sys
import time

from openai import AsyncOpenAI

URL, RUNS, CONCURRENCY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PROMPT = "Say whether the run is good. Answer between <response> and </response>.\n{run}"


async def main() -> None:
    client, gate = AsyncOpenAI(api_key="k", base_url=f"{URL}/v1", max_retries=0, timeout=60), asyncio.Semaphore(CONCURRENCY)

    async def one(at: int) -> bool:
        async with gate:
            said = PROMPT.format(run=f"I am run number {at}. " * 80)
            reply = await client.responses.create(model="gpt-5", input=said, store=False)
            return "<response>" not in reply.output_text

    await one(0)
    wall, cpu = time.perf_counter(), time.process_time()
    failed = sum(await asyncio.gather(*map(one, range(RUNS))))
    told = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "failed": failed}
    print(json.dumps(told | {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


asyncio.run(main())
