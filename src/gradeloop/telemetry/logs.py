"""Logs: one record a line, as text or JSON, with the ids of what is being done, without what models and people wrote."""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from temporalio import activity, workflow

from gradeloop.text import json_without_commands, printable, without_commands

LogFormat = Literal["text", "json"]

LOG_VARIABLE = "GRADELOOP_LOG"

REQUEST_LOGGERS = ("httpx", "httpx2", "google_genai", "google_genai.models", "openai", "anthropic")
"""The loggers that say every request to a provider at INFO; a call is in its workflow's history, and what fails is logged by us."""

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

SDK_FIELDS = ("namespace", "task_queue", "workflow_id", "run_id", "activity_id", "error")
"""The fields of the SDK's own records that are shown; others quote the payloads of a workflow."""

Ids = Mapping[str, str | int]

_ids: ContextVar[Ids] = ContextVar("_ids", default={})  # noqa: B039 - nobody changes it


def set_ids(ids: Ids) -> None:
    """Give every later record of this asyncio task these ids."""
    _ids.set(ids)


def current_ids() -> Ids:
    """Return the ids of what is being done now: of a thread, judgement or batch, its run and iteration, a case, a call and its attempt."""
    if workflow.in_workflow():
        info = workflow.info()
        return {**workflow_ids(info.workflow_type, info.workflow_id, info.run_id), **_ids.get()}
    return _ids.get()


_KINDS = {"GradingThread": "thread", "Judging": "judgement", "GradingBatch": "batch"}
"""The names of the ids of our workflows."""


def workflow_ids(kind: str, workflow_id: str, run_id: str) -> dict[str, str | int]:
    """Return the ids of a workflow, the first by the name that its kind has."""
    return {_KINDS.get(kind, "workflow"): workflow_id, "workflow_run": run_id}


class TextFormatter(logging.Formatter):
    """Writes a record on one line, without secrets and what a terminal or a CI system would take for a command."""

    def __init__(self, clean: Callable[[str], str], pattern: str = TEXT) -> None:
        """Make a formatter."""
        super().__init__(pattern)
        self._clean = clean

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that the base class calls
        """Return the line of a record, without its traceback."""
        shown = "".join(f" {name}={value}" for name, value in _all_ids(record).items())
        record.message = f"{record.message}{shown}".replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record and its traceback."""
        text = super().format(_without_text(record) if _may_quote(record) else record)
        return without_commands(printable(self._clean(text)))


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: `time`, `level`, `logger`, `message`, ids, and `error` with its `type` and `stack`."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        """Make a formatter."""
        super().__init__()
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_all_ids(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _described(record.exc_info[1], quoted=not _may_quote(record))
        cleaned = {name: self._clean(printable(value)) if isinstance(value, str) else value for name, value in line.items()}
        if "error" in line:
            cleaned["error"] = {name: _cleaned(value, self._clean) for name, value in line["error"].items()}
        return json_without_commands(json.dumps(cleaned, ensure_ascii=False))


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - a text or a list of texts
    return [clean(printable(part)) for part in value] if isinstance(value, list) else clean(printable(value))


def _all_ids(record: logging.LogRecord) -> Ids:
    """Return the ids of a record: those of what is being done, or those that the SDK's own record has."""
    fields = getattr(getattr(record, "temporal_log", None), "fields", None)
    of_sdk = {name: str(fields[name]) for name in SDK_FIELDS if name in fields} if isinstance(fields, Mapping) else {}
    return {**of_sdk, **current_ids()}


def _may_quote(record: logging.LogRecord) -> bool:
    """Return whether an error's text may quote what a model or a person wrote: inside of calls and workflows it does."""
    return bool(current_ids()) or record.name.startswith("temporalio")


def _described(error: BaseException, *, quoted: bool) -> dict[str, Any]:
    stack = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    kind, name = getattr(error, "type", None), type(error).__name__
    return {
        "type": f"{name}({kind})" if isinstance(kind, str) and kind else name,
        **({"message": str(error)} if quoted else {}),
        "stack": stack,
    }


def _without_text(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record whose traceback names the error's type and place, and not its text."""
    if not record.exc_info or record.exc_info[1] is None:
        return record
    described = _described(record.exc_info[1], quoted=False)
    copy = logging.makeLogRecord(vars(record))
    copy.exc_info, copy.exc_text = None, "\n".join([*(f"  {frame}" for frame in described["stack"]), described["type"]])
    return copy


def configure_logging(kind: LogFormat, clean: Callable[[str], str]) -> None:
    """Write this process's log to standard error, from level INFO on.

    `kind`: `text` or `json`.
    """
    ours = [handler for handler in logging.getLogger().handlers if isinstance(handler.formatter, JsonFormatter | TextFormatter)]
    for handler in ours or [logging.StreamHandler(sys.stderr)]:
        handler.setFormatter(JsonFormatter(clean) if kind == "json" else TextFormatter(clean))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in REQUEST_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for own in (workflow.logger, activity.logger):
        for name in ("workflow_info_on_message", "activity_info_on_message"):
            if hasattr(own, name):
                setattr(own, name, False)
