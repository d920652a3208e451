"""Rows of a real PostgreSQL as a monitor's source: whatever its watermark is it is read on, and nothing is written."""

from collections.abc import Sequence

import pytest
from sqlalchemy import create_engine, text

from gradeloop.errors import InvalidRequest
from gradeloop.monitors.contract import SqlSource
from gradeloop.monitors.files import SourceItem
from tests.monitors.test_sources import ids, last_cursor
from tests.rig.sources import place_since, read_source


def execute(url: str, *statements: str) -> None:
    engine = create_engine(f"postgresql+psycopg{url.removeprefix('postgresql')}")
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))
    engine.dispose()


def source(query: str = "SELECT id, question, answer, at FROM chats", watermark: str = "at") -> SqlSource:
    return SqlSource(variable="APP_DB", query=query, watermark=watermark)


def chats(url: str, kind: str, values: Sequence[str | None]) -> dict[str, str]:
    """Make a table of chats whose watermark is of that type; the answer says which row it is."""
    rows = [
        f"INSERT INTO chats VALUES ('r{number}', 'Hi', 'answer {number}', {'NULL' if value is None else value})"
        for number, value in enumerate(values)
    ]
    execute(url, "DROP TABLE IF EXISTS chats", f"CREATE TABLE chats (id text, question text, answer text, at {kind})", *rows)
    return {"APP_DB": url}


KINDS: dict[str, tuple[str, list[str]]] = {
    "integer": ("bigint", ["1", "2", "2", "9007199254740993"]),
    "numeric": ("numeric(30,10)", ["1", "2.0000000001", "2.0000000001", "12345678901234567890.5"]),
    "a float": ("double precision", ["0.1", "0.30000000000000004", "0.30000000000000004", "1e300"]),
    "a time with zone": (
        "timestamptz",
        ["'2026-01-01 00:00:00.000001+00'", "'2026-03-29 02:30:00.5+02'", "'2026-03-29 02:30:00.5+02'", "'2026-10-25 02:30+00'"],
    ),
    "a time without zone": (
        "timestamp",
        ["'2026-01-01 00:00:00.000001'", "'2026-03-29 02:30:00.5'", "'2026-03-29 02:30:00.5'", "'2026-10-25 02:30'"],
    ),
    "a date": ("date", ["'2026-01-01'", "'2026-01-02'", "'2026-01-02'", "'2026-01-03'"]),
    "uuid": ("uuid", [f"'019b0000-0000-7000-8000-00000000000{digit}'" for digit in "1223"]),
    "a text": ('text COLLATE "C"', ["'a'", "'b''\"%'", "'b''\"%'", "'c'"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_are_read_on_from_their_watermark_with_those_of_the_same_value(server_url: str, zone: str, subtests: pytest.Subtests) -> None:
    execute(server_url, f"ALTER DATABASE {server_url.rpartition('/')[2]} SET timezone TO '{zone}'")
    for name, (kind, values) in KINDS.items():
        with subtests.test(name=name):
            environment = chats(server_url, kind, values)
            whole = list(read_source(source(), None, environment))
            between = last_cursor(whole[: 2 * 2])  # a row is its run and its place
            rest = list(read_source(source(), between, environment))
            last = list(read_source(source(), last_cursor(whole), environment))
            until = list(read_source(source(), None, environment, until=between))

            assert ids(whole) == ["r0", "r1", "r2", "r3"]
            assert sorted(ids(rest)) == ["r1", "r2", "r3"]
            assert ids(last) == ["r3"]
            assert sorted(ids(until)) == ["r0", "r1", "r2"]


def test_rows_without_a_watermark_are_passed_over_until_they_have_one(server_url: str) -> None:
    environment = chats(server_url, "timestamptz", ["'2026-01-01'", None, "'2026-01-02'"])
    first = list(read_source(source(), None, environment))
    execute(server_url, "UPDATE chats SET at = '2026-01-03' WHERE at IS NULL")
    second = list(read_source(source(), last_cursor(first), environment))

    assert ids(first) == ["r0", "r2"]
    assert ids(second) == ["r2", "r1"]


def test_values_of_any_type_are_read(server_url: str) -> None:
    execute(
        server_url,
        "CREATE TABLE odd (id int, question text, answer text, at int, a inet, b bytea, c interval, d uuid[], e int4range, f jsonb,"
        " g boolean, h numeric, i time, j timestamptz[], k double precision)",
        "INSERT INTO odd VALUES (1, 'Hi', 'yes', 1, '10.0.0.1', '\\x00ff', '1 day 2 hours', "
        "ARRAY['019b0000-0000-7000-8000-000000000001'\\:\\:uuid], '[1,5)', '{\"x\"\\: [1, null], \"text\"\\: \"[1]\"}', true, "
        "'NaN', '12\\:00', "
        "ARRAY['2026-01-01'\\:\\:timestamptz], 'NaN')".replace("\\:", ":"),
    )
    found = list(read_source(source("SELECT * FROM odd"), None, {"APP_DB": server_url}))

    assert [item.unreadable for item in found if item.unreadable] == []
    assert len(ids(found)) == 1
    run = next(item.run for item in found if item.run is not None)
    told = {name: run.metadata[name] for name in "abcdefghi"}
    assert told == {
        "a": "10.0.0.1", "b": "00ff", "c": "P1DT2H", "d": ["019b0000-0000-7000-8000-000000000001"], "e": "[1, 5)",
        "f": {"x": [1, None], "text": "[1]"}, "g": True, "h": "NaN", "i": "12:00:00",
    }  # fmt: skip


def test_a_query_with_casts_percent_signs_and_a_semicolon_is_sent_as_it_is(server_url: str) -> None:
    environment = chats(server_url, "int", ["1", "2"])
    query = "SELECT id, question, answer, at::bigint AS at FROM chats WHERE answer LIKE '%answer 1%' AND ':x' <> '%s' -- :y %(z)s\n;"

    assert ids(list(read_source(source(query), None, environment))) == ["r1"]


def test_a_role_that_may_only_read_is_enough_and_no_query_writes(server_url: str) -> None:
    chats(server_url, "int", ["1", "2"])
    execute(
        server_url,
        "CREATE OR REPLACE FUNCTION wipe() RETURNS int LANGUAGE sql AS 'DELETE FROM chats; SELECT 1'",
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT SELECT ON chats TO reader",
    )
    reading = {"APP_DB": server_url.replace("gradeloop@", "reader@")}
    owner = {"APP_DB": server_url}
    found = list(read_source(source(), None, reading))
    with pytest.raises(InvalidRequest, match="read-only transaction"):
        list(read_source(source("SELECT id, question, answer, at, wipe() FROM chats"), None, owner))
    execute(server_url, "REVOKE SELECT ON chats FROM reader")
    with pytest.raises(InvalidRequest, match="permission denied"):
        list(read_source(source(), None, reading))
    execute(server_url, "DROP OWNED BY reader", "DROP ROLE reader")

    assert ids(found) == ["r0", "r1"]
    assert ids(list(read_source(source(), None, owner))) == ["r0", "r1"]


def test_a_backfill_begins_at_a_value_of_the_watermark(server_url: str) -> None:
    dates = (["'2026-01-01'", "'2026-02-01'"], "2026-01-15")
    given = {"timestamptz": dates, "timestamp": dates, "date": dates, "numeric": (["1", "2"], "1.5"), "int": (["1", "3"], "2")}
    for kind, (values, since) in given.items():
        environment = chats(server_url, kind, values)
        cursor = last_cursor(list(read_source(source(), None, environment)))

        assert ids(list(read_source(source(), place_since(source(), since, str(cursor)), environment))) == ["r1"], kind


@pytest.mark.slow
def test_a_connection_that_is_lost_mid_way_is_refused_with_the_cure_and_read_on_behind_what_came(server_url: str) -> None:
    execute(
        server_url,
        "CREATE TABLE chats (id text, question text, answer text, at int)",
        "INSERT INTO chats SELECT 'r' || n, 'Hi', 'answer ' || n, n FROM generate_series(1, 1000) AS n",
    )
    environment, found = {"APP_DB": server_url}, list[SourceItem]()

    def read_while_it_is_cut() -> None:
        for item in read_source(source(), None, environment):
            found.append(item)
            if len(found) == 500:
                others = (
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
                execute(server_url, others)

    with pytest.raises(InvalidRequest, match=r"the query of \$APP_DB fails: .*(terminating connection|closed the connection)"):
        read_while_it_is_cut()
    rest = list(read_source(source(), last_cursor(found), environment))

    assert 250 <= len(ids(found)) < 1000
    assert {*ids(found), *ids(rest)} == {f"r{number}" for number in range(1, 1001)}
