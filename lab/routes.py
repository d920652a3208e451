"""Which modules run on the way: from `invoke` to the first grade, and so on: `python -m lab.routes`.

Client and worker are one process here, so that one profile sees both; a module counts where one of its functions ran.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import connect
from gradeloop.temporal.server import ensure_server, stop_server
from worker import build

ROOT = Path(__file__).parent.parent
ROOMS = tuple(str(ROOT / name) for name in ("src", "workflows", "activities"))


class Trace:
    """The modules of gradeloop whose functions ran."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a function that begins."""
        if self.on and event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(ROOMS):
            self.seen[frame.f_code.co_filename] = None

    def modules(self) -> list[str]:
        """Return what ran since the last time."""
        found = [path.removeprefix(f"{ROOT}/").removeprefix("src/gradeloop/") for path in self.seen]
        self.seen = {}
        return found


TRACE = Trace()


@contextmanager
def traced() -> Iterator[Callable[[], list[str]]]:
    """Note what runs in the block."""
    TRACE.modules()
    TRACE.on = True
    yield TRACE.modules
    TRACE.on = False


VERDICT = {"k1": {"reason": "it is", "passed": True, "gap": ""}, "unjudgeable": ""}
REPLIES: dict[str, Any] = {"replies": [{"role": "generator", "text": "Paris."}, {"role": "grader", "verdict": VERDICT}]}


class Stepping(Providers):
    """Models that say when the first verdict is there."""

    on_verdict: Callable[[], None] = staticmethod(lambda: None)

    async def complete(self, request: Any) -> Any:  # noqa: ANN401 - as the base class
        """Reply."""
        reply = await super().complete(request)
        if request.step.role == "grader":
            self.on_verdict()
        return reply


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Any, str, Store, Stepping]]:
    """Serve a queue, and yield client, queue, store and models."""
    os.environ["GRADELOOP_STATE_DIR"] = str(folder)
    server = await ensure_server()
    from gradeloop.temporal.connect import Connection

    client, queue = await connect(Connection(server.address, "default", embedded=True)), f"routes-{uuid4()}"
    store, providers = Store(f"sqlite:///{folder / 'results.db'}"), Stepping(Environment(), Script.model_validate(REPLIES))
    async with build(client, providers, ToolRegistry(), WorkerSettings(task_queue=queue), search_attributes=False, store=store):
        yield client, queue, store, providers
    store.close()
    await stop_server()


async def routes() -> dict[str, list[str]]:
    """Return the modules of each route."""
    from gradeloop.batches.client import BatchClient
    from gradeloop.batches.contract import BatchRequest, Case
    from gradeloop.batches.reader import BatchReader
    from gradeloop.client.client import GradingClient
    from gradeloop.judges.client import Judge

    found: dict[str, list[str]] = {}
    judge = {"model": "scripted:judge"}
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as (client, queue, store, providers):
            request = {"messages": [{"role": "user", "content": "Capital of France?"}], "rubric": "- it is right", "grader": judge}
            grading = GradingClient(client, task_queue=queue)
            with traced() as modules:
                providers.on_verdict = lambda: found.update({"invoke to the first grade": modules()})
                await grading.result(await grading.start({**request, "generator": {"model": "scripted:writer"}}))
                found["a model's reply to RunResult"] = modules()
            providers.on_verdict = lambda: None
            run = {"id": "r", "transcripts": [{"messages": [*request["messages"], {"role": "assistant", "content": "Paris."}]}]}
            with traced() as modules:
                await Judge({"rubric": {"criteria": ["it is right"]}, "grader": judge}, client, task_queue=queue)(run)
                found["judge"] = modules()
            case = Case.model_validate({"id": "a", "rubric": "- it is right", "grader": judge, "output": "Paris."})
            with traced() as modules:
                batches = BatchClient(client, queue)
                await batches.upload("b", [case], lambda _: None)
                await batches.start(BatchRequest(batch_id="b", total=1))
                await batches.result("b")
                list(BatchReader(store).results("b"))
                found["a case to its result"] = modules()
    return found


def main() -> None:
    """Print the routes as JSON, with how many modules each has."""
    threading.setprofile(TRACE)
    sys.setprofile(TRACE)
    found = asyncio.run(routes())
    sys.setprofile(None)
    print(json.dumps({name: {"modules": len(modules), "in order": modules} for name, modules in found.items()}, indent=1))


if __name__ == "__main__":
    main()
