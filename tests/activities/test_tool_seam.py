"""Evidence tools of somebody else's: an extension gives their rows, and a worker offers and calls them like its own."""

import pytest

from activities.tools.registry import TOOLS, ToolRegistry
from gradeloop.contract.messages import EvidenceTool
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Extension
from tests.rig.extensions import install


def count_vowels(draft: str) -> dict[str, int]:
    """Count the vowels of the draft."""
    return {"vowels": sum(letter in "aeiou" for letter in draft)}


def word_count(draft: str) -> int:
    """Count words, as a tool of ours does already."""
    return len(draft.split())


ROWS = [EvidenceTool.of(count_vowels)]
TAKEN = [EvidenceTool.of(word_count)]


async def test_a_worker_offers_the_tools_of_an_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, TOOLS, Extension("acme", kinds={"tools": f"{__name__}:ROWS"}))
    registry = ToolRegistry()
    registry.refuse_non_check("count_vowels", {}, "rubric")
    (tool,) = registry.named(["count_vowels"])
    assert (tool.spec.description, await tool.check("a house", {})) == ("Count the vowels of the draft.", {"vowels": 4})


def test_an_extension_takes_no_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, TOOLS, Extension("acme", kinds={"tools": f"{__name__}:TAKEN"}))
    with pytest.raises(InvalidRequest, match="the extension 'acme' gives the tool 'word_count', which gradeloop gives, too"):
        ToolRegistry()
