"""Run a storm and print its report."""

import argparse
import asyncio
import logging
import tempfile
from pathlib import Path

from gradeloop.exit_codes import leave
from lab.storm.plan import Plan
from lab.storm.storm import storm


async def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    parser = argparse.ArgumentParser(description="Do everything to many threads at once, and look whether every result is right.")
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradeloop-storm-") as folder:
        async with storm(Plan(**vars(given)), Path(folder)) as prepared:
            report = await prepared.run()
    print(report)
    print("\n".join(report.faults))
    return 1 if report.faults else 0


if __name__ == "__main__":
    leave(asyncio.run(main()))
