"""The pages of `gradeloop dev`: the index, and threads with the actions that people take on them."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from gradeloop.client.call_waits import CallWait, call_waits
from gradeloop.client.listing import ListedThread, threads
from gradeloop.client.thread import error_of_rpc
from gradeloop.client.waiting import StoredQuestions, stored_questions
from gradeloop.contract.base import Strict
from gradeloop.contract.thread import ApproveRequest, DecideRequest, DenyRequest, OverrideRequest, ResumeRequest, ThreadState, parse_update
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, explained
from gradeloop.files.rubric import refuse_bad_rubric
from gradeloop.files.yaml import read_placed
from gradeloop.reports.html import document, read_id, thread_path
from gradeloop.reports.read_thread import first_message, read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.text import counted, headline
from gradeloop.web.site import (
    IndexSection,
    LivePages,
    ShownPage,
    Site,
    SteeredPage,
    answer,
    answer_page,
    in_time,
    is_known,
    tag_of,
    unchanged,
    with_wait,
)

THREADS = 50
"""Number of threads that are listed; `gradeloop list` lists the rest."""

NEWEST = 10**9
"""A position after every event, for asking how many there are."""


class Index:
    """The page at `/`."""

    def __init__(self, site: Site, others: Sequence[LivePages] = ()) -> None:
        self._site = site
        self._others = sorted(others, key=lambda pages: pages.rank)
        self._tasks: dict[str, str] = {}
        """The tasks of the threads that were listed last."""
        self._again: dict[str, float] = {}
        """Time at which a thread whose worker did not answer is asked again."""

    async def show(self, request: Request) -> Response:
        """Answer with the lists."""
        problems, words = dict[str, None](), request.query_params.get("q", "").strip()
        asked: list[StoredQuestions] = []
        listed: list[ListedThread] = []
        tasks: dict[str, str] = {}
        sections: list[IndexSection] = []
        try:
            listed, tasks = await self._threads()
        except GradeloopError as error:
            problems[str(error)] = None
        try:
            sections += [await pages.section(words) for pages in self._others]
            asked = await stored_questions(self._site.store, None)
        except GradeloopError as error:
            problems[str(error)] = None
        texts = {one.thread_id: f"{one.thread_id} {tasks.get(one.thread_id, '')}".lower() for one in listed}
        found = [one for one in listed if all(word in texts[one.thread_id] for word in words.lower().split())]
        page = document(
            "live_index.html",
            title="gradeloop dev",
            live=SteeredPage(token=self._site.token, path="/", open=True),
            threads=found,
            words=words,
            sections=[Markup(section.html) for section in sections],  # noqa: S704 - rendered by templates
            tasks=tasks,
            waiting=waiting_line(listed, sections, asked),
            problems=problems,
            thread_path=thread_path,
            ui=self._site.ui,
        )
        return answer_page(request, page)

    async def _threads(self) -> tuple[list[ListedThread], dict[str, str]]:
        """Return the newest threads, those that ask for a person first, and the tasks of those that are open."""
        newest = [thread async for thread in threads(self._site.client.temporal, limit=THREADS)]
        waiting = [thread async for thread in threads(self._site.client.temporal, status="waiting", limit=THREADS) if thread.open]
        found = list({thread.thread_id: thread for thread in (*waiting, *newest)}.values())
        found.sort(key=lambda thread: URGENCY.get(thread.status, len(URGENCY)))
        now = asyncio.get_running_loop().time()
        unknown = [thread for thread in found if thread.thread_id not in self._tasks and self._again.get(thread.thread_id, 0) <= now][
            :ASKED
        ]
        for thread, task in zip(unknown, await asyncio.gather(*map(self._task_of, unknown)), strict=True):
            if task is None:
                self._again[thread.thread_id] = now + PATIENCE_SECONDS
            else:
                self._tasks[thread.thread_id] = task
        listed = {thread.thread_id for thread in found}
        self._tasks = {name: task for name, task in self._tasks.items() if name in listed}
        self._again = {name: when for name, when in self._again.items() if name in listed}
        return found, self._tasks

    async def _task_of(self, thread: ListedThread) -> str | None:
        """Return the beginning of a thread's first message; empty where it has none, None where nobody says it in time.

        The worker of an open thread says it. A closed thread may have no worker any more; its start is read instead.
        """
        try:
            async with asyncio.timeout(TASK_SECONDS):
                if not thread.open:
                    return headline(await first_message(self._site.client.temporal, thread.thread_id), TASK_CHARACTERS)
                first = (await self._site.client.messages(thread.thread_id, limit=1)).items
        except (TimeoutError, GradeloopError):
            return None
        return headline(first[0].content, TASK_CHARACTERS) if first else ""


def waiting_line(listed: Sequence[ListedThread], sections: Sequence[IndexSection], asked: Sequence[StoredQuestions] = ()) -> str:
    """Return what waits for a person, as the first line of the list; empty where nothing does."""
    cases = sum(section.waiting for section in sections)
    ids = tuple(f"{owner}/" for section in sections for owner in section.owners)
    alone = sum(thread.status == "waiting" and not thread.thread_id.startswith(ids) for thread in listed)
    in_batches = f"{counted(cases, 'case')} in batches" if cases else ""
    waits = ", ".join(filter(None, (counted(alone, "thread") if alone else "", in_batches, *(one.what for one in asked))))
    return f"WAITING FOR A PERSON: {waits}" if waits else ""


URGENCY = {"waiting": 0, "interrupted": 1, "failed": 2, "grader_error": 3, "max_iterations_reached": 4, "running": 5}
"""The order of the threads in the list, by their status; all others come after these, the newest first."""

ASKED, TASK_SECONDS, PATIENCE_SECONDS, TASK_CHARACTERS = 16, 1.0, 30.0, 120
"""Limits of one look: threads asked for their tasks, seconds for each, seconds until a silent one is asked again, and characters shown."""

WORKER_SECONDS = 5.0
"""Seconds that a page waits for the thread's worker before it says that none answers; its script asks again."""


@dataclass(frozen=True)
class ThreadOnServer:
    """State of a thread that the server knows without asking a worker."""

    mark: str
    """Another one whenever anything happened to the thread."""
    run_id: str
    open: bool
    task_queue: str
    waits: Sequence[CallWait]
    """The waits of its calls."""


class ThreadPages:
    """The pages of threads."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with a thread's page; its worker is asked only where something has happened to the thread."""
        thread_id = read_id(request.path_params["thread"])
        path = thread_path(thread_id)
        on_server = await self._describe(thread_id)
        shown = self._site.shown(path)
        if shown and shown.mark == on_server.mark and is_known(request, shown.tag):
            return with_wait(unchanged(shown.tag), on_server.waits)
        await self._site.wake(thread_id)
        state, tag = await self._read_state(thread_id, on_server)
        self._site.remember(path, ShownPage(on_server.mark, tag))
        live = SteeredPage(token=self._site.token, path=path, thread=path, status=state.status, open=on_server.open, tag=tag)

        async def html() -> str:
            return await asyncio.to_thread(run_page, await read_thread_report(self._site.client, thread_id), live=live)

        return with_wait(await answer(request, tag, html), on_server.waits)

    async def act(self, request: Request) -> Response:
        """Take a person's action to a thread; the next look at its page reads the thread anew."""
        thread_id, action = read_id(request.path_params["thread"]), request.path_params["action"]
        body = await read_body(request)
        if action not in ACTIONS:
            raise InvalidRequest(f"Unknown action {action!r}. Known: {', '.join(ACTIONS)}.")
        if action in DECISIONS:
            body = self._site.signed(request, body)
        await self._site.wake(thread_id)
        no_worker = f"no worker answered for the thread {thread_id!r} within {ACTION_SECONDS:.0f} s; check its worker, then try again"
        await in_time(ACTIONS[action](self._site, thread_id, body), ACTION_SECONDS, no_worker)
        self._site.forget(thread_path(thread_id))
        return JSONResponse({"ok": True, "by": body["by"]} if action in DECISIONS else {"ok": True})

    async def _describe(self, thread_id: str) -> ThreadOnServer:
        temporal = self._site.client.temporal
        try:
            found = await temporal.get_workflow_handle(thread_id).describe()
            waits = await call_waits(temporal, found)
        except RPCError as error:
            raise error_of_rpc(error, thread_id) from None
        mark = f"{found.run_id} {found.history_length} {found.status}"
        return ThreadOnServer(mark, found.run_id, found.status == WorkflowExecutionStatus.RUNNING, found.task_queue, waits)

    async def _read_state(self, thread_id: str, on_server: ThreadOnServer) -> tuple[ThreadState, str]:
        """Return the thread's state, and the tag of what its page shows.

        The Temporal run is a part of the tag, so that a closed thread that is opened again never looks the same.
        """
        client = self._site.client
        try:
            async with asyncio.timeout(WORKER_SECONDS):
                state, events = await asyncio.gather(client.state(thread_id), client.events(thread_id, after=NEWEST))
        except TimeoutError:
            start_one = f"start one: gradeloop worker --task-queue {on_server.task_queue}, with the thread's tools"
            raise ServerUnreachable(f"no worker answers for the thread {thread_id!r}; {start_one}") from None
        return state, tag_of(state.model_dump_json(exclude={"call_wait"}), str(events.total), on_server.run_id, str(on_server.open))


ACTION_SECONDS = 30.0
"""Seconds that a button waits for the thread to answer, once its worker has started."""

RESUME_POLL_SECONDS = 0.1

LOOK_SECONDS = 2.0
"""The most that one look at a thread takes that is being resumed: a query to a run that closes meanwhile may never be answered."""

Body = Mapping[str, JsonValue]


class NewRubric(Strict):
    """The content of the form for a new rubric."""

    rubric: str
    """The content of a rubric file: a list in text, YAML, or JSON."""


async def _resume(site: Site, thread_id: str, body: Body) -> None:
    """Resume the run, and return once it goes on; nobody waits for its end here."""
    # A resumption ends with the run, perhaps hours later, and a button must not wait for that. So it is begun
    # beside the request, and the answer goes out as soon as the thread has one event more: then it goes on,
    # or was refused, which the call itself raises.
    wanted = parse_update(ResumeRequest, body)
    seen = (await site.client.events(thread_id, after=NEWEST)).total
    resuming = site.begin(site.client.resume(thread_id, budget=wanted.budget, model=wanted.model, grader=wanted.grader))
    try:
        while not resuming.done() and not await _has_moved(site, thread_id, seen):
            await asyncio.wait([resuming], timeout=RESUME_POLL_SECONDS)
    except BaseException:
        resuming.cancel()
        raise
    if resuming.done():
        resuming.result()


async def _has_moved(site: Site, thread_id: str, seen: int) -> bool:
    """True where anything has happened since; False where the thread, which may just be opened again, gives no answer."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return (await site.client.events(thread_id, after=NEWEST)).total != seen
    except (TimeoutError, GradeloopError):
        return False


async def _rubric(site: Site, thread_id: str, body: Body) -> None:
    with explained():
        text = NewRubric.model_validate(body).rubric
    rubric = pasted_rubric(text)
    await site.client.supply_rubric(thread_id, rubric if isinstance(rubric, dict) else text)


ACTIONS: Mapping[str, Callable[[Site, str, Body], Coroutine[Any, Any, object]]] = {
    "interrupt": lambda site, thread_id, _: site.client.interrupt(thread_id),
    "resume": _resume,
    "rubric": _rubric,
    "decide": lambda site, thread_id, body: site.client.decide(thread_id, **dict(parse_update(DecideRequest, body))),
    "override": lambda site, thread_id, body: site.client.override(thread_id, **dict(parse_update(OverrideRequest, body))),
    "approve": lambda site, thread_id, body: site.client.approve(thread_id, **dict(parse_update(ApproveRequest, body))),
    "deny": lambda site, thread_id, body: site.client.deny(thread_id, **dict(parse_update(DenyRequest, body))),
    "close": lambda site, thread_id, _: site.client.close_thread(thread_id),
}
"""The actions of a thread's page by the last segment of their path; each calls one method of the typed client."""

DECISIONS = frozenset({"decide", "override", "approve", "deny"})
"""The actions that are recorded with the person who took them."""

_STRUCTURED = re.compile(r"\A\s*\{|^criteria\s*:", re.MULTILINE)
"""Sign of YAML or JSON, as opposed to the list of a text file: an object has to name its criteria."""


def pasted_rubric(text: str) -> JsonValue:
    """Return a rubric that was pasted from a file: the text itself, or the object that its YAML or JSON describes.

    Raises:
        InvalidRequest: It is not a rubric; the message names line, column, field and cure.
    """
    where = "the rubric"
    if not _STRUCTURED.search(text):
        refuse_bad_rubric(text, {}, (), where)
        return text
    value, placed = read_placed(text, where)
    if _names_a_file(value):
        raise InvalidRequest("prompt: a pasted rubric cannot refer to a file; paste the content of the file")
    refuse_bad_rubric(value, placed, (), where)
    return value


def _names_a_file(value: JsonValue) -> bool:
    """True where a prompt is in a file, which only the one who has the rubric's file can read."""
    if isinstance(value, list):
        return any(map(_names_a_file, value))
    if not isinstance(value, dict):
        return False
    return str(value.get("prompt")).startswith("file://") or _names_a_file(value.get("criteria"))


async def read_body(request: Request) -> dict[str, JsonValue]:
    """Return the object that a script sent; an empty body is an empty object. Raise InvalidRequest where it is not a JSON object."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object; send one")
    return body
