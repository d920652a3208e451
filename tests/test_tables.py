"""A table as one test: every row is run, and each that fails is named."""

import asyncio

import pytest

from tests.rig.tables import over


@over(("one", "other"), [(1, 1), (2, 2)])
def test_a_table_whose_rows_all_hold_passes(one: int, other: int) -> None:
    assert one == other


def test_every_row_that_fails_is_named_with_its_error() -> None:
    seen: list[int] = []

    @over("number", [1, 2, 3])
    def table(given: list[int], number: int) -> None:
        given.append(number)
        assert number == 2, "it is not two"

    @over("number", [1])
    async def waits_for_an_error(number: int) -> None:
        with pytest.raises(ValueError, match=str(number)):
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"2 of 3 rows fail:\n.*'number': 1.*\n.*it is not two(?s:.*)'number': 3"):
        table(given=seen)
    with pytest.raises(AssertionError, match=r"1 of 1 rows fail:\n.*\n.*DID NOT RAISE"):
        asyncio.run(waits_for_an_error())
    assert seen == [1, 2, 3]
