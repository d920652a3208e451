"""The live page: threads and batches as they change, and people's words, each with its effect in the thread itself."""

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio.client import Client

from gradeloop.batches.pages.read_batch import stored_batch_page
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import GradingClient
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest
from gradeloop.reports.html import batch_path, case_path, read_id, thread_path
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.settings.paths import user_name
from gradeloop.temporal.connect import Connection
from gradeloop.web import pages as thread_pages
from gradeloop.web.guard import listening
from gradeloop.web.pages import pasted_rubric
from gradeloop.web.site import REMEMBERED, ShownPage, Site
from tests.rig.batches import batching, case, drafted, fails, passes
from tests.rig.cli import CommandLine, ended, line_of, verdict
from tests.rig.cli import draft as draft_of
from tests.rig.pages import Browser, paged
from tests.rig.threads import (
    Models,
    Served,
    a_thread,
    answering,
    draft,
    failing_until,
    grade,
    request,
    row,
    serving,
    start,
    until,
    verdict_text,
    wants,
)
from tests.workflows.test_approval import asking, counted, pending
from tests.workflows.test_people import RUBRIC

SECONDS = 240.0


@asynccontextmanager
async def opened(client: GradingClient, folder: Path, ui: str | None = None) -> AsyncIterator[Browser]:
    """Serve the live page of a client of the test's server."""
    address = client.temporal.service_client.config.target_host
    async with paged(client, Connection(address, "default", embedded=False), folder, ui=ui) as browser:
        yield browser


@asynccontextmanager
async def running(client: Client, folder: Path, models: Models | None = None, **options: Any) -> AsyncIterator[tuple[Served, Browser]]:
    """Serve threads in turns, and their live page."""
    async with serving(client, models=models or answering(), **options) as served, opened(served.client, folder) as browser:
        yield served, browser


async def shows(browser: Browser, path: str, words: str) -> str:
    """Return a page once it shows the words."""
    text = ""
    async with asyncio.timeout(SECONDS):
        while words not in (text := unescape((await browser.get(path)).text)):
            await asyncio.sleep(0.05)
    return text


async def settled(browser: Browser, path: str) -> str:
    """Return the tag of a page that does not change any more."""
    tag, calm = "", 0
    async with asyncio.timeout(SECONDS):
        while calm < 3:
            answer = await browser.part(path, tag)
            calm = calm + 1 if answer.status_code == 304 else 0
            tag = answer.headers["ETag"]
            await asyncio.sleep(0.1)
    return tag


def ok(answer: Any) -> bool:
    """Tell whether a word was taken."""
    assert answer.json()["ok"] is True, answer.text
    return bool(answer.status_code == 200)


def refusal(answer: Any) -> str:
    """Return why a word was not."""
    assert 400 <= answer.status_code < 500
    return str(answer.json()["error"])


class TestIndex:
    async def test_it_lists_threads_newest_first_and_batches_with_their_progress(self, client: Client, tmp_path: Path) -> None:
        batch_id = f"batch-{uuid4()}"
        async with batching(client, tmp_path, passes(), draft()) as batches:
            await batches.run([case("a"), case("b")], batch_id=batch_id)
            first, second = f"listed-{uuid4()}", f"listed-{uuid4()}"
            for name in (first, second):
                await (await batches.served.start(request("- x"), id=name)).result()
            async with opened(GradingClient(client, task_queue=batches.served.task_queue), tmp_path, ui="http://127.0.0.1:1/ui") as browser:
                page = await shows(browser, "/", second)
                await shows(browser, "/", first)
                page = await shows(browser, "/", second)

        assert page.index(second) < page.index(first)
        assert f'href="/threads/{second}"' in page
        assert f'href="/batches/{batch_id}"' in page
        assert '<progress max="2" value="2"' in page
        assert "2 of 2" in page
        assert 'href="http://127.0.0.1:1/ui"' in page

    async def test_the_page_of_a_batch_that_has_not_changed_is_made_once(
        self, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch_id, made = f"batch-{uuid4()}", list[str]()

        async def make(reader: BatchReader, name: str, **more: Any) -> str:
            made.append(name)
            return await stored_batch_page(reader, name, **more)

        monkeypatch.setattr("gradeloop.batches.pages.live.stored_batch_page", make)
        async with batching(client, tmp_path, passes(), draft()) as batches:
            await batches.run([case("a"), case("b", label="other")], batch_id=batch_id)
            async with opened(GradingClient(client, task_queue=batches.served.task_queue), tmp_path) as browser:
                first, second = [await browser.get(f"/batches/{batch_id}") for _ in range(2)]

        assert made == [batch_id]
        assert first.text == second.text
        assert 'class="plain stack rates"' in first.text

    async def test_it_changes_with_what_it_lists_and_stays_the_same_otherwise(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            first = await browser.get("/")
            thread_id = a_thread()
            await served.client.invoke(thread_id, "hello", start=start())
            await shows(browser, "/", thread_id)
            changed = await browser.part("/", first.headers["ETag"])

        assert changed.status_code == 200, changed.text
        assert changed.text.startswith("<main ")
        assert changed.text.endswith("</main>")

    async def test_a_store_that_cannot_be_opened_hides_no_thread(self, client: Client, tmp_path: Path) -> None:
        (tmp_path / "results.db").mkdir()
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            await served.client.invoke(thread_id, "hello", start=start())
            page = await shows(browser, "/", thread_id)
            batch = await browser.get("/batches/any")

        assert "the store" in page
        assert "cannot be used" in page
        assert (batch.status_code, "cannot be used" in batch.text) == (503, True)

    async def test_a_page_that_is_not_there_says_so(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (_, browser):
            nowhere, thread, batch = [await browser.get(path) for path in ("/nowhere", "/threads/no%3Cb%3Esuch", "/batches/none")]
            part = await browser.part("/threads/none")
            said = await browser.say("/threads/none/interrupt")

        assert [item.status_code for item in (nowhere, thread, batch, part, said)] == [404, 404, 404, 404, 404]
        assert "page not found; start at /" in nowhere.text
        assert "there is no thread 'no<b>such'" in unescape(thread.text)
        assert "<b>such" not in thread.text
        assert "there is no batch 'none' in the store" in unescape(batch.text)
        assert part.json() == said.json() == {"error": "there is no thread 'none' on this server"}


class TestThreadPage:
    @pytest.mark.slow
    async def test_it_changes_as_the_thread_does_and_nothing_is_read_again_otherwise(
        self, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []
        real = read_thread_report

        async def counting(asked: GradingClient, thread_id: str) -> Any:
            read.append(thread_id)
            return await real(asked, thread_id)

        monkeypatch.setattr(thread_pages, "read_thread_report", counting)
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            turn = await served.begun(thread_id, "generator")
            first = await browser.get(path)
            tag = await settled(browser, path)
            before = len(read)
            same = await browser.part(path, tag)
            after = len(read)
            served.models.release()
            await turn
            changed = await browser.part(path, tag)

        assert 'http-equiv="Content-Security-Policy"' in first.text
        assert 'data-word="generating"' in first.text
        assert (same.status_code, same.text, after - before) == (304, "", 0)
        assert (changed.status_code, changed.headers["ETag"] != tag) == (200, True)
        assert "draft 1" in changed.text
        assert 'data-word="satisfied"' in changed.text
        assert changed.text.startswith("<main ")

    async def test_a_thread_at_rest_is_looked_at_without_its_worker(self, client: Client, tmp_path: Path) -> None:
        thread_id = a_thread()
        async with opened(GradingClient(client), tmp_path) as browser:
            async with serving(client, models=answering()) as served:
                await served.client.invoke(thread_id, "hello", start=start())
                await served.client.close_thread(thread_id)
                await served.client.result(thread_id)
                tag = await settled(browser, thread_path(thread_id))
            same = await browser.part(thread_path(thread_id), tag)

        assert same.status_code == 304

    async def test_a_thread_whose_worker_has_gone_says_so_with_the_cure_and_the_others_still_show(
        self, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(thread_pages, "WORKER_SECONDS", 0.5)
        lost, there = a_thread(), a_thread()
        async with serving(client, models=answering()) as gone:
            await gone.client.invoke(lost, "hello", start=start(idle_timeout=600))
        async with running(client, tmp_path) as (served, browser):
            await served.client.invoke(there, "hello", start=start())
            page, part = await browser.get(thread_path(lost)), await browser.part(thread_path(lost))
            shown = await browser.get(thread_path(there))
            listed = await shows(browser, "/", lost)

        assert (page.status_code, part.status_code, shown.status_code) == (503, 503, 200)
        words = f"no worker answers for the thread '{lost}'; start one: gradeloop worker --task-queue {gone.task_queue}"
        assert words in unescape(page.text)
        assert words in part.json()["error"]
        assert "Traceback" not in page.text
        assert there in listed

    @pytest.mark.slow
    async def test_an_id_may_hold_any_character(self, client: Client, tmp_path: Path, subtests: pytest.Subtests) -> None:
        names = ("a/b", "a%2Fb", "a?b#c", "100%25", "ünï ✓", "a/interrupt", "=x", "a b&c=d", "'><b>")
        async with running(client, tmp_path) as (served, browser):
            for name in names:
                with subtests.test(name):
                    thread_id = f"{name}-{uuid4()}"
                    turn = await served.begun(thread_id, "generator")
                    listed = await shows(browser, "/", thread_id)
                    page = await browser.get(thread_path(thread_id))
                    taken = await browser.say(f"{thread_path(thread_id)}/interrupt")
                    result = await turn

                    assert f'href="{thread_path(thread_id)}"' in listed
                    assert page.status_code == 200
                    assert f"{thread_path(thread_id)}/interrupt" in page.text
                    assert (ok(taken), result.status) == (True, "interrupted")

    def test_an_id_is_decoded_once(self) -> None:
        for name in ("%25", "%2525", "a/b", ".", "..", "=", "==", "=..", "ü", "a+b", " "):
            assert read_id(thread_path(name).removeprefix("/threads/")) == name
            assert "/" not in thread_path(name).removeprefix("/threads/")
        assert batch_path("b") == "/batches/b"
        assert case_path("b", "c/d") == "/batches/b/cases/c%2Fd"

    async def test_what_was_said_is_shown_and_never_obeyed(self, client: Client, tmp_path: Path) -> None:
        models = answering()
        evil = '</main><script>alert(1)</script><img src=x onerror="alert(2)">'
        models.answers["generator"] = lambda _step, _number: evil
        async with running(client, tmp_path, models) as (served, browser):
            thread_id = a_thread()
            await served.client.invoke(thread_id, evil, start=start())
            page, part = await browser.get(thread_path(thread_id)), await browser.part(thread_path(thread_id))

        assert evil not in page.text
        assert evil in unescape(page.text)
        assert part.text.count("</main>") == 1
        assert browser.token not in part.text


UNREADABLE = [
    ("# only a heading", "the rubric has no criterion"),
    ('{"criteria": ["x"], "scorign": "mean"}', "the rubric, line 1, column 1: unknown key 'scorign'. Did you mean 'scoring'?"),
    ("name: x\ncriteria:\n  - id: a\n    description: b\n    weight: much\n", "line 5"),
    ("criteria:\n  - [", "the rubric, line"),
    ("prompt: file:///etc/passwd\ncriteria: [a]\n", "a pasted rubric cannot refer to a file"),
    ('{"criteria": [{"description": "a", "prompt": "file:///etc/passwd"}]}', "a pasted rubric cannot refer to a file"),
]


class TestSteering:
    @pytest.mark.slow
    async def test_interrupt_and_resume(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            turn = await served.begun(thread_id, "generator")
            before = (await browser.get(path)).text
            stopped = ok(await browser.say(f"{path}/interrupt"))
            first = await turn
            between = (await browser.get(path)).text
            resumed = ok(await browser.say(f"{path}/resume"))
            going_on = (await served.client.state(thread_id)).status
            served.models.release()
            await served.until(thread_id, lambda state: state.status == "idle")
            types = await served.types(thread_id)
            again = await browser.say(f"{path}/resume")

        assert (stopped, resumed, first.status, going_on) == (True, True, "interrupted", "running")
        assert types[:3] == ["run_started", "interrupted", "resumed"]
        assert types[-1] == "run_ended"
        assert f'data-to="{path}/interrupt"' in before
        assert f'data-to="{path}/resume"' not in before
        assert f'data-to="{path}/resume"' in between
        assert f'data-to="{path}/interrupt"' not in between
        assert "nothing" in refusal(again)

    async def test_a_run_that_its_budget_stopped_is_resumed_with_a_larger_one(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            first = await served.client.invoke(thread_id, "hello", start=start(budget={"max_tokens": 5}))
            without = refusal(await browser.say(f"{path}/resume"))
            malformed = refusal(await browser.say(f"{path}/resume", {"budget": {"max_tokens": 0}}))
            taken = ok(await browser.say(f"{path}/resume", {"budget": {"max_tokens": 10_000}}))
            await served.until(thread_id, lambda state: state.status == "idle")
            result = await served.client.last_result(thread_id)

        assert (first.status, first.reason, taken) == ("interrupted", "budget", True)
        assert "5" in without
        assert malformed.startswith("budget.max_tokens: ")
        assert result
        assert result.status == "satisfied"

    async def test_a_run_whose_model_is_gone_is_resumed_with_another(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            served.models.fail_first("generator", kind="not_found", usage=Usage())
            await served.client.invoke(thread_id, "hello", start=start())
            page = (await browser.get(path)).text
            taken = ok(await browser.say(f"{path}/resume", {"model": "scripted:other"}))
            await served.until(thread_id, lambda state: state.status == "idle")

        assert taken
        assert 'name="model"' in page
        assert served.models.requests_of("generator")[-1].spec.id == "scripted:other"

    @pytest.mark.slow
    async def test_a_closed_thread_that_was_interrupted_is_resumed(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            turn = await served.begun(thread_id, "generator")
            await served.client.interrupt(thread_id)
            await turn
            await served.client.close_thread(thread_id)
            await served.client.result(thread_id)
            page = await browser.get(thread_path(thread_id))
            served.models.release()
            taken = ok(await browser.say(f"{thread_path(thread_id)}/resume"))
            await served.until(thread_id, lambda state: state.status == "idle")
            result = await served.client.last_result(thread_id)

        assert taken
        assert result
        assert result.status == "satisfied"
        assert 'data-open="no"' in page.text
        assert "This thread is closed; resuming it continues from its checkpoint" in page.text

    async def test_a_new_rubric_is_taken_in_the_middle_of_a_run(self, client: Client, tmp_path: Path) -> None:
        models = answering()
        models.answers["grader"] = lambda step, number: verdict_text(True, *[f"c{at}" for at in (1, 2)][: 2 if step.run else 1])
        async with running(client, tmp_path, models) as (served, browser):
            thread_id = a_thread()
            turn = await served.begun(thread_id, "grader")
            taken = ok(await browser.say(f"{thread_path(thread_id)}/rubric", {"rubric": "- it is good\n- it is short"}))
            models.release()
            await turn
            await served.until(thread_id, lambda state: state.status == "idle")
            state = await served.client.state(thread_id)
            types = await served.types(thread_id)

        assert taken
        assert state.rubric
        assert [criterion.description for criterion in state.rubric.criteria] == ["it is good", "it is short"]
        assert "rubric_supplied" in types

    def test_a_rubric_that_cannot_be_read_is_refused_with_its_place(self, subtests: pytest.Subtests) -> None:
        for text, words in UNREADABLE:
            with subtests.test(words):
                with pytest.raises(InvalidRequest) as caught:
                    pasted_rubric(text)

                assert words in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["- a\n- b", "Style:\n- a: b\n- b", '  {"criteria": ["a", "b"]}', "name: x\ncriteria:\n  - a\n  - b\n"]
    )
    def test_a_rubric_is_read_as_it_stands_in_a_file(self, text: str) -> None:
        read = pasted_rubric(text)

        assert isinstance(read, dict) == ("criteria" in text)

    async def test_bad_words_are_answered_in_words(self, client: Client, tmp_path: Path) -> None:
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            await served.client.invoke(thread_id, "hello", start=start())
            said = {
                "rubric": refusal(await browser.say(f"{path}/rubric", {"rubric": "# nothing"})),
                "typo": refusal(await browser.say(f"{path}/rubric", {"rubrik": "- a"})),
                "type": refusal(await browser.say(f"{path}/rubric", {"rubric": ["a"]})),
                "decide": refusal(await browser.say(f"{path}/decide", {"criterion": "c1", "passed": True})),
                "override": refusal(await browser.say(f"{path}/override", {"criterion": "c1", "passed": "perhaps"})),
                "approve": refusal(await browser.say(f"{path}/approve", {"call": ""})),
                "action": refusal(await browser.say(f"{path}/explode")),
            }
            closed = ok(await browser.say(f"{path}/close"))
            await served.client.result(thread_id)
            late = await browser.say(f"{path}/interrupt")

        assert closed
        assert (late.status_code, late.json()["error"]) == (409, f"the thread '{thread_id}' is closed")
        assert "no criterion" in said["rubric"]
        assert "Did you mean 'rubric'?" in said["typo"]
        assert said["type"].startswith("rubric: ")
        assert "grading_run_id: " in said["decide"]
        assert "passed: " in said["override"]
        assert "call: " in said["approve"]
        assert said["action"].startswith("Unknown action 'explode'. Known: interrupt, resume, rubric")

    @pytest.mark.slow
    async def test_a_person_decides_what_waits(self, client: Client, tmp_path: Path) -> None:
        async with serving(client, draft(), grade(), draft(1), grade(1)) as served, opened(served.client, tmp_path) as browser:
            thread = await served.start(request(RUBRIC))
            path = thread_path(thread.id)
            state = await until(thread, "waiting")
            page = unescape((await browser.get(path)).text)
            about = {name: state["waiting_for"][name] for name in ("grading_run_id", "iteration")} | {"criterion": "promise"}
            gapless = refusal(await browser.say(f"{path}/decide", about | {"passed": False}))
            failed = ok(await browser.say(f"{path}/decide", about | {"passed": False, "gap": "it promises"}))
            again = await until(thread, "waiting")
            stale = refusal(await browser.say(f"{path}/decide", about | {"passed": True}))
            about["iteration"] = again["waiting_for"]["iteration"]
            passed = ok(await browser.say(f"{path}/decide", about | {"passed": True}))
            result = await thread.result()

        assert f'data-to="{path}/decide"' in page
        assert "Promises nothing" in page
        assert "gap is missing" in gapless
        assert stale
        assert (failed, passed, result.status) == (True, True, "satisfied")
        criteria = [evaluation.criteria[1] for evaluation in result.evaluations]
        assert [(item.passed, item.reason, item.gap) for item in criteria] == [
            (False, f"decided by {user_name()}", "it promises"),
            (True, f"decided by {user_name()}", None),
        ]

    @pytest.mark.slow
    async def test_the_page_asks_about_the_draft_in_question_and_names_no_other_one_the_best(self, client: Client, tmp_path: Path) -> None:
        replies = [draft(text="a cat sat"), grade(), draft(1, text="the dog sat"), grade(1)]
        async with serving(client, *replies) as served, opened(served.client, tmp_path) as browser:
            thread = await served.start(request(RUBRIC))
            path = thread_path(thread.id)
            state = await until(thread, "waiting")
            about = {name: state["waiting_for"][name] for name in ("grading_run_id", "iteration")} | {"criterion": "promise"}
            assert ok(await browser.say(f"{path}/decide", about | {"passed": False, "gap": "no cats"}))
            await until(thread, "waiting")
            page = unescape((await browser.get(path)).text)
            report = run_page(await read_thread_report(served.client, thread.id))

        for shown in (page, unescape(report)):
            question = shown[shown.index('<div class="question">') : shown.index("<h2>Conversation</h2>")]
            assert 'aria-label="Draft in question">the dog sat</div>' in question
            assert "<del>a cat</del><ins>the dog</ins> sat" in question
            assert "three lines" in question
            assert '<span class="badge waiting">in question</span>' in shown
            assert "best draft" not in shown
        assert page.index('<div class="question">') < page.index(f'data-to="{path}/decide"')

    @pytest.mark.slow
    async def test_a_person_overrides_a_verdict_of_a_thread_that_is_closed_too(self, client: Client, tmp_path: Path) -> None:
        models = answering()
        models.answers["grader"] = failing_until(9)
        async with running(client, tmp_path, models) as (served, browser):
            thread_id = a_thread()
            path = thread_path(thread_id)
            result = await served.client.invoke(thread_id, "hello", start=start(max_iterations=1))
            await served.client.close_thread(thread_id)
            await served.client.result(thread_id)
            page = (await browser.get(path)).text
            tag = await settled(browser, path)
            last = result.evaluations[-1]
            about = {"grading_run_id": last.grading_run_id, "iteration": last.iteration, "criterion": "c1"}
            taken = ok(await browser.say(f"{path}/override", about | {"passed": True, "why": "good enough"}))
            evaluation = (await served.client.evaluations(thread_id)).items[-1]
            changed = await browser.part(path, tag)

        assert taken
        assert f'data-to="{path}/override"' in page
        assert evaluation.overridden_result == "satisfied"
        assert evaluation.criteria[0].override
        assert (evaluation.criteria[0].override.by, evaluation.criteria[0].override.why) == (user_name(), "good enough")
        assert changed.status_code == 200, changed.text
        assert "good enough" in changed.text

    async def test_a_person_approves_and_denies_calls(self, client: Client, tmp_path: Path) -> None:
        book, booked = counted("book", needs_approval=True)
        replies = [
            draft(),
            wants("grader", {"name": "book", "arguments": {"amount": 7}}, {"name": "book", "arguments": {"amount": 8}}),
            grade(step=1),
        ]
        async with serving(client, *replies, tools=[book]) as served, opened(GradingClient(client), tmp_path) as browser:
            thread = await served.start(asking("book"))
            path = thread_path(thread.id)
            await pending(thread)
            calls = (await until(thread, "waiting"))["waiting_for"]["calls"]
            page = unescape((await browser.get(path)).text)
            approved = ok(await browser.say(f"{path}/approve", {"call": calls[0]["call"]}))
            unexplained = refusal(await browser.say(f"{path}/deny", {"call": calls[1]["call"]}))
            denied = ok(await browser.say(f"{path}/deny", {"call": calls[1]["call"], "why": "too much"}))
            result = await thread.result()

        assert (approved, denied, result.status) == (True, True, "satisfied")
        assert "why" in unexplained
        assert [booking["amount"] for booking in booked] == [calls[0]["arguments"]["amount"]]
        assert page.count("asks to call") == 2
        assert '"amount": 7' in page


class TestBatches:
    async def test_a_batch_and_its_cases_have_pages(self, client: Client, tmp_path: Path) -> None:
        batch_id = f"batch-{uuid4()}"
        async with batching(client, tmp_path, passes(), fails("b/1"), draft()) as batches:
            await batches.run([case("a"), case("b/1"), drafted("c")], batch_id=batch_id)
            async with opened(GradingClient(client, task_queue=batches.served.task_queue), tmp_path) as browser:
                page = await browser.get(batch_path(batch_id))
                tag = page.headers["ETag"]
                same = await browser.part(batch_path(batch_id), tag)
                failed = await browser.get(case_path(batch_id, "b/1"))
                missing = await browser.get(case_path(batch_id, "x"))
                paused = await browser.say(f"{batch_path(batch_id)}/pause")

        assert (page.status_code, same.status_code, failed.status_code, missing.status_code) == (200, 304, 200, 404)
        assert batch_id in page.text
        assert "it is not" in failed.text
        assert f'<a href="{batch_path(batch_id)}">{batch_id}</a> / b/1' in failed.text
        assert failed.text.index("What failed") < failed.text.index("Conversation")
        assert re.search('id="live"[^>]* hidden>', failed.text)
        assert "has no case 'x'" in unescape(missing.text)
        assert "is not running; there is nothing to pause" in refusal(paused)

    async def test_a_batch_that_runs_is_paused_from_its_page(self, client: Client, tmp_path: Path) -> None:
        batch_id = f"batch-{uuid4()}"
        async with batching(client, tmp_path, passes(), draft()) as batches:
            gate = batches.served.models.gate("generator")
            await batches.upload(batch_id, [drafted(f"c{number}") for number in range(20)])
            handle = await batches.start(batch_id, 20, at_once=1)
            await gate.reached.wait()
            async with opened(GradingClient(client, task_queue=batches.served.task_queue), tmp_path) as browser:
                before = await browser.get(batch_path(batch_id))
                taken = ok(await browser.say(f"{batch_path(batch_id)}/pause"))
                gate.opened.set()
                summary = await handle.result()
                after = await shows(browser, batch_path(batch_id), "paused")

        assert taken
        assert (before.status_code, summary.status) == (200, "paused")
        assert summary.done < 20
        assert 'data-open="no"' in after

    async def test_a_case_that_was_a_thread_leads_to_it(self, client: Client, tmp_path: Path) -> None:
        batch_id = f"batch-{uuid4()}"
        async with batching(client, tmp_path, draft(), grade(0, row("c1", "shorter")), draft(1), grade(1)) as batches:
            _, (result,) = await batches.run([drafted("looped", loop=True)], batch_id=batch_id)
            async with opened(GradingClient(client, task_queue=batches.served.task_queue), tmp_path) as browser:
                page = unescape((await browser.get(case_path(batch_id, "looped"))).text)
                assert result.thread_id
                thread = await browser.get(thread_path(result.thread_id))

        assert f'href="{thread_path(result.thread_id)}"' in page
        assert "shorter" in page
        assert not re.search('id="live"[^>]* hidden>', page)
        assert "Save override" not in page
        assert thread.status_code == 200


class TestLifetime:
    async def test_it_ends_at_once_with_connections_that_are_open(self, client: Client, tmp_path: Path) -> None:
        async with opened(GradingClient(client), tmp_path) as browser:
            await browser.get("/")
            port = browser.port
            _, idle = await asyncio.open_connection("127.0.0.1", port)
            _, half = await asyncio.open_connection("127.0.0.1", port)
            half.write(f"POST /threads/x/rubric HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 10\r\n".encode())
            await half.drain()
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
        took = asyncio.get_running_loop().time() - began
        for writer in (idle, half):
            writer.close()

        assert took < 10
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", port)

    async def test_a_failure_of_our_own_is_logged_and_not_shown(
        self, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(*_: object) -> None:
            raise RuntimeError("a secret of the machine")

        monkeypatch.setattr(thread_pages, "read_thread_report", broken)
        async with running(client, tmp_path) as (served, browser):
            thread_id = a_thread()
            await served.client.invoke(thread_id, "hello", start=start())
            page = await browser.get(thread_path(thread_id))

        assert page.status_code == 500
        assert "a secret" not in page.text
        assert "gradeloop failed; its terminal shows the error" in page.text
        assert "a secret of the machine" in caplog.text
        assert browser.token not in caplog.text

    def test_what_was_shown_is_remembered_within_bounds(self) -> None:
        site = Site(None, None, None, "token")  # type: ignore[arg-type]  # none of them is asked
        for number in range(REMEMBERED + 1):
            site.remember(f"/{number}", ShownPage("mark", "tag"))

        assert site.shown("/0") is None
        assert site.shown("/1")


@pytest.fixture
def gradeloop(commands: CommandLine) -> Iterator[CommandLine]:
    """Return the command with the test run's server, and end whatever it leaves."""
    yield commands
    leftovers_ended(commands)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[CommandLine]:
    """Return the command with a server of its own, and end whatever it leaves."""
    command = CommandLine(tmp_path / "state", tmp_path)
    yield command
    leftovers_ended(command)
    command.end()


def leftovers_ended(command: CommandLine) -> None:
    """End the commands of a test that failed: their workers would hold the pipes that are read at the end."""
    for process in command._started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=SECONDS)


def begun(gradeloop: CommandLine, *flags: str, **variables: str) -> tuple[subprocess.Popen[str], str, str]:
    """Start `gradeloop dev`, and return it with what it printed and where its page is."""
    dev = gradeloop.start("dev", *flags, **variables)
    lines = [line_of(dev) for _ in range(5)]
    return dev, "".join(lines), lines[0].removeprefix("Page").strip()


def stopped(dev: subprocess.Popen[str], printed: str) -> float:
    """Press Ctrl-C, and return how long the end took."""
    began = time.monotonic()
    dev.send_signal(signal.SIGINT)
    done = ended(dev, printed)

    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return time.monotonic() - began


class TestDev:
    @pytest.mark.slow
    def test_it_ends_with_a_sentence_when_its_server_is_stopped_elsewhere(self, alone: CommandLine) -> None:
        with listening(0) as free:
            port = str(free.getsockname()[1])
        dev, printed, _ = begun(alone, GRADELOOP_PAGE_PORT=port)
        stopped_there = alone("dev", "stop")
        done = ended(dev, printed)

        assert stopped_there.code == 0
        assert done.code == 0, done.err
        assert "the server was stopped elsewhere, so `gradeloop dev` ends too" in done.out
        assert "Traceback" not in done.err

    @pytest.mark.slow
    def test_ctrl_c_ends_page_worker_and_server_and_frees_the_port(self, alone: CommandLine) -> None:
        dev, printed, address = begun(alone)
        with httpx2.Client(trust_env=False, timeout=SECONDS) as http:
            page = http.get(address)
            took = stopped(dev, printed)
            with pytest.raises(httpx2.ConnectError):
                http.get(address)

        assert [line.split()[0] for line in printed.splitlines()] == ["Page", "OTLP", "Queue", "Temporal", "UI"]
        assert page.status_code == 200
        assert took < 15

    @pytest.mark.slow
    def test_two_at_once_have_pages_of_their_own_and_neither_takes_the_others_word(self, gradeloop: CommandLine) -> None:
        one, first, here = begun(gradeloop)
        two, second, there = begun(gradeloop)
        with httpx2.Client(trust_env=False, timeout=SECONDS) as http:
            pages = [http.get(address) for address in (here, there)]
            tokens = [re.findall(r'name="gradeloop-token" content="([^"]+)"', page.text)[0] for page in pages]
            said = [http.post(f"{there}/threads/x/interrupt", json={}, headers={"X-Gradeloop-Token": token}) for token in tokens]
        for dev, printed in ((two, second), (one, first)):
            stopped(dev, printed)

        assert here != there
        assert tokens[0] != tokens[1]
        assert [answer.status_code for answer in said] == [403, 404]

    @pytest.mark.slow
    def test_a_thread_of_gradeloop_run_is_shown_though_its_worker_has_gone(self, gradeloop: CommandLine) -> None:
        task = gradeloop.task("mine", [draft_of("a poem of four lines"), verdict()])
        done = gradeloop("run", task, "--json")
        thread_id = done.result["thread_id"]
        gradeloop.kill_workers()
        dev, printed, address = begun(gradeloop)
        with httpx2.Client(trust_env=False, timeout=SECONDS) as http:
            listed, page = http.get(address), http.get(address + thread_path(thread_id))
        stopped(dev, printed)

        assert thread_id in listed.text
        assert page.status_code == 200, page.text
        assert "a poem of four lines" in page.text

    @pytest.mark.slow
    def test_a_port_that_was_asked_for_is_the_pages_or_a_refusal(self, gradeloop: CommandLine) -> None:
        with listening(0) as taken:
            port = str(taken.getsockname()[1])
            refused = gradeloop("dev", GRADELOOP_PAGE_PORT=port)
        dev, printed, address = begun(gradeloop, GRADELOOP_PAGE_PORT=port)
        stopped(dev, printed)

        assert refused.code == 2
        assert f"GRADELOOP_PAGE_PORT is {port}, a port that cannot be opened" in refused.err
        assert address == f"http://127.0.0.1:{port}"

    @pytest.mark.slow
    def test_without_what_the_page_takes_the_rest_is_served_and_it_is_said_how_to_get_it(
        self, gradeloop: CommandLine, tmp_path: Path
    ) -> None:
        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "starlette.py").write_text("raise ModuleNotFoundError(\"No module named 'starlette'\", name='starlette')\n")
        dev, printed, page = begun(gradeloop, PYTHONPATH=str(tmp_path / "without"))
        stopped(dev, printed)

        assert page == "not served; install it with: pip install 'gradeloop[embedded]'"


def test_a_style_and_a_script_of_the_page_need_no_inline_handlers() -> None:
    folder = Path(thread_pages.__file__).parent.parent / "reports" / "templates"
    for path in folder.glob("live*"):
        text = path.read_text()

        assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:", text), path.name
