"""The results of a batch in files and in words: JSON, JSONL, CSV, JUnit, one line, and the gate that decides the exit code."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from io import StringIO, TextIOBase, TextIOWrapper
from pathlib import Path
from typing import Protocol, Self, TextIO
from xml.sax.saxutils import XMLGenerator

from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticSerializationError, to_json

from gradeloop.batches import answer
from gradeloop.batches.column_table import ColumnTable, MetricFigure, column_rows, metric_lines
from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult, CaseStatus
from gradeloop.batches.markdown import BatchStory, MarkdownFile
from gradeloop.batches.ratings import rating_lines
from gradeloop.extensions import Registry
from gradeloop.files.output import PAGE, TEXT_MARK, replacing, resolve_outputs
from gradeloop.text import encodable, one_line, printable, shortened

MOST_NAMES = 1_000
"""The most variables that have a column of their own in a CSV file."""


@dataclass(frozen=True)
class ResultsOverview:
    """The facts about all results that a file needs before it writes the first."""

    statuses: Counter[CaseStatus] = field(default_factory=Counter)
    names: tuple[str, ...] = ()
    """The names of the variables in the order in which they first appear; not all of them where there are more than `MOST_NAMES`."""
    seconds: float = 0.0
    """The summed seconds in which requests were in flight."""

    @classmethod
    def of(cls, results: Iterable[CaseResult]) -> Self:
        """Go through all results once."""
        statuses: Counter[CaseStatus] = Counter()
        names: dict[str, None] = {}
        seconds = 0.0
        for result in results:
            statuses[result.status] += 1
            names.update(dict.fromkeys(result.vars) if len(names) <= MOST_NAMES else {})
            seconds += result.usage.seconds
        return cls(statuses, tuple(names), seconds)


def as_json(value: BaseModel) -> str:
    """Return a model as one line of JSON that every reader accepts, lone surrogates and infinite numbers replaced."""
    try:
        return value.model_dump_json()
    except PydanticSerializationError:
        return to_json(encodable_json(value.model_dump(mode="json")), inf_nan_mode="null").decode()


def encodable_json(value: JsonValue) -> JsonValue:
    """Return JSON with the lone surrogates in its texts replaced."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [encodable_json(item) for item in value]
    return {encodable(key): encodable_json(item) for key, item in value.items()} if isinstance(value, dict) else value


def json_line(result: CaseResult) -> str:
    """Return a result as a line of JSONL: the schema first, then its fields."""
    return f'{{"schema":"{SCHEMA}",{as_json(result).removeprefix("{")}\n'


def _figures(metrics: Sequence[MetricFigure], table: ColumnTable) -> dict[str, JsonValue]:
    """Return what JSON and YAML say after the cases: the named metrics, and the columns where there are several."""
    columns: list[JsonValue] = [column.model_dump(mode="json") for column in table.columns()]
    figures: dict[str, JsonValue] = {"metrics": [asdict(figure) for figure in metrics]} if metrics or columns else {}
    return {name: encodable_json(value) for name, value in (figures | ({"columns": columns} if columns else {})).items()}


class JsonFile:
    """Writes a batch as `{"schema", "summary", "rate", "cases"}`, a line a case, and `"metrics"` and `"columns"` where it has some."""

    def __init__(self, file: TextIO, summary: BatchSummary, table: ColumnTable) -> None:
        self._file, self._table = file, table
        self._separator = "\n"
        rate = to_json(answer.rate_of(summary)).decode()
        file.write(f'{{"schema":"{SCHEMA}",\n"summary":{as_json(summary)},\n"rate":{rate},\n"cases":[')

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        self._file.write(self._separator + as_json(result))
        self._separator = ",\n"

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write what comes after the last case."""
        figures = _figures(metrics, self._table)
        self._file.write(f"\n],\n{to_json(figures).decode()[1:]}\n" if figures else "\n]}\n")


COLUMNS = (
    *("id", "description", "prompt", "label", "status", "score", "worst_criterion", "worst_gap", "decided_by", "error"),
    *("cost_usd", "tokens", "cached", "attempt", "output", "ratings"),
)
"""The columns before those of the variables, which are `vars.NAME`."""

CELL_CHARACTERS = 32_700
"""The most characters of a text in a cell: spreadsheets hold 32,767, the note on what was cut and a quote included."""

_FORMULA = re.compile(r"'*([\s\x00-\x1f\ufeff\u200b-\u200f\u2060]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])")
"""The beginning of a text that a spreadsheet may take for a formula, or that `escape_formula` has quoted already."""


def escape_formula(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula: a quote goes in front of one that may be."""
    return f"'{text}" if _FORMULA.match(text) else text


class CsvFile:
    """Writes a row of headings and a row a case; more variables than `MOST_NAMES` share the column `vars`, as a JSON object."""

    def __init__(self, file: TextIO, names: Sequence[str]) -> None:
        self._names = names if len(names) <= MOST_NAMES else None
        self._rows = csv.writer(file)
        self._rows.writerow([*COLUMNS, *(["vars"] if self._names is None else [cell_text(f"vars.{name}") for name in self._names])])

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        self._rows.writerow([*_cells(result), *self._variables(result.vars)])

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Do nothing: no line comes after the last row."""

    def _variables(self, values: dict[str, JsonValue]) -> list[str]:
        if self._names is None:
            return [cell_value(values) if values else ""]
        return [cell_value(values[name]) if name in values else "" for name in self._names]


def _cells(result: CaseResult) -> list[str | int | float | None]:
    worst = result.worst
    return [
        *(cell_text(text) for text in (result.id, result.description, result.prompt, result.label)),
        *(result.status, result.score),
        *(cell_text(worst.id if worst else None), cell_text(worst.why_failed if worst else None)),
        *(cell_text(", ".join(result.decided_by or ()) or None), cell_text(result.error)),
        *(result.usage.cost_usd, result.usage.tokens, to_json(result.cached).decode(), result.attempt),
        *(cell_text(result.output), cell_text("\n".join(rating_lines(result)))),
    ]


def cell_value(value: JsonValue) -> str:
    """Return a text as it is, everything else as JSON; a number, even one below zero, is not a formula."""
    if isinstance(value, str):
        return cell_text(value)
    dumped = json.dumps(value, ensure_ascii=False)
    return dumped if isinstance(value, (int, float)) and math.isfinite(value) else cell_text(dumped)


def cell_text(text: str | None) -> str:
    """Return a text as a cell holds it: cut, without a formula; empty for None."""
    return "" if text is None else escape_formula(shortened(encodable(text), CELL_CHARACTERS))


OUTPUT_CHARACTERS = {True: 500, False: 4_000}
"""The most characters of the output of a case that passed, and of one that did not: CI servers refuse reports of some megabytes."""

MESSAGE_CHARACTERS = 500
DETAIL_CHARACTERS = 16_000

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Return the text with every character that XML 1.0 cannot hold replaced."""
    return _NOT_XML.sub("\ufffd", text)


class JunitFile:
    """Writes a `testsuites` of one `testsuite`: `failure` is a case that was judged and did not pass, `error` one without a verdict.

    A case that is ungraded, unsure, or was not asked since the answer was known, is `skipped`: its message says which.
    """

    def __init__(self, file: TextIOBase, summary: BatchSummary, overview: ResultsOverview) -> None:
        self._xml = XMLGenerator(file, "utf-8", short_empty_elements=True)
        self._suite = summary.name or summary.batch_id
        failures, tests = overview.statuses["failed"], overview.statuses.total()
        self._skips = {"ungraded", "unsure", *(("queued",) if summary.decided else ())}
        skipped = sum(count for status, count in overview.statuses.items() if status in self._skips)
        errors = tests - failures - skipped - overview.statuses["passed"]
        facts = {"tests": str(tests), "failures": str(failures), "errors": str(errors), "time": f"{overview.seconds:.3f}"}
        self._xml.startDocument()
        self._start("testsuites", {"name": self._suite, **facts})
        self._start(
            "testsuite", {"name": self._suite, **facts, "skipped": str(skipped), "timestamp": summary.created, "id": summary.batch_id}
        )
        with self._inside("properties", {}):
            for name, value in _properties(summary).items():
                self._element("property", {"name": name, "value": value})

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        classname = ".".join(part for part in (self._suite, result.prompt, result.label) if part)
        with self._inside("testcase", {"classname": classname, "name": result.id, "time": f"{result.usage.seconds:.3f}"}):
            if result.status == "failed":
                self._problem("failure", result, _failing(result))
            elif result.status in self._skips:
                self._element("skipped", {"message": shortened(answer.failure_reason(result), MESSAGE_CHARACTERS)})
            elif result.status != "passed":
                self._problem("error", result, result.error or answer.failure_reason(result) or answer.STATUS_LABELS[result.status][0])
            if result.output is not None:
                self._element("system-out", {}, shortened(result.output, OUTPUT_CHARACTERS[result.status == "passed"]))

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:  # noqa: ARG002 - JUnit has no place for them
        """Write what comes after the last case."""
        self._xml.endElement("testsuite")
        self._xml.endElement("testsuites")
        self._xml.ignorableWhitespace("\n")
        self._xml.endDocument()

    def _problem(self, name: str, result: CaseResult, detail: str) -> None:
        message = shortened(answer.failure_reason(result) or answer.STATUS_LABELS[result.status][0], MESSAGE_CHARACTERS)
        self._element(name, {"message": message, "type": result.status}, shortened(detail, DETAIL_CHARACTERS))

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._xml.ignorableWhitespace("\n")
        self._xml.startElement(name, {key: xml_text(value) for key, value in attributes.items()})  # type: ignore[arg-type]  # a mapping will do

    @contextmanager
    def _inside(self, name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        self._start(name, attributes)
        yield
        self._xml.endElement(name)

    def _element(self, name: str, attributes: Mapping[str, str], text: str = "") -> None:
        with self._inside(name, attributes):
            if text:
                self._xml.characters(xml_text(text))


OTHER = " (it did not decide)"
"""The words after a criterion that did not pass, and for which the case passes or fails no less."""


def _failing(result: CaseResult) -> str:
    """Return the score and the gaps of a failed case, a line a criterion, those that decided first."""
    failing = [row for row in result.criteria if row.verdict != "passed"]
    deciding = result.deciding if result.decided_by else failing
    rows = [f"{row.id}: {row.name}: {row.why_failed}" for row in deciding]
    others = [row for row in failing if row not in deciding]
    rows += [f"{row.id}: {row.name}: {row.why_failed}{answer.OPTIONAL if row.id in result.optional else OTHER}" for row in others]
    score = [] if result.score is None else [f"score {result.score:.2f}{answer.below_threshold(result)}"]
    return "\n".join([*score, *rows]) or result.explanation


def _properties(summary: BatchSummary) -> dict[str, str]:
    usage = summary.usage
    properties: dict[str, str | None] = {
        "schema": SCHEMA,
        "batch_id": summary.batch_id,
        "status": summary.status,
        "reason": summary.reason,
        "pass_rate": f"{summary.pass_rate:g}",
        "cached": str(summary.cached),
        "input_tokens": None if usage.input is None else str(usage.input),
        "output_tokens": None if usage.output is None else str(usage.output),
        "cost_usd": None if usage.cost_usd is None else f"{usage.cost_usd:.6f}",
    }
    return {name: value for name, value in properties.items() if value is not None}


class YamlFile:
    """Writes the document of `JsonFile` as YAML."""

    def __init__(self, file: TextIO, summary: BatchSummary, table: ColumnTable) -> None:
        self._file, self._table = file, table
        self._begun = False
        head = {"schema": SCHEMA, "summary": json.loads(as_json(summary)), "rate": answer.rate_of(summary)}
        file.write(_yaml(head))

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        self._file.write("" if self._begun else "cases:\n")
        self._begun = True
        self._file.write(_yaml([json.loads(as_json(result))]))

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write what comes after the last case."""
        self._file.write("" if self._begun else "cases: []\n")
        figures = _figures(metrics, self._table)
        self._file.write(_yaml(figures) if figures else "")


_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that readers of YAML take for line ends, or refuse."""


def _yaml(value: object) -> str:
    """Return a value as YAML that every reader reads alike."""
    from ruamel.yaml import YAML

    writer, written = YAML(typ="safe", pure=True), StringIO()
    writer.default_flow_style, writer.width = False, 2**20
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # it says None of itself
    writer.allow_unicode = _NOT_YAML.search(json.dumps(value, ensure_ascii=False)) is None
    writer.dump(value, written)
    return written.getvalue()


class TextFile:
    """Writes a batch for people: its results in a line, and every case with its output and why it did not pass."""

    def __init__(self, file: TextIO, summary: BatchSummary, table: ColumnTable) -> None:
        self._file, self._table, self._summary = file, table, summary
        file.write(f"{TEXT_MARK} {encodable(one_line(summary.name or summary.batch_id))}\n{answer.results_line(summary)}\n")

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        why, score = answer.failure_reason(result), f" {answer.score_text(result)}" if result.score is not None else ""
        head = f"{answer.STATUS_LABELS[result.status][0]}{score}  {one_line(result.id)}"
        self._file.write(encodable(f"\n{head}\n" + (f"  why: {why}\n" if why else "")))
        for line in printable(encodable(result.output or "")).splitlines():
            self._file.write(f"  | {line}\n")

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write the columns and the named metrics; the results are in the second line."""
        columns = self._table.columns()
        lines = [", ".join(f"{name} {text}" for name, text in row.items()) for row in column_rows(columns)]
        lines += [*answer.words_by_column(self._table, self._summary), *metric_lines(metrics)]
        self._file.write(encodable("".join(f"\n{line}" for line in lines) + ("\n" if lines else "")))


LINES = ".jsonl"


class ResultsWriter(Protocol):
    """Writes results into one file."""

    def write(self, result: CaseResult) -> None:
        """Write the next case."""

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write what comes after the last case."""


@dataclass(frozen=True)
class RenderedBatch:
    """The batch that a file of results is about."""

    summary: BatchSummary
    overview: ResultsOverview
    """The facts about all cases; empty where the renderer asks for none."""
    columns: ColumnTable
    """The columns of the batch, which are complete when a file ends."""
    said: BatchStory | None = None
    """The answer by the flags of a command, and how the batch compares with an earlier one."""


@dataclass(frozen=True)
class Renderer:
    """A format of files with results: a row of the registry `renderers`.

    Example:
        ```python
        RENDERERS = (Renderer("tsv", (".tsv",), lambda file, batch: TsvFile(file, batch.summary)),)
        ```
    """

    name: str
    suffixes: tuple[str, ...]
    """The ends of names of such files."""
    open: Callable[[TextIOWrapper, RenderedBatch], ResultsWriter] | None
    """Returns what writes a file; None where it is written as cases end, or by the command, as a page is."""
    overview: bool = False
    """Whether a file begins with something about all cases."""


BUILT_IN = (
    Renderer("csv", (".csv",), lambda file, batch: CsvFile(file, batch.overview.names), overview=True),
    Renderer("page", (PAGE,), None),
    Renderer("json", (".json",), lambda file, batch: JsonFile(file, batch.summary, batch.columns)),
    Renderer("lines", (LINES,), None),
    Renderer("markdown", (".md",), lambda file, batch: MarkdownFile(file, batch.summary, batch.columns, batch.said)),
    Renderer("text", (".txt",), lambda file, batch: TextFile(file, batch.summary, batch.columns)),
    Renderer("junit", (".xml",), lambda file, batch: JunitFile(file, batch.summary, batch.overview), overview=True),
    Renderer("yaml", (".yaml", ".yml"), lambda file, batch: YamlFile(file, batch.summary, batch.columns)),
)

RENDERERS = Registry[Renderer]("renderers", "format of results", "gradeloop.batches.outputs:BUILT_IN")


def renderers_by_suffix() -> dict[str, Renderer]:
    """Return the formats of files with results by the ends of their names."""
    return {suffix: renderer for renderer in RENDERERS for suffix in renderer.suffixes}


class Outputs:
    """Writes the files of results: `.jsonl` as cases finish, all others at the end; `pages` are left to the caller.

    `overwrite`: whether they may replace files that gradeloop did not write.

    Raises:
        InvalidRequest: A suffix is not known, or a file cannot be written or is not ours; no file is written then.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        known = renderers_by_suffix()
        writables = resolve_outputs(paths, tuple(known), overwrite=overwrite)
        self.pages = [path for path in writables if path.suffix.lower() == PAGE]
        whole = [path for path in writables if path.suffix.lower() not in {LINES, PAGE}]
        self._whole = [(path, known.get("".join(path.suffixes[-2:]).lower()) or known[path.suffix.lower()]) for path in whole]
        self._lines = [path for path in writables if path.suffix.lower() == LINES]
        self._open: list[TextIOWrapper] | None = None

    def finished(self, result: CaseResult) -> None:
        """Write a case that has ended to the `.jsonl` files, which are emptied before the first."""
        line = json_line(result) if self._lines else ""
        for file in self._opened():
            file.write(line)
            file.flush()

    def close(self, summary: BatchSummary, results: Callable[[], Iterable[CaseResult]], said: BatchStory | None = None) -> None:
        """Write the other files, each of which replaces an older one only when it is complete.

        Args:
            summary: The summary of the batch.
            results: Returns the results of all cases in order, unfinished ones too; called at most twice.
            said: The answer by the flags of a command, and how the batch compares with an earlier one; for Markdown.

        Raises:
            OSError: A file cannot be written; the older ones are left as they were.
        """
        for file in self._opened():
            file.close()
        if not self._whole:
            return
        overview = ResultsOverview.of(results()) if any(renderer.overview for _, renderer in self._whole) else ResultsOverview()
        table = ColumnTable(summary)
        batch = RenderedBatch(summary, overview, table, said)
        with ExitStack() as files:
            writers = [render.open(files.enter_context(replacing(path)), batch) for path, render in self._whole if render.open is not None]
            for result in results():
                table.add(result)
                for writer in writers:
                    writer.write(result)
            for writer in writers:
                writer.end(table.figures())

    def _opened(self) -> list[TextIOWrapper]:
        if self._open is None:
            self._open = [path.open("w", encoding="utf-8", newline="\n") for path in self._lines]
        return self._open
