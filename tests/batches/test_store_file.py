"""The file of an SQLite store: its user's alone."""

import os
import stat
from pathlib import Path

import pytest

from gradeloop.batches.reader import BatchReader
from gradeloop.errors import StoreRefused, StoreUnavailable
from gradeloop.store.engine import Store


async def opened(file: Path) -> None:
    """Open the store of a file, and read from it."""
    store = Store(f"sqlite:///{file}")
    try:
        assert await BatchReader(store).summaries(1) == []
    finally:
        store.close()


def mode_of(file: Path) -> int:
    """Return a file's permissions."""
    return stat.S_IMODE(file.stat().st_mode)


async def test_a_new_store_is_made_for_its_user_alone_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        await opened(tmp_path / "results.db")
    finally:
        os.umask(before)

    assert [path.name for path in tmp_path.iterdir() if mode_of(path) & 0o077] == []


@pytest.mark.parametrize("mode", [0o644, 0o664, 0o666, 0o640])
async def test_a_store_that_is_open_to_others_is_closed_with_a_word(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "results.db"
    await opened(file)
    (tmp_path / "results.db-wal").touch()
    for path in tmp_path.iterdir():
        path.chmod(mode)

    await opened(file)

    assert mode_of(file) == mode & 0o700
    assert f"The database {str(file)!r} was open to other users (mode {mode:03o}); it is closed to them now" in caplog.messages


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    await opened(tmp_path / "results.db")
    os.chown(tmp_path / "results.db", 12345, 12345)

    with pytest.raises(StoreUnavailable, match=r"results\.db' belongs to another user \(uid 12345\), who can read and change it; "):
        await opened(tmp_path / "results.db")


async def test_a_store_in_a_folder_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common").chmod(0o777)

    with pytest.raises(StoreUnavailable, match=r"results\.db' is in a folder that everybody can write, who can replace it; set GRADELOOP_"):
        await opened(tmp_path / "common" / "results.db")
    (tmp_path / "common").chmod(0o1777)
    await opened(tmp_path / "common" / "results.db")


async def test_a_folder_that_does_not_exist_is_not_made_but_named(tmp_path: Path) -> None:
    folder = tmp_path / "misspelt"

    with pytest.raises(StoreRefused) as caught:
        await opened(folder / "results.db")

    cure = f"its folder {str(folder)!r} does not exist; create it, or name another store with GRADELOOP_STORE"
    assert str(caught.value) == f"the store 'sqlite:///{folder}/results.db' cannot be used: {cure}"
    assert not folder.exists()
