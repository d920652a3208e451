"""TASK.yaml files, and the flags of `gradeloop run` that override them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from gradeloop.cli.commands import Grader, OutsideFolders, Tenant, ToolFiles, Trust
from gradeloop.cli.folder import own_config_file
from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import ThreadRequest, parse_request
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.output import resolve_writable
from gradeloop.files.roots import FileScope, data_url
from gradeloop.files.rubric import YAML_SUFFIXES, inline_prompts, read_rubric_file, refuse_bad_rubric, require_files
from gradeloop.files.yaml import Location, explained_at, placed_at, read_placed
from gradeloop.grading.templates import fill
from gradeloop.settings.endpoints import UNNAMED, loopback_servers, own_names, refuse_unservable, require_default_model
from gradeloop.settings.worker import find_outside_roots, with_tenant
from gradeloop.temporal.connect import WorkerSpec
from gradeloop.text import clip

Model = Annotated[str | None, typer.Option(metavar="MODEL", help="Draft with this model, written provider:model.")]
BudgetTokens = Annotated[int | None, typer.Option(metavar="N", help="Interrupt the run when the thread has used this many tokens.")]
BudgetUsd = Annotated[float | None, typer.Option(metavar="USD", help="Interrupt the run when the thread has cost this many dollars.")]


@dataclass(frozen=True)
class TaskFlags:
    """Flags of `gradeloop run` that override the task file."""

    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Give the task as one message.")] = None
    rubric: Annotated[str | None, typer.Option(metavar="RUBRIC", help="Grade by this rubric: a file, or its text.")] = None
    model: Model = None
    grader: Grader = None
    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Draft at most this often, 1 to 20; 3 by default.")] = None
    tools: ToolFiles = ()
    tenant: Tenant = None
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Give the thread this id; a new id by default.")] = None
    budget_tokens: BudgetTokens = None
    budget_usd: BudgetUsd = None
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Record every exchange with a model in this file.")] = None
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay the models' replies from a recording; needs no key.")] = None
    allow_outside: OutsideFolders = ()
    trust: Trust = False
    check: bool = False
    """Whether the task is only looked at: it needs no key."""


ThreadId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S+$")]


class TaskFile(Strict):
    """The keys of a TASK.yaml: the workflow's argument, and the files that its worker needs."""

    prompt: str | None = None
    """The task, as one message of role user."""
    messages: list[JsonValue] | None = None
    rubric: JsonValue = None
    generator: dict[str, JsonValue] = Field(default_factory=dict)
    grader: dict[str, JsonValue] | None = None
    max_iterations: JsonValue = None
    idle_timeout: JsonValue = None
    outage_timeout: JsonValue = None
    budget: dict[str, JsonValue] | None = None
    priority: dict[str, JsonValue] | None = None
    vars: dict[str, JsonValue] | None = None
    checkpoint: dict[str, JsonValue] | None = None
    tools: str | list[str] = Field(default_factory=list)
    """Python files of evidence tools, relative to this file."""
    scripted: str | None = None
    """A file of replies for the provider `scripted`, relative to this file."""
    thread: ThreadId | None = None
    """The thread's id; a new one by default."""


@dataclass(frozen=True)
class Task:
    """A request, the thread to run it in, and what its worker serves."""

    request: ThreadRequest
    worker: WorkerSpec
    thread: str | None
    notes: tuple[str, ...]
    """Choices made for the user, which `gradeloop run` prints."""


def read_task(path: Path | None, flags: TaskFlags) -> Task:
    """Read a task from its command line and its file; raise InvalidRequest, with field, value and cure, where something is wrong."""
    config = own_config_file(trust=flags.trust)
    scope = FileScope.of(path or Path("task.yaml"), outside := find_outside_roots(flags.allow_outside, config))
    read, spot = _read_task_file(path, scope) if path else (TaskFile(), Location())
    task = _scripted_task(_with_files(read, scope, spot), flags, outside)
    notes: list[str] = []
    messages = _build_messages(task, flags)
    thread = task.thread if flags.thread is None else _parse_thread_id(flags.thread)
    rubric = read_rubric(flags.rubric, outside) if flags.rubric is not None else task.rubric
    with placed_at(spot if flags.rubric is None else Location()):
        judged = _is_judged(rubric)
    budget = budget_of(flags.budget_tokens, flags.budget_usd)
    raw: dict[str, JsonValue] = {
        "messages": messages,
        "rubric": rubric,
        "generator": _with_model(task.generator, flags, "generator", notes),
        "grader": _with_model(task.grader or {}, flags, "grader", notes) if judged or task.grader or flags.grader else None,
        "max_iterations": flags.max_iterations if flags.max_iterations is not None else task.max_iterations,
        "idle_timeout": task.idle_timeout,
        "outage_timeout": task.outage_timeout,
        "budget": budget.model_dump(mode="json") if budget else task.budget,
        "priority": task.priority,
        "vars": task.vars,
        "checkpoint": task.checkpoint,
    }
    named = [task.tools] if isinstance(task.tools, str) else task.tools
    worker = WorkerSpec(
        tools=require_files((*(scope.find(name, spot.at("tools")) for name in named), *flags.tools), "tools"),
        scripted=flags.replay
        or (require_files((scope.find(task.scripted, spot.at("scripted")),), "scripted")[0] if task.scripted else None),
        record=_check_recording_path(flags.record),
        config=config,
    )
    flagged = {"messages": flags.prompt, "rubric": flags.rubric, "max_iterations": flags.max_iterations, "budget": budget}
    flagged |= {"generator": flags.model, "grader": flags.grader, "priority": flags.tenant}
    with placed_at(spot, *(name for name, flag in flagged.items() if flag is not None)):
        request = parse_request({key: value for key, value in raw.items() if value is not None})
        request = request.model_copy(update={"priority": with_tenant(request.priority, flags.tenant)})
        worker = replace(worker, local_servers=loopback_servers(request))
        with placed_at(Location() if flags.rubric else spot.at("rubric")):
            fill(request.rubric, request.vars)
        # The worker of a named queue has an environment and replies of its own.
        if not os.environ.get("GRADELOOP_TASK_QUEUE"):
            names = own_names(os.environ, config)
            refuse_unservable(request, os.environ, scripted=worker.scripted is not None, endpoints=names, calls=not flags.check)
    return Task(request, worker, thread, tuple(dict.fromkeys(notes)))


def read_rubric(flag: str, outside: Sequence[Path] = ()) -> JsonValue:
    """Read `--rubric`: a file if there is one of that name, else the text itself."""
    path = Path(flag)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name: it is a text
        is_file = False
    if not is_file:
        if "\n" not in flag and flag.endswith((*YAML_SUFFIXES, ".md", ".txt")):
            raise InvalidRequest(f"--rubric: the file {flag!r} does not exist; correct the path, or give the rubric's text")
        return flag
    return read_rubric_file(path, FileScope.of(path, outside))


def budget_of(tokens: int | None, usd: float | None) -> Budget | None:
    """Return the budget that the flags set; None if they set none. Raise InvalidRequest where a value is out of range."""
    given = {"max_tokens": tokens, "max_cost_usd": usd}
    try:
        return Budget.model_validate(given) if any(value is not None for value in given.values()) else None
    except ValidationError as error:
        raise InvalidRequest(explain(error).replace("max_tokens", "--budget-tokens").replace("max_cost_usd", "--budget-usd")) from None


def _check_recording_path(record: Path | None) -> Path | None:
    """Return the path of a recording to write, whose folder is made; one that exists is refused."""
    if record is not None and record.exists():
        raise InvalidRequest(f"--record: {str(record)!r} exists already; name another file, or remove it")
    return None if record is None else resolve_writable(record, (record.suffix.lower(),))


def _scripted_task(task: TaskFile, flags: TaskFlags, outside: Sequence[Path]) -> TaskFile:
    """Return the task with the provider `scripted` in place of its models if `--replay` names a recording, else as it is."""
    if flags.replay is None:
        return task
    require_files((flags.replay,), "--replay")
    if flags.record or flags.model or flags.grader:
        raise InvalidRequest("--replay reads the models' replies from its file; leave --record, --model and --grader out")
    judged = task.grader or _is_judged(task.rubric if flags.rubric is None else read_rubric(flags.rubric, outside))
    grader = _with_scripted_model(task.grader or {}) if judged else None
    return task.model_copy(update={"generator": _with_scripted_model(task.generator), "grader": grader})


def _with_scripted_model(role: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if any(role.get(kind) is not None for kind in ("activity", "workflow", "function")):
        return role
    model = role.get("model")
    name = model.get("id") if isinstance(model, dict) else model
    return role | {"model": name if str(name).startswith("scripted:") else f"scripted:{name or 'recorded'}"}


def _is_judged(rubric: JsonValue) -> bool:
    """Return whether the rubric needs a grader; an empty one is refused."""
    if rubric is None:
        return False
    try:
        read = Rubric.model_validate(rubric)
    except ValidationError:  # the request as a whole is refused for it
        return False
    if read.cleared:
        raise InvalidRequest("rubric: it is empty; write a criterion a line, or leave the rubric out, so that nothing is graded")
    return any(None in criterion.judges for criterion in read.judged)


def _parse_thread_id(flag: str) -> str:
    try:
        return TypeAdapter(ThreadId).validate_python(flag)
    except ValidationError:
        raise InvalidRequest(f"--thread: {clip(flag)} is not a thread id; write 1 to 200 characters without white space") from None


def _read_task_file(path: Path, scope: FileScope) -> tuple[TaskFile, Location]:
    value, placed = read_placed(path, "the task")
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path}: the task is not a mapping; write 'prompt:' and 'rubric:' with their values")
    spot = Location(f"the task {str(path)!r}", (), placed)
    if value.get("rubric") is not None:
        value["rubric"] = inline_prompts(value["rubric"], scope, spot.at("rubric"))
        refuse_bad_rubric(value["rubric"], placed, ("rubric",), spot.file)
    with explained_at(spot):
        return TaskFile.model_validate(value), spot


def _with_files(task: TaskFile, scope: FileScope, spot: Location) -> TaskFile:
    """Return the task with the files that blocks of its messages name by `path`, relative to it, as `data:` URLs."""

    def read(value: JsonValue, where: Location) -> JsonValue:
        if isinstance(value, list):
            return [read(item, where.at(at)) for at, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if isinstance(path := value.get("path"), str) and value.get("type") in {"image", "file"}:
            return {"url": data_url(scope.find(path, where), where), **{key: of for key, of in value.items() if key != "path"}}
        return value | {"content": read(value["content"], where.at("content"))} if "content" in value else value

    messages = read(task.messages, spot.at("messages"))
    return task.model_copy(update={"messages": messages})


def _build_messages(task: TaskFile, flags: TaskFlags) -> list[JsonValue]:
    prompt = flags.prompt if flags.prompt is not None else task.prompt
    if prompt is None and task.messages is None:
        raise InvalidRequest("the task is missing; give it as 'prompt:' in the task file, or with --prompt")
    prompted: list[JsonValue] = [] if prompt is None else [{"role": "user", "content": prompt}]
    return [*(task.messages or []), *prompted]


def _with_model(
    role: dict[str, JsonValue], flags: TaskFlags, name: Literal["generator", "grader"], notes: list[str]
) -> dict[str, JsonValue]:
    """Return the generator or grader with the flag's model, with its own, or with the default one and a note about it."""
    flag = flags.model if name == "generator" else flags.grader
    if flag is not None:
        return role | {"model": flag}
    if any(role.get(kind) is not None for kind in ("model", "activity", "workflow", "function")):
        return role
    if flags.check:
        return role | {"model": UNNAMED}
    chosen = require_default_model(os.environ, name)
    notes.append(f"{name}: {chosen.spec.id}, because {chosen.variable} is set")
    return {**role, "model": chosen.spec.model_dump(mode="json", exclude_none=True)}
