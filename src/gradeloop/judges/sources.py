"""Judges and runs as a command names them: judges in files or the registry, runs in files or threads."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradeloop.client.client import GradingClient
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import Grader, RunResult
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import YAML_SUFFIXES, inline_prompts, read_rubric_file, refuse_bad_rubric
from gradeloop.files.yaml import Location, read_placed
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, parse_judge
from gradeloop.settings.endpoints import own_names, refuse_unservable, require_default_model
from gradeloop.settings.trust import find_config_file
from gradeloop.temporal.connect import find, wake_worker
from gradeloop.transcripts.readers import LINES, TEXTS, Reading, distinct_ids, read_run_file, refuse_duplicate_ids

if TYPE_CHECKING:
    from gradeloop.judges.registry import JudgeRegistry  # loads SQLAlchemy, which a judge in a file does not need

THREAD = "thread:"
"""The prefix of a thread's id among the names of runs."""


def read_judge(path: Path, outside: Sequence[Path] = ()) -> JudgeConfig:
    """Read a judge from YAML, JSON (Docent's too), or a rubric as plain text.

    `outside`: the folders besides its own in which it may name files.

    Raises:
        InvalidRequest: The file holds no judge; the message names the file, and the place in it where one is known.
    """
    if not path.is_file():
        if path.is_dir():
            raise InvalidRequest(f"the judge {str(path)!r} is a folder; name a file in it")
        cure = "name a file, or COLLECTION/RUBRIC of the registry; `gradeloop init --kind judge` writes one"
        raise InvalidRequest(f"the judge {str(path)!r} does not exist; {cure}")
    is_text = path.suffix not in YAML_SUFFIXES
    value, placed = ({"rubric": read_rubric_file(path)}, {}) if is_text else read_placed(path, "the judge")
    scope, where = FileScope.of(path, outside), Location(f"the judge {str(path)!r}", (), placed)
    if not is_text and isinstance(value, dict) and value.get("rubric") is not None:
        value["rubric"] = inline_prompts(value["rubric"], scope, where.at("rubric"))
        refuse_bad_rubric(value["rubric"], placed, ("rubric",), where.file)
    elif isinstance(value, dict) and "criteria" in value:
        value = inline_prompts(value, scope, where)
        refuse_bad_rubric(value, placed, (), where.file)
    try:
        return parse_judge(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from None


async def load_judge(name: str, registry: "JudgeRegistry | None", outside: Sequence[Path] = ()) -> JudgeConfig:
    """Load the judge of a file, or `COLLECTION/RUBRIC[@VERSION]` of the registry; `outside` as for `read_judge`.

    Raises:
        InvalidRequest: There is no such file or rubric.
    """
    reference = None if names_file(name) else parse_reference(name)
    return await registry.get_rubric(*reference) if registry and reference else read_judge(Path(name), outside)


def parse_reference(text: str) -> tuple[str, str, int | None] | None:
    """Split `COLLECTION/RUBRIC` or `COLLECTION/RUBRIC@VERSION` into its parts; None for any other text."""
    found = re.fullmatch(r"([^/@]+)/([^/@]+?)(?:@(\d{1,9}))?", text)
    return (found[1], found[2], int(found[3]) if found[3] else None) if found else None


def names_file(name: str) -> bool:
    """Return whether a judge's name means a file, which need not exist."""
    path = Path(name)
    return path.exists() or path.suffix in {*YAML_SUFFIXES, ".md", ".txt"}


async def load_runs(sources: Sequence[str], reader: GradingClient | None, reading: Reading | None = None) -> list[AgentRun]:
    """Load the runs of files and threads, in order; ids that several files have carry the file's name.

    Args:
        sources: The names of files, of folders with such files, and `thread:ID`.
        reader: Reads threads.
        reading: Takes the formats and the skipped runs; by default no run is skipped.

    Raises:
        InvalidRequest: A run cannot be read, two have the same id, or there is none, and none was left out.
    """
    files: list[tuple[Path, Sequence[AgentRun]]] = []
    for source in sources:
        if source.startswith(THREAD) and reader is not None:
            name = source.removeprefix(THREAD)
            await wake_worker(await reader.task_queue_of(name), await find())
            files.append((Path(source), [await read_thread(reader, name)]))
        else:
            files += [(path, list(read_run_file(path, reading))) for path in _files_of(Path(source))]
    runs = distinct_ids(files)
    refuse_duplicate_ids(runs)
    if reading is not None:
        paths = (path for path, found in files for _ in found)
        reading.files.update({run.id: path for run, path in zip(runs, paths, strict=True)})
    if not runs and not (reading and reading.left_out):
        raise InvalidRequest("there are no runs in what was named; nothing can be judged")
    return runs


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the files of runs in a folder, by name."""
    if path.is_file():
        return [path]
    found = sorted(file for file in path.glob("*") if file.is_file() and file.suffix in (".json", ".eval", *LINES, *TEXTS))
    if not found:
        problem = "is a folder without files of runs; name one with some" if path.is_dir() else "does not exist; name a file, or thread:ID"
        raise InvalidRequest(f"the run {str(path)!r} {problem}")
    return found


async def read_thread(reader: GradingClient, thread_id: str) -> AgentRun:
    """Read a thread as a run, with its drafts and feedback as they were sent.

    Raises:
        ThreadNotFound: There is no such thread.
        InvalidRequest: The thread has no draft.
    """
    messages: list[Message] = []
    after: int | None = 0
    while after is not None:
        page = await reader.messages(thread_id, after=after)
        messages += page.items
        after = page.next
    return thread_as_run(thread_id, messages, await reader.last_result(thread_id))


def thread_as_run(thread_id: str, messages: Sequence[Message], result: RunResult | None) -> AgentRun:
    """Return a thread as a run, with its drafts and feedback as they were sent; raise InvalidRequest where the thread has no draft."""
    if not any(item.role == "assistant" and (item.content.strip() or item.tool_calls) for item in messages):
        raise InvalidRequest(f"{THREAD}{thread_id}: the thread has no draft, so there is nothing to judge; run it first")
    said = [
        item.model_dump(exclude={"source", "vendor", "model"}, exclude_none=True)
        | ({"metadata": {"source": item.source}} if item.source else {})
        for item in messages
    ]
    metadata = {"status": result.status, "score": result.score} if result else {}
    return AgentRun.model_validate({"id": thread_id, "transcripts": [{"messages": tuple(said)}], "metadata": metadata})


def with_model(judge: JudgeConfig, model: str | None, *, scripted: bool, own_keys: bool = True) -> tuple[JudgeConfig, str | None]:
    """Return the judge with the model that a command names, and a note on the model where a default was chosen.

    `model`: the model's name on the command line; None for the judge's own, or the default one.
    `own_keys`: whether the worker has this process's keys; one that another process started is not asked for its own.

    Raises:
        InvalidRequest: The model is unknown, or its key is missing.
    """
    if model is not None:
        with explained("--grader: "):
            judge = _with_grader_model(judge, ModelSpec.model_validate(model))
    if os.environ.get("GRADELOOP_TASK_QUEUE"):  # the worker of a named queue has keys of its own
        return judge, None
    if isinstance(judge, CriteriaJudge):
        grader, asks = judge.grader or Grader(), any(None in criterion.judges for criterion in judge.rubric.judged)
        lacks_model = asks and grader.model is None and grader.remote is None
    else:
        lacks_model = judge.models == (None,)
    if lacks_model:
        chosen = require_default_model(os.environ, "grader")
        return _with_grader_model(judge, chosen.spec), f"judge: {chosen.spec.id}, because {chosen.variable} is set"
    if own_keys:
        refuse_unservable(judge, os.environ, scripted=scripted, endpoints=own_names(os.environ, find_config_file((), os.environ)))
    return judge, None


def _with_grader_model(judge: JudgeConfig, model: ModelSpec) -> JudgeConfig:
    if isinstance(judge, CriteriaJudge):
        return judge.model_copy(update={"grader": (judge.grader or Grader()).model_copy(update={"model": model})})
    return judge.model_copy(update={"judge_model": model, "panel": None})
