"""A database's files are closed to others while another process that opens it makes and removes them."""

from pathlib import Path

import pytest

from gradeloop.settings.paths import close_database


@pytest.mark.slow
def test_a_journal_that_another_process_removes_meanwhile_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: True)  # as it was when somebody looked

    close_database(tmp_path / "results.db", "choose another folder")

    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]
