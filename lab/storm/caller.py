"""The callers of one thread: they ask turns, meddle with them, die, and come again with the same key until they have a result."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound
from lab.storm import script
from lab.storm.client_process import ClientDied, ClientProcess
from lab.storm.diary import AskedTurn, Diary, GivenRubric, rubric_of
from lab.storm.plan import Plan

LATER = ("is closing", "queued already")
"""Refusals that a later attempt does not meet."""

NOTHING_LEFT = ("nothing is interrupted", "it has ended")
"""Refusals of a resumption that came too late."""

REMEMBERED = 5
"""How many of the newest turns are asked for again: the thread remembers 64 keys, those of resumptions included."""

LEVELS = (1, 1, 2, 2, 3, 4)
"""The revisions that rubrics ask for; the last one is never reached in three iterations."""


@dataclass(frozen=True)
class Surroundings:
    """What all callers share."""

    plan: Plan
    client: GradingClient
    processes: list[ClientProcess]
    over: asyncio.Event
    """Set once nothing is killed any more."""


class Caller:
    """Drives one thread, and notes everything in its diary."""

    def __init__(self, diary: Diary, start: dict[str, Any], around: Surroundings) -> None:
        self._diary = diary
        self._thread = diary.thread
        self._start = start
        self._around = around
        self._client = around.client
        self._dice = random.Random(f"{around.plan.seed}/{diary.thread}")

    async def run(self) -> None:
        """Ask turn after turn until the storm is over; then ask a last one in calm, and close the thread."""
        await self._pause(3)
        await self._turn()
        while not self._around.over.is_set():
            asked = [asyncio.create_task(self._turn()) for _ in range(2 if self._dice.random() < 0.25 else 1)]
            for _ in range(self._dice.randint(0, self._around.plan.events_at_most)):
                await self._pause(4)
                await self._meddle()
            await asyncio.gather(*asked)
            if self._dice.random() < 0.25:
                await self._ask_again()
            await self._pause(0.5)
        await self._supply(self._diary.new_rubric(self._dice.choice(LEVELS)))
        await self._turn()
        await self._ask_again()
        await self._client.close_thread(self._thread)
        self._compare_with_end(await self._client.result(self._thread))
        self._diary.finished = True

    def _compare_with_end(self, end: RunResult) -> None:
        """Compare the last turn's result with what the closed thread ends with."""
        last = self._diary.turns[-1].result
        if last is None or _gist(last) != _gist(end):
            self._diary.faults.append(f"it ended with {_gist(end)}, and its last turn with {last and _gist(last)}")

    async def _pause(self, calls: float) -> None:
        """Wait up to as long as so many model calls take."""
        await asyncio.sleep(self._dice.uniform(0, calls * self._around.plan.delay))

    async def _turn(self) -> None:
        """Ask a turn until there is a result of it."""
        turn = self._diary.open_turn()
        while turn.result is None:
            result = await self._try(turn)
            if result is None:
                self._diary.events["turn asked again"] += 1
                await asyncio.sleep(0.5)
            elif result.status != "interrupted":
                turn.result = result
            else:
                self._note_interruption(turn, result)
                if await self._is_overtaken(turn):
                    turn.result, turn.overtaken = result, True
                else:
                    await self._pause(1)
                    await self._resume_sometimes()
        turn.ended = time.monotonic()

    def _note_interruption(self, turn: AskedTurn, result: RunResult) -> None:
        self._diary.events["turn interrupted"] += 1
        if result.reason not in {None, "person"} or result.error is not None:
            self._diary.faults.append(f"{turn.key} was interrupted for {result.reason}: {result.error}")
        if not self._diary.stops:
            self._diary.faults.append(f"{turn.key} was interrupted, and nobody had asked for it")

    async def _try(self, turn: AskedTurn) -> RunResult | None:
        """Ask a turn once, in one of many ways; None where the caller has to come again."""
        way = self._dice.random()
        if way < 0.15:
            return await self._give_up_early(turn)
        if way < 0.3:
            one, other = await asyncio.gather(self._invoke(turn), self._invoke(turn))
            return self._same(turn.key, one, other)
        return await self._invoke(turn)

    async def _give_up_early(self, turn: AskedTurn) -> RunResult | None:
        """Ask a turn, and be gone before its end."""
        asking = asyncio.create_task(self._invoke(turn))
        await asyncio.wait([asking], timeout=self._dice.uniform(0, 3 * self._around.plan.delay))
        if asking.done():
            return asking.result()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        self._diary.events["caller gone"] += 1
        return None

    def _same(self, key: str, one: RunResult | None, other: RunResult | None) -> RunResult | None:
        """Return what two callers with one key got, which has to be the same unless a stop came between them."""
        if one is None or other is None or "interrupted" in (one.status, other.status):
            return next((result for result in (one, other) if result is not None and result.status != "interrupted"), one or other)
        self._diary.events["two callers, one key"] += 1
        if _gist(one) != _gist(other):
            self._diary.faults.append(f"two callers of {key} got {_gist(one)} and {_gist(other)}")
        return one

    async def _invoke(self, turn: AskedTurn) -> RunResult | None:
        return await self._call("invoke", messages=turn.text, key=turn.key, start=self._start)

    async def _call(self, method: str, **fields: Any) -> RunResult | None:  # noqa: ANN401 - what the client's method takes
        """Call a client, the storm's own or one of the processes; None where the caller has to come again."""
        at = self._dice.randrange(len(self._around.processes) + 1)
        try:
            if at < len(self._around.processes):
                return await self._around.processes[at].ask(method, self._thread, **fields)
            return await getattr(self._client, method)(self._thread, **fields)  # type: ignore[no-any-return]  # by its name
        except (ServerUnreachable, ClientDied):
            return None
        except InvalidRequest as error:
            if any(words in str(error) for words in LATER):
                return None
            raise

    async def _is_overtaken(self, turn: AskedTurn) -> bool:
        """Return whether another turn's messages came after this one's."""
        said = [script.turn_number(message.content) for message in await _patiently(self._messages)]
        return turn.number in said and any(number is not None for number in said[said.index(turn.number) + 1 :])

    async def _messages(self) -> list[Any]:
        found, after = list[Any](), 0
        while True:
            page = await self._client.messages(self._thread, after=after)
            found += page.items
            if page.next is None:
                return found
            after = page.next

    async def _meddle(self) -> None:
        """Do one of the things that may happen to a thread at any time."""
        what = self._dice.choice(
            (
                self._interrupt,
                self._cancel,
                self._close,
                self._other,
                self._there_and_back,
                self._equal,
                self._malformed,
                self._continue_under,
            )
        )
        await what()

    async def _send(self, kind: str, sent: Awaitable[object], *, stops: bool = False) -> bool:
        """Send a signal; False where it was refused, or nobody knows."""
        if stops:
            self._diary.stops.append((time.monotonic(), kind))
        try:
            await sent
        except (ThreadClosed, ThreadNotFound):
            self._diary.events[f"{kind}: thread closed"] += 1
        except ServerUnreachable:
            self._diary.events[f"{kind}: not acknowledged"] += 1
        else:
            self._diary.events[kind] += 1
            return True
        return False

    async def _interrupt(self) -> None:
        await self._send("interrupt", self._client.interrupt(self._thread), stops=True)

    async def interrupt_in_pause(self) -> None:
        """Interrupt while a call that had no answer has yet to be made again."""
        if not self._around.over.is_set():
            await asyncio.sleep(self._dice.uniform(0.1, 0.9))
            await self._send("interrupt in a pause", self._client.interrupt(self._thread), stops=True)

    async def _cancel(self) -> None:
        await self._send("cancel", self._client.cancel(self._thread), stops=True)

    async def _close(self) -> None:
        await self._send("close", self._client.close_thread(self._thread))

    async def _malformed(self) -> None:
        handle = self._client.temporal.get_workflow_handle(self._thread)

        async def send() -> None:
            with contextlib.suppress(Exception):  # one that is lost is none
                await handle.signal("supply_rubric", 42)

        await self._send("malformed rubric", send())

    async def _supply(self, rubric: GivenRubric) -> None:
        self._diary.give(rubric)
        self._diary.stops.append((time.monotonic(), "rubric"))
        try:
            await self._client.supply_rubric(self._thread, rubric.text)
        except ServerUnreachable:
            self._diary.events["rubric: not acknowledged"] += 1
        except (ThreadClosed, ThreadNotFound):
            self._diary.rubrics.pop()
            self._diary.events["rubric: thread closed"] += 1
        else:
            rubric.acknowledged = True
            self._diary.events["rubric"] += 1

    async def _other(self) -> None:
        await self._supply(self._diary.new_rubric(self._dice.choice(LEVELS)))

    async def _there_and_back(self) -> None:
        """Supply another rubric, and then the one in force."""
        before = self._diary.in_force
        await self._supply(self._diary.new_rubric(self._dice.choice(LEVELS)))
        if self._dice.random() < 0.5:
            await self._pause(0.5)
        if before is not None:
            await self._supply(rubric_of(before.text))
            self._diary.events["rubric, and the one before again"] += 1

    async def _equal(self) -> None:
        if (current := self._diary.in_force) is not None:
            await self._supply(rubric_of(current.text))

    async def _continue_under(self) -> None:
        """Interrupt, and go on with another rubric and no messages."""
        await self._interrupt()
        await self._pause(1)
        rubric = self._diary.new_rubric(self._dice.choice(LEVELS))
        self._diary.give(rubric)
        self._diary.stops.append((time.monotonic(), "rubric"))
        key = f"{self._thread}/rubric/{len(self._diary.rubrics)}"
        result = None
        while result is None:
            result = await self._call("invoke", messages=[], rubric=rubric.text, key=key)
        rubric.acknowledged = result.status != "interrupted"
        self._diary.events["went on under another rubric"] += 1

    async def _resume_sometimes(self) -> None:
        """Have two callers resume at once, or leave it to the key."""
        if self._dice.random() < 0.6:
            return
        self._diary.events["resumed by two"] += 1
        one, other = await asyncio.gather(self._resume(), self._resume())
        if one is None or other is None or "interrupted" in (one.status, other.status) or one.grading_run_id != other.grading_run_id:
            return
        self._diary.events["resumed by two, one result"] += 1
        if _gist(one) != _gist(other):
            self._diary.faults.append(f"two who resumed got {_gist(one)} and {_gist(other)}")

    async def _resume(self) -> RunResult | None:
        try:
            return await self._call("resume")
        except InvalidRequest as error:
            if any(words in str(error) for words in NOTHING_LEFT):
                self._diary.events["resumed too late"] += 1
                return None
            raise

    async def _ask_again(self) -> None:
        """Ask for a turn that has ended: the same key is the same turn."""
        ended = [turn for turn in self._diary.turns[-REMEMBERED:] if turn.result is not None and not turn.overtaken]
        if not ended:
            return
        turn = self._dice.choice(ended)
        again = await self._invoke(turn)
        if again is not None and turn.result is not None:
            self._diary.events["ended turn asked again"] += 1
            if _gist(again) != _gist(turn.result):
                self._diary.faults.append(f"{turn.key} was {_gist(turn.result)}, and is {_gist(again)}")


def _gist(result: RunResult) -> tuple[object, ...]:
    """Return what two results of one turn have in common."""
    return result.grading_run_id, result.status, result.output, len(result.evaluations)


async def _patiently(query: Any) -> Any:  # noqa: ANN401 - any query's answer
    while True:
        try:
            return await query()
        except ServerUnreachable:
            await asyncio.sleep(0.5)
