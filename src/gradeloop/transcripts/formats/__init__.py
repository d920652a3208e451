"""The formats of runs that others write, one module a family: each format is a row that says how it is recognised and read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradeloop.contract.transcript import AgentRun
from gradeloop.text import rows_are
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of


@dataclass(frozen=True)
class Format:
    """A format of runs; a package adds its own by the kind `formats` of its extension.

    Example:
        ```python
        def recognise(value: Json) -> str | None:
            return "an object with turns" if isinstance(value, dict) and "turns" in value else None


        def parse(value: Json, name: str) -> Iterator[AgentRun]:
            yield run_of(name, parse_messages(value["turns"]))


        FORMATS = (Format("acme log", recognise, parse),)
        ```
    """

    name: str
    """The name of the format: `Inspect log`."""
    recognise: Callable[[Json], str | None]
    """Returns why a value is of this format; None where it is not."""
    parse: Callable[[Json, str], Iterator[AgentRun | UnreadableMessage]]
    """Yields the runs of a value, given the id of a run without one of its own; for one of several that cannot be read, why.

    It raises `UnreadableMessage` where the value as a whole cannot be read; the error's path leads to what is wrong.
    """
    whole: bool = False
    """Whether the lines of a file, or the items of a list, are one value of this format: events, spans."""
    several: str | None = None
    """The key of the list whose items are a run each; None where a value is one run, or is taken apart otherwise."""
    rows: bool = False
    """Whether rows of one id may differ: completions of one prompt, criteria of one completion."""
    unshown: str = ""
    """A pattern of the keys, and the types of objects, that judges are not shown on purpose.

    A record with another long text that is shown nowhere is refused.
    """


def rows_of(is_known: Callable[[dict[str, Json]], object], why: str) -> Callable[[Json], str | None]:
    """Return what recognises an object of a kind, a list of them, and an object that has them as `messages`."""
    return lambda value: why if any(rows_are(rows, is_known) for rows in (value, [value], dict_of(value).get("messages"))) else None
