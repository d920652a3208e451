"""What people say about cases: kept beside the results, shown and written with them, and forgotten with their batch."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.batches.exports import read_export
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import read_case_report, report_of_file, stored_batch_page
from gradeloop.batches.ratings import Rating, verdicts_of_people
from gradeloop.batches.reader import BatchReader
from gradeloop.calibration.agreement import measure_ratings
from gradeloop.calibration.cli.measure import agreement_lines
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Store
from gradeloop.store.tables import owners, table
from tests.rig.stored_batches import put_batch


def rated(by: str, passed: bool | None, comment: str = "", attempt: int = 0) -> Rating:
    return Rating(by=by, passed=passed, comment=comment, attempt=attempt)


async def test_a_person_says_one_thing_about_a_case_and_the_last_word_counts(url: str) -> None:
    store = Store(url)
    put_batch(store, "b", {"a": "passed", "c/d": "failed"})
    reader = BatchReader(store)
    await reader.rate("b", "a", rated("ann", True, "  fine \n"))
    await reader.rate("b", "a", rated("ann", False, "not fine"))
    await reader.rate("b", "a", rated("bob", None, "who wrote this?"))
    await reader.rate("b", "c/d", rated("ann", False))
    _, one = await reader.case("b", "a")
    with reader.snapshot("b") as found:
        both = [*found.results()]
        cases = [result.ratings for _, result in found.cases()]
    plain = [result.ratings for result in reader.results("b")]
    store.close()

    assert [(rating.by, rating.passed, rating.comment) for rating in one.ratings] == [
        ("ann", False, "not fine"),
        ("bob", None, "who wrote this?"),
    ]
    assert all(datetime.now(UTC) - datetime.fromisoformat(rating.created) < timedelta(minutes=10) for rating in one.ratings)
    assert [result.ratings for result in both] == cases == plain
    assert plain[0] == one.ratings
    assert plain[1][0].passed is False


@pytest.mark.parametrize(
    ("case", "rating", "said"),
    [
        ("none", {"passed": True}, "the batch 'b' has no case 'none'"),
        ("open", {"passed": True}, "the case 'open' is not judged, or ran again meanwhile"),
        ("a", {"passed": True, "attempt": 1}, "the case 'a' is not judged, or ran again meanwhile"),
    ],
)
async def test_only_a_case_that_has_ended_is_rated_and_only_its_output_of_now(
    url: str, case: str, rating: dict[str, Any], said: str
) -> None:
    store = Store(url)
    put_batch(store, "b", {"a": "passed", "open": "queued"})
    with pytest.raises(InvalidRequest, match=said):
        await BatchReader(store).rate("b", case, Rating.model_validate({"by": "ann"} | rating))
    store.close()


async def test_a_case_that_is_forgotten_meanwhile_has_no_rating_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'results.db'}")
    put_batch(store, "b", {"a": "passed"})
    look = BatchReader.case

    async def looked_at(self: BatchReader, batch_id: str, case_id: str) -> Any:
        found = await look(self, batch_id, case_id)
        store.do(lambda connection: connection.execute(table("cases").delete()))
        return found

    monkeypatch.setattr(BatchReader, "case", looked_at)
    with pytest.raises(InvalidRequest, match="the case 'a' is not judged, or ran again meanwhile"):
        await BatchReader(store).rate("b", "a", Rating(by="ann", passed=True))
    assert store.do(lambda connection: connection.execute(table("case_ratings").select()).all()) == []
    store.close()


@pytest.mark.parametrize(
    ("rating", "said"),
    [({}, "comment: it is empty"), ({"comment": " "}, "comment: it is empty"), ({"comment": "x" * 4001}, "at most 4000 characters")],
)
def test_a_rating_says_something_and_is_short(rating: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rating.model_validate({"by": "ann"} | rating)


HOSTILE = "</script><img src=x onerror=alert(1)>\u202e=cmd|'/c calc'!A1"


async def test_what_people_say_is_on_pages_and_in_files_as_text_alone(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    put_batch(store, "b", {"a": "passed"})
    reader = BatchReader(store)
    await reader.rate("b", "a", rated("ann", True))
    await reader.rate("b", "a", rated("=bob", False, HOSTILE))
    _, result = await reader.case("b", "a")
    paths = [tmp_path / f"r{suffix}" for suffix in (".json", ".jsonl", ".csv", ".txt")]
    files = Outputs(paths)
    files.finished(result)
    with reader.snapshot("b") as found:
        files.close(found.summary, found.results)
    page = await stored_batch_page(reader, "b")
    store.close()
    notes = read_case_report(result).notes
    again = read_export(paths[0], lambda case: case.ratings).cases

    assert notes[-3] == "People contradict one another on this case."
    assert notes[-2].endswith(f"agrees: it passes ({result.ratings[0].created[:10]})") or "=bob" in notes[-2]
    assert any(f"=bob disagrees: it fails: {HOSTILE}" in note for note in notes)
    assert "<img" not in page
    assert again == [result.ratings]
    assert json.loads(paths[1].read_text())["ratings"][0]["by"] in {"ann", "=bob"}
    assert ",ratings" in (csv := paths[2].read_text())
    assert "People contradict one another" in csv
    assert [case.ratings for _, case in report_of_file(paths[0]).cases] == [result.ratings]


async def test_a_rating_of_an_earlier_output_says_so_and_is_no_verdict_on_this_one(url: str) -> None:
    store = Store(url)
    put_batch(store, "b", {"a": "failed"})
    reader = BatchReader(store)
    await reader.rate("b", "a", rated("ann", True))
    _, now = await reader.case("b", "a")
    again = now.model_copy(update={"attempt": 1, "ratings": ()}).model_dump_json()
    store.do(lambda connection: connection.execute(table("cases").update().values(attempt=1, result=again)))
    _, result = await reader.case("b", "a")
    store.close()

    assert result.attempt == 1
    assert verdicts_of_people(result) == {}
    assert "ann says that it passes of an earlier output" in read_case_report(result).notes[-1]


async def test_what_people_say_is_forgotten_with_its_batch_and_its_tenant_and_pruned_with_it(url: str, client: Client) -> None:
    store = Store(url)
    for batch, tenant in (("mine", "acme"), ("yours", "beta"), ("old", None)):
        put_batch(store, batch, {"a": "passed"}, tenant=tenant)
        await BatchReader(store).rate(batch, "a", rated("ann", True, batch))

    def left() -> list[str]:
        return sorted(store.do(lambda connection: connection.execute(text("SELECT comment FROM case_ratings")).scalars().all()))

    await Eraser(client, store, None).forget(ForgottenSubject(tenant="acme"))
    assert left() == ["old", "yours"]
    await Eraser(client, store, None).forget(ForgottenSubject(batch="yours"))
    assert left() == ["old"]
    prune = next(owner.prunes["batches"] for owner in owners() if "batches" in owner.prunes)
    rows = store.do(lambda connection: prune(connection, datetime.now(UTC) + timedelta(days=1)))
    store.close()

    assert rows["case_ratings"] == 1


async def test_ratings_are_the_labels_of_agreement_and_a_contradiction_of_people_is_named(url: str) -> None:
    store = Store(url)
    put_batch(store, "b", {"a": "passed", "b": "failed", "c": "failed", "d": "passed", "e": "error", "f": "passed"})
    reader = BatchReader(store)
    said = {"a": {"ann": True, "bob": False}, "b": {"ann": False}, "c": {"ann": True, "bob": True}, "d": {"ann": True}, "e": {"ann": True}}
    for case, people in said.items():
        for by, passed in people.items():
            await reader.rate("b", case, rated(by, passed, "because"))
    await reader.rate("b", "f", rated("ann", None, "a comment alone"))
    found = await asyncio.to_thread(measure_ratings, reader, "b")
    lines = [str(line) for line in agreement_lines(found)]
    store.close()

    (key,) = found.keys
    assert (found.labels, found.judged, found.missing, found.contradictory) == (7, 6, ("e",), ("a",))
    assert (key.key, key.positive, key.runs, key.answered) == ("status", "passed", 5, 4)
    assert key.confusion == {'"passed"': {'"passed"': 2, '"failed"': 2}, '"failed"': {'"passed"': 1, '"failed"': 1}}
    assert {(odd.agent_run_id, odd.by, odd.label_reason) for odd in found.disagreements} == {
        ("a", "bob", "because"),
        ("c", "ann", "because"),
        ("c", "bob", "because"),
    }
    assert "people contradict one another on 1 run, of which every label counts: a" in lines


async def test_a_batch_that_nobody_rated_measures_nothing(url: str) -> None:
    store = Store(url)
    put_batch(store, "b", {"a": "passed"})
    with pytest.raises(InvalidRequest, match="nobody has rated a case of the batch 'b' that has a verdict"):
        await asyncio.to_thread(measure_ratings, BatchReader(store), "b")
    store.close()
