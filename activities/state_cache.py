"""Settings and messages of threads as calls know them: references to them, and this process's copies, bounded in bytes."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from temporalio import activity

from gradeloop.contract.base import OmitEmpty, Page, Strict
from gradeloop.contract.messages import Log, Message
from gradeloop.contract.queries import recorded
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, Grader, OutageTimeout

THREAD_CACHE_BYTES = 256 * 1024 * 1024
"""Messages kept in a worker process: some 170 threads of the largest size."""

CACHED_LOGS = 8192
"""Conversations kept in a worker process, however small."""

CACHED_SETTINGS = 512
"""Rubrics and settings kept in a worker process, at most some 100 KiB a thread."""


class GradingSettings(Strict):
    """The settings that every call of a thread shares: generator, grader and rubric."""

    generator: Generator
    grader: Grader | None
    rubric: Rubric | None
    priced: OmitEmpty[bool] = False
    """Whether the thread's budget counts money, so that every model needs a price."""
    outage_timeout: OmitEmpty[OutageTimeout | None] = None
    """Seconds for which a call waits for a provider that is away; the worker's own by default."""

    def sha256(self) -> str:
        """Return the sha256 of the settings as JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class GradingSettingsRef(Strict):
    """A thread's settings by their sha256, and in full the first time."""

    sha256: str
    brief: OmitEmpty[GradingSettings | None] = None


class LogRef(Strict):
    """A list of messages by count and running sha256, and its newest ones in full."""

    key: str
    """`messages`, or the name of a grader's conversation."""
    count: int
    sha256: str
    tail: tuple[Message, ...] | None = None
    """The newest messages, as many as this process may lack; None where they are too large to carry and must be fetched."""


class ThreadRef(Strict):
    """The settings and messages of a thread, as a call refers to them."""

    brief: GradingSettingsRef
    messages: LogRef


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteBoundedCache(Generic[Key, Value]):
    """Values by key; the least used are dropped where all together are too large or too many, but never the one used last."""

    def __init__(self, most_bytes: int, most: int | None = None, *, in_use: Callable[[Value], bool] = lambda _: False) -> None:
        """Create an empty cache.

        Args:
            most_bytes: The bytes of all values together, as `put` was given them.
            most: The number of values; by default any.
            in_use: Returns whether a value must not be dropped now.
        """
        self._most_bytes = most_bytes
        self._most = most
        self._in_use = in_use
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Value | None:
        """Return a value, which counts as used now; None where there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, value: Value, size: int = 0) -> None:
        """Keep a value of so many bytes in place of an earlier one, and drop the least used."""
        self.drop(key)
        self._entries[key] = (value, size)
        self._bytes += size
        if self._fits():
            return
        for oldest in list(self._entries)[:-1]:
            if not self._in_use(self._entries[oldest][0]):
                self.drop(oldest)
            if self._fits():
                return

    def drop(self, key: Key) -> None:
        """Forget a value, if it is there."""
        if key in self._entries:
            self._bytes -= self._entries.pop(key)[1]

    def _fits(self) -> bool:
        return self._bytes <= self._most_bytes and (self._most is None or len(self._entries) <= self._most)


LogName = tuple[str, str, str, str]
"""Namespace, workflow, its run, and the key of the log."""


@dataclass
class _LogCopy:
    log: Log = field(default_factory=Log)
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)


class ThreadLoader:
    """Settings and messages of threads, by reference; a copy whose sha256 differs is replaced."""

    def __init__(self) -> None:
        self._settings: ByteBoundedCache[str, GradingSettings] = ByteBoundedCache(THREAD_CACHE_BYTES, CACHED_SETTINGS)
        self._logs: ByteBoundedCache[LogName, _LogCopy] = ByteBoundedCache(
            THREAD_CACHE_BYTES, CACHED_LOGS, in_use=lambda copy: copy.fetching.locked()
        )

    async def settings(self, reference: GradingSettingsRef) -> GradingSettings:
        """Return the settings of the calling activity's thread."""
        settings = reference.brief or self._settings.get(reference.sha256)
        if settings is None:
            settings = GradingSettings.model_validate(await query_workflow("brief", []))
        self._settings.put(reference.sha256, settings)
        return settings

    async def messages(self, reference: LogRef) -> list[Message]:
        """Return the messages that `reference` names, from memory, its tail, or the workflow."""
        name = _log_name(reference)
        copy = self._copy(name)
        async with copy.fetching:
            # The graders of a turn ask for the same messages at once. Under the lock the first one pages them from
            # the workflow, and the others find the copy. A copy that is being fetched is in use and stays in the
            # cache, or two attempts would fill two copies.
            copy.log = _completed(copy.log, reference) or await _fetch_log(copy.log, reference)
            self._logs.put(name, copy, copy.log.bytes)
            return copy.log.slice(0, reference.count)

    # The caller's result may still be lost, and then another attempt writes other messages behind the same
    # ones. So the copy is first cut to what the reference names, and grows only if it is equal to it up to
    # there.
    def append(self, reference: LogRef, *messages: Message) -> None:
        """Keep the messages that the calling activity is about to return, after the ones that `reference` names."""
        name = _log_name(reference)
        copy = self._copy(name)
        if len(copy.log) > reference.count:
            copy.log = copy.log.first(reference.count)
        if len(copy.log) == reference.count and copy.log.sha256() == reference.sha256:
            for message in messages:
                copy.log.append(message)
        self._logs.put(name, copy, copy.log.bytes)

    def _copy(self, name: LogName) -> _LogCopy:
        """Return this process's copy of a log, empty where it has none."""
        copy = self._logs.get(name)
        if copy is None:
            copy = _LogCopy()
            self._logs.put(name, copy)
        return copy


def _log_name(reference: LogRef) -> LogName:
    info = activity.info()
    return (str(info.namespace), str(info.workflow_id), str(info.workflow_run_id), reference.key)


# The running sha256 decides whether a copy is the thread's log, and not the number of messages. A call whose
# result was lost has left messages in its worker's copy that the thread never had. With the number only, the
# next call would be sent another conversation than the thread records.
def _completed(log: Log, reference: LogRef) -> Log | None:
    """Return the copy at hand, with the tail behind it, where that is what `reference` names."""
    if len(log) >= reference.count and log.sha256(reference.count) == reference.sha256:
        return log
    if reference.tail is None or len(log) < reference.count - len(reference.tail):
        return None
    grown = log.first(reference.count - len(reference.tail))
    for message in reference.tail:
        grown.append(message)
    return grown if grown.sha256() == reference.sha256 else None


async def _fetch_log(log: Log, reference: LogRef) -> Log:
    """Page what is lacking from the workflow, all of it where the copy at hand is not a prefix."""
    for fetched in (log.first(reference.count), Log()):
        while len(fetched) < reference.count:
            answer = await query_workflow("log", [reference.key, len(fetched), reference.count - len(fetched)])
            page = Page[Message].model_validate(answer)
            for message in page.items:
                fetched.append(message)
            if not page.items:
                break
        if len(fetched) >= reference.count and fetched.sha256(reference.count) == reference.sha256:
            return fetched
    raise LookupError(f"the thread's {reference.key} do not match their reference ({reference.count} messages)")


async def query_workflow(name: str, arguments: list[object]) -> object:
    """Ask the calling activity's workflow."""
    info = activity.info()
    handle = activity.client().get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
    return await recorded(lambda patience: handle.query(name, args=arguments, rpc_timeout=patience))
