"""Judgements as a page, as Markdown for the summary of a CI run, and in files: JSON lines as they come, the others when all are there."""

import csv
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

from pydantic import ValidationError
from temporalio.client import Client

from gradeloop.batches.answer import ANSWER_COLOURS, BatchAnswer
from gradeloop.batches.answer import answer_of_judgements as gated_answer
from gradeloop.batches.contract import MONITOR_PREFIX, BatchSummary, CaseResult
from gradeloop.batches.markdown import escaped, table_head, table_row, with_room
from gradeloop.batches.outputs import LINES, JunitFile, ResultsOverview, as_json, cell_text, cell_value
from gradeloop.batches.pages.collection_page import (
    CaseRow,
    PageHeader,
    PageRow,
    Stat,
    collection_page,
    label_counts,
    labels_of,
    row_of,
    rows_in_order,
)
from gradeloop.batches.pages.read_judgement import read_judgement_reports, read_question, stale_notes, status_of_judgement
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.contract.transcript import AgentRun
from gradeloop.files.output import MARKDOWN_MARK, PAGE, replacing, resolve_outputs
from gradeloop.judges.contract import JUDGEMENTS_SCHEMA, JudgeResult, PassGate
from gradeloop.judges.pass_rule import JudgementCounts, in_words, unmet_values
from gradeloop.judges.sources import THREAD
from gradeloop.reports.html import write_page
from gradeloop.reports.model import NextStep, RunReport, Verdict
from gradeloop.reports.run_page import run_page
from gradeloop.text import counted, headline, money, objects_in, percent, token_count


@dataclass(frozen=True)
class JudgementSource:
    """The source of a page's judgements, and the rule that passes them."""

    name: str
    """A file of results, or a judge: its file or its place in the registry."""
    is_file: bool
    """True for a file of results."""
    gate: PassGate | None
    """The rule for what passes, and how many have to; None without one."""
    judge: str = ""
    """The judge's name in commands: its file, or its place in the registry; empty where that is not known."""
    runs: tuple[str, ...] = ()
    """The files of the judged runs, and `thread:ID`; empty where they are not known."""

    @property
    def judged_with(self) -> str:
        """The judge and the runs as the arguments of a command, with a placeholder for what is not known."""
        return f"{shlex.quote(self.judge) if self.judge else 'JUDGE'} {shlex.join(self.runs) if self.runs else 'RUNS'}"


class JudgementStory(NamedTuple):
    """Judgements as their page and their summary show them."""

    head: PageHeader
    reports: Sequence[RunReport]


async def judgement_story(
    results: Sequence[JudgeResult], source: JudgementSource, judge: str, known: Mapping[str, AgentRun], temporal: Client | None
) -> JudgementStory:
    """Return judgements as their page shows them.

    `judge`: the judge's id and version, as the page names it.
    `temporal`: the server that is asked for the other runs; None asks none.
    """
    reports = await read_judgement_reports(results, known, temporal)
    stale = await stale_notes(results)
    asks = await read_question(results[0]) if results else ""
    about = {"rubric": judge, "judgements": f"{len(results):,}"}
    title = _title_of(source.name, judge, asks)
    if gate := source.gate:
        wanted = "" if gate.pass_rate is None else f"; {percent(gate.pass_rate)} wanted"
        about["passes"] = f"{', '.join(in_words(gate.pass_if))}{wanted}"
    question = asks.strip().removeprefix(title).strip()
    return JudgementStory(judgement_head(title, reports, about, list(stale.values()), question=question, source=source), reports)


TITLE_CHARACTERS = 100
"""The most characters of a judge's question that are its page's name."""

_MADE_UP = re.compile(r"rubric-[0-9a-f]{12}, version \d+")
"""The name of a judge that has none of its own."""


def _title_of(name: str, judge: str, asks: str) -> str:
    """Return the name of a page of judgements: the judge's own, else what it asks, else that of the file."""
    if not _MADE_UP.fullmatch(judge):
        return judge
    return headline(asks.strip().partition("\n")[0], TITLE_CHARACTERS) if asks.strip() else Path(name).stem


def judgement_page(head: PageHeader, reports: Sequence[RunReport]) -> str:
    """Return the page of judgements: one HTML document that needs nothing else."""
    if len(reports) == 1:
        return run_page(reports[0].model_copy(update={"next": head.next}))
    return collection_page(head, (PageRow(report, report.name) for report in reports))


SIGNS: dict[Verdict, str] = {"passed": "✅", "failed": "❌", "error": "⚠️", "unsure": "⚠️", "none": "⚪"}
"""The sign before each answer, since Markdown has no colours."""


def judgement_markdown(head: PageHeader, reports: Sequence[RunReport]) -> str:
    """Return the answer, what comes next, and a table of judgements, those that did not pass first, in 64 KiB at most."""
    numbers = ", ".join(f"{tile.value} {tile.label}" for tile in head.tiles)
    parts = [
        f"{MARKDOWN_MARK}\n\n# {escaped(head.name)}\n\n{SIGNS.get(head.verdict, '⏳')} **{escaped(head.answer)}**\n\n{escaped(numbers)}\n\n"
    ]
    parts += [f"{escaped(head.words)}\n\n"] if head.words else []
    parts += [f"{escaped(name)}: {escaped(fact)}\n\n" for name, fact in head.about.items() if name == "passes"]
    parts += [f"{escaped(note)}\n\n" for note in head.notes]
    if head.next is not None:
        words = " ".join(filter(None, (head.next.why, "Next:", head.next.words)))
        parts.append(f"{escaped(words)} <code>{escaped(head.next.command)}</code>{escaped(head.next.after)}\n\n")
    rows = rows_in_order([row_of(number, PageRow(report, report.name)) for number, report in enumerate(reports)])
    labels = list(label_counts(row.labels for row in rows))
    head_row = table_head(("run", "result", *map(escaped, labels), "what it says"))
    return with_room("".join(parts), head_row, (_line(row, labels) for row in rows), len(rows), "more judgement", "the page has all")


def _line(row: CaseRow, labels: Sequence[str]) -> str:
    own = dict(row.labels)
    why = f"{row.worst}: {row.why}" if row.worst else row.why
    return table_row((row.id, row.word.replace("_", " "), *(own.get(name, "") for name in labels), why))


def judgement_head(
    name: str,
    reports: Sequence[RunReport],
    about: dict[str, str],
    notes: Sequence[str] = (),
    *,
    question: str = "",
    source: JudgementSource | None = None,
) -> PageHeader:
    """Return what the page of judgements, and their summary as Markdown, begin with.

    `question`: what the judge asks; empty where that is not known.
    `source`: where they are from; None where no command leads to them.
    """
    usage = sum((report.usage for report in reports), Usage())
    counts: Counter[Verdict] = Counter(report.verdict for report in reports)
    firsts = {report.verdict: report for report in reversed(reports) if report.verdict in {"failed", "error"}}
    cited = [citation.verified for report in reports if report.judged for citation in report.judged.citations]
    tiles: list[tuple[str, str, Verdict | None, bool]] = [
        ("passed", f"{counts['passed']:,}", "passed", bool(counts["passed"])),
        ("failed", f"{counts['failed']:,}", "failed", bool(counts["failed"])),
        ("judged", f"{counts['none']:,}", None, bool(counts["none"])),
        ("unsure", f"{counts['unsure']:,}", "unsure", bool(counts["unsure"])),
        ("errors", f"{counts['error']:,}", "error" if counts["error"] else None, True),
        (f"of {len(cited):,} citations found", f"{sum(cited):,}", None, bool(cited)),
        ("tokens", token_count(usage.tokens), None, usage.tokens != 0),
        ("cost", money(usage.cost_usd), None, bool(usage.cost_usd)),
    ]
    answer, verdict = answer_of_judgements(counts, source.gate if source else None)
    decided = decided_by_gate(counts, source.gate if source else None)
    if not counts["passed"] and not counts["failed"] and counts["none"] and (shares := _label_shares(reports)):
        answer = f"{answer}: {shares}"
    return PageHeader(
        name=name,
        word="",
        verdict=verdict,
        answer=answer,
        noun="judgement",
        tiles=tuple(Stat(label, value, kind) for label, value, kind, is_shown in tiles if is_shown),
        about=about,
        notes=tuple(notes),
        question=question,
        words=decided.words if decided else "",
        steps={verdict: judgements_next([report], source) for verdict, report in firsts.items()} if source else {},
        next=judgements_next(reports, source) if source else None,
    )


ANSWER_LABELS = 5
"""The most values of a label in the first line of a page."""


def _label_shares(reports: Sequence[RunReport]) -> str:
    """Return how many runs have each value of the first label, the most frequent first; empty where it has too many values."""
    counted_labels = label_counts([labels_of(report) for report in reports])
    values = next(iter(counted_labels.values()), {})
    return ", ".join(f"{count:,} {value}" for value, count in values.items()) if 1 <= len(values) <= ANSWER_LABELS else ""


def judgements_next(reports: Sequence[RunReport], source: JudgementSource) -> NextStep:
    """Return what comes next: to say what passes where nothing does, else to judge errors again, else to hold the judge against people."""
    name, verdicts = shlex.quote(source.name), {report.verdict for report in reports}
    judge = shlex.quote(source.judge) if source.judge else "JUDGE"
    if "none" in verdicts:
        keys = label_counts([labels_of(report) for report in reports])
        key, values = next(((key, list(found)) for key, found in keys.items()), ("KEY", []))
        shown = "".join(f" --runs {shlex.quote(runs)}" for runs in source.runs if not runs.startswith(THREAD))
        return _rule_step(f"gradeloop report {name}{shown}", key, values)
    if "error" in verdicts:
        return NextStep(command=f"gradeloop judge {source.judged_with} --retry errors", words="judge the errors again with")
    rule = source.gate.pass_if if source.gate else {}
    stated = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in rule.items() if value != "satisfied"]
    passes = "".join(f" --pass {shlex.quote(text)}" for text in stated)
    command = f"gradeloop agreement {judge} LABELS{f' --results {name}' if source.is_file else ''}{passes}"
    if "failed" in verdicts:
        return NextStep(
            command=command,
            words="where the judge is right, mend what made the run; where it is wrong, label the run and measure the judge with",
        )
    return NextStep(command=command, words="measure how far people agree with this judge with")


def live_next(report: RunReport, judge: str = "") -> NextStep | None:
    """Return how a judgement of the store gets a rule for what passes; None for a run that has a verdict.

    `judge`: the judge's place in the registry, under which the store's judgements are shown; empty where it is not registered.
    """
    if report.judged is None or report.verdict != "none":
        return None
    key, value = next(iter(labels_of(report)), ("KEY", ""))
    command = f"gradeloop report {shlex.quote(judge)}" if judge else "gradeloop judge JUDGE RUNS"
    return _rule_step(command, key, [value] if value else [])


def _rule_step(command: str, key: str, values: Sequence[str]) -> NextStep:
    after = f" (values here: {', '.join(values)})" if values else ""
    return NextStep(command=f"{command} --pass {shlex.quote(key)}=VALUE", words="say it with", why="No rule says what passes.", after=after)


def judging_head(head: PageHeader, summary: BatchSummary, step: NextStep | None = None) -> PageHeader:
    """Return the head of the page of a batch that `gradeloop judge` or a monitor made: by a schema nothing passes or fails in a batch."""
    by_schema = not summary.passed and not summary.failed
    shown = [tile for tile in head.tiles if " wanted" not in tile.label and not (by_schema and tile.label in {"passed", "failed"})]
    tiles = tuple(replace(tile, label="judged") if tile.label == "ungraded" else tile for tile in shown)
    if summary.open:
        return replace(head, noun="judgement", tiles=tiles, steps={})
    counts: dict[Verdict, int] = {
        "passed": summary.passed,
        "failed": summary.failed,
        "error": summary.errors,
        "unsure": summary.unsure,
        "none": summary.ungraded,
    }
    answer, verdict = answer_of_judgements(counts)
    by_monitor = summary.batch_id.startswith(MONITOR_PREFIX)
    notes = (*head.notes, "Its monitor says what passes, on the monitor's page.") if by_monitor and summary.ungraded else head.notes
    step = None if by_monitor or not summary.ungraded else step
    plain = replace(head, noun="judgement", tiles=tiles, words="", compare="", steps={})
    return replace(plain, answer=answer, verdict=verdict, notes=notes, next=step)


def decided_by_gate(counts: Mapping[Verdict, int], gate: PassGate | None) -> BatchAnswer | None:
    """Return what a gate says of judgements; None without one, or where it names no rate."""
    return gated_answer(_counts_of(counts), gate) if gate is not None else None


def _counts_of(counts: Mapping[Verdict, int]) -> JudgementCounts:
    passed = counts.get("passed", 0)
    return JudgementCounts(passed, passed + counts.get("failed", 0), counts.get("error", 0), counts.get("unsure", 0))


def answer_of_judgements(counts: Mapping[Verdict, int], gate: PassGate | None = None) -> tuple[str, Verdict]:
    """Return the first line of a page of judgements and its colour: whether enough passed, or how many of those with a verdict.

    `gate`: what passes, and how many have to; None where nothing says it.
    """
    passed, judged, errors, unsure = _counts_of(counts)
    if (decided := decided_by_gate(counts, gate)) is not None:
        return decided.text, ANSWER_COLOURS[decided.word]
    apart = ([counted(errors, "error")] if errors else []) + ([f"{unsure:,} unsure"] if unsure else [])
    if not judged and not counts.get("none", 0) and apart:
        return f"INCONCLUSIVE: {', '.join(apart)}", "error" if errors else "unsure"
    answer = f"{passed:,} OF {judged:,} PASSED" if judged else f"{counts.get('none', 0):,} JUDGED"
    colour: Verdict = "failed" if passed < judged else "error" if errors else "passed" if judged else "none"
    return ", ".join([answer, *apart]), colour


MARKDOWN = ".md"
SUFFIXES = (".csv", PAGE, ".json", LINES, MARKDOWN, ".xml")
"""The suffixes that an output of judgements may have."""

READ_BACK = (LINES, ".json")
"""The suffixes of files that `gradeloop report` reads."""

Judgements = Sequence[tuple[JudgeResult, int]]
"""Judgements, each with its number among those of one run, from 0."""


class JudgementOutputs:
    """Writes the files of judgements: `.jsonl` as they come, all others when all are there.

    `overwrite`: whether they may replace files that gradeloop did not write.

    Raises:
        InvalidRequest: A suffix is not known, or a file cannot be written or is not ours; no file is written then.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        self._paths = resolve_outputs(paths, SUFFIXES, overwrite=overwrite)

    @property
    def explains(self) -> bool:
        """Whether a file is among them that shows judgements with their transcripts."""
        return any(path.suffix.lower() in {PAGE, MARKDOWN} for path in self._paths)

    @contextmanager
    def lines(self) -> Iterator[Callable[[str], None]]:
        """Empty the files that are written as judgements come, and yield what writes a judgement, as a line of JSON, to all of them."""
        with ExitStack() as opened:
            files = [opened.enter_context(path.open("w", encoding="utf-8")) for path in self._paths if path.suffix.lower() == LINES]

            def write(line: str) -> None:
                for file in files:
                    file.write(line)
                    file.flush()

            yield write

    def write(self, results: Judgements, head: PageHeader | None, reports: Sequence[RunReport]) -> None:
        """Write the other files, each of which replaces an older one only when it is complete.

        Args:
            results: All judgements, in order.
            head: What a page begins with; None where none of the files explains.
            reports: The judgements as pages show them; empty where none of the files explains.
        """
        for path in self._paths:
            suffix = path.suffix.lower()
            if suffix in {PAGE, MARKDOWN} and head is not None:
                write_page(path, (judgement_page if suffix == PAGE else judgement_markdown)(head, reports))
            elif suffix in _WRITERS:
                with replacing(path) as file:
                    _WRITERS[suffix](file, results)


COLUMNS = ("agent_run_id", "repeat", "result", "reason", "model", "cost_usd", "tokens", "judgement")
"""The columns of a CSV file before those of the judge's output, which are `output.KEY`."""


def _write_csv(file: TextIO, results: Judgements) -> None:
    keys = list(dict.fromkeys(key for result, _ in results for key in result.output))
    rows = csv.writer(file)
    rows.writerow([*COLUMNS, *(cell_text(f"output.{key}") for key in keys)])
    for result, repeat in results:
        facts = (cell_text(result.agent_run_id), repeat, status_of_judgement(result), cell_text(_why(result)), cell_text(result.model))
        cost = (result.usage.cost_usd, result.usage.tokens, result.id)
        values = (result.output.get(key) for key in keys)
        rows.writerow([*facts, *cost, *("" if value is None else cell_value(value) for value in values)])


def _write_junit(file: TextIO, results: Judgements) -> None:
    repeated, first = any(number for _, number in results), results[0][0]
    cases = [_case_of(result, at, repeat, repeated=repeated) for at, (result, repeat) in enumerate(results)]
    facts: Mapping[str, object] = {
        "batch_id": first.batch_id or f"{first.rubric_id}@{first.rubric_version}",
        "name": f"{first.rubric_id}@{first.rubric_version}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "finished",
        "total": len(cases),
        "pass_rate": 1.0 if first.gate is None or first.gate.pass_rate is None else first.gate.pass_rate,
        "usage": sum((result.usage for result, _ in results[1:]), first.usage),
    }
    writer = JunitFile(file, BatchSummary.model_validate(facts), ResultsOverview.of(cases))  # type: ignore[arg-type]  # it writes texts
    for case in cases:
        writer.write(case)
    writer.end()


def _write_json(file: TextIO, results: Judgements) -> None:
    rows = ",\n".join(as_json(result) for result, _ in results)
    file.write(f'{{"schema":"{JUDGEMENTS_SCHEMA}",\n"judgements":[\n{rows}\n]}}\n')


_WRITERS = {".json": _write_json, ".csv": _write_csv, ".xml": _write_junit}


def _why(result: JudgeResult) -> str:
    """Return why a judgement did not pass, or is none; empty where it passed."""
    if result.failed:
        return str(result.result_metadata.get("reason") or "")
    if result.unsure:
        return f"unsure of {', '.join(result.unsure)}"
    return "no rule says what passes" if result.passed is None else "; ".join(unmet_values(result))


def _case_of(result: JudgeResult, at: int, repeat: int, *, repeated: bool) -> CaseResult:
    """Return a judgement as a case."""
    rows: list[CriterionRow] = []
    with suppress(ValidationError):
        rows = [CriterionRow.model_validate(row) for row in objects_in(result.output.get("criteria"))]
    return CaseResult(
        index=at,
        id=f"{result.agent_run_id}/{repeat + 1}" if repeated else result.agent_run_id,
        repeat=repeat,
        status=status_of_judgement(result),
        output=json.dumps(result.output, ensure_ascii=False) if result.output else None,
        explanation=_why(result),
        criteria=tuple(rows),
        unsure=result.unsure,
        error=_why(result) if result.failed else None,
        usage=result.usage,
        grader=result.model,
    )
