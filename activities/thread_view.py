"""What the thread holds, fetched by reference: a cursor and a tail in, whole messages out.

A call carries how many messages there are, their running sha256, and the newest ones; this process keeps the rest from the
calls before. What it lacks, after a restart or on another worker, it pages from the workflow by query, which leaves no history.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field

from pydantic import Field
from temporalio import activity

from activities.state_cache import ByteBoundedCache
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


LogName = tuple[str, str, str, str]
"""Namespace, workflow, its run, and the key of the log."""


@dataclass
class _LogCopy:
    log: Log = field(default_factory=Log)
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)


class ThreadViews:
    """This process's copies of threads, dropped where a sha256 differs, the least used first where they grow large."""

    def __init__(self) -> None:
        self._briefs: ByteBoundedCache[str, Brief] = ByteBoundedCache(CACHE_BYTES, CACHE_BRIEFS)
        self._logs: ByteBoundedCache[LogName, _LogCopy] = ByteBoundedCache(
            CACHE_BYTES, CACHE_LOGS, in_use=lambda copy: copy.fetching.locked()
        )

    async def brief(self, reference: BriefRef) -> Brief:
        """Return the brief of the calling activity's thread."""
        brief = reference.brief or self._briefs.get(reference.sha256)
        if brief is None:
            brief = Brief.model_validate(await _query("brief", []))
        self._briefs.put(reference.sha256, brief)
        return brief

    async def messages(self, reference: LogRef) -> list[Message]:
        """Return the messages that `reference` names, from memory, its tail, or the workflow."""
        name = _log_name(reference)
        copy = self._copy(name)
        async with copy.fetching:
            copy.log = _completed(copy.log, reference) or await self._fetched(copy.log, reference)
            self._logs.put(name, copy, copy.log.bytes)
            return copy.log.slice(0, reference.count)

    def put(self, reference: LogRef, message: Message) -> None:
        """Keep the message that the calling activity is about to return, after the ones that `reference` names."""
        name = _log_name(reference)
        copy = self._copy(name)
        if len(copy.log) > reference.count:
            copy.log = Log(copy.log.slice(0, reference.count))
        if len(copy.log) == reference.count and copy.log.sha256() == reference.sha256:
            copy.log.append(message)
        self._logs.put(name, copy, copy.log.bytes)

    def _copy(self, name: LogName) -> _LogCopy:
        """Return this process's copy of a log, empty where it has none."""
        copy = self._logs.get(name)
        if copy is None:
            copy = _LogCopy()
            self._logs.put(name, copy)
        return copy

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


def _log_name(reference: LogRef) -> LogName:
    info = activity.info()
    return (str(info.namespace), str(info.workflow_id), str(info.workflow_run_id), reference.key)


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
