"""Tables of cases: one test runs over all rows, and reports every row that fails."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest


def over(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a test run once over all rows of a table, and report each row that fails.

    It takes what `pytest.mark.parametrize` takes. The rows share the test's fixtures; where that matters, or where a row is dear, rows are
    parameters, each a test of its own.
    """
    keys = [names] if isinstance(names, str) else list(names)
    table = [dict(zip(keys, (row,) if isinstance(names, str) else row, strict=True)) for row in rows]
    assert table, "the table has no rows"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @wraps(test)
            async def run(*itself: Any, **fixtures: Any) -> None:
                failed = Failures(len(table))
                for row in table:
                    with failed.of(row):
                        await test(*itself, **fixtures, **row)
                failed.report()
        else:

            @wraps(test)
            def run(*itself: Any, **fixtures: Any) -> None:
                failed = Failures(len(table))
                for row in table:
                    with failed.of(row):
                        test(*itself, **fixtures, **row)
                failed.report()

        signature = inspect.signature(test)
        kept = [parameter for parameter in signature.parameters.values() if parameter.name not in keys]
        assert len(kept) == len(signature.parameters) - len(keys), f"{test.__name__} does not take all of {', '.join(keys)}"
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what pytest reads
        return run

    return decorate


class Failures:
    """The rows of a table that fail."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._row: object = None
        self._found: list[tuple[object, BaseException]] = []

    def of(self, row: object) -> "Failures":
        """Return a context that keeps what is raised for a row."""
        self._row = row
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception | pytest.fail.Exception):
            return False
        self._found.append((self._row, error))
        return True

    def report(self) -> None:
        """Fail with every row that did, and with where the first one failed."""
        if self._found:
            lines = [f"{row!r:.500}\n    {type(error).__name__}: {error!s:.2000}" for row, error in self._found]
            raise AssertionError(f"{len(self._found)} of {self._rows} rows fail:\n" + "\n".join(lines)) from self._found[0][1]
