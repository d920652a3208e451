"""Counts of the house, and the file that keeps them from growing unseen: `python -m tests.house_counts [--write] [--because REASON]`."""

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "tests/house.toml"
PRODUCT = ("src", "workflows", "activities")

SLACK = 0.02
"""Share by which a count may lie below its record before the record has to follow."""

WELCOME = frozenset({"total.comments"})
"""Counts that may rise and must not fall."""

Count = int | float


class Change(TypedDict):
    """A record that went the wrong way, with the newest reason; git keeps the earlier ones."""

    was: Count
    now: Count
    reason: NotRequired[str]


Record = Count | Change


def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name, with its file."""
    files = [ROOT / "worker.py", *(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))]
    return {_dotted(path.relative_to(ROOT)): path for path in sorted(files)}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" else parts).removesuffix(".__init__")


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the product by its dotted name."""
    return {name: ast.parse(path.read_text()) for name, path in modules().items()}


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield the modules of ours that a module imports, anywhere in it except for type checkers alone."""
    unread: list[ast.AST] = [tree]
    while unread:
        node = unread.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            unread += node.orelse
            continue
        unread += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module in known:
            yield from (name if (name := f"{node.module}.{alias.name}") in known else node.module for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def arrows(found: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of ours that each module imports, itself and the public door `gradeloop` aside."""
    return {name: {other for other in imported(tree, set(found)) if other not in (name, "gradeloop")} for name, tree in found.items()}


def room_of(module: str) -> str:
    """Return the room of a module: the folder below `gradeloop`, or the folder at the top."""
    top, *rest = module.split(".")
    return f"gradeloop.{rest[0]}" if top == "gradeloop" and rest else top


def comment_lines(text: str) -> int:
    """Return how many lines of a module are a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip() for token in tokens)


def docstrings(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield each docstring, of attributes and constants too, and whether it is about a boolean."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        about: ast.stmt | ast.AST = node
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                kind = about.annotation if isinstance(about, ast.AnnAssign) else getattr(about, "returns", None)
                yield statement.value.value, kind is not None and "bool" in ast.unparse(kind)
            about = statement


def counts() -> dict[str, Count]:
    """Return every count by its name, `table.key`, from the files alone."""
    texts, found = {name: path.read_text() for name, path in modules().items()}, trees()
    comments = {name: comment_lines(text) for name, text in texts.items()}
    lines: dict[str, int] = {}
    for name, text in texts.items():
        lines[room_of(name)] = lines.get(room_of(name), 0) + len(text.splitlines()) - comments[name]
    total: dict[str, Count] = {
        "modules": sum(any(not isinstance(node, ast.Expr) for node in tree.body) for tree in found.values()),
        "imports": sum(map(len, arrows(found).values())),
        "lines": sum(lines.values()),
        "bytes": sum(len(text.encode()) for text in texts.values()),
        "comments": sum(comments.values()),
    }
    return {f"total.{key}": value for key, value in total.items()} | {f"lines.{room}": lines[room] for room in sorted(lines)}


def records() -> dict[str, Record]:
    """Return what `tests/house.toml` allows, by `table.key`."""
    tables = tomllib.loads(HOUSE.read_text())
    return {f"{table}.{key}": value for table, rows in tables.items() for key, value in rows.items()}


def allowed(record: Record) -> Count:
    """Return the number of a record."""
    return record["now"] if isinstance(record, dict) else record


def grown(now: Mapping[str, Count], recorded: Mapping[str, Record]) -> list[str]:
    """Return a sentence for each count that went the wrong way, or that nobody recorded."""
    found = []
    for name, value in now.items():
        if name not in recorded:
            found.append(f"{name} is {value} and has no record")
        elif (value - allowed(recorded[name])) * (-1 if name in WELCOME else 1) > 0:
            found.append(f"{name} is {value}, recorded {allowed(recorded[name])}")
    return found


def outdated(now: Mapping[str, Count], recorded: Mapping[str, Record]) -> list[str]:
    """Return a sentence for each record that is far from its count, names nothing any more, or gives no reason for its rise."""
    found = [f"{name} is recorded and counts nothing" for name in recorded if name not in now and not name.startswith("cpu_seconds.")]
    for name, value in now.items():
        if name in recorded and abs(allowed(recorded[name]) - value) > max(SLACK * allowed(recorded[name]), 20):
            found.append(f"{name} is {value}, recorded {allowed(recorded[name])}")
    for name, record in recorded.items():
        if isinstance(record, dict) and len(record.get("reason", "").split()) < 3:
            found.append(f"{name} changed from {record['was']} to {record['now']} without a reason")
    return found


def written(now: Mapping[str, Count], recorded: Mapping[str, Record], because: str) -> dict[str, Record]:
    """Return the records of today: a count that went the wrong way stands with its newest reason until it is back where it was.

    Raises:
        ValueError: A count went the wrong way, and no reason was given.
    """
    result: dict[str, Record] = {}
    for name, value in now.items():
        before = recorded.get(name)
        sign = -1 if name in WELCOME else 1
        if before is None or (value - allowed(before)) * sign <= 0:
            first = before["was"] if isinstance(before, dict) else None
            keeps = isinstance(before, dict) and first is not None and (value - first) * sign > 0
            result[name] = {**before, "now": value} if keeps and isinstance(before, dict) else value
        elif not because:
            raise ValueError(
                f"{name} went from {allowed(before)} to {value}: give the reason with --because 'REASON', or make something shorter"
            )
        else:
            result[name] = Change(was=before["was"] if isinstance(before, dict) else before, now=value, reason=because)
    return result | {name: record for name, record in recorded.items() if name.startswith("cpu_seconds.") and name not in now}


def as_toml(recorded: Mapping[str, Record]) -> str:
    """Return records as the text of `tests/house.toml`."""
    tables: dict[str, list[str]] = {}
    for name, record in recorded.items():
        table, _, key = name.partition(".")
        if isinstance(record, dict):
            value = f'{{ was = {record["was"]}, now = {record["now"]}, reason = "{record.get("reason", "")}" }}'
        else:
            value = str(record)
        tables.setdefault(table, []).append(f"{key if key.isidentifier() else chr(34) + key + chr(34)} = {value}")
    head = (
        "# Counts of the house: `tests/test_house.py` fails when one rises (comments: when they fall).\n"
        "# `python -m tests.house_counts --write` records what fell, and with `--because REASON` what has to rise.\n"
        "# Lines are those of 140 characters at most, whole-line comments aside.\n"
    )
    return head + "".join(f"\n[{table}]\n" + "".join(f"{row}\n" for row in rows) for table, rows in tables.items())


def main() -> int:
    """Print each count, and how far it is from its record; with `--write`, record the counts of today."""
    parser = argparse.ArgumentParser(description="Counts of the house beside tests/house.toml.")
    parser.add_argument("--write", action="store_true", help="record the counts of today")
    parser.add_argument("--because", default="", metavar="REASON", help="why a count has to rise")
    options = parser.parse_args()
    now, recorded = counts(), records() if HOUSE.exists() else {}
    for name, value in now.items():
        before = allowed(recorded[name]) if name in recorded else value
        print(f"{name:32} {value:>9}" + (f" {value - before:>+9}" if value != before else ""))
    if options.write:
        try:
            HOUSE.write_text(as_toml(written(now, recorded, options.because)))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
