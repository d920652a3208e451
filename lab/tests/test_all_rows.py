"""The table of all figures: its rows, what is read back from its page, and which row got worse."""

import os
from pathlib import Path

import pytest

from lab import all_rows
from lab.all_rows import Amount, Row, Spread, markdown, measured, read_table, rows_by_hand, worse
from lab.beside_handwritten import STEPS, Measured
from lab.measure import Cost

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

FASTER = Row("runs/s", [30, 29, 31, 30, 28], "a peer", [10, 10, 10, 10, 10], 3.5, more_is_better=True)
QUICKER = Row("alone, ms", [50, 52, 51, 49, 50], "a peer", [100, 100, 100, 100, 100], 0.45)
ALONE = Row("cases/s", [144, 150, 140], "", [], 300, more_is_better=True)
AIMLESS = Row("server CPU, ms", [30, 30, 30], "a peer", [20, 20, 20], None)


def slowed(row: Row, times: float) -> Row:
    return Row(row.name, [figure * times for figure in row.ours], row.peer, row.theirs, row.aim, row.more_is_better)


def test_a_ratio_is_that_of_rounds_in_which_both_sides_took_turns() -> None:
    busy = Row("alone, ms", [50, 500, 50], "a peer", [100, 1_000, 100], 0.45)

    assert busy.ratio == Spread(0.5, 0.5, 0.5)


def test_a_table_is_read_back_from_its_page() -> None:
    table = markdown([FASTER, QUICKER, ALONE, AIMLESS], {}, "a machine")
    page = f"# Benchmarks\n\n| other | table |\n|---|---|\n| a | 1 |\n\n{table}\n\nMore.\n"

    assert read_table(page) == {
        "runs/s": (Spread(2.9, 3.0, 3.0), True),
        "alone, ms": (Spread(0.5, 0.5, 0.51), False),
        "cases/s": (Spread(142, 144, 147), True),
        "server CPU, ms": (Spread(1.5, 1.5, 1.5), False),
    }


def test_the_page_has_every_row_with_an_aim_and_no_row_that_is_not_measured() -> None:
    ours, theirs = (Measured({name: [Cost(10, seconds, 0.3, 0.5, 0.1)] for name in STEPS}, history=9) for seconds in (4.0, 2.0))
    rows = [row for speed in ("instant", "200 ms") for row in rows_by_hand(speed, ours, theirs)]
    timed = [row for row in rows if "CPU" not in row.name and "bytes" not in row.name]
    page = (ROOT / "docs/benchmarks.md").read_text()
    by_hand = [line.split("|")[1].strip() for line in page.splitlines() if "| by hand |" in line]
    shown = set(by_hand) & read_table(page).keys()

    assert {str(row.ratio) for row in timed if not row.more_is_better} == {"2 (2 to 2)"}
    assert {str(row.ratio) for row in timed if row.more_is_better} == {"0.5 (0.5 to 0.5)"}
    assert {row.name for row in rows if row.aim is not None} <= shown <= {"a thread, history, bytes", *(row.name for row in rows)}


@pytest.mark.parametrize(
    ("row", "times", "is_worse"),
    [(FASTER, 0.8, True), (FASTER, 1.2, False), (FASTER, 0.99, False), (QUICKER, 1.2, True), (QUICKER, 0.8, False), (ALONE, 0.5, True)],
)
def test_a_row_is_worse_where_both_spreads_lie_apart_on_the_wrong_side(row: Row, times: float, is_worse: bool) -> None:
    earlier = read_table(markdown([row], {}, ""))

    assert bool(worse([slowed(row, times)], earlier)) is is_worse


def test_a_part_has_variables_of_its_own_and_one_that_fails_leaves_the_others_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = list[str]()

    async def works(_: Amount) -> list[Row]:
        assert "GRADELOOP_STORE" not in os.environ
        os.environ["GRADELOOP_STORE"] = f"sqlite:///{os.environ['GRADELOOP_STATE_DIR']}/results.db"
        stores.append(os.environ["GRADELOOP_STORE"])
        return [ALONE]

    async def breaks(_: Amount) -> list[Row]:
        raise SystemExit("npm is not on the PATH\nmore")

    monkeypatch.delenv("GRADELOOP_STORE", raising=False)
    monkeypatch.setattr(all_rows, "PARTS", {"one": works, "broken": breaks, "other": works})

    assert measured(["one", "broken", "other"], Amount(1, 1), 1) == ([ALONE, ALONE], {"broken": "SystemExit: npm is not on the PATH"})
    assert len(set(stores)) == 2
