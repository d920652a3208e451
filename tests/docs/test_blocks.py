"""Every fenced block of every page is taken by a row of the table of `runner.py`, and is what the row says."""

import pytest

from tests.conftest import ROOT
from tests.docs.runner import FENCE, PAGES, RULES, Block, blocks, rule_of, runs, text_of


@pytest.mark.parametrize("page", [page for page in PAGES if "```" in text_of(page)])
def test_every_block_of_a_page_is_of_a_kind_that_is_known_and_valid(page: str) -> None:
    wrong = []
    for block in blocks(page):
        try:
            rule_of(block).check(block)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a block is told with its place
            wrong.append(f"{block.place}: {type(error).__name__}: {error}")

    assert not wrong, "\n".join(wrong)
    assert "```" not in FENCE.sub("", text_of(page)), f"{page}: a fence that opens no block, or does not close it"


def test_no_row_of_the_table_is_without_a_block() -> None:
    taken = {rule_of(block) for page in PAGES for block in blocks(page)}

    assert [rule for rule in RULES if rule not in taken] == []


def test_every_tutorial_is_run_but_the_one_that_needs_a_cluster() -> None:
    run = {page for page, preparation in runs() if preparation == "tutorial"}

    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").glob("*.md")} - run == {"docs/tutorials/cluster.md"}


@pytest.mark.parametrize(
    ("page", "kind", "text"),
    [
        ("docs/new.md", "rust", "fn main() {}"),
        ("docs/new.md", "yaml", "a: 1"),
        ("docs/contract.md", "json", "{}"),
        ("docs/contract.md", "json Rubric", '{"criterion": []}'),
        ("docs/judging.md", "yaml schema", "rubric_texts: It names Paris."),
        ("docs/batches.md", "toml", "[limits.openai]\ncalls = 1"),
        ("docs/new.md", "sh", "gradeloop evaluate suite.yaml"),
        ("docs/new.md", "sh", "gradeloop eval suite.yaml --no-such-flag"),
        ("docs/new.md", "sh", "gradeloop diff latest --fail-on everything"),
        ("docs/new.md", "sh", "gradeloop store"),
        ("docs/new.md", "sh", "gradeloop watch"),
        ("docs/new.md", "sh", "claude mcp add gradeloop -- gradeloop mpc"),
        ("docs/new.md", "sh", "make sandwich"),
        ("docs/new.md", "sh", "python -m lab.nothing"),
        ("docs/new.md", "sh", "pip install 'gradeloop[everything]'"),
        ("docs/new.md", "sh", "unknown-program"),
        ("docs/new.md", "sh", "export GRADELOOP_NOTHING=1"),
        ("docs/new.md", "sh", "docker compose --file deploy/nothing.yaml up"),
        ("docs/new.md", "sh", "echo 'never closed"),
        ("docs/new.md", "python", "def broken("),
        ("docs/new.md", "python", "from gradeloop import Nothing"),
        ("docs/new.md", "python", "import asyncio\n\nasyncio.run(main())"),
        ("docs/tools/word_count.md", "python", "word_count(least: int = 1) -> {}\n"),
        ("docs/tools/word_count.md", "yaml", "description: short\ncheck: {tool: word_count, arguments: {least: 1}}"),
        ("docs/ci.md", "yaml", "suite: {script: [gradeloop eval --no-such-flag], after_script: []}"),
    ],
)
def test_a_block_that_is_unknown_or_wrong_is_refused(page: str, kind: str, text: str) -> None:
    language, _, about = kind.partition(" ")
    block = Block(page, 1, language, about, text)

    with pytest.raises(Exception):  # noqa: B017, PT011 - each is wrong in a way of its own
        rule_of(block).check(block)
