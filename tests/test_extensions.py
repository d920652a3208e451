"""The seam: extensions by their entry points, and registries of their rows."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from gradeloop import extensions
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Extension, Registry


@dataclass(frozen=True)
class Row:
    name: str


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """What is installed: the objects of entry points, by name."""
    things: dict[str, object] = {}
    module = ModuleType("installed_things")
    module.__dict__["things"] = things
    module.__getattr__ = lambda name: things[name]  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        extensions,
        "entry_points",
        lambda group: [EntryPoint(name, f"installed_things:{name}", group) for name, thing in things.items() if isinstance(thing, Thing)],
    )
    extensions.extensions.cache_clear()
    yield things
    extensions.extensions.cache_clear()


class Thing(Extension):
    """An extension that the fixture installs."""


def extension(name: str, kinds: Mapping[str, str]) -> Thing:
    return Thing(name, kinds=kinds)


def test_a_registry_has_rows_of_its_own_and_of_extensions(installed: dict[str, object]) -> None:
    installed["OWN"] = (Row("csv"),)
    installed["ROWS"] = (Row("parquet"),)
    installed["acme"] = extension("acme", {"formats": "installed_things:ROWS"})
    rows = Registry[Row]("formats", "format", "installed_things:OWN")
    assert [row.name for row in rows] == ["csv", "parquet"]
    with pytest.raises(InvalidRequest, match=r"there is no format 'parqet'\. Did you mean 'parquet'"):
        rows.find("parqet")


def test_a_second_row_of_a_name_is_refused_with_both_that_give_it(installed: dict[str, object]) -> None:
    installed["OWN"] = (Row("csv"),)
    installed["acme"] = extension("acme", {"formats": "installed_things:OWN"})
    with pytest.raises(InvalidRequest, match="the extension 'acme' gives the format 'csv', which gradeloop gives, too; uninstall one"):
        Registry[Row]("formats", "format", "installed_things:OWN").find("csv")


def test_two_extensions_of_one_name_are_refused(installed: dict[str, object]) -> None:
    installed["first"], installed["second"] = extension("acme", {}), extension("acme", {})
    with pytest.raises(InvalidRequest, match="the extension 'second' of an unknown package is called 'acme', and so is another one"):
        extensions.extensions()


def test_an_extension_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda group: [EntryPoint("acme", "not_there:EXTENSION", group)])
    extensions.extensions.cache_clear()
    with pytest.raises(InvalidRequest, match="the extension 'acme' of an unknown package cannot be imported: ModuleNotFoundError: No mod"):
        extensions.extensions()
    extensions.extensions.cache_clear()


def test_an_entry_point_that_is_no_extension_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda group: [EntryPoint("acme", "sys:maxsize", group)])
    extensions.extensions.cache_clear()
    with pytest.raises(InvalidRequest, match=r"is '\d+'; name a gradeloop.extensions.Extension"):
        extensions.extensions()
    extensions.extensions.cache_clear()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("not_there.rows:ROWS", r"an extension names 'not_there.rows:ROWS', and there is no module 'not_there'; correct or uninstall it"),
        ("json:ROWS", r"an extension names 'json:ROWS', and the module has no 'ROWS'; correct or uninstall it"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        extensions.load(name)
