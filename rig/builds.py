"""Wheels of the checkout: as it is, and as a next version whose store has one migration more."""

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gradeloop.store import upgrade

ROOT = Path(__file__).parent.parent

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, oldest = "{0:04}", "{1:04}", {2}


def upgrade():
    op.create_table("colours", sa.Column("name", sa.String(20), primary_key=True))
    op.add_column("batches", sa.Column("colour", sa.String(20)))
    {3}


def downgrade():
    op.drop_column("batches", "colour")
    op.drop_table("colours")
"""

NEXT = upgrade.VERSION + 1

RENAMED = ("case_units", "case_calls")
"""A table that every write of a case names, and its name in a next version that no earlier one may use."""


@dataclass(frozen=True)
class Build:
    """A wheel that is unpacked."""

    site: Path
    """What stands before the checkout in Python's path."""

    @property
    def application(self) -> Path:
        """The folder with worker.py."""
        return self.site / "gradeloop/_app"


def add_migration(migrations: Path, oldest: int, more: str = "") -> None:
    """Add to a folder of migrations the next one, which brings a table and a column, and does more."""
    (migrations / "versions" / f"v{NEXT:04}_colours.py").write_text(MIGRATION.format(NEXT, NEXT - 1, oldest, more))


def build_today(folder: Path) -> Build:
    """Build a wheel of the checkout as it is."""
    return _build(_copy(folder), folder)


def build_next(folder: Path, oldest: int = upgrade.VERSION) -> Build:
    """Build a wheel of a next version.

    Args:
        folder: Where it is built.
        oldest: The version that a gradeloop must know which uses the store after its migration; one that is new renames a table.
    """
    source = _copy(folder)
    store, old, new = source / "src/gradeloop/store", *RENAMED
    if oldest == NEXT:
        for file in (source / "src/gradeloop/batches").glob("*.py"):
            file.write_text(file.read_text().replace(old, new))
    add_migration(store / "migrations", oldest, f'op.rename_table("{old}", "{new}")' if oldest == NEXT else "")
    code = (store / "upgrade.py").read_text()
    (store / "upgrade.py").write_text(re.sub(r"^VERSION = \d+$", f"VERSION = {NEXT}", code, flags=re.MULTILINE))
    return _build(source, folder)


def _copy(folder: Path) -> Path:
    for name in ("src", "workflows", "activities", "examples", "docs"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("worker.py", "README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / "source" / name)
    return folder / "source"


def _build(source: Path, folder: Path) -> Build:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return Build(folder / "site")
