"""What the thread holds, fetched by reference: a cursor and a tail in, whole messages out.

A call carries how many messages there are, their running sha256, and the newest ones; this process keeps the rest from the
calls before. What it lacks, after a restart or on another worker, it pages from the workflow by query, which leaves no history.
"""

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from pydantic import Field
from temporalio import activity

from gradeloop.page import Page
from gradeloop.request import Generator, Grader
from gradeloop.rubric import Rubric
from gradeloop.strict import Strict
from gradeloop.transcript import Log, Message

CACHE_BYTES = 256 * 1024 * 1024
"""Messages kept in a worker process: some 170 threads of the largest size."""

CACHE_LOGS = 8192
"""Conversations kept in a worker process, however small."""

CACHE_BRIEFS = 512
"""Rubrics and settings kept in a worker process, each at most some 100 KiB."""


class Brief(Strict):
    """Who drafts, who judges, and by what: the settings that every call of a thread shares."""

    generator: Generator
    grader: Grader | None
    rubric: Rubric | None
    priced: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the thread's budget counts money, so that every model needs a price."""

    def sha256(self) -> str:
        """Return the sha256 of the brief as JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class BriefRef(Strict):
    """A brief by its sha256, and in full the first time."""

    sha256: str
    brief: Brief | None = None


class LogRef(Strict):
    """A list of messages by count and running sha256, and its newest ones in full."""

    key: str
    """`messages`, or the name of a grader's conversation."""
    count: int
    sha256: str
    tail: tuple[Message, ...] | None = None
    """The newest messages, as many as this process may lack; None where they are too large to carry and must be fetched."""


class ThreadRef(Strict):
    """What an activity must know of its thread."""

    brief: BriefRef
    messages: LogRef


@dataclass
class _Held:
    log: Log = field(default_factory=Log)
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: int = 0
    """Bytes of the log that the total knows of."""


class ThreadViews:
    """This process's copies of threads, dropped where a sha256 differs, the least used first where they grow large."""

    def __init__(self) -> None:
        self._briefs: OrderedDict[str, Brief] = OrderedDict()
        self._held: OrderedDict[tuple[str, str, str, str], _Held] = OrderedDict()
        self._bytes = 0
        """Of all logs, as counted."""

    async def brief(self, reference: BriefRef) -> Brief:
        """Return the brief of the calling activity's thread."""
        brief = reference.brief or self._briefs.get(reference.sha256)
        if brief is None:
            brief = Brief.model_validate(await _query("brief", []))
        self._briefs[reference.sha256] = brief
        self._briefs.move_to_end(reference.sha256)
        while len(self._briefs) > CACHE_BRIEFS:
            self._briefs.popitem(last=False)
        return brief

    async def messages(self, reference: LogRef) -> list[Message]:
        """Return the messages that `reference` names, from memory, its tail, or the workflow."""
        held = self._hold(reference.key)
        async with held.fetching:
            held.log = _completed(held.log, reference) or await self._fetched(held.log, reference)
            self._count(held)
            self._evict()
            return held.log.slice(0, reference.count)

    def put(self, reference: LogRef, message: Message) -> None:
        """Keep the message that the calling activity is about to return, after the ones that `reference` names."""
        held = self._hold(reference.key)
        if len(held.log) > reference.count:
            held.log = Log(held.log.slice(0, reference.count))
        if len(held.log) == reference.count and held.log.sha256() == reference.sha256:
            held.log.append(message)

    def _hold(self, key: str) -> _Held:
        info = activity.info()
        name = (str(info.namespace), str(info.workflow_id), str(info.workflow_run_id), key)
        held = self._held.setdefault(name, _Held())
        self._held.move_to_end(name)
        return held

    async def _fetched(self, log: Log, reference: LogRef) -> Log:
        """Page what is lacking from the workflow, all of it where the copy at hand is not a prefix."""
        for base in (log.slice(0, reference.count), []):
            fetched = Log(base)
            while len(fetched) < reference.count:
                answer = await _query("log", [reference.key, len(fetched), reference.count - len(fetched)])
                page = Page[Message].model_validate(answer)
                for message in page.items:
                    fetched.append(message)
                if not page.items:
                    break
            if len(fetched) >= reference.count and fetched.sha256(reference.count) == reference.sha256:
                return fetched
        raise LookupError(f"the thread's {reference.key} do not match their reference ({reference.count} messages)")

    def _count(self, held: _Held) -> None:
        self._bytes += held.log.bytes - held.counted
        held.counted = held.log.bytes

    def _evict(self) -> None:
        """Drop the least used logs while all are too large or too many, but none that is being fetched or was used last."""
        if self._bytes <= CACHE_BYTES and len(self._held) <= CACHE_LOGS:
            return
        for name in list(self._held)[:-1]:
            if not self._held[name].fetching.locked():
                self._bytes -= self._held.pop(name).counted
            if self._bytes <= CACHE_BYTES and len(self._held) <= CACHE_LOGS:
                break


def _completed(log: Log, reference: LogRef) -> Log | None:
    """Return the copy at hand, with the tail behind it, where that is what `reference` names."""
    if len(log) >= reference.count and log.sha256(reference.count) == reference.sha256:
        return log
    if reference.tail is None or len(log) < reference.count - len(reference.tail):
        return None
    grown = Log(log.slice(0, reference.count - len(reference.tail)))
    for message in reference.tail:
        grown.append(message)
    return grown if grown.sha256() == reference.sha256 else None


async def _query(name: str, arguments: list[object]) -> object:
    info = activity.info()
    handle = activity.client().get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
    return await handle.query(name, args=arguments)
