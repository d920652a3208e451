"""The one seam between the core and what is installed beside it: extensions, and the registries that their rows join."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gradeloop.errors import InvalidRequest
from gradeloop.text import clip, did_you_mean

if TYPE_CHECKING:
    from temporalio.client import Client

GROUP = "gradeloop.extensions"
"""The entry-point group in which a package names its extension."""


@dataclass(frozen=True)
class Command:
    """A command of `gradeloop`, which is imported when it is called."""

    group: str
    """The title in `gradeloop --help` below which it stands; empty for another name of a command, which help does not list."""
    help: str
    """Its help in one sentence, as its docstring begins."""
    app: str
    """The typer application that defines it, as `module:app`."""


@dataclass(frozen=True)
class Extension:
    """The names, as `module:attribute`, of all that a package adds to gradeloop; each is imported at its first use.

    A package registers its extension in the entry-point group `gradeloop.extensions`. Whatever is installed is trusted.

    Example:
        ```python
        EXTENSION = Extension("acme", kinds={"checks": "acme.checks:KINDS"})
        ```
        ```toml
        [project.entry-points."gradeloop.extensions"]
        acme = "acme.extension:EXTENSION"
        ```
    """

    name: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands by name."""
    worker: str = ""
    """A function that takes the worker's `WorkerContext` and returns a `temporalio.plugin.SimplePlugin`: its workflows and activities."""
    admits: str = ""
    """The `Admission` of what `validate` asks a worker about, beside threads."""
    tables: str = ""
    """The `StoreTables`: what is kept in the store, and pruned by `gradeloop store`."""
    erases: str = ""
    """The `OwnedData`: what `gradeloop forget` removes."""
    routes: str = ""
    """A function that takes the `Site` of the live page and returns the `LivePages`."""
    templates: str = ""
    """The folder of templates, styles and scripts, as a path."""
    waits: str = ""
    """An async function that takes the store and a person's name, and returns the `StoredQuestions` for `gradeloop inbox` and its page."""
    schemas: str = ""
    """The `SchemaModels` that `gradeloop schema` shows."""
    receives: str = ""
    """A function that opens the receiver of traces: it takes its settings and the environment."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Rows for the registries, by the registry's name: `protocols`, `formats`, `checks`, `sources`, `renderers`, `tools`."""


@dataclass(frozen=True)
class WorkerContext:
    """The worker that an extension serves."""

    client: "Client"
    runs_workflows: bool
    """False on a worker of another role, such as one that only calls models."""
    services: Any = None
    """A `WorkerServices`, with which activities call models; None on a worker that calls none."""
    store: Any = None
    """The store of results, a `gradeloop.store.engine.Store`; None where there is none."""
    fleet: Any = None
    """The worker's `gradeloop.store.fleet.Fleet`: its id in the store, and the slots of all workers of its queue."""


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the extensions that are installed, by name.

    Raises:
        InvalidRequest: One of them cannot be imported, is not an extension, or has the name of another one.
    """
    found: dict[str, Extension] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        origin = f"the extension {entry.name!r} of {entry.dist.name if entry.dist else 'an unknown package'}"
        try:
            extension = entry.load()
        except Exception as error:  # another package's code
            raise InvalidRequest(f"{origin} cannot be imported: {type(error).__name__}: {error}; correct or uninstall it") from error
        if not isinstance(extension, Extension):
            raise InvalidRequest(f"{origin} is {clip(repr(extension))}; name a gradeloop.extensions.Extension")
        if found.setdefault(extension.name, extension) is not extension:
            raise InvalidRequest(f"{origin} is called {extension.name!r}, and so is another one; uninstall one of them")
    return tuple(found.values())


def packages() -> dict[str, str]:
    """Return the package and version of each extension that gradeloop does not bring itself, by the name of its entry point."""
    found = ((entry.name, entry.dist) for entry in entry_points(group=GROUP))
    return {name: f"{dist.name} {dist.version}" for name, dist in found if dist is not None and dist.name != "gradeloop"}


def load(name: str) -> Any:  # noqa: ANN401 - whatever the name is of
    """Import the object that a name as `module:attribute` is of.

    Raises:
        InvalidRequest: An extension names a module or an attribute that is not there.
        ModuleNotFoundError: The module needs a package that is not installed.
    """
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InvalidRequest(f"an extension names {name!r}, and there is no module {error.name!r}; correct or uninstall it") from error
    if not hasattr(found, attribute):
        raise InvalidRequest(f"an extension names {name!r}, and the module has no {attribute!r}; correct or uninstall it")
    return getattr(found, attribute)


def parts(of: Callable[[Extension], str]) -> Iterator[Any]:
    """Yield what each extension gives for one of its fields, imported: `parts(lambda extension: extension.routes)`."""
    yield from (load(name) for extension in extensions() if (name := of(extension)))


class RegistryRow(Protocol):
    """A row of a registry."""

    @property
    def name(self) -> str:
        """Its name in files and flags."""


Row = TypeVar("Row", bound=RegistryRow)


class Registry(Generic[Row]):
    """Rows by name: those of gradeloop first, then those of each extension; all are imported at the first use.

    Example:
        ```python
        FORMATS = Registry[Format]("formats", "format", "gradeloop.transcripts.registry:OWN")
        FORMATS.find("Inspect log")
        ```
    """

    def __init__(self, kind: str, noun: str, *built_in: str) -> None:
        """Take the names of gradeloop's own rows.

        Args:
            kind: The key of `Extension.kinds`.
            noun: What a row is called in messages.
            built_in: Sequences of rows, as `module:attribute`.
        """
        self.kind, self.noun = kind, noun
        self._built_in = built_in

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        """The rows by name.

        Raises:
            InvalidRequest: Two rows have one name.
        """
        origins = [("gradeloop", name) for name in self._built_in]
        origins += [(f"the extension {one.name!r}", name) for one in extensions() if (name := one.kinds.get(self.kind))]
        found: dict[str, Row] = {}
        givers: dict[str, str] = {}
        for giver, name in origins:
            for row in load(name):
                if row.name in found:
                    why = f"{giver} gives the {self.noun} {row.name!r}, which {givers[row.name]} gives, too; uninstall one of them"
                    raise InvalidRequest(why)
                found[row.name], givers[row.name] = row, giver
        return found

    def find(self, name: str) -> Row:
        """Return a row by its name.

        Raises:
            InvalidRequest: There is none of that name; the message says what is meant, perhaps.
        """
        if (row := self.rows.get(name)) is None:
            raise InvalidRequest(f"there is no {self.noun} {clip(name)}.{did_you_mean(name, sorted(self.rows))}")
        return row

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, those of gradeloop first."""
        return iter(self.rows.values())
