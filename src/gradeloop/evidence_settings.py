"""What evidence tools may reach: the sandbox's limits, folders, commands, hosts, test suites, MCP servers. All closed by default."""

import shutil
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from gradeloop.strict import Strict

Seconds = Annotated[float, Field(gt=0, le=100)]
"""Below the 110 s that an evidence tool may take in all."""

ServerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")]


class Section(Strict):
    """A table of the file of settings."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _refuse_others(folders: dict[str, Path]) -> None:
    """Raise where something is no folder."""
    for name, path in folders.items():
        if not path.is_dir():
            raise ValueError(f"{name}: {str(path)!r} is no folder; correct the path")


class SandboxSettings(Section):
    """Where code that models wrote is run, and how much of the machine it gets."""

    use: Literal["auto", "monty", "bubblewrap", "landlock"] = "auto"
    """`auto`: for snippets monty, for programs bubblewrap, else Landlock; the first that holds."""
    seconds: Seconds = 5
    """Of a snippet."""
    program_seconds: Seconds = 60
    """Of a test suite or a command."""
    memory_mib: Annotated[int, Field(ge=64, le=65_536)] = 512
    """Of a program's process; a snippet in monty has 128 at most."""
    disk_mib: Annotated[int, Field(ge=1, le=65_536)] = 64
    output_kib: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Beyond it, a program is stopped; 64 KiB of it reach the grader."""
    processes: Annotated[int, Field(ge=1, le=1024)] = 32
    """That a command may have at once."""
    read_only: tuple[Path, ...] = ()
    """What programs may read beside the system's libraries and the worker's Python."""


class FilesSettings(Section):
    """What `read_file`, `list_files` and `search_files` see."""

    roots: dict[str, Path] = Field(default_factory=dict)
    """Folders by the name that their paths begin with."""

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
    """Regular expressions; each further argument has to match one of them whole. None by default."""
    file: Annotated[str, Field(pattern=r"^[\w.-]+$")] = "draft.txt"
    """The file, in the command's folder, that holds the draft."""
    extract: Literal["text", "code"] = "text"
    """What the file holds: the whole draft, or its last fenced code block."""
    description: str = ""
    """For the model."""

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
    """What `fetch_page` may reach."""

    hosts: tuple[str, ...] = ()
    """Names, or `*.example.com` for all below one; with a port where it is not the usual one."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that are meant; none is by default."""
    seconds: Seconds = 20
    max_kib: Annotated[int, Field(ge=1, le=16_384)] = 2048


class PytestSettings(Section):
    """What `run_pytest` knows beside the files that it is given."""

    suites: dict[str, Path] = Field(default_factory=dict)
    """Folders of tests by name."""

    @field_validator("suites")
    @classmethod
    def _are_folders(cls, value: dict[str, Path]) -> dict[str, Path]:
        _refuse_others(value)
        return value


class McpSettings(Section):
    """An MCP server whose tools graders may call, as `SERVER__TOOL`."""

    command: tuple[str, ...] = ()
    """A server that the worker starts and speaks with over its standard input and output."""
    url: str | None = None
    """A server that listens: its Streamable HTTP endpoint."""
    environment: tuple[str, ...] = ()
    """Names of the worker's variables that the server's process gets; none by default."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers for the endpoint, by the name of the worker's variable that holds the value."""
    tools: Annotated[tuple[str, ...], Field(min_length=1)]
    """The ones that may be called."""
    writes: tuple[str, ...] = ()
    """Those of them that may change something; any other must say of itself that it only reads."""
    seconds: Seconds = 60

    @model_validator(mode="after")
    def _is_somewhere(self) -> "McpSettings":
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        if unlisted := [name for name in self.writes if name not in self.tools]:
            raise ValueError(f"writes: {unlisted[0]!r} is not among tools; add it there")
        return self
