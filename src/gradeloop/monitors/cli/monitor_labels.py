"""The command by which people label the runs of a monitor, and how far its judge agrees with them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gradeloop.calibration.agreement import Agreement, measure_agreement
from gradeloop.calibration.cli.measure import agreement_lines
from gradeloop.cli.commands import Json, Overwrite
from gradeloop.cli.render.table import show_lines
from gradeloop.errors import InvalidRequest
from gradeloop.files.output import refuse_foreign
from gradeloop.judges.judgements import Judgements, Label, LabelSet, label_schema
from gradeloop.monitors.contract import MonitorDefinition
from gradeloop.monitors.labelling import LabelledRun, LabelTask, MonitorLabels, label_value
from gradeloop.monitors.overview import MonitorReader
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import own_store
from gradeloop.text import clip, counted, one_line, without_commands

SAYS = {"passed": True, "failed": False}


def label(  # noqa: PLR0913 - one parameter a flag
    name: Annotated[str, typer.Argument(metavar="NAME", help="The monitor's name.")],
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run; without one, the next that waits is shown.")] = None,
    verdict: Annotated[str | None, typer.Argument(metavar="VERDICT", help="What holds of it: passed or failed.")] = None,
    *,
    by: Annotated[str | None, typer.Option(metavar="PERSON", help="Who says so; the user's name by default.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    agreement: Annotated[bool, typer.Option("--agreement", help="Say how far the judge agrees with the labels.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write all labels, as agreement takes them.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Label judged runs, without seeing what the judge says.

    Failed runs wait for a label, and as many that passed. What people say measures the judge.
    """
    labels, person = MonitorLabels(own_store()), by or user_name()
    if run is not None:
        if verdict not in SAYS:
            raise InvalidRequest(f"the label is {clip(verdict) if verdict else 'missing'}; write passed or failed behind the run")
        run_id = asyncio.run(labels.give(name, run, person, passed=SAYS[verdict], reason=reason))
        show_lines({"run_id": run_id, "label": verdict, "created_by": person}, [f"{run_id}: {verdict}, says {person}"], as_json=as_json)
    elif agreement or output is not None:
        definition, given = asyncio.run(_given(labels, name))
        if output is not None:
            refuse_foreign(output, overwrite=overwrite)
            output.parent.mkdir(parents=True, exist_ok=True)
            rows = [json.dumps(one.model_dump(mode="json", exclude_none=True)) + "\n" for one in as_labels(definition, given).labels]
            output.write_text("".join(rows), encoding="utf-8")
            typer.echo(f"wrote {counted(len(rows), 'label')} to {output}", err=True)
        if agreement:
            found = agreement_of(definition, given)
            show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)
    else:
        task = asyncio.run(labels.next_task(name, person))
        show_lines(None if task is None else task.model_dump(mode="json"), _task_lines(name, task), as_json=as_json)


async def _given(labels: MonitorLabels, name: str) -> tuple[MonitorDefinition, tuple[LabelledRun, ...]]:
    monitor = await MonitorReader(own_store()).require(name)
    return monitor.definition, await labels.given(name)


def as_labels(definition: MonitorDefinition, given: tuple[LabelledRun, ...]) -> LabelSet:
    """Return what people say in the form that measures a judge; a fail that names no value of the judge's keys is left out."""
    found = list[Label]()
    for one in given:
        if (value := label_value(definition.judge, definition.passes, passed=one.passed)) is not None:
            found.append(Label(agent_run_id=one.run_id, label_value=value, reason=one.reason, created_by=one.created_by))
    return LabelSet(label_schema=label_schema(definition.judge), labels=tuple(found))


def agreement_of(definition: MonitorDefinition, given: tuple[LabelledRun, ...]) -> Agreement:
    """Return how far a monitor's judge agrees with what people say of its runs.

    Raises:
        InvalidRequest: There is no label, or no judgement of a labelled run is left.
    """
    if not given:
        raise InvalidRequest(f"nobody has labelled a run yet; `gradeloop monitor label {definition.name}` shows one that waits")
    judgements = Judgements(by_run={one.run_id: (one.judgement,) for one in given if one.judgement is not None})
    return measure_agreement(definition.judge, as_labels(definition, given), judgements, passes=definition.passes)


def _task_lines(name: str, task: LabelTask | None) -> Iterator[str | Text]:
    if task is None:
        yield f"no run of {name} waits for your label"
        return
    yield f"{counted(task.waiting, 'run')} to label; this one is {one_line(task.run_id)}"
    for message in task.messages:
        yield ""
        yield f"{message.role}:"
        yield without_commands(message.content)
    yield ""
    yield "say what holds of it with one of:"
    for says in SAYS:
        yield Text(f"  gradeloop monitor label {name} {task.run_sha256} {says} --reason TEXT")
