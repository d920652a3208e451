"""A worker's log: text or JSON, with the ids of what is being done, without keys and without what models and people wrote."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.settings.secrets import scrubbed
from gradeloop.telemetry.logs import Ids, JsonFormatter, TextFormatter, current_ids, set_ids
from gradeloop.temporal.server import ServerInfo
from tests.temporal.test_worker import started, until_ready

KEY = "sk-canary-7f3a9b2c4d5e6f70"
WRITTEN = "the-user-wrote-this"


@contextmanager
def logged_ids(ids: Ids) -> Iterator[None]:
    """Give every record of the block these ids, besides those around it."""
    around = current_ids()
    set_ids({**around, **ids})
    try:
        yield
    finally:
        set_ids(around)


def record(text: str, error: Exception | None = None) -> logging.LogRecord:
    return logging.LogRecord("gradeloop.x", logging.WARNING, __file__, 1, text, None, (type(error), error, None) if error else None)


def as_json(given: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter(scrubbed).format(given)
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    return document


def test_a_record_is_one_json_object_with_level_and_ids() -> None:
    with logged_ids({"thread": "t-1", "run": 0}), logged_ids({"call": "3", "attempt": 2}):
        line = as_json(record("two\nlines"))

    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "gradeloop.x",
        "message": "two\nlines",
        "thread": "t-1",
        "run": 0,
        "call": "3",
        "attempt": 2,
    }


def test_text_has_the_same_ids_at_the_end_of_its_line() -> None:
    with logged_ids({"thread": "t-1", "iteration": 1}):
        line = TextFormatter(scrubbed, "%(levelname)s %(message)s").format(record("slow"))

    assert line == "WARNING slow thread=t-1 iteration=1"


@pytest.mark.parametrize("formatter", [JsonFormatter(scrubbed), TextFormatter(scrubbed)])
def test_an_error_of_a_call_is_logged_by_type_and_any_other_by_its_text(formatter: logging.Formatter) -> None:
    error = ValueError(f"the model said {WRITTEN}")
    with logged_ids({"thread": "t-1"}):
        within = formatter.format(record("it failed", error))

    assert "ValueError" in within
    assert WRITTEN not in within
    assert WRITTEN in formatter.format(record("it failed", error))


def test_a_key_is_in_no_field_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with logged_ids({"thread": KEY}):
        line = JsonFormatter(scrubbed).format(record(f"refused {KEY}"))
    outside = JsonFormatter(scrubbed).format(record("x", ValueError(KEY)))

    assert KEY[:12] not in line + outside


def test_what_the_sdk_logs_shows_its_ids_and_not_its_payloads() -> None:
    given = record("Failing workflow task")
    given.temporal_log = type("Log", (), {"fields": {"run_id": "r-1", "failure": f"Failure {{ message: {WRITTEN!r} }}"}})()

    line = as_json(given)

    assert line["run_id"] == "r-1"
    assert WRITTEN not in json.dumps(line)


@pytest.mark.slow
async def test_a_worker_logs_a_failed_call_with_its_ids_and_without_what_was_written(
    client: Client, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    (tmp_path / "replies.yaml").write_text(json.dumps({"replies": [{"role": "generator", "error": {"kind": "auth", "message": WRITTEN}}]}))
    queue, ready, thread = f"logs-{uuid4()}", tmp_path / "ready", f"logged-{uuid4()}"
    flags = ("--task-queue", queue, "--ready-file", str(ready), "--scripted", str(tmp_path / "replies.yaml"))
    process = await started(temporal_server, *flags, GRADELOOP_LOG="json")
    await until_ready(ready)

    request = {"messages": [{"role": "user", "content": WRITTEN}], "generator": {"model": "scripted:x"}}
    await GradingClient(client, task_queue=queue).result(await GradingClient(client, task_queue=queue).start(request, thread_id=thread))
    process.terminate()
    _, log = await asyncio.wait_for(process.communicate(), 240)
    lines = [json.loads(line) for line in log.decode().splitlines()]
    failed: dict[str, Any] = next((line for line in lines if line.get("activity") == "generate"), {})

    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert (failed["thread"], failed["run"], failed["iteration"], failed["attempt"]) == (thread, 0, 0, 1)
    assert failed["error"]["type"] == "ApplicationError(auth)"
    assert WRITTEN not in log.decode()
