"""What the command line names: a judge in a file or the registry, runs in files or threads."""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from gradeloop.default_model import KEYS, named_default
from gradeloop.errors import InvalidRequest, explain
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.bench import reference
from gradeloop.judges.config import CriteriaJudge, JudgeConfig, read_judge
from gradeloop.judges.readers import THREAD, read_file, read_thread, refuse_twins
from gradeloop.judges.registry import Registry
from gradeloop.modelspec import ModelSpec
from gradeloop.request import Grader
from gradeloop.rubric_file import YAML_SUFFIXES
from gradeloop.thread_reader import ThreadReader


async def judge_named(name: str, registry: Registry) -> JudgeConfig:
    """Return the judge of a file, or `COLLECTION/RUBRIC[@VERSION]` of the registry.

    Raises:
        InvalidRequest: There is neither.
    """
    named = None if is_file(name) else reference(name)
    return read_judge(Path(name)) if named is None else await registry.get_rubric(*named)


def is_file(name: str) -> bool:
    """True where a judge is meant that stands in a file, be it there or not."""
    path = Path(name)
    return path.exists() or path.suffix in {*YAML_SUFFIXES, ".md", ".txt"}


async def runs_named(sources: Sequence[str], reader: ThreadReader | None) -> list[AgentRun]:
    """Return the runs of files and of threads, in order.

    Raises:
        InvalidRequest: One cannot be read, or two have the same id.
    """
    runs: list[AgentRun] = []
    for source in sources:
        if source.startswith(THREAD) and reader is not None:
            runs.append(await read_thread(reader, source.removeprefix(THREAD)))
        else:
            runs += read_file(_existing(Path(source)))
    refuse_twins(runs)
    if not runs:
        raise InvalidRequest("there are no runs in what was named; nothing can be judged")
    return runs


def _existing(path: Path) -> Path:
    if not path.is_file():
        what = "is a folder; name the files in it" if path.is_dir() else "does not exist; name a file, or thread:ID"
        raise InvalidRequest(f"the run {str(path)!r} {what}")
    return path


def with_model(judge: JudgeConfig, model: str | None, *, scripted: bool) -> tuple[JudgeConfig, str | None]:
    """Return the judge with the model that the command names, and what was decided for the user where nobody is named.

    Raises:
        InvalidRequest: The model's key is missing, before a worker is started.
    """
    if model is not None:
        judge = _judged_by(judge, _model(model))
    if os.environ.get("GRADELOOP_TASK_QUEUE"):  # the worker of a named queue has keys of its own
        return judge, None
    named = judge.judge_model if not isinstance(judge, CriteriaJudge) else judge.grader.model if judge.grader else None
    asks = not isinstance(judge, CriteriaJudge) or any(None in each.judges for each in judge.rubric.judged)
    elsewhere = isinstance(judge, CriteriaJudge) and judge.grader is not None and judge.grader.elsewhere is not None
    if named is None and asks and not elsewhere:
        chosen = named_default(os.environ, "grader")
        return _judged_by(judge, chosen.spec), f"judge: {chosen.spec.id}, because {chosen.variable} is set"
    if named is not None:
        _refuse_unservable(named, scripted=scripted)
    return judge, None


def _model(name: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(name)
    except ValidationError as error:
        raise InvalidRequest(f"--grader: {explain(error)}") from None


def _judged_by(judge: JudgeConfig, model: ModelSpec) -> JudgeConfig:
    if isinstance(judge, CriteriaJudge):
        return judge.model_copy(update={"grader": (judge.grader or Grader()).model_copy(update={"model": model})})
    return judge.model_copy(update={"judge_model": model})


def _refuse_unservable(model: ModelSpec, *, scripted: bool) -> None:
    variables = KEYS.get(model.provider, ())
    if variables and not any(os.environ.get(name, "").strip() for name in variables):
        cure = f"{variables[0]} is not set; set it, or name another model with --model"
        raise InvalidRequest(f"the judge {model.id!r} needs a key and {cure}")
    if model.provider == "scripted" and not scripted:
        raise InvalidRequest(f"the judge {model.id!r} needs a file of replies; name it with --scripted")
