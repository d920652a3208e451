"""The files that a batch's results are written to, each in the format that its suffix names."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import Protocol

from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.csv_file import CsvFile
from gradeloop.batches.json_files import JsonFile, json_line
from gradeloop.batches.junit import JunitFile
from gradeloop.batches.survey import Survey
from gradeloop.errors import InvalidRequest
from gradeloop.output_file import PAGE, replacing, shown, writable

LINES = ".jsonl"
SUFFIXES = (".csv", PAGE, ".json", LINES, ".xml")


class _Writer(Protocol):
    def write(self, result: CaseResult) -> None: ...

    def end(self) -> None: ...


class Outputs:
    """Where the results go: `.jsonl` as cases finish, `.json`, `.csv` and JUnit's `.xml` whole, at the end; `pages` are left to others.

    Raises:
        InvalidRequest: A suffix is not known, or a file could not be written. Nothing has been written then.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        found = [writable(path, SUFFIXES) for path in paths]
        for at, path in enumerate(found):
            if path in found[:at]:
                raise InvalidRequest(f"the output {shown(paths[at])} is named twice; name it once")
        self.pages = [path for path in found if path.suffix.lower() == PAGE]
        self._whole = [path for path in found if path.suffix.lower() not in {LINES, PAGE}]
        self._lines = [path for path in found if path.suffix.lower() == LINES]
        self._open: list[TextIOWrapper] | None = None

    def finished(self, result: CaseResult) -> None:
        """Write a case that has ended to the files of lines, which begin anew with the first."""
        line = json_line(result) if self._lines else ""
        for file in self._opened():
            file.write(line)
            file.flush()

    def close(self, summary: BatchSummary, results: Callable[[], Iterable[CaseResult]]) -> None:
        """Write the whole files, each of which takes the place of an older one only when it is complete.

        Args:
            summary: Of the batch.
            results: Called at most twice; each time it returns all cases in their order, those without an end too.

        Raises:
            OSError: A file cannot be written; the older ones are left as they were.
        """
        for file in self._opened():
            file.close()
        if not self._whole:
            return
        needs_survey = any(path.suffix.lower() != ".json" for path in self._whole)
        survey = Survey.of(results()) if needs_survey else Survey()
        with ExitStack() as files:
            writers = [_writer(path, files.enter_context(replacing(path)), summary, survey) for path in self._whole]
            for result in results():
                for writer in writers:
                    writer.write(result)
            for writer in writers:
                writer.end()

    def _opened(self) -> list[TextIOWrapper]:
        if self._open is None:
            self._open = [path.open("w", encoding="utf-8", newline="\n") for path in self._lines]
        return self._open


def _writer(path: Path, file: TextIOWrapper, summary: BatchSummary, survey: Survey) -> _Writer:
    if path.suffix.lower() == ".csv":
        return CsvFile(file, survey.names)
    return JunitFile(file, summary, survey) if path.suffix.lower() == ".xml" else JsonFile(file, summary)
