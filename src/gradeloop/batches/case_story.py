"""One case in full, as lines for a terminal."""

import json
from collections.abc import Iterator

from rich.rule import Rule
from rich.text import Text

from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.json_files import encodable
from gradeloop.batches.wording import VERDICTS
from gradeloop.evaluation import CriterionRow
from gradeloop.printable import counted, one_line, printable
from gradeloop.terminal_table import mark, usage_line

OUTPUT_CHARACTERS = 4_000
VALUE_CHARACTERS = 300


def case_lines(result: CaseResult) -> Iterator[Text | Rule]:
    """Yield a case: verdict, error, criteria with their gaps, reasons and quotes, output, cost, thread."""
    yield _verdict(result)
    yield from _about(result)
    if result.error is not None:
        yield Text(f"  {one_line(result.error)}", "bold yellow")
    if result.explanation:
        yield Text(f"  {one_line(result.explanation)}", "dim")
    for row in result.criteria:
        yield from _criterion(row)
    if result.output is not None:
        yield from _output(result.output)
    yield from _beside(result)


def _verdict(result: CaseResult) -> Text:
    word, style = VERDICTS[result.status]
    facts = {
        f"score {result.score:.3f}" if result.score is not None else "": result.score is not None,
        "from the cache": result.cached,
        f"after {counted(result.iterations or 0, 'iteration')}": result.iterations is not None,
        f"retried {counted(result.attempt, 'time')}": result.attempt > 0,
    }
    beside = "".join(f", {fact}" for fact, holds in facts.items() if holds)
    return Text().append(one_line(result.id), "bold").append("  ").append(word, style).append(beside)


def _about(result: CaseResult) -> Iterator[Text]:
    """Yield the case's description, prompt, generator and variables."""
    if result.description:
        yield Text(f"  {one_line(result.description)}")
    named = {"prompt": result.prompt, "generator": result.label}
    values = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in result.vars.items()}
    for name, value in [*named.items(), *values.items()]:
        if value is not None:
            text = one_line(value)
            cut = f"{text[:VALUE_CHARACTERS]}…" if len(text) > VALUE_CHARACTERS else text
            yield Text().append(f"  {one_line(name)}: ", "dim").append(cut)


def _criterion(row: CriterionRow) -> Iterator[Text]:
    """Yield a criterion, then its gap, reason, quotes, votes and override."""
    sign, style = mark(row)
    score = f"  (score {row.score:g})" if row.score is not None else ""
    yield Text().append(f"{sign} {one_line(row.id)}  ", style).append(one_line(row.name)).append(score, "dim")
    for word, text in (("gap", row.gap), ("reason", row.reason)):
        if text:
            yield Text().append(f"    {word}: ", "dim").append(one_line(text), style if word == "gap" else "")
    for quote in row.quotes:
        found = {True: "found", False: "not found", None: ""}[quote.quote_verified]
        line = Text().append(f"    message {quote.record}: ", "dim").append(f"“{one_line(quote.quote)}”", "italic")
        yield line.append(f"  {found}".rstrip(), "dim")
    if row.votes:
        votes = (f"{one_line(vote.grader)} {_voted(vote.passed)}" for vote in row.votes)
        yield Text().append("    votes: ", "dim").append(", ".join(votes), "yellow" if row.contested else "")
    if row.override is not None:
        word = f"{_voted(row.override.passed)} by {one_line(row.override.by)}: {one_line(row.override.why)}"
        yield Text().append("    overridden: ", "dim").append(word)


def _voted(passed: bool | None) -> str:
    return {True: "passed", False: "not passed", None: "no verdict"}[passed]


def _output(output: str) -> Iterator[Text | Rule]:
    yield Rule("output", style="dim")
    yield Text(printable(encodable(output[:OUTPUT_CHARACTERS])).rstrip())
    if len(output) > OUTPUT_CHARACTERS:
        yield Text(f"… the first {OUTPUT_CHARACTERS:,} of {len(output):,} characters; the output files of the batch have all", "dim")
    yield Rule(style="dim")


def _beside(result: CaseResult) -> Iterator[Text]:
    yield Text(f"{usage_line(result.usage, result.grader)}, {result.usage.seconds:.1f} s", "dim")
    if result.thread_id:
        thread = one_line(result.thread_id)
        yield Text().append("thread ", "dim").append(thread, "bold").append(f"  gradeloop watch {thread}", "dim")
