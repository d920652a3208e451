"""Flags that replace parts of a suite: its prompts, generators, tests, and the variables of all tests."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.text import clip

FILE = "file://"
TEXT_SUFFIXES = (".txt", ".md", ".j2", ".json", ".jsonl", ".yaml", ".yml", ".csv")


@dataclass(frozen=True)
class Overrides:
    """Parts of a suite that the command line gives instead of its file; files are relative to the folder of the command."""

    prompts: tuple[str, ...] = ()
    """Files of prompts, patterns of such files, or prompts as text."""
    providers: tuple[str, ...] = ()
    """Ids or labels of the suite's generators, or other models."""
    tests: str | None = None
    """A file of tests."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of all tests that do not set them."""

    @property
    def makes_suite(self) -> bool:
        """Whether there is enough for a suite without a file: what is asked, and who answers."""
        return bool(self.prompts and self.providers)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are named, which a suite may read wherever they are."""
        return tuple(path for name in (*self.prompts, *filter(None, [self.tests])) for path in _matching(name))

    def apply(self, value: Mapping[str, JsonValue], *, promptfoo: bool) -> dict[str, JsonValue]:
        """Return a suite's value with the parts that are replaced.

        Raises:
            InvalidRequest: A file does not exist.
        """
        changed: dict[str, JsonValue] = dict(value)
        if self.prompts:
            changed["prompts"] = [entry for name in self.prompts for entry in _prompts(name)]
        if self.tests is not None:
            path = Path(self.tests.removeprefix(FILE))
            if not path.is_file():
                raise InvalidRequest(f"--tests: the file {clip(self.tests)} does not exist; name a file of tests")
            changed["tests"] = [str(path.resolve())]
        if self.providers:
            key = ("targets" if "targets" in value else "providers") if promptfoo else "generators"
            changed[key] = list(_providers(self.providers, value.get(key)))
        return changed


def overrides(
    prompts: Sequence[str] | None, providers: Sequence[str] | None, tests: str | None, variables: Sequence[str] | None
) -> Overrides:
    """Return the parts that the flags `--prompts`, `--providers`, `--tests` and `--var` give.

    Raises:
        InvalidRequest: A variable is no pair.
    """
    if odd := next((pair for pair in variables or () if not all(pair.partition("=")[:2])), None):
        raise InvalidRequest(f"--var: {clip(odd)} is no pair; write NAME=VALUE")
    return Overrides(tuple(prompts or ()), tuple(providers or ()), tests, dict(pair.split("=", 1) for pair in variables or ()))


def _prompts(name: str) -> list[JsonValue]:
    """Return what the flag names: the files that a name or pattern stands for, or the prompt that it is itself."""
    found = _matching(name)
    if not found and "\n" not in name and " " not in name and Path(name).suffix in TEXT_SUFFIXES:
        raise InvalidRequest(f"--prompts: the file {clip(name)} does not exist; name a file, or write the prompt itself")
    return [f"{FILE}{path}" for path in found] or [name]


def _matching(name: str) -> list[Path]:
    """Return the files that a name or a pattern stands for; none where it is a text."""
    plain = name.removeprefix(FILE)
    try:
        if (path := Path(plain)).is_file():
            return [path.resolve()]
    except (OSError, ValueError):  # too long for a name: it is a text
        return []
    found = sorted(glob.glob(plain))  # noqa: PTH207 - a pattern may begin with / or ..
    return [Path(name).resolve() for name in found if Path(name).is_file()]


def _providers(names: Sequence[str], known: JsonValue) -> Iterator[JsonValue]:
    """Yield the generators of the suite that have these ids or labels, with their settings, and other models by their names."""
    entries = known if isinstance(known, list) else [] if known is None else [known]
    for name in names:
        same = [entry for entry in entries if name in _names(entry)]
        ending = [entry for entry in entries if any(other.endswith(f":{name}") for other in _names(entry))]
        yield next(iter([*same, *ending]), name)


def _names(entry: JsonValue) -> Iterator[str]:
    """Yield the names of a generator: promptfoo's id, ours, or its label."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        model = entry.get("model")
        named = (entry.get("id"), entry.get("label"), model.get("id") if isinstance(model, dict) else model)
        yield from (name for name in named if isinstance(name, str))
        yield from entry if len(entry) == 1 and "id" not in entry else ()
