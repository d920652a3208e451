"""An extension that is installed for one test."""

from typing import Any

import pytest

from gradeloop.extensions import Extension, Registry


def install(monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], *installed: Extension) -> None:
    """Have a registry find the rows of these extensions and of no others, until the test ends."""
    monkeypatch.setattr("gradeloop.extensions.extensions", lambda: installed)
    monkeypatch.setattr(registry, "rows", registry.rows)  # so that it is put back
    del vars(registry)["rows"]
