"""The live index and the page of trends: what is found, grouped and said of many batches, and what of it is read."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from rich.console import Console
from rich.table import Table
from sqlalchemy import event
from sqlalchemy.engine import Engine
from temporalio.client import Client

from gradeloop.batches.cli.batch_view import batch_table
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.trends import changes_since, charts_of, group_by_suite, named_trend, read_trend
from gradeloop.client.client import GradingClient
from gradeloop.errors import InvalidRequest
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import Connection
from tests.rig.pages import Browser, paged
from tests.rig.stored_batches import put_batch

DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOSTILE = "</td><script>alert(1)</script>\u202e\" onx='1"


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the statements that are sent to databases."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    event.listen(Engine, "before_cursor_execute", note)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)


@asynccontextmanager
async def indexed(client: Client, folder: Path) -> AsyncIterator[tuple[Store, Browser]]:
    """Serve the live page of a store that a test fills."""
    store = Store(f"sqlite:///{folder / 'results.db'}")
    address = client.service_client.config.target_host
    async with paged(GradingClient(client), Connection(address, "default", embedded=False), folder) as browser:
        yield store, browser
    store.close()


def main_of(text: str) -> str:
    return text[text.index("<main") : text.index("</main>")]


def rows_of(page: str) -> list[str]:
    """Return the rows of the table of suites, as text."""
    table = main_of(page).partition('id="batches"')[2].partition("</table>")[0]
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in table.split("<tr>")[2:]]


async def test_batches_of_a_suite_are_one_row_that_says_what_changed_and_what_fails_now(client: Client, tmp_path: Path) -> None:
    async with indexed(client, tmp_path) as (store, browser):
        put_batch(store, "old", {"a": "failed", "b": "failed", "c": "passed"}, created=DAY, name="nightly")
        put_batch(store, "mid", {"a": "failed", "b": "failed", "c": "passed"}, created=DAY + timedelta(1), name="nightly")
        put_batch(store, "new", {"a": "passed", "b": "failed", "c": "failed"}, created=DAY + timedelta(2), name="nightly")
        put_batch(store, "solo", {"x": "passed"}, created=DAY, name="other", models=("openai:gpt-5-mini",))
        page = (await browser.get("/")).text
        again = (await browser.get("/")).text

    nightly, other = rows_of(page)
    assert rows_of(page) == rows_of(again)
    assert "2 earlier" in nightly
    assert "1 fixed, 1 new since the batch before" in nightly
    assert "nothing fixed or new" in nightly
    assert main_of(page).count("/batches/old/cases/") == main_of(page).count("/batches/mid/cases/") == 0
    assert main_of(page).count("/batches/new/cases/") == 2
    assert 'href="/batches/new/trend"' in page
    assert "openai:gpt-5-mini" in other
    assert "/batches/solo/trend" not in page


@pytest.mark.parametrize(
    ("words", "found"),
    [("NIGHTLY", ["n"]), ("mini", ["m"]), ("tuesday", ["d"]), ("weekly tuesday", ["d"]), ("nothing", []), ("acme", ["t"]), ("<b>", [])],
)
async def test_the_search_finds_suites_descriptions_models_and_tenants_without_a_script(
    client: Client, tmp_path: Path, words: str, found: list[str]
) -> None:
    async with indexed(client, tmp_path) as (store, browser):
        put_batch(store, "n", {"a": "passed"}, name="nightly")
        put_batch(store, "m", {"a": "passed"}, name="other", models=("openai:gpt-5-mini",))
        put_batch(store, "d", {"a": "passed"}, name="before the release of Tuesday", suite="weekly")
        put_batch(store, "t", {"a": "passed"}, name="theirs", tenant="acme")
        answer = await browser.get(f"/?q={quote(words)}")
        part = await browser.get(f"/?part=1&q={quote(words)}")

    assert re.findall(r'<th scope="row"><a href="/batches/(\w+)"', answer.text) == found
    assert part.text == main_of(answer.text) + "</main>"
    assert f'value="{words.replace("<", "&lt;").replace(">", "&gt;")}"' in answer.text
    assert ("No batch has all of these words" in answer.text) == (not found)


async def test_what_needs_a_person_comes_first_and_is_counted(client: Client, tmp_path: Path) -> None:
    async with indexed(client, tmp_path) as (store, browser):
        put_batch(store, "doubt", {"a": "unsure", "b": "unsure"}, created=DAY, name="doubtful")
        put_batch(store, "fine", {"a": "passed"}, created=DAY + timedelta(1), name="fine")
        page = (await browser.get("/")).text

    assert [row.split()[0] for row in rows_of(page)] == ["doubtful", "fine"]
    waits = re.search(r"WAITING FOR A PERSON: (\d+ threads?, )?2 unsure cases", page)  # threads of other tests, on the same server
    assert waits is not None
    assert waits.start() < page.index('id="batches"')


async def test_suites_of_one_name_of_two_tenants_are_two_suites_with_histories_of_their_own(client: Client, tmp_path: Path) -> None:
    async with indexed(client, tmp_path) as (store, browser):
        for at, (tenant, status) in enumerate((("acme", "passed"), ("beta", "failed"), ("acme", "failed"), ("beta", "passed"))):
            put_batch(store, f"b{at}", {"a": status}, created=DAY + timedelta(at), tenant=tenant, name="nightly")  # type: ignore[dict-item]
        page = (await browser.get("/")).text
        trend = (await browser.get("/batches/b3/trend")).text

    beta, acme = rows_of(page)
    assert "1 fixed, 0 new" in beta
    assert "0 fixed, 1 new" in acme
    assert re.findall(r'<th scope="row"><a href="/batches/(\w+)"', trend) == ["b3", "b1"]


async def test_hostile_names_descriptions_models_and_comments_stay_text(client: Client, tmp_path: Path) -> None:
    case = {"description": HOSTILE}
    async with indexed(client, tmp_path) as (store, browser):
        for at in range(2):
            put_batch(
                store, f"b{at}", {"a": "failed"}, created=DAY + timedelta(at), name=HOSTILE, suite=HOSTILE, models=(HOSTILE,), case=case
            )
        said = await browser.say("/batches/b1/cases/a", {"passed": True, "comment": HOSTILE})
        pages = [
            (await browser.get(path)).text
            for path in ("/", f"/?q={quote(HOSTILE)}", "/batches/b1/trend", "/batches/b1/cases/a", "/batches/b1")
        ]

    assert said.json() == {"ok": True, "by": user_name()}
    for page in pages:
        assert "<script>alert" not in page
        assert "\u202e" not in page
    assert f"{user_name()} disagrees: it passes: &lt;/td&gt;" in pages[3]


async def test_an_empty_store_has_an_index_without_batches(client: Client, tmp_path: Path) -> None:
    async with indexed(client, tmp_path) as (_, browser):
        page, trend = await browser.get("/"), await browser.get("/batches/none/trend")

    assert (page.status_code, 'id="batches"' in page.text) == (200, False)
    assert (trend.status_code, "there is no batch" in trend.text) == (404, True)


async def test_three_hundred_batches_take_as_many_statements_as_twenty(client: Client, tmp_path: Path) -> None:
    counts: list[int] = []
    async with indexed(client, tmp_path) as (store, browser):
        for total in (20, 300):
            for at in range(total):
                put_batch(store, f"b{total}-{at}", {"a": "failed", "b": "passed"}, created=DAY + timedelta(at), name=f"suite {at % 100}")
            with statements() as sent:
                await browser.get("/")
            counts.append(len(sent))
        for _ in range(20):  # threads of other tests on the same server may still come to their ends
            page = await browser.get("/")
            if (await browser.part("/", page.headers["ETag"])).status_code == 304:
                break
        else:
            pytest.fail("the page is another one at each look")

    assert counts[1] <= counts[0]
    assert "80 suites more" in page.text


@pytest.mark.parametrize(
    ("rating", "headers", "status"),
    [
        ({"passed": False, "attempt": 0}, {}, 200),
        ({"comment": "why?", "attempt": 0}, {}, 200),
        ({"attempt": 0}, {}, 400),
        ({"passed": True, "attempt": 1}, {}, 400),
        ({"passed": True, "by": "somebody else"}, {}, 400),
        ({"passed": True, "created": "2020-01-01"}, {}, 400),
        ({"passed": True, "colour": "red"}, {}, 400),
        ({"passed": True}, {"Origin": "http://evil.example"}, 403),
        ({"passed": True}, {"X_Gradeloop_Token": "guessed"}, 403),
    ],
)
async def test_a_rating_comes_from_the_page_itself_and_from_nobody_else(
    client: Client, tmp_path: Path, rating: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async with indexed(client, tmp_path) as (store, browser):
        put_batch(store, "b", {"a/1": "passed"})
        said = await browser.say("/batches/b/cases/a%2F1", rating, **headers)
        _, result = await BatchReader(store).case("b", "a/1")
        page = (await browser.get("/batches/b/cases/a%2F1")).text

    assert said.status_code == status, said.text
    assert [one.by for one in result.ratings] == ([user_name()] if status == 200 else [])
    assert ("disagrees: it fails" in page) == (status == 200 and "passed" in rating)


async def test_a_trend_says_what_changed_in_the_suite_and_between_its_batches(url: str) -> None:
    store, reader = Store(url), None
    first = {"messages": [{"role": "user", "content": "Say hello."}], "vars": {"name": "Ann"}}
    models = [{"generator": {"model": f"scripted:{name}"}} for name in ("writer", "author")]
    made: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (first | models[0], {}),
        (first | models[0], {"seconds": 3.0}),
        (first | models[1], {}),
        (first | models[1] | {"rubric": "- it is short"}, {}),
        (first | models[1] | {"rubric": "- it is short"}, {"grader": "scripted:other"}),
        (
            first | models[1] | {"rubric": "- it is short", "messages": [{"role": "user", "content": "Greet."}]},
            {"grader": "scripted:other"},
        ),
    ]
    for at, (case, more) in enumerate(made):
        statuses: Any = {"a": "passed" if at % 2 else "failed", "b": "passed", f"only {at}": "error"}
        put_batch(store, f"b{at}", statuses, created=DAY + timedelta(at), name="greetings", case=case, **more)
    reader = BatchReader(store)
    (suite,) = group_by_suite(await reader.summaries(100))
    with statements() as sent:
        found = await read_trend(reader, suite)
    store.close()

    assert [one.changed for one in found] == [("prompt",), ("judge",), ("rubric",), ("model",), (), ()]
    assert [one.since for one in found] == [(1, 0), (0, 1), (1, 0), (0, 1), (1, 0), None]
    assert [one.seconds for one in found][-2:] == [3.0, 1.0]
    assert found[0].rate.value == 1.0
    assert (found[0].rate.low or 0) < 1.0
    assert [chart.title for chart in charts_of(found)] == ["Pass rate", "Cost", "Latency"]
    assert len([one for one in sent if one.startswith("SELECT")]) == 2


async def test_a_batch_without_a_common_case_changed_nothing_that_is_known(url: str) -> None:
    store = Store(url)
    put_batch(store, "a", {"x": "passed"})
    put_batch(store, "b", {"y": "failed"})
    found = [await changes_since(BatchReader(store), pairs) for pairs in ({}, {"b": "a"}, {"b": "none"})]
    store.close()

    assert found == [{}, {}, {}]


async def test_a_trend_is_found_by_the_name_of_its_suite_and_never_mixes_tenants(url: str) -> None:
    store = Store(url)
    for at, tenant in enumerate(("acme", "beta", "acme")):
        put_batch(store, f"b{at}", {"a": "passed"}, created=DAY + timedelta(at), tenant=tenant, name="nightly")
    reader = BatchReader(store)
    ours = await named_trend(reader, "nightly", "acme", 20)
    with pytest.raises(InvalidRequest, match="2 suites of the newest 2,000 batches named 'nightly'; name a tenant with --tenant"):
        await named_trend(reader, "nightly", None, 20)
    with pytest.raises(InvalidRequest, match=r"0 suites of the newest 2,000 batches named 'nightl'\. Did you mean 'nightly'"):
        await named_trend(reader, "nightl", None, 20)
    lines = printed(batch_table([one.batch for one in ours], 160, ours))
    store.close()

    assert [one.batch.batch_id for one in ours] == ["b2", "b0"]
    assert "20.7% to 100.0%" in lines
    assert "0 fixed, 0 new" in lines


def printed(table: Table) -> str:
    """Return a table as a terminal of 160 columns shows it."""
    console = Console(width=160, file=StringIO())
    console.print(table)
    return str(console.file.getvalue())  # type: ignore[attr-defined]
