"""The tools that every worker brings along, and why one or the other is not to be had on this one."""

from collections.abc import Callable, Iterator
from typing import Any

from activities.tools.fetch_page import fetch_page_of
from activities.tools.json_schema_check import json_schema_check_of
from activities.tools.read_files import file_tools_of
from activities.tools.run_command import run_command_of
from activities.tools.run_pytest import run_pytest_of
from activities.tools.run_python import run_python_of
from activities.tools.shelf import Shelf, Unavailable
from activities.tools.text_checks import count_tokens_of, regex_check_of, text_check, word_count

Function = Callable[..., Any]

_BY_NAME: dict[str, Callable[[Shelf], Function]] = {
    "run_python": run_python_of,
    "run_pytest": run_pytest_of,
    "run_command": run_command_of,
    "fetch_page": fetch_page_of,
    "json_schema_check": lambda _: json_schema_check_of(),
    "regex_check": lambda _: regex_check_of(),
    "count_tokens": lambda _: count_tokens_of(),
    "word_count": lambda _: word_count,
    "text_check": lambda _: text_check,
}
_FILES = ("read_file", "list_files", "search_files")

NAMES = (*_BY_NAME, *_FILES)
"""All of them, but `read_transcript`, which is part of grading itself."""


def builtins(shelf: Shelf) -> tuple[list[Function], dict[str, str]]:
    """Return the tools that this worker can offer, and for each of the others why not."""
    offered: list[Function] = []
    refused: dict[str, str] = {}
    for name, made in _made(shelf):
        if isinstance(made, Unavailable):
            refused[name] = str(made)
        else:
            offered.append(made)
    return offered, refused


def _made(shelf: Shelf) -> Iterator[tuple[str, Function | Unavailable]]:
    for name, make in _BY_NAME.items():
        try:
            yield name, make(shelf)
        except Unavailable as why:
            yield name, why
    try:
        yield from zip(_FILES, file_tools_of(shelf), strict=True)
    except Unavailable as why:
        yield from ((name, why) for name in _FILES)
