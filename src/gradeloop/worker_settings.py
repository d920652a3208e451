"""What a worker is started with: flags, variables `GRADELOOP_*`, and the file gradeloop.toml, the first of them counting most."""

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
    """What a worker is started with: flags, variables `GRADELOOP_*`, or the file gradeloop.toml."""

    model_config = SettingsConfigDict(
        env_prefix="GRADELOOP_",
        env_nested_delimiter="__",
        cli_kebab_case=True,
        cli_prog_name="gradeloop worker",
        extra="forbid",
        use_attribute_docstrings=True,
    )

    config: Path | None = None
    """The file of settings; gradeloop.toml in the current folder by default."""
    task_queue: str = TASK_QUEUE
    role: Role = "all"
    """What this process does: run the threads, call models, run evidence tools, or all of it."""
    tools: list[Path] = []
    """Python files whose public functions are evidence tools."""
    scripted: Path | None = None
    """A YAML file of replies for the provider `scripted`."""
    search_attributes: Literal["on", "off"] = "on"
    record: Path | None = None
    """A file into which every exchange with a model is written, without keys; `scripted` plays it back."""
    max_concurrent_activities: int = 200
    """Model and tool calls in flight at once."""
    max_calls_per_second: float | None = Field(default=None, gt=0)
    """Model and tool calls that all workers of the queue start in a second together; no limit by default."""
    max_cached_workflows: int = 2000
    """Threads kept in memory; below the number in flight, throughput falls to a third."""
    until_idle: float | None = None
    """Seconds without an open workflow after which the worker ends itself; never by default."""
    ready_file: Path | None = None
    examine: bool = False
    """Ask the providers whether the keys are good, try the sandboxes, print what was found as JSON, and end."""
    needs_approval: list[ToolName] = []
    """Tools that wait for a person's word before each call, beside those that say so themselves."""
    sandbox: SandboxSettings = SandboxSettings()
    files: FilesSettings = FilesSettings()
    commands: dict[str, CommandSettings] = {}
    fetch: FetchSettings = FetchSettings()
    pytest: PytestSettings = PytestSettings()
    mcp: dict[ServerName, McpSettings] = {}

    @property
    def evidence_queue(self) -> str:
        """The queue on which evidence tools are served where a process of their own serves them."""
        return f"{self.task_queue}-evidence"


def load(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> WorkerSettings:
    """Return the settings that flags, variables and the file come to; files of tools come together, all else replaces.

    Raises:
        InvalidRequest: A setting is unknown or does not fit; the message says where it stands.
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
        raise InvalidRequest(f"a variable GRADELOOP_...: {error}{why}; give it as JSON") from None
    tools = [*map(Path, held.get("tools", ())), *settings.tools]
    return settings.model_copy(update={"config": file, "tools": list(dict.fromkeys(tools))})


def _read(file: Path) -> dict[str, Any]:
    """Return the file's settings, its relative paths counted from its own folder."""
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
    """Return paths as they stand from the file's folder, everything else as it is."""
    paths = at in _PATHS or at[:-1] in _PATHS
    if paths and isinstance(value, str):
        return str(folder / value)
    if paths and isinstance(value, list):
        return [str(folder / each) if isinstance(each, str) else each for each in value]
    return _anchored(value, folder, at) if isinstance(value, dict) else value
