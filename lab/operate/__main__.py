"""One run of everything that an operator does, on real servers: `python -m lab.operate`, and `--quick` for a tenth of the calls.

Temporal's dev server on its SQLite file, since no registry that is reached here has the server for PostgreSQL; HAProxy with mutual TLS
and a token before it; PostgreSQL behind PgBouncer in transaction mode as the store; two workers, a receiver, a Prometheus with the
committed rules, a collector of OTLP, and a provider that counts what it is asked. Each step prints what was made, what is promised,
the figure, and whether the promise held; the exit code is 1 where one did not.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from gradeloop.exit_codes import leave
from lab.operate.stand import Plan, standing
from lab.operate.steps import Operation
from rig.pooler import PROGRAM as POOLER
from rig.tls_proxy import PROGRAM as PROXY


async def operate(plan: Plan, folder: Path) -> int:
    """Do all steps, print what came of them, and return how many promises broke."""
    began = time.monotonic()
    async with asyncio.timeout(plan.longest), standing(plan, folder) as stand:
        operation = Operation(stand)
        await operation.run()
    took = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in operation.seconds.items())
    told = f"{operation.broken} promises broke" if operation.broken else "Every promise was kept"
    print(f"\n{told}; {(time.monotonic() - began) / 60:.0f} minutes: {took}.", flush=True)
    return operation.broken


def main() -> None:
    """Do all steps; exit 1 where a promise broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Make a tenth of the calls.")
    given = parser.parse_args()
    programs = {"haproxy": PROXY, "pgbouncer": POOLER, "prometheus": shutil.which("prometheus")}
    if missing := " ".join(package for package, program in programs.items() if program is None):
        raise SystemExit(f"not installed: {missing} (Debian, Ubuntu: apt install {missing})")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        broken = asyncio.run(operate(Plan(calls=2_000) if given.quick else Plan(), Path(folder)))
    leave(1 if broken else 0)


if __name__ == "__main__":
    main()
