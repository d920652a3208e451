"""Results as JUnit XML, as Jenkins, GitLab and others read it: one suite, with a test case a case.

The schema is Jenkins' `junit-10.xsd`: properties belong to the suite, a case has its failure or error and what it printed.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOBase
from xml.sax.saxutils import XMLGenerator

from gradeloop.batches.case_result import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.survey import Survey
from gradeloop.batches.wording import VERDICTS, gap_of, why
from gradeloop.printable import shortened

OUTPUT_CHARACTERS = {True: 500, False: 4_000}
"""What is kept of the output of a case that passed, and of one that did not: servers refuse reports of more than some megabytes."""

MESSAGE_CHARACTERS = 500
DETAIL_CHARACTERS = 16_000

_UNSAYABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def sayable(text: str) -> str:
    """Return the text with every character that XML 1.0 cannot hold replaced."""
    return _UNSAYABLE.sub("\ufffd", text)


class JunitFile:
    """A `testsuites` of one `testsuite`: `failure` is a case that was judged and did not pass, `error` one without a verdict."""

    def __init__(self, file: TextIOBase, summary: BatchSummary, survey: Survey) -> None:
        self._xml = XMLGenerator(file, "utf-8", short_empty_elements=True)
        self._suite = summary.name or summary.batch_id
        failures, tests = survey.statuses["failed"], survey.statuses.total()
        errors = tests - failures - survey.statuses["passed"]
        facts = {"tests": str(tests), "failures": str(failures), "errors": str(errors), "time": f"{survey.seconds:.3f}"}
        self._xml.startDocument()
        self._start("testsuites", {"name": self._suite, **facts})
        self._start("testsuite", {"name": self._suite, **facts, "skipped": "0", "timestamp": summary.created, "id": summary.batch_id})
        with self._inside("properties", {}):
            for name, value in _properties(summary).items():
                self._element("property", {"name": name, "value": value})

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        place = ".".join(part for part in (self._suite, result.prompt, result.label) if part)
        with self._inside("testcase", {"classname": place, "name": result.id, "time": f"{result.usage.seconds:.3f}"}):
            if result.status == "failed":
                self._against("failure", result, _failing(result))
            elif result.status != "passed":
                self._against("error", result, result.error or why(result) or VERDICTS[result.status][0])
            if result.output is not None:
                self._element("system-out", {}, shortened(result.output, OUTPUT_CHARACTERS[result.status == "passed"]))

    def end(self) -> None:
        """Write what comes after the last case."""
        self._xml.endElement("testsuite")
        self._xml.endElement("testsuites")
        self._xml.ignorableWhitespace("\n")
        self._xml.endDocument()

    def _against(self, name: str, result: CaseResult, detail: str) -> None:
        message = shortened(why(result) or VERDICTS[result.status][0], MESSAGE_CHARACTERS)
        self._element(name, {"message": message, "type": result.status}, shortened(detail, DETAIL_CHARACTERS))

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._xml.ignorableWhitespace("\n")
        self._xml.startElement(name, {key: sayable(value) for key, value in attributes.items()})  # type: ignore[arg-type]  # a mapping will do

    @contextmanager
    def _inside(self, name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        self._start(name, attributes)
        yield
        self._xml.endElement(name)

    def _element(self, name: str, attributes: Mapping[str, str], text: str = "") -> None:
        with self._inside(name, attributes):
            if text:
                self._xml.characters(sayable(text))


def _failing(result: CaseResult) -> str:
    """Return what is said against the case, a line a criterion."""
    rows = [f"{row.id}: {row.name}: {gap_of(row)}" for row in result.criteria if not row.passed]
    score = [] if result.score is None else [f"score {result.score:.2f}"]
    return "\n".join([*score, *rows]) or result.explanation


def _properties(summary: BatchSummary) -> dict[str, str]:
    usage = summary.usage
    told: dict[str, str | None] = {
        "schema": SCHEMA,
        "batch_id": summary.batch_id,
        "status": summary.status,
        "reason": summary.reason,
        "pass_rate": f"{summary.pass_rate:g}",
        "cached": str(summary.cached),
        "input_tokens": str(usage.input),
        "output_tokens": str(usage.output),
        "cost_usd": None if usage.cost_usd is None else f"{usage.cost_usd:.6f}",
    }
    return {name: value for name, value in told.items() if value is not None}
