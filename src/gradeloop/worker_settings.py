"""The settings of a worker: flags, then variables `GRADELOOP_*`, then the file gradeloop.toml; the first that sets a value wins."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from gradeloop.contracts import TASK_QUEUE
from gradeloop.errors import InvalidRequest, explain
from gradeloop.evidence_settings import (
    CommandSettings,
    FetchSettings,
    FilesSettings,
    McpSettings,
    PytestSettings,
    SandboxSettings,
    ServerName,
)
from gradeloop.printable import did_you_mean
from gradeloop.settings_file import config_file
from gradeloop.tool_elsewhere import ToolName

Role = Literal["all", "loop", "models", "evidence"]


class WorkerSettings(BaseSettings):
    """Run a worker. Settings are flags, variables `GRADELOOP_*`, or keys of gradeloop.toml."""

    model_config = SettingsConfigDict(
        env_prefix="GRADELOOP_",
        env_nested_delimiter="__",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="gradeloop worker",
        extra="forbid",
        use_attribute_docstrings=True,
    )

    config: Path | None = None
    """Read settings from this file; gradeloop.toml in the current folder by default."""
    task_queue: str = TASK_QUEUE
    """Serve this task queue."""
    role: Role = "all"
    """Run workflows (loop), call models, run evidence tools, or do all three."""
    tools: list[Path] = []
    """Load evidence tools from these Python files: their public functions."""
    scripted: Path | None = None
    """Read the replies of the provider `scripted` from this YAML file."""
    search_attributes: Literal["on", "off"] = "on"
    """Set search attributes on threads, which `gradeloop list --status` needs; `off` where the namespace does not allow them."""
    record: Path | None = None
    """Record every exchange with a model in this file, without keys; `scripted` replays it."""
    max_concurrent_activities: int = 200
    """Run at most this many model and tool calls at the same time."""
    max_calls_per_second: float | None = Field(default=None, gt=0)
    """Start at most this many model and tool calls per second, counted over all workers of the queue; no limit by default."""
    max_cached_workflows: int = 2000
    """Keep at most this many threads in memory; with fewer than are in flight, throughput falls to a third."""
    until_idle: float | None = None
    """Stop after this many seconds without an open workflow; never by default."""
    ready_file: Path | None = None
    """Write this file once the worker serves its queue, or why it does not."""
    examine: bool = False
    """Check the providers' keys and the sandboxes, print the result as JSON, and exit; `gradeloop doctor` does this."""
    needs_approval: list[ToolName] = []
    """Tools whose calls wait for a person's approval, besides those that ask for it themselves."""
    sandbox: SandboxSettings = SandboxSettings()
    files: FilesSettings = FilesSettings()
    commands: dict[str, CommandSettings] = {}
    """Commands that `run_command` may run, by name."""
    fetch: FetchSettings = FetchSettings()
    pytest: PytestSettings = PytestSettings()
    mcp: dict[ServerName, McpSettings] = {}
    """MCP servers whose tools graders may call, by name."""

    @property
    def evidence_queue(self) -> str:
        """The task queue of evidence tools when a process of its own serves them."""
        return f"{self.task_queue}-evidence"


def load(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> WorkerSettings:
    """Return the settings of flags, variables and the file; the lists of `tools` are joined, any other setting replaces.

    Raises:
        InvalidRequest: A setting is unknown or malformed; the message says where it is.
    """
    file = config_file(arguments, os.environ if environment is None else environment)
    held = _read(file) if file else {}

    class FromFile(WorkerSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the interface's own
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, held)

    try:
        settings = FromFile(_cli_parse_args=list(arguments))
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    except SettingsError as error:
        why = f": {error.__cause__}" if error.__cause__ else ""
        raise InvalidRequest(f"a variable GRADELOOP_... is malformed: {error}{why}; write its value as JSON") from None
    tools = [*map(Path, held.get("tools", ())), *settings.tools]
    return settings.model_copy(update={"config": file, "tools": list(dict.fromkeys(tools))})


def _read(file: Path) -> dict[str, Any]:
    """Return the file's settings, with relative paths resolved from its folder."""
    try:
        held = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{file}: {error}") from None
    known = [name for name in WorkerSettings.model_fields if name not in {"config", "ready_file", "examine"}]
    for key in held:
        if key not in known:
            raise InvalidRequest(f"{file}: unknown key {key!r}.{did_you_mean(key, known)}")
    return _anchored(held, file.parent)


_PATHS = {("tools",), ("scripted",), ("record",), ("files", "roots"), ("pytest", "suites"), ("sandbox", "read_only")}


def _anchored(held: dict[str, Any], folder: Path, at: tuple[str, ...] = ()) -> dict[str, Any]:
    return {key: _anchor(value, folder, (*at, key)) for key, value in held.items()}


def _anchor(value: Any, folder: Path, at: tuple[str, ...]) -> Any:  # noqa: ANN401 - a settings file's own
    """Return a value with its relative paths resolved from the file's folder."""
    paths = at in _PATHS or at[:-1] in _PATHS
    if paths and isinstance(value, str):
        return str(folder / value)
    if paths and isinstance(value, list):
        return [str(folder / each) if isinstance(each, str) else each for each in value]
    return _anchored(value, folder, at) if isinstance(value, dict) else value
