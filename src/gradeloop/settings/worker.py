"""The settings of a worker: flags, variables `GRADELOOP_*`, or the file gradeloop.toml."""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliImplicitFlag,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from gradeloop.contract.base import READS_SHARES, Documented, Strict, describe_fields
from gradeloop.contract.model_spec import CALL_SECONDS, Budget, CallTimeout, ToolName
from gradeloop.contract.notice import ALL_KINDS, NoticeKind
from gradeloop.contract.thread import OUTAGE_SECONDS, TASK_QUEUE, OutageTimeout, Priority, TenantName
from gradeloop.errors import InvalidRequest, explained
from gradeloop.settings.endpoints import CallCeilings, CeilingName, EndpointTable, names_file
from gradeloop.settings.paths import holds_private
from gradeloop.settings.trust import CONFIG_FILE, ConfigFile, counted_settings, describe_uncounted, find_config_file, uncounted_keys
from gradeloop.telemetry.health import is_loopback, parse_address
from gradeloop.telemetry.logs import LogFormat
from gradeloop.text import did_you_mean

logger = logging.getLogger("gradeloop.settings")

TOOL_VARIABLES = ("CONFIG", "NEEDS_APPROVAL", "SANDBOX", "FILES", "COMMANDS", "FETCH", "PYTEST", "MCP")
"""The variables `GRADELOOP_...`, with those below them, that change which tools a worker has."""

TENANT_VARIABLE = "GRADELOOP_TENANT"
"""The variable that names the tenant of whatever a process asks for."""


def with_tenant(priority: Priority | None, tenant: str | None = None, *, level: int = 3) -> Priority | None:
    """Return a priority with the tenant of a flag, else its own, else that of GRADELOOP_TENANT; as it is where none of them names one.

    Raises:
        InvalidRequest: No tenant can have that name.
    """
    named = tenant if tenant is not None else (priority.tenant if priority else None) or os.environ.get(TENANT_VARIABLE) or None
    given = priority.model_dump(exclude_unset=True) if priority else {"level": level}
    with explained("" if tenant is None else "--tenant: "):
        return Priority.model_validate(given | {"tenant": named}) if named is not None else priority


def is_embedded() -> bool:
    """Return whether the server is the embedded one, since neither Temporal's environment nor a profile names another.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
    """
    return load_connect_config().get("target_host") is None


def load_connect_config() -> ClientConnectConfig:
    """Load how Temporal's environment or profile says to connect; raise InvalidRequest where one of them is malformed."""
    file = os.environ.get("TEMPORAL_CONFIG_FILE")
    if file and not Path(file).exists():
        raise InvalidRequest(f"TEMPORAL_CONFIG_FILE names {file!r}, which does not exist; correct or unset it")
    try:
        return ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        # The report has an excerpt of the file, which may hold a key.
        report = "; ".join(line.strip() for line in str(error).splitlines() if line.strip() and "|" not in line)
        raise InvalidRequest(f"Temporal's environment or profile is malformed: {report}") from error


Seconds = Annotated[float, Field(gt=0, le=100)]
"""A time limit, below the 110 s that an evidence tool may take in all."""

ServerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")]


class Section(Strict, Documented):
    """A table of the settings file."""


Part = TypeVar("Part", bound=Section)


def _refuse_non_folders(folders: dict[str, Path]) -> None:
    """Raise ValueError for a path that is not a folder."""
    for name, path in folders.items():
        if not path.is_dir():
            raise ValueError(f"{name}: {str(path)!r} is not a folder; correct the path")


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
    imports: tuple[Path, ...] = ()
    """Folders that code of suites may import from: a copy of a suite's folder, virtual environments, others with `node_modules`."""

    @field_validator("imports")
    @classmethod
    def _show_nothing_private(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        _refuse_non_folders({f"[{at}]": path for at, path in enumerate(value)})
        if private := next(filter(holds_private, value), None):
            raise ValueError(
                f"{str(private)!r} holds your home folder, gradeloop's state or all temporary files; name one below or beside it"
            )
        return value


class FilesSettings(Section):
    """The folders that files are read from."""

    roots: dict[str, Path] = Field(default_factory=dict)
    """Folders by name that `read_file`, `list_files` and `search_files` may read; a tool's paths begin with the name."""
    allow_outside: tuple[Path, ...] = ()
    """Folders in which suites, tasks, rubrics and judges may name files, besides their own folder, as with `--allow-outside`."""

    @field_validator("allow_outside")
    @classmethod
    def _are_all_folders(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        _refuse_non_folders({f"[{at}]": path for at, path in enumerate(value)})
        return value

    @field_validator("roots")
    @classmethod
    def _are_folders(cls, value: dict[str, Path]) -> dict[str, Path]:
        for name in value:
            if not name or "/" in name or name in {".", ".."}:
                raise ValueError(f"{name!r} is not a name of a root; it is the first part of a path, without '/'")
        _refuse_non_folders(value)
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
    """The file's content: the whole draft, or its last fenced code block."""
    description: str = ""
    """The command's purpose, as the model reads it."""

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


class NotifySettings(Section):
    """A webhook that hears when a person is wanted."""

    url: Annotated[str, Field(min_length=1)]
    """Its address, or the name of the worker's variable that has it, for an address that is a secret, as Slack's is."""
    secret: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The name of the worker's variable with the secret by which notices are signed; they are not signed without one."""
    format: Literal["json", "slack", "teams"] = "json"
    """The format of a post: our JSON, or that of the webhooks of Slack or Teams."""
    on: Annotated[tuple[NoticeKind, ...], Field(min_length=1)] = ALL_KINDS
    """The types of notices that it gets; all by default."""
    content: bool = False
    """Whether notices have the question and the draft, and not only title, ids and the answer in one line."""
    pages: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The address of the live pages, for links to a thread or a batch."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that may be reached; none by default."""

    @property
    def has_address(self) -> bool:
        """Whether `url` is the address itself."""
        return "://" in self.url

    @model_validator(mode="after")
    def _is_secure(self) -> "NotifySettings":
        if not self.has_address and not self.url.isidentifier():
            raise ValueError(f"url: {self.url!r} is neither an address nor the name of a variable; it begins with https://")
        if self.has_address and not self.url.startswith("https://") and not (self.networks and self.url.startswith("http://")):
            raise ValueError(f"url: {self.url!r}: use https; http is for the private networks that `networks` lists")
        return self


class PytestSettings(Section):
    """The test suites that `run_pytest` may run."""

    suites: dict[str, Path] = Field(default_factory=dict)
    """Folders of tests, by name."""

    @field_validator("suites")
    @classmethod
    def _are_folders(cls, value: dict[str, Path]) -> dict[str, Path]:
        _refuse_non_folders(value)
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


def _refuse_malformed(value: str) -> str:
    try:
        parse_address(value, "the address")
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return value


ListenAddress = Annotated[str, AfterValidator(_refuse_malformed)]

DeploymentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_/-]{0,99}$")]
"""A name of a worker deployment; Temporal keeps `.` and `:` for itself."""

BuildId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$")]

Share = Annotated[float, Field(gt=0, le=1), READS_SHARES]


class TunerSettings(Section):
    """The share of the machine that a worker may use before it takes no further calls."""

    memory: Share = 0.8
    """The share of the memory, of the container where it has a limit, from which no further call is taken."""
    cpu: Share = 0.9
    """The share of the processors from which no further call is taken."""


class StorePoolSettings(Section):
    """The connections of a worker to a store on PostgreSQL."""

    size: Annotated[int, Field(ge=1, le=1000)] = 5
    """Connections that stay open."""
    overflow: Annotated[int, Field(ge=0, le=1000)] = 10
    """Connections beside them at most, which are closed after use."""
    recycle: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds after which a connection is replaced, before its next use; fewer than a firewall or a pooler keeps an idle one."""


class ReceiverSettings(Section):
    """The OTLP receiver, which keeps spans of models for monitors."""

    address: ListenAddress = "127.0.0.1:4318"
    """The address on which a worker of the role `receiver` takes OTLP over HTTP; any other machine's needs a token."""
    token: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The name of the worker's variable with the token that exporters send, as `Authorization: Bearer TOKEN`."""
    settle: Annotated[float, Field(ge=0.1, le=86_400)] = 60.0
    """Seconds without a new span after which a trace is a finished run."""
    late: Annotated[float, Field(ge=0, le=7 * 86_400)] = 900.0
    """Seconds for which a trace that has settled still takes spans, which complete its run; later ones are refused."""
    keep_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    """Days for which runs are kept."""
    max_request_mib: Annotated[int, Field(ge=1, le=256)] = 16
    """The largest request, unpacked."""
    max_spans: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """The most spans of models and tools that are kept of a trace."""
    max_open_traces: Annotated[int, Field(ge=1)] = 100_000
    """Traces that have not settled, above which exporters get 429."""
    max_runs: Annotated[int, Field(ge=1)] = 5_000_000
    """Runs in the store, above which exporters get 429."""

    def read_token(self, environment: Mapping[str, str]) -> str | None:
        """Return the token that exporters send; None where the receiver is only for this machine, and asks for none.

        Raises:
            InvalidRequest: Its variable is not set, or the address is open to other machines without a token.
        """
        if self.token:
            if token := environment.get(self.token, "").strip():
                return token
            raise InvalidRequest(
                f"receiver.token names the variable {self.token}, which is not set; set it to the token that exporters send"
            )
        if not is_loopback(parse_address(self.address, "receiver.address")[0]):
            cure = "name the variable with a token in receiver.token, or listen at 127.0.0.1"
            raise InvalidRequest(f"receiver.address {self.address!r} is open to other machines, and no token is asked for; {cure}")
        return None


Role = Literal["all", "loop", "models", "evidence", "receiver"]


class WorkerSettings(Documented, BaseSettings):
    """Run a worker. Settings are flags, variables `GRADELOOP_*`, or keys of gradeloop.toml."""

    model_config = SettingsConfigDict(
        env_prefix="GRADELOOP_",
        env_nested_delimiter="__",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="gradeloop worker",
        extra="forbid",
    )

    config: Path | None = None
    """Read settings from this file, which naming it trusts; gradeloop.toml of the folder by default."""
    folder: Path | None = None
    """Look for gradeloop.toml in this folder; in the current one by default."""
    trust: CliImplicitFlag[bool] = False
    """Trust the folder's gradeloop.toml as it is now, as `gradeloop trust` does."""
    task_queue: str = TASK_QUEUE
    """Serve this task queue."""
    role: Role = "all"
    """Run workflows (loop), call models, run evidence tools, or do all three; or receive traces (receiver)."""
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
    tuner: TunerSettings | None = None
    """Take fewer calls than `max_concurrent_activities` where memory or processors become scarce; not by default."""
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Give calls in flight this many seconds when the worker is asked to stop; other workers repeat the rest, which is paid for again."""
    store_pool: StorePoolSettings = StorePoolSettings()
    """The connections to a store on PostgreSQL: `size`, `overflow` and `recycle`."""
    max_calls_per_second: float | None = Field(default=None, gt=0)
    """Start at most this many model and tool calls per second, counted over all workers of the queue; no limit by default."""
    limits: dict[CeilingName, CallCeilings] = {}
    """The most that is asked of a provider (`openai`) or of one of its models (`openai:gpt-6-luna`), by its name."""
    tenant_budgets: dict[TenantName, Budget] = {}
    """Each tenant's budget a day (UTC), by its name or `*` for all others: `max_tokens`, `max_cost_usd`, or both; needs a store."""
    max_cached_workflows: int = 2000
    """Keep at most this many threads in memory; with fewer than are in flight, throughput falls to a third."""
    outage_timeout: OutageTimeout = OUTAGE_SECONDS
    """Wait for a provider that is away for this many seconds, before a run is interrupted; a request may say otherwise."""
    call_timeout: CallTimeout = CALL_SECONDS
    """Give a model call this many seconds in all; slow models and long completions get more, and a model's `config.timeout` comes first."""
    probe: Literal["on", "off"] = "on"
    """Ask model servers of which no table knows what they are and whether they enforce a schema; `off` where tables and settings say it."""
    log: LogFormat = "text"
    """Write the log as text, or as JSON: one object a line, with the ids of thread, run, iteration, batch, case and call."""
    metrics_address: ListenAddress | None = None
    """Serve metrics for Prometheus at this HOST:PORT, under `/metrics`; not at all by default."""
    health_address: ListenAddress | None = None
    """Answer `/healthz` and `/readyz` at this HOST:PORT; not at all by default."""
    deployment: DeploymentName | None = None
    """Take part in this deployment of Temporal's Worker Versioning, with `build_id`; workers have no versions by default."""
    build_id: BuildId | None = None
    """The build that this worker is in its `deployment`: the digest of its image, or another name for its code."""
    until_idle: float | None = None
    """Stop after this many seconds without an open workflow; never by default."""
    until_input_ends: CliImplicitFlag[bool] = False
    """Stop once standard input ends, as a further process of a worker does."""
    processes: Annotated[int, Field(ge=1, le=256)] | None = None
    """Start further processes, up to this many in all, where one is busy; only for commands, and by default one fewer than the cores."""
    ready_file: Path | None = None
    """Write this file once the worker serves its queue, or why it does not."""
    examine: Literal["machine", "requests"] | None = None
    """Print as JSON what keys, sandboxes and tools there are, as for `gradeloop doctor`, or why requests are refused, and exit."""
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
    notify: dict[ServerName, NotifySettings] = {}
    """Webhooks that hear when a person is wanted, by name."""
    receiver: ReceiverSettings = ReceiverSettings()
    local_servers: list[str] = []
    """Let requests name exactly these Chat Completions servers of this machine; a command gives its worker those that its files name."""
    providers: EndpointTable = {}
    """Endpoints that models are called at, by name: `NAME:model`. Each may be a preset's, or have protocol and address of its own."""

    _uncounted: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _has_a_whole_version(self) -> "WorkerSettings":
        if (self.deployment is None) != (self.build_id is None):
            given, absent = ("deployment", "build_id") if self.build_id is None else ("build_id", "deployment")
            raise ValueError(f"{given} without {absent}: give both (GRADELOOP_DEPLOYMENT and GRADELOOP_BUILD_ID), or neither")
        return self

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The settings in the folder's gradeloop.toml that do not count, since nobody has trusted it."""
        return self._uncounted

    def note_uncounted(self, names: Sequence[str]) -> None:
        """Note which settings of the file do not count."""
        self._uncounted = tuple(names)

    @property
    def evidence_queue(self) -> str:
        """The task queue of evidence tools when a process of its own serves them."""
        return f"{self.task_queue}-evidence"


def load_settings(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> WorkerSettings:
    """Load the settings from flags, variables and the file, in this order of precedence; only the lists of `tools` are joined.

    Raises:
        InvalidRequest: A setting is unknown or malformed; the message names its place.
    """
    file = find_config_file(arguments, os.environ if environment is None else environment)
    uncounted, in_file = _read_file(file) if file else ([], {})
    if file and uncounted:
        logger.warning("%s", describe_uncounted(file.path, uncounted))

    if {"--help", "-h"} & set(arguments):
        describe_fields(WorkerSettings)

    class FromFile(WorkerSettings):
        model_config = SettingsConfigDict(cli_parse_args=list(arguments))

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the interface's own
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, in_file)

    try:
        with explained():
            settings = FromFile()
    except SettingsError as error:
        why = f": {error.__cause__}" if error.__cause__ else ""
        raise InvalidRequest(f"a variable GRADELOOP_... is malformed: {error}{why}; write its value as JSON") from None
    tools = [*map(Path, in_file.get("tools", ())), *settings.tools]
    settings = settings.model_copy(update={"config": file.path if file else None, "tools": list(dict.fromkeys(tools))})
    settings.note_uncounted(uncounted)
    return settings


def _read_file(file: ConfigFile) -> tuple[list[str], dict[str, Any]]:
    """Return the settings in a file that do not count, and those that do, their relative paths resolved from its folder."""
    table = file.read()
    known = [name for name in WorkerSettings.model_fields if name not in {"config", "folder", "trust", "ready_file", "examine"}]
    for key in table:
        if key not in known:
            raise InvalidRequest(f"{file.path}: unknown key {key!r}.{did_you_mean(key, known)}")
    trusted = file.trusted
    counted = table if trusted else counted_settings(table)
    uncounted = [] if trusted else list(uncounted_keys(table))
    return uncounted, {key: _anchored(value, file.path.parent, (key,)) for key, value in counted.items()}


def find_outside_roots(given: Sequence[Path], file: ConfigFile | None) -> tuple[Path, ...]:
    """Return the folders in which files may name others: those of `--allow-outside`, and of the settings file's `files.allow_outside`.

    Raises:
        InvalidRequest: One of them is not a folder.
    """
    for path in given:
        if not path.is_dir():
            raise InvalidRequest(f"--allow-outside: {str(path)!r} is not a folder; correct the path")
    return (*given, *_read_setting(FilesSettings, file, "files", "allow_outside").allow_outside)


def find_imports(given: Sequence[Path], file: ConfigFile | None) -> tuple[Path, ...]:
    """Return the folders that code of a suite may import from besides its own: those of `--imports`, and of `sandbox.imports`.

    Raises:
        InvalidRequest: One of them is not a folder, or holds what is private.
    """
    with explained("--"):  # before the setting's name, which is the flag's
        own = SandboxSettings.model_validate({"imports": given}).imports
    return tuple(path.absolute() for path in (*own, *_read_setting(SandboxSettings, file, "sandbox", "imports").imports))


def _read_setting(model: type[Part], file: ConfigFile | None, section: str, name: str) -> Part:
    """Return a section of the settings file, of which only one setting is read."""
    table = _read_file(file)[1].get(section) if file else None
    named = table.get(name, ()) if isinstance(table, dict) else ()
    with explained(f"{file.path if file else CONFIG_FILE}: {section}."):
        return model.model_validate({name: named})


_PATHS = {
    ("tools",),
    ("scripted",),
    ("record",),
    ("files", "roots"),
    ("files", "allow_outside"),
    ("pytest", "suites"),
    ("sandbox", "read_only"),
    ("sandbox", "imports"),
}
"""The settings that are paths, or tables or lists of paths."""


def _anchored(value: Any, folder: Path, at: tuple[str, ...]) -> Any:  # noqa: ANN401 - a settings file's own
    """Return a value with its relative paths resolved from the file's folder."""
    if isinstance(value, dict):
        return {key: _anchored(inner, folder, (*at, key)) for key, inner in value.items()}
    if at[:1] == ("providers",) and at[2:] == ("key",) and isinstance(value, str) and names_file(value):
        return str(folder / Path(value).expanduser())
    if at not in _PATHS and at[:-1] not in _PATHS:
        return value
    if isinstance(value, list):
        return [str(folder / path) if isinstance(path, str) else path for path in value]
    return str(folder / value) if isinstance(value, str) else value
