"""Writes the types of the client without an event loop, from the source of the async one: `python -m tests.client.blocking_stub`."""

import ast
import sys
from pathlib import Path

from gradeloop.client.loop_thread import OWN

HEAD = """\
# The types of `blocking.py`, written by `python -m tests.client.blocking_stub`.

from collections.abc import Iterator
from types import TracebackType
from typing import Self
{imports}

class SyncGradingClient:
    @classmethod
    def connect(cls, connection: Connection | None = None, *, task_queue: str = ...) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
"""


class Plain(ast.NodeTransformer):
    """Turns a method of the async client into the plain one's type."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace what only an event loop iterates."""
        return ast.Name("Iterator") if node.id in {"AsyncIterator", "AsyncGenerator"} else node

    def plain(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
        """Return the method's type."""
        returns = self.visit(method.returns) if method.returns else None
        shell = ast.FunctionDef(method.name, method.args, [ast.Expr(ast.Constant(...))], method.decorator_list, returns)
        return ast.fix_missing_locations(shell)


def stub() -> str:
    """Return the types as a file."""
    tree = ast.parse(Path("src/gradeloop/client/client.py").read_text(encoding="utf-8"))
    client = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GradingClient")
    methods = [node for node in client.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [method for method in methods if not method.name.startswith("_") and method.name not in OWN]
    overloaded = {method.name for method in public if method.decorator_list}
    plain = [Plain().plain(method) for method in public if method.decorator_list or method.name not in overloaded]
    body = "\n".join(f"    {line}" for method in plain for line in ast.unparse(method).splitlines())
    used = {node.id for method in plain for node in ast.walk(method) if isinstance(node, ast.Name)} | {"Connection"}
    return HEAD.format(imports="\n".join(_imports(tree, used))) + body + "\n"


def _imports(tree: ast.Module, used: set[str]) -> list[str]:
    """Return the imports, and the aliases of types, of what the methods name."""
    aliases = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    named = {node.targets[0].id: node for node in aliases if isinstance(node.targets[0], ast.Name) and node.targets[0].id in used}
    used = used | {inner.id for node in named.values() for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    wanted = [
        (node.module, [name.name for name in node.names if name.name in used]) for node in tree.body if isinstance(node, ast.ImportFrom)
    ]
    lines = [f"from {module} import {', '.join(names)}" for module, names in wanted if names]
    return [*lines, *(ast.unparse(node) for node in named.values())]


if __name__ == "__main__":
    sys.stdout.write(stub())
