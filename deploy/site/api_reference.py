"""Writes the reference of the public names, from their docstrings, which are read and never imported."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "gradeloop"
INTRODUCTION = """# Python API

What `import gradeloop` offers, with fields and methods; the [reference](reference.md) has the fields of all types on the wire.
"""


def reference() -> str:
    """Return the page: a section for each public name, in the order of the alphabet."""
    return "\n".join([INTRODUCTION, *(_section(name, module) for name, module in sorted(public_names().items()))])


def public_names() -> dict[str, str]:
    """Return the module of each public name."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradeloop.")]
    return {name.name: node.module or "" for node in imports for name in node.names}


def _section(name: str, module: str) -> str:
    """Return what is said of a name.

    Raises:
        KeyError: The module has no such name.
    """
    path = PACKAGE.parent / Path(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text())
    node = _named(tree, name)
    said, parts = _said(tree.body, node), [f"## {name}\n", f"`from gradeloop import {name}`", ""]
    if isinstance(node, ast.ClassDef):
        members = list(_members(node))
        fields = [f"| `{field}` | {' '.join(text.split()).replace('|', chr(92) + '|')} |" for field, text in members if "(" not in field]
        table = ["", "| field | |", "|---|---|", *fields] if fields else []
        methods = [f"### `{method}`\n\n{_page(text)}\n" for method, text in members if "(" in method]
        return "\n".join([*parts, _page(said), *table, "", *methods])
    signature = f"```text\n{_signature(node)}\n```\n" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
    return "\n".join([*parts, signature + _page(said), ""])


def _named(tree: ast.Module, name: str) -> ast.stmt:
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [node])
        if any(getattr(target, "name", getattr(target, "id", "")) == name for target in targets):
            return node
    raise KeyError(name)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield public fields and methods, each with what is said of it."""
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and not member.target.id.startswith("_"):
            yield member.target.id, _said(node.body, member)
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
            plain = any(getattr(one, "id", "") == "property" for one in member.decorator_list)
            yield (member.name, _said(node.body, member)) if plain else (_signature(member), _said(node.body, member))


def _said(body: list[ast.stmt], node: ast.stmt) -> str:
    """Return a docstring, or the text that follows a field."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node) or ""
    after = body[body.index(node) + 1 :]
    return after[0].value.value if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant) else ""


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a function's name and parameters, without their types, which the editor shows."""
    given = node.args
    names = [one.arg for one in given.posonlyargs + given.args if one.arg not in {"self", "cls"}]
    names += [f"*{given.vararg.arg}"] if given.vararg else ["*"] if given.kwonlyargs else []
    names += [f"{one.arg}{'' if default is None else '='}" for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return f"{'await ' if isinstance(node, ast.AsyncFunctionDef) else ''}{node.name}({', '.join(names)})"


def _page(docstring: str) -> str:
    """Return a docstring as a page has it: its sections as bold lines, their rows as a list, an example as it is."""
    lines, example = list[str](), False
    for line in inspect.cleandoc(docstring).splitlines():
        if line in {"Args:", "Raises:", "Returns:", "Yields:", "Example:"}:
            example = line == "Example:"
            lines.append(f"**{line[:-1]}**\n")
        elif example:
            lines.append(line.removeprefix("    "))
        else:
            lines.append(f"- {line.strip()}" if re.match(r"    \S", line) else line)
    return "\n".join(lines)
