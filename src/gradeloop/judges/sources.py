"""What a person names to be judged: a judge in a file or the registry, runs in files or threads."""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.client.client import GradingClient
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.rubric import YAML_SUFFIXES, inline_prompts, read_rubric_file, refuse_bad_rubric
from gradeloop.files.yaml import read_placed
from gradeloop.judges.client import parse_reference
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, parse_judge
from gradeloop.judges.registry import Registry
from gradeloop.settings.default_model import KEYS, require_default_model
from gradeloop.transcripts.readers import read_run_file, refuse_duplicate_ids

THREAD = "thread:"
"""How a thread's id begins where runs are named."""


def read_judge(path: Path) -> JudgeConfig:
    """Read a judge from YAML, JSON (Docent's too), or a rubric as plain text.

    Raises:
        InvalidRequest: It is none; the message names the file, and the place where one is known.
    """
    if not path.is_file():
        if path.is_dir():
            raise InvalidRequest(f"the judge {str(path)!r} is a folder; name a file in it")
        raise InvalidRequest(f"the judge {str(path)!r} does not exist; name a file, or COLLECTION/RUBRIC of the registry")
    if path.suffix not in YAML_SUFFIXES:
        return _config_in(path, {"rubric": read_rubric_file(path)})
    value, placed = read_placed(path, "the judge")
    if isinstance(value, dict) and value.get("rubric") is not None:
        value["rubric"] = inline_prompts(value["rubric"], path.parent)
        refuse_bad_rubric(value["rubric"], placed, ("rubric",), f"the judge {str(path)!r}")
    elif isinstance(value, dict) and "criteria" in value:
        value = inline_prompts(value, path.parent)
        refuse_bad_rubric(value, placed, (), f"the judge {str(path)!r}")
    return _config_in(path, value)


def _config_in(path: Path, value: JsonValue) -> JudgeConfig:
    try:
        return parse_judge(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from None


async def load_judge(name: str, registry: Registry) -> JudgeConfig:
    """Return the judge of a file, or `COLLECTION/RUBRIC[@VERSION]` of the registry.

    Raises:
        InvalidRequest: There is neither.
    """
    named = None if names_file(name) else parse_reference(name)
    return read_judge(Path(name)) if named is None else await registry.get_rubric(*named)


def names_file(name: str) -> bool:
    """True where a judge is meant that stands in a file, be it there or not."""
    path = Path(name)
    return path.exists() or path.suffix in {*YAML_SUFFIXES, ".md", ".txt"}


async def load_runs(sources: Sequence[str], reader: GradingClient | None) -> list[AgentRun]:
    """Return the runs of files and of threads, in order.

    Raises:
        InvalidRequest: One cannot be read, or two have the same id.
    """
    runs: list[AgentRun] = []
    for source in sources:
        if source.startswith(THREAD) and reader is not None:
            runs.append(await read_thread(reader, source.removeprefix(THREAD)))
        else:
            runs += read_run_file(_existing(Path(source)))
    refuse_duplicate_ids(runs)
    if not runs:
        raise InvalidRequest("there are no runs in what was named; nothing can be judged")
    return runs


async def read_thread(reader: GradingClient, thread_id: str) -> AgentRun:
    """Return a thread of ours as a run, drafts and feedback as they were said.

    Raises:
        ThreadNotFound: There is none.
        InvalidRequest: Nothing was said in it.
    """
    messages: list[RunMessage] = []
    after: int | None = 0
    while after is not None:
        page = await reader.messages(thread_id, after=after)
        for item in page.items:
            told = item.model_dump(exclude={"source", "vendor"}, exclude_none=True)
            messages.append(RunMessage.model_validate(told | ({"metadata": {"source": item.source}} if item.source else {})))
        after = page.next
    if not messages:
        raise InvalidRequest(f"{THREAD}{thread_id}: nothing was said in this thread; there is nothing to judge")
    result = await reader.last_result(thread_id)
    known = {"status": result.status, "score": result.score} if result else {}
    return AgentRun.model_validate({"id": thread_id, "transcripts": [{"messages": tuple(messages)}], "metadata": known})


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
        chosen = require_default_model(os.environ, "grader")
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
