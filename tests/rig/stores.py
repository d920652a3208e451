"""Stores of other versions: one of version 1 as a dump, one of before 0.2.0, and a gradeloop whose version is the next one."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from gradeloop.admin import store_care
from gradeloop.cli import upkeep
from gradeloop.store import upgrade
from rig.builds import NEXT, add_migration

ON_EITHER = pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
"""Runs a test on SQLite, and with the slow ones on PostgreSQL: for those whose statements the tests of the store run on both."""

DUMPS = Path(__file__).parents[1] / "store" / "dumps"
"""A batch, a rubric and a judgement in a store of a version, as `.dump` of SQLite and `pg_dump --inserts` write them."""

BEFORE_0_2_0 = {
    13: "CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version VALUES ('0013');",
    1: "",
}
"""The versions of stores that nobody was given, each with where alembic had its number; the first ones knew no alembic."""


def load(dump: str, url: str) -> None:
    """Fill an empty database with a dump."""
    run(url, (DUMPS / f"{dump}_{url.partition(':')[0]}.sql").read_text())


def run(url: str, script: str) -> None:
    """Run SQL on a database, which is made where it is a file."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        path.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
        path.chmod(0o600)  # else whoever opens it closes it to others, with a word
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def make_unreleased(url: str, version: int) -> None:
    """Make a store as a gradeloop before 0.2.0 left it."""
    tables = "CREATE TABLE judgements (id VARCHAR(100)); CREATE TABLE schema_version (version INTEGER);"
    run(url, f"{tables} INSERT INTO judgements VALUES ('kept'); INSERT INTO schema_version VALUES ({version}); {BEFORE_0_2_0[version]}")


def write_next(folder: Path, oldest: int = upgrade.VERSION) -> Path:
    """Write the migrations with one more, which brings a table and a column, and return their folder.

    Args:
        folder: Where they are written.
        oldest: The version that a gradeloop must know which uses the store after it.
    """
    migrations = folder / "migrations"
    shutil.copytree(upgrade.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    add_migration(migrations, oldest)
    return migrations


@contextmanager
def next_version(folder: Path, oldest: int = upgrade.VERSION) -> Iterator[None]:
    """Have this process be a gradeloop of the next version of the store while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upgrade, "MIGRATIONS", write_next(folder, oldest))
        for module in (upgrade, store_care, upkeep):
            patch.setattr(module, "VERSION", NEXT)
        patch.setattr(store_care, "BROUGHT", {"judgements": NEXT, "verdicts.batch_id": NEXT})  # as if these had come with it
        yield
