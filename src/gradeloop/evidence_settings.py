"""Settings of evidence tools: sandbox limits, folders, commands, hosts, test suites, MCP servers. All are closed by default."""

import shutil
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from gradeloop.strict import Strict

Seconds = Annotated[float, Field(gt=0, le=100)]
"""A time limit below the 110 s that an evidence tool may take in all."""

ServerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")]


class Section(Strict):
    """A table of the settings file."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _refuse_others(folders: dict[str, Path]) -> None:
    """Raise if a path is no folder."""
    for name, path in folders.items():
        if not path.is_dir():
            raise ValueError(f"{name}: {str(path)!r} is no folder; correct the path")


class SandboxSettings(Section):
    """The sandbox for code that models wrote, and its limits."""

    use: Literal["auto", "monty", "bubblewrap", "landlock"] = "auto"
    """The sandbox; `auto` runs snippets in monty and programs in bubblewrap, or in Landlock where bubblewrap does not work."""
    seconds: Seconds = 5
    """Seconds that a snippet may run."""
    program_seconds: Seconds = 60
    """Seconds that a test suite or a command may run."""
    memory_mib: Annotated[int, Field(ge=64, le=65_536)] = 512
    """Memory of a program's process; a snippet in monty has 128 MiB at most."""
    disk_mib: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Disk space that a program may write."""
    output_kib: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Output at which a program is stopped; 64 KiB of it reach the grader."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 32
    """Processes that a command may have at the same time."""
    read_only: tuple[Path, ...] = ()
    """Folders that programs may read, besides the system's libraries and the worker's Python."""


class FilesSettings(Section):
    """The folders that `read_file`, `list_files` and `search_files` may read."""

    roots: dict[str, Path] = Field(default_factory=dict)
    """Folders by name; a tool's paths begin with the name."""

    @field_validator("roots")
    @classmethod
    def _are_folders(cls, value: dict[str, Path]) -> dict[str, Path]:
        for name in value:
            if not name or "/" in name or name in {".", ".."}:
                raise ValueError(f"{name!r} is no name of a root; it is the first part of a path, without '/'")
        _refuse_others(value)
        return value


class CommandSettings(Section):
    """A command that `run_command` may run."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program, by path or by name, and its fixed arguments. No shell reads them."""
    arguments: tuple[str, ...] = ()
    """Regular expressions; every further argument must fully match one of them. No argument is allowed by default."""
    file: Annotated[str, Field(pattern=r"^[\w.-]+$")] = "draft.txt"
    """The file, in the command's folder, that holds the draft."""
    extract: Literal["text", "code"] = "text"
    """What the file holds: the whole draft, or its last fenced code block."""
    description: str = ""
    """What the command does, as the model reads it."""

    @model_validator(mode="after")
    def _is_there(self) -> "CommandSettings":
        if shutil.which(self.argv[0]) is None:
            raise ValueError(f"argv: there is no program {self.argv[0]!r} on this machine; install it or give its path")
        return self

    @property
    def program(self) -> str:
        """The program's path."""
        return str(Path(shutil.which(self.argv[0]) or self.argv[0]).absolute())


class FetchSettings(Section):
    """The hosts that `fetch_page` may reach."""

    hosts: tuple[str, ...] = ()
    """Host names, or `*.example.com` for all below it; with a port unless it is 80 or 443."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that may be reached; none by default."""
    seconds: Seconds = 20
    """Seconds that a page may take."""
    max_kib: Annotated[int, Field(ge=1, le=16_384)] = 2048
    """The size that a page may have."""


class PytestSettings(Section):
    """The test suites that `run_pytest` may run."""

    suites: dict[str, Path] = Field(default_factory=dict)
    """Folders of tests, by name."""

    @field_validator("suites")
    @classmethod
    def _are_folders(cls, value: dict[str, Path]) -> dict[str, Path]:
        _refuse_others(value)
        return value


class McpSettings(Section):
    """An MCP server whose tools graders may call, as `SERVER__TOOL`."""

    command: tuple[str, ...] = ()
    """The command of a server that the worker starts and talks to over standard input and output."""
    url: str | None = None
    """The Streamable HTTP endpoint of a running server."""
    environment: tuple[str, ...] = ()
    """Names of the worker's variables that the server's process receives; none by default."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers for the endpoint; each value is the name of the worker's variable that has it."""
    tools: Annotated[tuple[str, ...], Field(min_length=1)]
    """Tools that may be called."""
    writes: tuple[str, ...] = ()
    """Tools that may change something; any other must declare itself read-only."""
    seconds: Seconds = 60
    """Seconds that a call may take."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> "McpSettings":
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        if unlisted := [name for name in self.writes if name not in self.tools]:
            raise ValueError(f"writes: {unlisted[0]!r} is not among tools; add it there")
        return self
