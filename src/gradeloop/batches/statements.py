"""The statements of a batch's cases: on PostgreSQL each does all works of a kind that wait; SQLite does one after the other."""

# ruff: noqa: S608 - made only of names of columns

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql

from gradeloop.batches.cases import CaseConversation
from gradeloop.batches.reader import ERROR_RATE_FROM, FOLD, pause_reason, select_batches
from gradeloop.batches.tables import COUNTERS, ENDS, FRACTIONS, SPENDING
from gradeloop.store.engine import Rows, SetStatement

AHEAD_BYTES = 256 * 1024
"""The most bytes of cases that are read with one, as PostgreSQL keeps them."""

# All parts of a statement see the database as it was before it. So a statement may lean only on rows that nobody else writes at that
# moment: the charges of a call and a case's row. Whoever comes second to such a row waits, looks at it again, and finds it counted or
# ended. Two works on one row would see neither's change, and are therefore not in one statement (`SetWork.keys`).
# Invariant: a statement that was done and is sent again, since its connection was lost before the answer came, changes nothing.

_WORKS = "json_to_recordset(%(works)s::json) AS w (n int, batch_id text, position int, in_attempt int, unit int, call text, attempt int"

_BATCHES = str(select_batches().compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]

_OPEN = f"""
    r IS NOT NULL AND b.status <> 'paused'
    AND coalesce(b.errors < (r ->> 'max_errors')::int, true)
    AND (ended < {ERROR_RATE_FROM} OR b.errors <= (r ->> 'max_error_rate')::float8 * ended)
    AND (most_tokens IS NULL OR b.unreported = 0 AND b.input + b.output < most_tokens)
    AND (most_usd IS NULL
        OR CASE WHEN b.calls > 0 AND b.unpriced = 0 THEN round(b.cost_usd::numeric, 10) < most_usd ELSE b.unreported = 0 END)
"""
"""True if `pause_reason` finds no limit; false if PostgreSQL cannot read the request, because a text in it has a zero character."""

# One round trip before each call: what is known of the question, and the reservation of its charge, under
# the conditions that `pause_reason` states in Python. A cached verdict, or a conversation that has its
# answer, leaves nothing to reserve.
_LOOK_UP = f"""
WITH w AS MATERIALIZED (
    SELECT * FROM {_WORKS}, key text, reserve text, worker text, lost int)
), b AS MATERIALIZED (
    SELECT b.*, {_OPEN} AS open
    FROM ({_BATCHES}) AS b, LATERAL (SELECT CASE WHEN strpos(b.request, '\\u0000') = 0 THEN b.request::json END AS r,
        b.passed + b.failed + b.errors + b.ungraded + b.unsure AS ended) AS known,
    LATERAL (SELECT (r #>> '{{budget,max_tokens}}')::bigint AS most_tokens,
        (r #>> '{{budget,max_cost_usd}}')::numeric AS most_usd) AS budget
    WHERE b.id IN (SELECT batch_id FROM w)
), found AS MATERIALIZED (
    SELECT w.*, c.held, v.verdict, coalesce(reserve = 'anyway' OR reserve = 'if due' AND open AND v.verdict IS NULL
        AND coalesce(c.held !~ '"(verdict|rollout)":{{|"error":"', true), false) AS reserved
    FROM w JOIN b ON b.id = w.batch_id LEFT JOIN verdicts AS v ON v.key = w.key LEFT JOIN case_units AS c
    ON c.batch_id = w.batch_id AND c.position = w.position AND c.attempt = w.in_attempt AND c.unit = w.unit
), taken AS (
    INSERT INTO charges (call, attempt, batch_id, counted, worker, lost) SELECT call, attempt, batch_id, 0, worker, lost FROM found
    WHERE reserved
    ON CONFLICT DO NOTHING
)
SELECT found.n, found.held, found.verdict, found.reserved,
    EXISTS (SELECT FROM charges WHERE charges.call = found.call AND counted = 1) AS counted, b.*
FROM found JOIN b ON b.id = found.batch_id
"""

# The parts in order: `opened` marks the reservations of the call's attempts as counted, and `added` inserts
# a row for a call that had none. Only if one of them did something is the usage due, so a second sending
# counts nothing. Reservations beyond the requests that the usage accounts for are lost requests. `ended`
# changes a case only while it is queued in this attempt, so it ends once. `locked` takes the rows of the
# cases before their conversations are written: of two workers that write the last two answers of a case,
# the second then reads the first one's answer and ends the case. Without the lock each could miss the
# other's, and nobody would end it. The count over `locked` only makes PostgreSQL run it.
_WRITE = f"""
WITH w AS MATERIALIZED (
    SELECT * FROM {_WORKS}, requests int, fold boolean, status text, result text, draft text, spent text, held text, key text, verdict text,
        {", ".join(f"{name} {'float8' if name in FRACTIONS else 'int'}" for name in COUNTERS)})
), opened AS (
    UPDATE charges AS c SET counted = 1 FROM w WHERE c.call = w.call AND c.attempt <= w.attempt AND c.counted = 0 RETURNING w.n
), added AS (
    INSERT INTO charges (call, attempt, batch_id, counted) SELECT call, attempt, batch_id, 1 FROM w WHERE call IS NOT NULL
    ORDER BY call ON CONFLICT DO NOTHING RETURNING call
), ended AS (
    UPDATE cases AS c SET status = w.status, result = w.result, reused = w.reused FROM w WHERE w.result IS NOT NULL
    AND c.batch_id = w.batch_id AND c.position = w.position AND c.attempt = w.in_attempt AND c.status = 'queued' RETURNING w.n
), drafted AS (
    UPDATE cases AS c SET draft = w.draft, spent = w.spent FROM w WHERE w.draft IS NOT NULL
    AND c.batch_id = w.batch_id AND c.position = w.position AND c.attempt = w.in_attempt AND c.status = 'queued'
), locked AS (
    SELECT FROM cases AS c JOIN w USING (batch_id, position) WHERE w.held IS NOT NULL ORDER BY batch_id, position FOR UPDATE OF c
), kept AS (
    INSERT INTO case_units (batch_id, position, attempt, unit, held) SELECT batch_id, position, in_attempt, unit, held FROM w
    WHERE held IS NOT NULL AND (SELECT count(*) FROM locked) >= 0
    ON CONFLICT (batch_id, position, attempt, unit) DO UPDATE SET held = EXCLUDED.held
), cached AS (
    INSERT INTO verdicts (key, verdict, batch_id) SELECT key, verdict, batch_id FROM w WHERE verdict IS NOT NULL
    ORDER BY key ON CONFLICT DO NOTHING
), counted AS (
    SELECT w.*, greatest(0, reserved - requests) AS lost, is_ended AS ended,
        (call IS NULL OR reserved > 0 OR call IN (SELECT call FROM added))::int AS due
    FROM w, LATERAL (SELECT (SELECT count(*) FROM opened WHERE opened.n = w.n)::int AS reserved,
        (SELECT count(*) FROM ended WHERE ended.n = w.n)::int AS is_ended) AS known
), appended AS (
    INSERT INTO batch_changes (batch_id, position, {", ".join((*SPENDING, *ENDS))})
    SELECT batch_id, position, {", ".join(f"due * {name}{' + lost' * (name == 'attempts')}" for name in SPENDING)},
        {", ".join(f"ended * {name}" for name in ENDS)}
    FROM counted WHERE ended > 0 OR due * (attempts + calls) + lost > 0
), folded AS (
    {FOLD.replace("WHERE", "WHERE EXISTS (SELECT FROM w WHERE fold) AND", 1)}
)
SELECT n, ended FROM counted
"""

_CONVERSATIONS = f"""
SELECT w.n, c.unit, c.held FROM {_WORKS}, most int) JOIN case_units AS c
ON c.batch_id = w.batch_id AND c.position = w.position AND c.attempt = w.in_attempt AND c.unit < w.most ORDER BY c.unit
"""

# A reservation is taken back only while it is not counted: its call may have been counted by a later
# attempt meanwhile.
_RELEASE = f"DELETE FROM charges AS c USING {_WORKS}) WHERE c.call = w.call AND c.attempt = w.attempt AND c.counted = 0 RETURNING w.n"

_CASE = "batch_id = :batch_id AND position = :position"

_IN_ATTEMPT = f"{_CASE} AND attempt = :in_attempt"

_CHARGE = (
    "INSERT INTO charges (call, attempt, batch_id, counted, worker, lost) VALUES (:call, :attempt, :batch_id, {}) ON CONFLICT DO NOTHING"
)

_SQLITE = {
    name: text(statement)
    for name, statement in {
        "case": f"SELECT * FROM cases WHERE {_CASE}",
        "conversations": f"SELECT unit, held FROM case_units WHERE {_IN_ATTEMPT} AND unit < :most ORDER BY unit",
        "known": f"""SELECT *, (SELECT held FROM case_units WHERE {_IN_ATTEMPT} AND unit = :unit) AS held,
        (SELECT verdict FROM verdicts WHERE key = :key) AS verdict,
        EXISTS (SELECT 1 FROM charges WHERE call = :call AND counted = 1) AS counted FROM batches WHERE id = :batch_id""",
        "reserve": _CHARGE.format("0, :worker, :lost"),
        "counted": "SELECT 1 FROM charges WHERE call = :call AND counted = 1",
        "release": "DELETE FROM charges WHERE call = :call AND attempt = :attempt AND counted = 0",
        "open": "UPDATE charges SET counted = 1 WHERE call = :call AND attempt <= :attempt AND counted = 0",
        "add": _CHARGE.format("1, NULL, 0"),
        "end": f"""UPDATE cases SET status = :status, result = :result, reused = :reused,
        settled = (SELECT settled + 1 FROM batches WHERE id = :batch_id) WHERE {_IN_ATTEMPT} AND status = 'queued'""",
        "draft": f"UPDATE cases SET draft = :draft, spent = :spent WHERE {_IN_ATTEMPT} AND status = 'queued'",
        "keep": """INSERT INTO case_units (batch_id, position, attempt, unit, held) VALUES (:batch_id, :position, :in_attempt, :unit, :held)
        ON CONFLICT (batch_id, position, attempt, unit) DO UPDATE SET held = excluded.held""",
        "cache": "INSERT INTO verdicts (key, verdict, batch_id) VALUES (:key, :verdict, :batch_id) ON CONFLICT DO NOTHING",
        "count": f"UPDATE batches SET {', '.join(f'{name} = {name} + :{name}' for name in COUNTERS)} WHERE id = :batch_id",
    }.items()
}


def _run(connection: Connection, name: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - SQLAlchemy's result of any statement
    return connection.execute(_SQLITE[name], values)


def _look_up(connection: Connection, values: Mapping[str, Any]) -> Rows:
    if values["reserve"] == "anyway":
        _run(connection, "reserve", values)
        return [{"counted": _run(connection, "counted", values).first() is not None}]
    row = dict(_run(connection, "known", values).mappings().one())
    answered = row["verdict"] is not None or (row["held"] is not None and CaseConversation.model_validate_json(row["held"]).ended)
    reserved = values["reserve"] is not None and not answered and pause_reason(row) is None
    if reserved:
        _run(connection, "reserve", values)
    return [row | {"reserved": reserved, "counted": reserved and bool(row["counted"])}]


def _write(connection: Connection, values: Mapping[str, Any]) -> Rows:
    reserved = _run(connection, "open", values).rowcount if values["call"] else 0
    due = values["call"] is None or _run(connection, "add", values).rowcount + reserved > 0
    ended = _run(connection, "end", values).rowcount if "result" in values else 0
    for name, needed in (("draft", "draft"), ("keep", "held"), ("cache", "verdict")):
        if needed in values:
            _run(connection, name, values)
    counts = {name: due * values[name] for name in SPENDING} | {name: ended * values[name] for name in ENDS}
    counts["attempts"] += max(0, reserved - values["requests"])
    if ended or counts["attempts"] or counts["calls"]:
        _run(connection, "count", counts | {"batch_id": values["batch_id"]})
    return [{"ended": ended}]


def _conversations(connection: Connection, values: Mapping[str, Any]) -> Rows:
    return _run(connection, "conversations", values).mappings().all()  # type: ignore[no-any-return]


LOOK_UP = SetStatement((_LOOK_UP,), _look_up)
"""Reads what is known before a question is asked, and reserves its call: `anyway`, or `if due`, where nothing answers or holds it."""

WRITE = SetStatement((_WRITE,), _write)
"""Counts what calls cost, and writes what they came to: the end of a case, its draft, a conversation, a verdict for the cache."""

KEEP = SetStatement((_WRITE, _CONVERSATIONS), lambda connection, values: _write(connection, values) and _conversations(connection, values))
"""Does what `WRITE` does, and reads the conversations about the case that there are then."""

CONVERSATIONS = SetStatement((_CONVERSATIONS,), _conversations)

# Cases are asked for one after the other, so those behind the wanted one that are still due are read with
# it, up to a size. PostgreSQL adds the sizes up itself, so that no text beyond the limit is sent.
_CASES = f"""
SELECT w.n, c.* FROM {_WORKS}, ahead int), LATERAL (
    SELECT *, sum(pg_column_size(spec)) OVER (ORDER BY position) AS size FROM cases WHERE cases.batch_id = w.batch_id
    AND (cases.position = w.position OR status = 'queued' AND cases.position BETWEEN w.position AND w.position + w.ahead)
) AS c WHERE c.position = w.position OR c.size < {AHEAD_BYTES} ORDER BY c.position
"""

CASES = SetStatement(
    (_CASES,),
    lambda connection, values: _run(connection, "case", values).mappings().all(),
)

RELEASE = SetStatement((_RELEASE,), lambda connection, values: _run(connection, "release", values) and ())
"""Takes back the reservation of a call that is not made."""
