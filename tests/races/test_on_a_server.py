"""A sample of the pairs on a real server: the worker of workflows is away while they come, and finds them in one workflow task."""

import asyncio
import re
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest
from tests.races.events import Cancel, Decide, End, Event, Interrupt, Invoke, Resume, Supply, in_servers_order
from tests.races.model import Model
from tests.races.places import CALLS, KINDS, PERSON, PLAIN
from tests.races.race import FIRST_TURN, LAST_TURN, PATIENCE
from tests.races.story import PASSES_FROM, Story, draft_text, found, look_id, request, rubric, search_id
from tests.races.view import View
from tests.rig.threads import SECONDS, Gate, Models, Served, ended, replay, serving, verdict_text

PAUSE = 0.3
"""Seconds between two messages, so that the server has the first one before the second."""

POLL = 0.2
"""Seconds between two looks at a thread."""

CONCURRENCY = 10
"""Threads side by side: each asks for its state again and again."""

CLIENTS = "client's"
"""How the names of those updates begin that go through the client, which starts a closed thread again."""

AT_CALLS = (
    ("interrupt", "result"),
    ("interrupt", "failure"),
    ("cancel", "result"),
    ("cancel", "failure"),
    ("another rubric", "the rubric in force"),
    ("another rubric", "result"),
    ("another rubric", "interrupt"),
    ("another rubric", "cancel"),
    ("interrupt", "resume"),
    ("invoke", "another rubric"),
)
"""Pairs that come at a call."""

AT_REST = (
    ("idle", "another rubric", "invoke"),
    ("idle", "another rubric", "invoke, no messages"),
    ("idle", "invoke", "cancel"),
    ("waiting", "cancel", "invoke, the same key"),
    ("waiting", "interrupt", "invoke"),
    ("waiting", "another rubric", "decide"),
    ("interrupted", "resume", "resume"),
    ("interrupted", "another rubric", "resume"),
    ("interrupted", "interrupt", "invoke, no messages, another rubric"),
)
"""Pairs that come while no call is in flight, and the status of the thread then."""


def look(call: str, thread: str) -> str:
    """Look something up."""
    return found(call)


def search(call: str, thread: str) -> str:
    """Search for evidence."""
    return found(call)


def count(draft: str) -> bool:
    """Count the words."""
    return bool(draft)


class StoryModels(Models):
    """The models of the story; one call of each thread waits where its pair of events is to come."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[tuple[str, str], Gate] = {}
        """The calls that wait, by thread and name."""
        self.failing: set[tuple[str, str]] = set()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer as the story says."""
        thread = re.findall(r"race-[0-9a-f-]{36}", request.system)[0]
        name, message = self._draft(request, thread) if request.step.role == "generator" else self._verdict(request, thread)
        if gate := self.waiting.pop((thread, name), None):
            await gate.pass_through()
        if (thread, name) in self.failing:
            self.failing.discard((thread, name))
            raise ModelFault("bad_request", "it broke", usage=Usage(input=10, attempts=1))
        return ModelReply(message, Usage(input=10, output=5, calls=1, attempts=1))

    def _draft(self, request: ModelRequest, thread: str) -> tuple[str, Message]:
        here, last = len(request.messages), request.messages[-1]
        call = ToolCall(id=look_id(here), name="look", arguments={"call": look_id(here), "thread": thread})
        written = Message(role="assistant", content=draft_text(here))
        return f"generate {here}", written if last.role == "tool" else Message(role="assistant", tool_calls=(call,))

    def _verdict(self, request: ModelRequest, thread: str) -> tuple[str, Message]:
        step, text = request.step, "\n".join(message.content for message in request.messages)
        draft = max(int(number) for number in re.findall(r"\bdraft (\d+)", text))
        call = search_id(draft, step.run, step.group)
        tool = ToolCall(id=call, name="search", arguments={"call": call, "thread": thread})
        verdict = Message(role="assistant", content=verdict_text(step.iteration >= PASSES_FROM, "c0"))
        rubrics = "other" if "good by other" in text else "first"
        name = f"grade {rubrics} {step.group} of {draft} at {step.run}.{step.iteration} step {step.step}"
        return name, verdict if step.step else Message(role="assistant", tool_calls=(tool,))


class ServedRace:
    """A thread on the server, and its model."""

    def __init__(self, served: Served, models: StoryModels, where: str, *kinds: str) -> None:
        self.id, self.served, self.models, self.where, self.kinds = f"race-{uuid4()}", served, models, where, kinds
        self.story: Story = PERSON if where == "waiting" else PLAIN
        self.model = Model(self.story)
        self.gate = Gate()
        self._sent: dict[str, asyncio.Task[Any]] = {}
        self._runs: list[str] = []
        self._names = 0

    def name(self, what: str) -> str:
        """Return a name that no other update has."""
        self._names += 1
        return f"{what} {self._names}"

    async def reach(self) -> None:
        """Bring the thread to where the events meet."""
        stop = CALLS[0] if self.where == "interrupted" else self.where
        if stop in CALLS:
            self.models.waiting[self.id, stop] = self.gate
        await self._start()
        self._send(FIRST_TURN)
        self.model.task(FIRST_TURN)
        if stop not in CALLS:
            self._go_on()
            await self._until_it_is(self.where)
            events = (await self._query("events", 0, 1000))["items"]
            self._runs = [event["grading_run_id"] for event in events if event["type"] == "run_started"]
            return
        while stop not in self.model.flight:
            self.model.task(End(min(self.model.flight), "arrived"))
        await asyncio.wait_for(self.gate.reached.wait(), SECONDS)
        if self.where == "interrupted":
            await self._deliver(Interrupt())
            self.model.task(Interrupt())
            self._go_on()
            await self._until_it_is("interrupted")

    async def meet(self) -> None:
        """Have the events come while no worker is there; Temporal gives signals first, then updates."""
        events = [event for kind in self.kinds for event in KINDS[kind](self)]
        events = in_servers_order(events)
        for event in events:
            await self._deliver(event)
            await asyncio.sleep(PAUSE)
        self.model.task(*events)

    async def finish(self) -> str | None:
        """Go on to the end of the thread and of one more turn, and return what differs from the model."""
        try:
            await self._finish()
            found = (await self._view()).differences(self.model)
        except TimeoutError:
            found = [f"it is {(await self._query('state'))['status']}, and is to be {self.model.status}"]
        for task in self._sent.values():
            task.cancel()
        await asyncio.gather(*self._sent.values(), return_exceptions=True)
        return f"{self.where}: {' + '.join(self.kinds)}: {'; '.join(found)}" if found else None

    async def _finish(self) -> None:
        await self._query("state")
        if not self.model.stopping:
            self.gate.opened.set()
        for _ in range(PATIENCE):
            self._go_on()
            if self.model.closed == "cancelled":  # until then, callers are told of the cancel
                await self._until_it_is_closed()
            else:
                await self._until_it_is(self.model.status)
            if not (event := self._next()):
                break
            await self._deliver(event)
            self.model.task(event)
        await self._deliver(LAST_TURN)
        self.model.task(LAST_TURN)
        self._go_on()
        await asyncio.wait_for(asyncio.shield(self._sent[LAST_TURN.update]), SECONDS)
        by_client = [task for name, task in self._sent.items() if name.startswith(CLIENTS)]
        if by_client:  # each asks the thread first where it stands, and so may be behind the last turn
            await asyncio.wait(by_client, timeout=SECONDS)

    def _go_on(self) -> None:
        """Have the model's calls end as those of the thread do by themselves; one that is stopped says what it cost."""
        while self.model.flight:
            self.model.task(End(min(self.model.flight), "silent" if self.model.stopping else "arrived"))

    def _next(self) -> Event | None:
        """Return what a client does next."""
        if self.model.closed == "cancelled":
            self.model.start_again()
            return Invoke(self.name("client's invoke"), FIRST_TURN.key, FIRST_TURN.text)
        if self.model.status == "interrupted":
            return Resume(self.name("client's resume"))
        run = self.model.thread.run
        return Decide(self.name("client's decide"), run.number, run.iteration) if self.model.waits_for_decision and run else None

    async def _until_it_is(self, status: str) -> None:
        async with asyncio.timeout(SECONDS):
            while (await self._query("state"))["status"] != status:
                await asyncio.sleep(POLL)

    async def _until_it_is_closed(self) -> None:
        async with asyncio.timeout(SECONDS):
            while (await self.served.handle(self.id).describe()).status == WorkflowExecutionStatus.RUNNING:
                await asyncio.sleep(POLL)

    async def _deliver(self, event: Event) -> None:
        handle = self.served.handle(self.id)
        match event:
            case Supply():
                await handle.signal("supply_rubric", {"criteria": 5} if event.rubric is None else rubric(event.rubric, self.story))
            case Interrupt():
                await handle.signal("interrupt")
            case Cancel():
                await handle.cancel()
            case End():
                if event.how == "failed":
                    self.models.failing.add((self.id, event.call))
                self.gate.opened.set()
                await ended(self.served.temporal, self.id)
            case Invoke() | Resume() | Decide():
                self._send(event)

    def _send(self, update: Invoke | Resume | Decide) -> None:
        self._sent[update.update] = asyncio.create_task(self._answer(update))

    async def _answer(self, update: Invoke | Resume | Decide) -> dict[str, Any] | str:
        """Send an update, and return its answer."""
        by_client = update == LAST_TURN or update.update.startswith(CLIENTS)
        try:
            return await (self._through_client(update) if by_client else self._as_it_is(update))
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            return (cause.type or cause.message) if isinstance(cause, ApplicationError) else str(cause)

    async def _through_client(self, update: Invoke | Resume | Decide) -> dict[str, Any] | str:
        client = self.served.client
        if isinstance(update, Decide):
            await client.decide(self.id, "person", passed=True, by="ann")
            return "done"
        turn = client.resume(self.id) if isinstance(update, Resume) else client.invoke(self.id, update.text, key=update.key)
        return (await turn).model_dump(mode="json")

    async def _as_it_is(self, update: Invoke | Resume | Decide) -> dict[str, Any] | str:
        handle = self.served.handle(self.id)
        if isinstance(update, Decide):
            said = {"grading_run_id": self._runs[update.run], "iteration": update.iteration, "criterion": "person"}
            await handle.execute_update("decide", said | {"passed": True, "by": "ann"}, id=update.update)
            return "done"
        argument: dict[str, object] = {}
        if isinstance(update, Invoke):
            messages = [{"role": "user", "content": update.text}] if update.text else []
            argument = {"key": update.key, "messages": messages}
            argument |= {"rubric": rubric(update.rubric, self.story)} if update.rubric else {}
        name = "resume" if isinstance(update, Resume) else "invoke"
        return dict(await handle.execute_update(name, argument, id=update.update, result_type=dict))

    async def _start(self) -> None:
        """Start the thread; its models learn its name from their system prompts."""
        asked = request(self.story)
        for role in ("generator", "grader"):
            asked[role] = asked[role] | {"system_prompt": f"You are in {self.id}."}
        await self.served.start(asked, id=self.id)

    async def _query(self, name: str, *arguments: object) -> Any:
        return await self.served.handle(self.id).query(name, args=list(arguments), result_type=dict)

    async def _view(self) -> View:
        pages = [(await self._query(name, 0, 1000))["items"] for name in ("events", "messages", "evaluations")]
        status = (await self.served.handle(self.id).describe()).status
        return View(
            story=self.story,
            state=await self._query("state"),
            events=pages[0],
            messages=pages[1],
            evaluations=pages[2],
            answers={name: task.result() if task.done() else None for name, task in self._sent.items()},
            closed=None if status == WorkflowExecutionStatus.RUNNING else "closed",
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_pairs_on_a_server_end_as_the_model_says(client: Client) -> None:
    models = StoryModels()
    differences = []
    async with serving(client, models=models, tools=(look, search, count), only="activities") as calls:
        at_calls = [ServedRace(calls, models, CALLS[at], *pair) for at in (0, 6, 7, 13) for pair in AT_CALLS]
        races = [*at_calls, *(ServedRace(calls, models, *case) for case in AT_REST)]
        for first in range(0, len(races), CONCURRENCY):
            differences += await differences_of(races[first : first + CONCURRENCY])

    assert [found for found in differences if found] == []


async def differences_of(races: list[ServedRace]) -> list[str | None]:
    """Have events meet in several threads at once, and return what differs from the model in each."""
    client, task_queue, models = races[0].served.temporal, races[0].served.task_queue, races[0].models
    async with serving(client, models=models, task_queue=task_queue, only="workflows"):
        await asyncio.gather(*(race.reach() for race in races))
    await asyncio.gather(*(race.meet() for race in races))
    async with serving(client, models=models, task_queue=task_queue, only="workflows"):
        differences = await asyncio.gather(*(race.finish() for race in races))
        await asyncio.gather(*(replay(client, race.id) for race in races))
    return differences
