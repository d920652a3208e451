"""A pytest plugin: the marker `rubric` and the fixture `grade`, verdicts recorded and replayed, and the worst of them at the end.

It imports nothing of gradeloop until a test grades something, so that it costs nothing where it is not used.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradeloop.judges.contract import JudgeResult

VERDICT = "gradeloop.verdict"
"""The name of the property of a test, in JUnit files too, that has a verdict as JSON: result, score, and the gaps by criterion."""

SHOWN = 10
"""The most verdicts of the terminal's section."""

Rubric = Mapping[str, Any] | str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gradeloop", "judging outputs by rubrics")
    group.addoption("--gradeloop-grader", metavar="MODEL", help="judge with this model, written provider:model")
    group.addoption("--gradeloop-scripted", metavar="FILE", help="read the replies of the provider `scripted` from this file")
    group.addoption("--gradeloop-record", metavar="FILE", help="add every verdict to this file of JSON lines")
    group.addoption("--gradeloop-replay", metavar="FILE", help="take the verdicts from this file; no model, server or worker is asked")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "rubric(criteria, *, request=None, tools=()): the rubric by which the fixture `grade` judges")
    if config.getoption("--gradeloop-record") and config.getoption("--gradeloop-replay"):
        raise pytest.UsageError("--gradeloop-record and --gradeloop-replay are both given; choose one of them")


class Grade:
    """The fixture `grade`: it judges outputs by the test's rubric, and fails the test where one does not meet it."""

    def __init__(self, node: pytest.Item, config: pytest.Config) -> None:
        self._node = node
        self._config = config
        marker = node.get_closest_marker("rubric")
        self._rubric: Rubric | None = marker.args[0] if marker and marker.args else None
        self._settings: dict[str, Any] = dict(marker.kwargs) if marker else {}

    def __call__(self, output: str, rubric: Rubric | None = None, *, request: str | None = None) -> "JudgeResult":
        """Judge an output and return the judgement.

        Args:
            output: The text to judge.
            rubric: The criteria, as text or object; those of the marker by default.
            request: The request that the output answers, if the judge should know it.

        Raises:
            AssertionError: The output does not meet the rubric; the message has every criterion that fails, with its gap.
            JudgeFailed: There is no verdict.
        """
        __tracebackhide__ = True
        (result,) = self.all([output], rubric, request=request)
        return result

    def all(self, outputs: Sequence[str], rubric: Rubric | None = None, *, request: str | None = None) -> "list[JudgeResult]":
        """Judge outputs at once and return the judgements in their order.

        Raises:
            AssertionError: One does not meet the rubric, the first such is named.
            JudgeFailed: There is no verdict on one.
        """
        __tracebackhide__ = True
        from gradeloop.testing import require_satisfied

        rubric = rubric if rubric is not None else self._rubric
        if rubric is None:
            raise pytest.UsageError('no rubric is given; pass it to grade(), or mark the test: @pytest.mark.rubric("- it is polite")')
        settings = {"request": request} | self._settings if request is None else self._settings | {"request": request}
        results = self._judged(list(outputs), rubric, settings)
        for result in results:
            self._node.user_properties.append((VERDICT, _verdict(result)))
        for result in results:
            require_satisfied(result)
        return results

    def _judged(self, outputs: list[str], rubric: Rubric, settings: Mapping[str, Any]) -> "list[JudgeResult]":
        from gradeloop.testing import judge_outputs

        options = {name: self._config.getoption(f"--gradeloop-{name}") for name in ("grader", "scripted", "record", "replay")}
        asked = {"rubric": rubric, "request": settings.get("request"), "tools": [str(file) for file in settings.get("tools", ())]}
        keys = [_key(asked | {"output": output}) for output in outputs]
        if options["replay"]:
            return _replayed(Path(options["replay"]), keys)
        results = judge_outputs(outputs, rubric, grader=options["grader"], scripted=options["scripted"], **settings)
        if options["record"]:
            _record(Path(options["record"]), self._node.nodeid, keys, results)
        return results


@pytest.fixture
def grade(request: pytest.FixtureRequest) -> Grade:
    """Judge outputs by the test's rubric: `grade(text)`, or `grade.all([text, ...])` at once."""
    return Grade(request.node, request.config)


def pytest_terminal_summary(terminalreporter: Any) -> None:  # noqa: ANN401 - pytest's own, which it does not export
    """Write the worst verdicts."""
    found = [
        (report.nodeid, json.loads(value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == VERDICT
    ]
    if not found:
        return
    from gradeloop.text import one_line, without_commands

    worst = sorted((row for row in found if row[1]["result"] != "satisfied"), key=lambda row: row[1]["score"] or 0.0)
    terminalreporter.section("rubrics")
    terminalreporter.line(f"{len(found) - len(worst)} of {len(found)} outputs meet their rubric")
    for nodeid, verdict in worst[:SHOWN]:
        score = f" {verdict['score']:.2f}" if verdict["score"] is not None else ""
        terminalreporter.line(f"{verdict['result']}{score}  {nodeid}")
        for name, gap in verdict["gaps"].items():
            terminalreporter.line(without_commands(f"    ✗ {name}: {one_line(gap)}"))
    if len(worst) > SHOWN:
        terminalreporter.line(f"and {len(worst) - SHOWN} more")


def _verdict(result: "JudgeResult") -> str:
    """Return a verdict as a property has it."""
    rows: Any = result.output.get("criteria") or []
    gaps = {row["id"]: row.get("gap") or row["reason"] for row in rows if not row["passed"]}
    said = str(result.output.get("result") or "no verdict")
    return json.dumps({"result": said, "score": result.output.get("score"), "gaps": gaps}, ensure_ascii=False)


def _key(asked: Mapping[str, Any]) -> str:
    """Return what a verdict is recorded under: the sha256 of all that its judge was asked, whoever judges."""

    def plain(value: Any) -> Any:  # noqa: ANN401 - a rubric as an object
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)

    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=True, default=plain).encode()).hexdigest()


def _record(file: Path, test: str, keys: Sequence[str], results: "Sequence[JudgeResult]") -> None:
    """Add verdicts to a file, which other processes of this test run add to as well."""
    import fcntl  # which not every system has that runs pytest

    lines = [
        json.dumps({"key": key, "test": test, "result": done.model_dump(mode="json")}) for key, done in zip(keys, results, strict=True)
    ]
    with file.open("a", encoding="utf-8") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        out.write("".join(f"{line}\n" for line in lines))


def _replayed(file: Path, keys: Sequence[str]) -> "list[JudgeResult]":
    """Return recorded verdicts; the last one of a key counts."""
    from gradeloop.judges.contract import JudgeResult

    recorded = {row["key"]: row["result"] for row in _rows(file)}
    if missing := [key for key in keys if key not in recorded]:
        pytest.fail(f"{len(missing)} of {len(keys)} verdicts are not in {file}; record them with --gradeloop-record {file}", pytrace=False)
    return [JudgeResult.model_validate(recorded[key]) for key in keys]


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        pytest.fail(f"--gradeloop-replay {file} cannot be read: {error.strerror}", pytrace=False)
    for number, line in ((number, line) for number, line in enumerate(lines, 1) if line):
        try:
            yield json.loads(line)
        except ValueError:
            pytest.fail(f"{file}:{number} is not a line of a recording; record it anew with --gradeloop-record {file}", pytrace=False)
