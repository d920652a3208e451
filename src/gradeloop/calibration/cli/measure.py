"""Commands that measure judges: their agreement with people."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradeloop.batches.cli.judge import JudgeName, open_registry
from gradeloop.calibration.agreement import Agreement, HumanCeiling, KeyAgreement, measure_agreement
from gradeloop.calibration.figures import NAMES, figure_texts
from gradeloop.cli.commands import AllowOutside, Grader, Json, codes_help, share_flag
from gradeloop.cli.folder import own_outside_roots
from gradeloop.cli.render.table import Column, show_lines, table
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import NO_VERDICT
from gradeloop.judges.contract import JudgeConfig
from gradeloop.judges.judgements import read_labels, read_results, refuse_foreign_results, select_judgements, stability_lines
from gradeloop.judges.sources import load_judge, load_runs, names_file, with_model
from gradeloop.stats.intervals import Estimate
from gradeloop.stats.votes import Band
from gradeloop.text import counted, one_line

app = typer.Typer(rich_markup_mode=None)

DISAGREEMENTS = 20
"""The most disagreements on a terminal; `--json` has all of them."""

RISK_HELP = "Say from which share of votes on the judge may decide alone, with at most this error."

PASSED_BY = typer.Option("--pass", metavar="KEY=VALUE", help="This value of KEY passes; repeatable.")


@app.callback()
def measures() -> None:
    """Measure judges."""


@app.command(epilog=codes_help("agreement"))
def agreement(  # noqa: PLR0913 - one parameter a flag
    judge: JudgeName,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="People's labels as JSON lines: agent_run_id, label_value, reason?, created_by?.")
    ],
    *,
    runs: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Count only judgements of these very runs, by their content; repeatable.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read judgements that `judge --json` wrote, instead of the store's.")
    ] = None,
    grader: Grader = None,
    ordered: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="The values of KEY are written from least to most; repeatable.")
    ] = None,
    passes: Annotated[list[str] | None, PASSED_BY] = None,
    risk: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=RISK_HELP)] = None,
    allow_outside: AllowOutside = None,
    as_json: Json = False,
) -> None:
    """Measure how well a judge agrees with people."""
    if risk is not None and not 0.001 <= risk <= 0.5:  # noqa: PLR2004 - the bounds are said
        raise InvalidRequest(f"--risk {risk:g} is out of range; write 0.001 to 0.5")

    async def measure() -> Agreement:
        registry = open_registry() if results is None or not names_file(judge) else None
        config = as_judged(await load_judge(judge, registry, own_outside_roots(allow_outside)), grader)
        people = read_labels(labels, config)
        meant = await load_runs(runs, None) if runs else None
        if results is not None:
            found = read_results(results)
            refuse_foreign_results(results, config, found)
        else:
            found = await (registry or open_registry()).judgements(config, newest_first=True)
        judgements = select_judgements(config, found, meant)
        return measure_agreement(config, people, judgements, ordered=ordered or (), passes=passes or (), risk=risk)

    found = asyncio.run(measure())
    show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)
    if not found.judged:
        raise typer.Exit(NO_VERDICT)


def as_judged(judge: JudgeConfig, grader: str | None) -> JudgeConfig:
    """Return a judge with the model with which `gradeloop judge` asks it, without which its judgements are another judge's."""
    try:
        return with_model(judge, grader, scripted=True)[0]
    except InvalidRequest:
        if grader is not None:
            raise
        return judge  # no key is here, and none is needed to measure


def agreement_lines(found: Agreement) -> Iterator[str | Table]:
    """Yield how far a judge agrees with people, by key, and where it does not."""
    yield f"{found.judged} of {found.labels} labels have a judgement"
    if found.stale:
        yield f"{counted(len(found.stale), 'run')} had another content when judged, and {'is' if len(found.stale) == 1 else 'are'} left out"
    for key in found.keys:
        yield from _key_lines(key)
        if found.risk is not None:
            yield band_line(key.band, found.risk)
    for row in found.stability:
        yield from stability_lines(row)
    for odd in found.disagreements[:DISAGREEMENTS]:
        yield ""
        by = one_line(odd.by)
        yield f"{one_line(odd.agent_run_id)}: {odd.key} is {json.dumps(odd.label)} by {by}, {json.dumps(odd.judge)} by the judge"
        yield f"  {by}: {one_line(odd.label_reason) or 'no reason given'}"
        yield f"  judge: {one_line(odd.judge_reason) or 'no reason given'}"
    if len(found.disagreements) > DISAGREEMENTS:
        yield f"and {len(found.disagreements) - DISAGREEMENTS} more disagreements; --json lists them all"


def _key_lines(key: KeyAgreement) -> Iterator[str | Table]:
    yield ""
    positive = "" if key.positive is None else f"; {json.dumps(key.positive)} passes"
    yield f"{key.key}: {counted(key.labels, 'label')} of {counted(key.runs, 'run')}, {key.answered} answered{positive}"
    yield figure_table(key.figures)
    for value, rates in key.rates.items():
        parts = [f"{NAMES[name]} {figure_texts(name, rates[name])[0]}" for name in ("tpr", "tnr", "precision", "f1")]
        yield f"{value}: {', '.join(parts)}"
    if key.confusion:
        yield "rows are labels, columns the judge"
        yield _confusion(key.confusion)
    if key.ceiling is not None:
        yield ceiling_line(key.ceiling)
    if key.pass_rate is not None:
        yield from _pass_rate_lines(key)
    if key.panel is not None:
        yield f"{key.panel.votes} votes of a judgement are worth {key.panel.effective:.1f} independent ones"


def figure_table(figures: Mapping[str, Estimate]) -> Table:
    """Return figures as a table with their intervals."""
    texts = {name: figure_texts(name, figure) for name, figure in figures.items() if name != "recall"}
    return table(
        [
            Column("figure", [NAMES.get(name, name) for name in texts]),
            Column("value", [value for value, _ in texts.values()], right=True),
            Column("95 % interval", [interval for _, interval in texts.values()]),
            Column("runs", [str(figures[name].of) for name in texts], right=True),
        ]
    )


def ceiling_line(ceiling: HumanCeiling) -> str:
    """Return how far people agree with one another, and the judge with them."""
    human, judge = (side["accuracy"].texts() for side in (ceiling.human, ceiling.judge))
    return f"people agree with one another in {human[0]} ({human[1]}), the judge with them in {judge[0]} ({judge[1]})"


def band_line(band: Band | None, risk: float) -> str:
    """Return from which share of votes on a judge may decide alone."""
    if band is None:
        return f"at a risk of {risk:.1%}: the judge may decide nothing alone, with these labels"
    error = f"{band.error:.1%} of them wrong on {counted(band.labels, 'label')}, {band.bound:.1%} at most"
    return f"at a risk of {risk:.1%}: trust verdicts of {band.threshold:.0%} of the votes or more, {band.coverage:.1%} of all; {error}"


def _pass_rate_lines(key: KeyAgreement) -> Iterator[str]:
    rate = key.pass_rate
    assert rate is not None  # noqa: S101 - the caller looked
    raw, interval = rate.raw.texts()
    yield f"pass rate of {counted(rate.runs, 'judged run')}: {raw} ({interval}) as the judge says"
    if rate.corrected is None:
        yield "  not corrected: labels of both kinds are needed, on which the judge is better than chance"
    else:
        fixed = rate.corrected
        yield f"  {fixed.value:.1%} ({fixed.low:.1%} to {fixed.high:.1%}) corrected for the judge's error on the labels"


def _confusion(rows: Mapping[str, Mapping[str, int]]) -> Table:
    labels, names = sorted(rows), sorted({name for row in rows.values() for name in row} | set(rows))
    counts = (Column(name, [str(rows[label].get(name, 0)) for label in labels], right=True) for name in names)
    return table([Column("", labels, wraps=True), *counts])
