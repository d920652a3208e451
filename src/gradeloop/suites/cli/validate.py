"""The command `validate`: what a file is, whether it can run, and where it is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from gradeloop.calibration.labelled_sets import read_labelled_set
from gradeloop.cli.commands import AllowOutside, Json
from gradeloop.cli.folder import load_env_files, own_config_file, own_outside_roots
from gradeloop.cli.render.table import show_lines
from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import BAD_INPUT
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import load_rubric
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.templates import fill
from gradeloop.judges.contract import CriteriaJudge
from gradeloop.judges.judgements import is_labels, read_labels
from gradeloop.judges.sources import read_judge
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import load_settings
from gradeloop.suites.cli.eval_options import Config, EnvFile, choose_suite, find_suite, refuse_unservable_suite
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from gradeloop.suites.unsupported import UnsupportedFeatures
from gradeloop.temporal.connect import refuse_unservable_here
from gradeloop.text import counted

app = typer.Typer()

CONFIG_WORD = Path("config")
"""The word that promptfoo's `validate` takes before its flags, and that names no file."""

FileKind = Literal["suite", "task", "judge", "rubric", "labels", "settings"]

_BY_SUFFIX: dict[str, FileKind] = {".toml": "settings", ".jsonl": "labels", ".csv": "labels"}
_SCHEMA_JUDGE_KEYS, _CRITERIA_JUDGE_KEYS = frozenset({"output_schema", "rubric_text"}), frozenset(CriteriaJudge.model_fields)
_TASK_KEYS = frozenset({"prompt", "messages", "max_iterations", "checkpoint", "thread"})
_SUITE_KEYS = frozenset({"tests", "prompts", "providers", "targets", "defaultTest", "generators", "cases"})


@dataclass(frozen=True)
class CheckedFile:
    """The kind of a file, and its contents."""

    path: Path
    kind: FileKind
    facts: str
    """Its contents, in a few words."""
    cases: int | None = None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[Text]:
        """Return what is shown of it."""
        return [*map(Text, self.notes), Text(f"{self.path}: {self.facts}")]

    def as_json(self) -> dict[str, object]:
        """Return it as an object for programs."""
        cases = {} if self.cases is None else {"cases": self.cases}
        return {"file": str(self.path), "kind": self.kind, **cases, "notes": list(self.notes)}


@app.command()
def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Tasks, suites, promptfoo's too, judges, rubrics, labels, gradeloop.toml."),
    ] = None,
    *,
    config: Config = None,
    env_file: EnvFile = None,
    allow_outside: AllowOutside = None,
    as_json: Json = False,
) -> None:
    """Check files before they run; no call, no server."""
    load_env_files(env_file)
    named = [path for path in files or () if path != CONFIG_WORD]
    paths = named if named and config is None else [choose_suite(named[0] if named else None, config) or find_suite(Path())]
    outside = own_outside_roots(allow_outside)
    if len(paths) == 1:
        checked = check_file(paths[0], outside)
        show_lines(checked.as_json(), checked.lines(), as_json=as_json)
        return
    found: list[CheckedFile] = []
    wrong: dict[Path, str] = {}
    for path in paths:
        try:
            found.append(check_file(path, outside))
        except InvalidRequest as error:
            wrong[path] = str(error)
    objects = [*(one.as_json() for one in found), *({"file": str(path), "problem": why} for path, why in wrong.items())]
    show_lines(objects, [line for one in found for line in one.lines()], as_json=as_json)
    for path, why in wrong.items():
        typer.echo(f"error: {path}: {why.removeprefix(f'{path}: ')}", err=True)
    if wrong:
        raise typer.Exit(BAD_INPUT)


def check_file(path: Path, outside: Sequence[Path] = ()) -> CheckedFile:
    """Read a file as its command does; raise InvalidRequest, with file, line, field and cure, where something is invalid."""
    if not path.is_file():
        raise InvalidRequest(f"the file {str(path)!r} does not exist; correct the path")
    return _CHECKS[find_kind(path)](path, outside)


def find_kind(path: Path) -> FileKind:
    """Return what a file is, by its name's end and its keys."""
    if path.suffix not in {".yaml", ".yml", ".json"}:
        return _BY_SUFFIX.get(path.suffix, "rubric")
    value = read_yaml(path, "the file", aliases=True)
    keys = set(value) if isinstance(value, dict) else set()
    if keys & _SUITE_KEYS or path.name.startswith("promptfooconfig"):
        return "suite"
    if keys & _TASK_KEYS:
        return "task"
    if keys & _SCHEMA_JUDGE_KEYS or ("rubric" in keys and keys <= _CRITERIA_JUDGE_KEYS):
        return "judge"
    return "task" if "rubric" in keys else "rubric"


def _check_suite(path: Path, outside: Sequence[Path]) -> CheckedFile:
    found = read_suite(path, SuiteFlags(check=True), outside, UnsupportedFeatures())
    total = sum(1 for _ in found.cases())
    refuse_unservable_suite(own_config_file(trust=False), found)
    return CheckedFile(path, "suite", f"{counted(total, 'case')}; it can run", total, tuple(found.notes))


def _check_task(path: Path, outside: Sequence[Path]) -> CheckedFile:
    task = read_task(path, TaskFlags(check=True, allow_outside=tuple(outside)))
    request, rubric = task.request, fill(task.request.rubric, task.request.vars)
    asked = request.model_copy(update={"rubric": rubric}).model_dump(mode="json", include={"generator", "grader", "rubric"})
    priced = request.budget is not None and request.budget.max_cost_usd is not None
    refuse_unservable_here(task.worker, [asked | {"priced": priced}])
    judged = f"a rubric of {len(rubric.criteria)}" if rubric else "no rubric"
    return CheckedFile(path, "task", f"a task, {counted(len(task.request.messages), 'message')}, {judged}", notes=task.notes)


def _check_judge(path: Path, outside: Sequence[Path]) -> CheckedFile:
    judge = read_judge(path, outside)
    return CheckedFile(path, "judge", "a judge by criteria" if isinstance(judge, CriteriaJudge) else "a judge with a schema")


def _check_rubric(path: Path, outside: Sequence[Path]) -> CheckedFile:
    rubric = Rubric.model_validate(load_rubric(path, FileScope.of(path, outside)))
    return CheckedFile(path, "rubric", f"a rubric, {counted(len(rubric.criteria), 'criterion')}")


def _check_labels(path: Path, _: Sequence[Path]) -> CheckedFile:
    if is_labels(path):
        return CheckedFile(path, "labels", counted(len(read_labels(path).labels), "label"))
    labelled = read_labelled_set(path)
    return CheckedFile(path, "labels", f"a labelled set ({labelled.name}), {counted(len(labelled.items), 'item')}")


def _check_settings(path: Path, _: Sequence[Path]) -> CheckedFile:
    load_settings(["--config", str(path)])
    named = ", ".join(ConfigFile(path, named=True).read())
    return CheckedFile(path, "settings", f"settings: {named or 'none'}")


_CHECKS: dict[FileKind, Callable[[Path, Sequence[Path]], CheckedFile]] = {
    "suite": _check_suite,
    "task": _check_task,
    "judge": _check_judge,
    "rubric": _check_rubric,
    "labels": _check_labels,
    "settings": _check_settings,
}
