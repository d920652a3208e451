"""Sources are read on from their cursor: files in the order in which they came, rows by their watermark."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.monitors.contract import FolderSource, SqlSource
from gradeloop.monitors.files import SourceItem
from gradeloop.monitors.sources import SourceAccess, read_chunks
from gradeloop.store.engine import Store
from tests.rig.sources import read_source


def write(path: Path, *names: str) -> None:
    lines = ({"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": name}]} for name in names)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def ids(items: list[SourceItem]) -> list[str]:
    return [item.run.id for item in items if item.run is not None]


def last_cursor(items: list[SourceItem], before: str | None = None) -> str | None:
    return next((item.cursor for item in reversed(items) if item.cursor is not None), before)


def test_a_folder_is_read_on_behind_its_cursor(tmp_path: Path) -> None:
    source = FolderSource(path=str(tmp_path), quiet=0)
    write(tmp_path / "z.jsonl", "a", "b")
    first = list(read_source(source, None))
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner" / "a.jsonl", "c")

    second = list(read_source(source, last_cursor(first)))
    third = list(read_source(source, last_cursor(second)))

    assert (ids(first), ids(second), ids(third)) == (["a", "b"], ["c"], [])


def test_an_old_file_that_is_moved_into_the_folder_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    write(tmp_path / "old.jsonl", "old")
    os.utime(tmp_path / "old.jsonl", (1, 1))
    write(folder / "new.jsonl", "new")
    source = FolderSource(path=str(folder), quiet=0)
    first = list(read_source(source, None))

    (tmp_path / "old.jsonl").rename(folder / "old.jsonl")

    assert ids(list(read_source(source, last_cursor(first)))) == ["old"]


def test_a_file_that_is_being_written_is_left_to_a_later_tick(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "a")

    assert list(read_source(FolderSource(path=str(tmp_path), quiet=60), None)) == []


def test_what_cannot_be_read_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    write(tmp_path / "b.jsonl", "b")

    found = list(read_source(FolderSource(path=str(tmp_path), quiet=0), None))

    assert ids(found) == ["b"]
    assert sum(item.unreadable is not None for item in found) == 1


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write(tmp_path / "secret.jsonl", "secret")
    (tmp_path / "runs" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")

    assert list(read_source(FolderSource(path=str(tmp_path / "runs"), quiet=0), None)) == []


def test_a_folder_that_is_not_there_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="make it, or name another one"):
        list(read_source(FolderSource(path=str(tmp_path / "none")), None))


def database(tmp_path: Path, *rows: tuple[int, str]) -> dict[str, str]:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS chats (at INTEGER, question TEXT, answer TEXT)")
        connection.executemany("INSERT INTO chats VALUES (?, 'Hi', ?)", rows)
        connection.commit()
    return {"APP_DB": f"sqlite:///{path}"}


QUERY = """SELECT at, json_object('id', 'run-' || answer, 'messages', json_array(
    json_object('role', 'user', 'content', question), json_object('role', 'assistant', 'content', answer))) AS run FROM chats"""


def test_a_query_is_read_on_from_its_watermark(tmp_path: Path) -> None:
    source = SqlSource(variable="APP_DB", query=QUERY, watermark="at")
    environment = database(tmp_path, (1, "a"), (2, "b"))
    first = list(read_source(source, None, environment))
    database(tmp_path, (2, "late"), (10, "c"))

    second = list(read_source(source, last_cursor(first), environment))

    assert ids(first) == ["run-a", "run-b"]
    assert sorted(ids(second)) == ["run-b", "run-c", "run-late"]


def test_a_query_cannot_write(tmp_path: Path) -> None:
    source = SqlSource(variable="APP_DB", query="SELECT 1; DELETE FROM chats", watermark="at")

    with pytest.raises(InvalidRequest, match="correct the query"):
        list(read_source(source, None, database(tmp_path, (1, "a"))))


def test_a_database_that_is_not_named_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidRequest, match="the variable APP_DB is not set"):
        list(read_source(SqlSource(variable="APP_DB", query="SELECT 1 AS at", watermark="at"), None, {}))


async def test_a_run_without_an_answer_is_none_that_can_be_judged(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [{"role": "user", "content": "Hi"}], "gold": "x"}, {"id": "b", "input": "Hi", "prediction": "Ho"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    access = SourceAccess(Store(f"sqlite:///{tmp_path}/store.db"))
    found = [item async for chunk in read_chunks(FolderSource(path=str(tmp_path), quiet=0), None, access) for item, _ in chunk]

    assert ids(found) == ["b"]
    (problem,) = [item.unreadable for item in found if item.unreadable is not None]
    assert problem.startswith(
        "the run 'a' has no answer: no text and no tool call of an assistant; these keys beside its messages were set"
    )
