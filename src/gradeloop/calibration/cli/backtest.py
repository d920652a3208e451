"""The command that tests another rubric or grader on the stored drafts of finished threads: what would have become of each run."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter
from rich.console import Console

from gradeloop.batches.cli.judge_again import preview_requests
from gradeloop.calibration.cli.measure import AskFlags, ask
from gradeloop.cli.commands import Grader as GraderFlag
from gradeloop.cli.commands import Limit, OfTenant, codes_help, takes
from gradeloop.cli.folder import own_outside_roots
from gradeloop.cli.render.table import show_lines
from gradeloop.cli.upkeep import age
from gradeloop.client.client import GradingClient
from gradeloop.client.listing import ListedThread, threads
from gradeloop.contract.base import Strict
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CriterionRow, Evaluation, Judgement
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader, Priority
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, explained
from gradeloop.exit_codes import NO_VERDICT
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import load_rubric
from gradeloop.grading.prompts import feedback_message
from gradeloop.grading.scoring import call_groups, result_of
from gradeloop.grading.templates import fill
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, JudgingRequest
from gradeloop.judges.judgements import read_labels
from gradeloop.judges.sources import thread_as_run
from gradeloop.reports.html import checked_page, document, write_page
from gradeloop.settings.worker import with_tenant
from gradeloop.stats.intervals import Estimate, mean, paired_difference
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find, is_polled, wake_worker
from gradeloop.text import counted, money, one_line

EXAMPLES = 10
"""The runs that a report shows with their drafts: the first ones that would have ended otherwise."""

ENDS = ("satisfied", "max_iterations_reached")
"""The statuses of a run that was graded to its end."""

End = Literal["sent_back", "accepted", "same", "diverges", "unknown"]

OTHER_RUBRIC = "have no run that ended by this rubric"
"""The reason for which a thread is left out whose rubric is not meant."""

_ROWS = TypeAdapter(tuple[CriterionRow, ...])

CONCURRENCY = 10
"""Threads that are read at the same time."""

app = typer.Typer(rich_markup_mode=None)


class Outcome(Strict):
    """The end of a run under the other rubric, as far as it is known."""

    name: str
    """The draft with which it ends, or after which it diverges, as labels name it: `haiku-1@2`."""
    end: End
    """`sent_back`: a shipped draft fails; `accepted`: a draft passes that failed; `diverges`: it would have got other feedback, so that
    nobody knows the drafts after it; `unknown`: it has no verdict."""
    draft: int
    saved: int = 0
    """The drafts that were made after an accepted one."""
    text: str
    why: str
    """The reasons for which the draft fails now, or failed before."""
    rows: tuple[CriterionRow, ...]
    """The verdicts by the other rubric."""


class Backtest(Strict):
    """The report of a backtest, whose people are those of overrides and labels."""

    threads: int
    drafts: int
    asked: int
    """The drafts about which a judge was asked."""
    ends: dict[End, int]
    saved: int
    diverged: dict[int, int]
    """The runs that diverge, by the number of the draft."""
    criteria: dict[str, dict[str, int]]
    """The drafts by criterion: `asked` anew, and with the `same` verdict, or one that `fell` or `rose`."""
    examples: tuple[Outcome, ...]
    left_out: dict[str, int]
    """Threads that are not counted, by the reason."""
    agreed: float | None
    """The share of people's verdicts with which the old rubric agrees, 0 to 1."""
    agrees_more: Estimate
    """The same of the new rubric, minus that."""
    usage: Usage


@dataclass(frozen=True)
class Story:
    """The last grading run of a thread, and what the other rubric is asked about it."""

    thread_id: str
    old: Rubric
    new: Rubric
    kept: Mapping[str, str]
    """The criteria whose stored verdicts stand, by their ids in the new rubric, with those in the old one."""
    grader: Grader
    evaluations: tuple[Evaluation, ...]
    messages: tuple[Message, ...]
    priority: Priority | None
    """Priority of a batch, with the tenant of the thread."""

    def requests(self) -> Iterator[JudgingRequest]:
        """Yield the judgements of its drafts by the criteria that changed; none where none did."""
        if part := part_of(self.new, {criterion.id for criterion in self.new.criteria} - self.kept.keys()):
            judge = CriteriaJudge(rubric=part, grader=self.grader)
            for evaluation in self.evaluations:
                shown = [message for message in self.messages[: evaluation.draft + 1] if not message.hidden]
                yield JudgingRequest(judge=judge, run=thread_as_run(self.name(evaluation), shown, None), priority=self.priority)

    def name(self, evaluation: Evaluation) -> str:
        """Return the name of a draft."""
        return f"{self.thread_id}@{evaluation.iteration + 1}"

    def rows(self, evaluation: Evaluation, found: JudgeResult | None) -> tuple[CriterionRow, ...] | None:
        """Return the rows of the new rubric on a draft; None where one has no verdict."""
        output = found.output if found is not None and not found.failed else {}
        known = {f"stored {row.id}": row.model_copy(update={"override": None}) for row in evaluation.criteria}
        known |= {row.id: row for row in _ROWS.validate_python(output.get("criteria") or ())}
        names = {one.id: f"stored {self.kept[one.id]}" if one.id in self.kept else one.id for one in self.new.criteria}
        rows = tuple(known[key].model_copy(update={"id": name}) for name, key in names.items() if key in known)
        lost = len(rows) < len(names) or output.get("result") == "failed" or any(row.unverified for row in rows)
        return None if lost else rows

    def outcome(self, results: Mapping[str, JudgeResult]) -> Outcome:
        """Return what would have become of the run, by what was found on its drafts: as far as its feedback would have been the same."""
        for evaluation in self.evaluations:
            found = results.get(self.name(evaluation))
            rows, left = self.rows(evaluation, found), self.evaluations[-1].iteration - evaluation.iteration
            text, shipped = self.messages[evaluation.draft].content, evaluation.status == "satisfied"
            met = rows is not None and result_of(self.new, Judgement(rows=rows, explanation="")) == "satisfied"
            end: End = "unknown" if rows is None else "same" if met == shipped else "accepted" if met else "sent_back"
            if rows is not None and left and end == "same":
                said = self.messages[evaluation.draft + 1].content
                remarks = [*_remarks_in(self.old, said), *self._remark(rows, found)]
                if feedback_message(self.new, evaluation.model_copy(update={"criteria": rows}), remarks).content == said:
                    continue
                end = "diverges"
            failing = [row for row in (evaluation.criteria if end == "accepted" else rows or ()) if not row.passed]
            why = one_line("; ".join(f"{row.id}: {row.why_failed}" for row in failing))
            about: dict[str, Any] = {"name": self.name(evaluation), "draft": evaluation.iteration + 1, "text": text, "why": why}
            return Outcome(end=end, rows=rows or (), saved=left if end == "accepted" else 0, **about)
        raise ValueError(f"{self.thread_id}: nothing was judged in it")

    def _remark(self, rows: Sequence[CriterionRow], found: JudgeResult | None) -> list[str]:
        """Return what the judge of the changed criteria says beside its rows, where a call that asks one objects, or nobody does."""
        failing = {row.id for row in rows if not row.passed}
        objects = not failing or any(failing & set(group.ids) and set(group.ids) - self.kept.keys() for group in call_groups(self.new))
        return [str(found.output.get("explanation") or "")] if found is not None and objects else []


def _remarks_in(rubric: Rubric, feedback: str) -> list[str]:
    """Return the remarks of graders that a feedback has beside its rows."""
    _, _, after = feedback.partition(f"\n{rubric.phrases.remarks}\n")
    return [line.removeprefix("- ") for line in takewhile(lambda line: line.startswith("- "), after.split("\n"))]


def question_of(rubric: Rubric, criterion: Criterion) -> str:
    """Return what a criterion's verdict depends on beside the draft, as JSON: where it is equal, the stored verdict stands."""
    about: dict[str, Any] = criterion.model_dump(mode="json", exclude={"id", "required", "weight", "group"})
    if not criterion.check:
        shared = {"instructions", "prompt", "language", "context"} | ({"show_checks", "criteria"} if rubric.show_checks else set())
        about |= {"rubric": rubric.model_dump(mode="json", include=shared), "presses": criterion.id in rubric.decisive}
    return json.dumps(about, sort_keys=True)


def kept_criteria(old: Rubric, new: Rubric, *, other_grader: bool) -> dict[str, str]:
    """Return the criteria of the new rubric that the old one asks too, with their ids there; without those that another grader judges."""
    known = {question_of(old, criterion): criterion.id for criterion in reversed(old.criteria)}
    asked = {criterion.id for criterion in new.judged if None in criterion.judges} if other_grader else set()
    found = {criterion.id: known.get(question_of(new, criterion)) for criterion in new.criteria if criterion.id not in asked}
    return {name: former for name, former in found.items() if former is not None}


def part_of(rubric: Rubric, ids: set[str]) -> Rubric | None:
    """Return a rubric with some of its criteria, as they are asked, and with the checks where graders are told of them; None for none."""
    shown = [one.id in ids or bool(one.check and rubric.show_checks) for one in rubric.criteria]
    asked = (one for one, is_shown in zip(rubric.criteria, shown, strict=True) if is_shown)
    criteria = tuple(one.model_copy(update={"weight": 1.0, "group": None}) for one in asked)
    context = tuple(line.model_copy(update={"before": sum(shown[: line.before])}) for line in rubric.context)
    plain: dict[str, Any] = {"groups": (), "threshold": None, "gate": "required", "scoring": "mean"}
    return rubric.model_copy(update=plain | {"criteria": criteria, "context": context}) if ids else None


def story_of(thread: Mapping[str, Any], rubric: Rubric, of: Rubric | None, grader: ModelSpec | None) -> Story | None:
    """Return the last run of a checkpoint's thread; None where it has not ended, or was graded by another rubric than `of`.

    `of`: the rubric of the runs that are meant; by default any.
    `grader`: the model that judges; by default the thread's own, and then only what changed is asked.

    Raises:
        InvalidRequest: A rubric cannot be filled.
        ValueError: The thread cannot be read.
    """
    evaluations = [Evaluation.model_validate(one) for one in thread["evaluations"]]
    judged = tuple(one for one in evaluations if one.grading_run_id == evaluations[-1].grading_run_id)
    messages = tuple(Message.model_validate(one) for one in thread["log"])
    old, variables = Rubric.model_validate(thread.get("rubric") or ""), thread.get("vars")
    new, meant = fill(rubric, variables) or rubric, fill(of, variables)
    is_meant = meant is None or meant.sha256() == old.sha256()
    whole = judged and judged[-1].status in ENDS and judged[0].rubric_sha256 == old.sha256()
    if not is_meant or not whole or not all(messages[one.draft].content.strip() for one in judged):
        return None
    own = Grader.model_validate(thread.get("grader") or {}).model_copy(update={"hide": ()})
    own = Grader() if grader and own.remote else own
    model = grader or own.model or (ModelSpec(id=judged[-1].grader) if judged[-1].grader and not own.remote else None)
    kept = kept_criteria(old, new, other_grader=grader is not None)
    priority = with_tenant(None, (thread.get("priority") or {}).get("tenant"), level=4)
    return Story(str(thread["thread_id"]), old, new, kept, own.model_copy(update={"model": model}), judged, messages, priority)


FEW = 3
"""The most rubrics among which the one that reads most like another is looked for."""

ALIKE = 0.5
"""The least share of text that two wordings of one rubric have in common: grading the drafts of others is not what was asked for."""


def similar_stories(stories: Sequence[Story]) -> list[Story]:
    """Return the runs whose rubric shares a question with the other one; without any, those of the rubric whose criteria read most like it.

    None are returned where that would be one of more than a few rubrics, or reads unlike all of them.
    """
    shared = [story for story in stories if kept_criteria(story.old, story.new, other_grader=False)]
    old = {story.old.sha256(): story for story in stories}
    if shared or not 0 < len(old) <= FEW:
        return shared
    alike = {name: SequenceMatcher(a=_texts(one.old), b=_texts(one.new)).ratio() for name, one in old.items()}
    closest = max(alike, key=alike.__getitem__)
    return [story for story in stories if story.old.sha256() == closest] if alike[closest] >= ALIKE else []


def _texts(rubric: Rubric) -> str:
    return "\n".join(str(criterion.description) for criterion in rubric.criteria)


def report_backtest(
    stories: Sequence[Story], results: Mapping[str, JudgeResult], left_out: Mapping[str, int], labels: Mapping[tuple[str, str], bool]
) -> Backtest:
    """Return the report of runs, by what was found on their drafts, with labels by the draft's name and the criterion's id."""
    outcomes, changes = [story.outcome(results) for story in stories], dict[str, Counter[str]]()
    agree: dict[str, list[tuple[bool, bool]]] = {}
    for story, evaluation in [(one, evaluation) for one in stories for evaluation in one.evaluations]:
        name, before = story.name(evaluation), {row.id: row for row in evaluation.criteria if not row.unverified}
        for row in story.rows(evaluation, results.get(name)) or ():
            if (old := before.get(story.kept.get(row.id, row.id))) is not None:
                change = "same" if old.passed == row.passed else "fell" if old.passed else "rose"
                changes.setdefault(row.id, Counter()).update([change, *(["asked"] if row.id not in story.kept else [])])
                said = old.override.passed if old.override else labels.get((name, row.id))
                agree.setdefault(story.thread_id, []).extend([(old.passed == said, row.passed == said)] if said is not None else [])
    people = [[mean(side) or 0.0 for side in zip(*rows, strict=True)] for rows in agree.values() if rows]  # those of a thread are alike
    by_old, by_new = ([sides[at] for sides in people] for at in (0, 1))
    more = mean(now - before for before, now in people)
    ends = Counter(outcome.end for outcome in outcomes)
    return Backtest(
        threads=len(stories),
        drafts=sum(len(story.evaluations) for story in stories),
        asked=len(results),
        ends={end: ends[end] for end in ("sent_back", "accepted", "same", "diverges", "unknown")},
        saved=sum(outcome.saved for outcome in outcomes),
        diverged=dict(sorted(Counter(outcome.draft for outcome in outcomes if outcome.end == "diverges").items())),
        criteria={name: dict(count) for name, count in changes.items()},
        examples=tuple([one for one in outcomes if one.end in {"sent_back", "accepted"}][:EXAMPLES]),
        left_out=dict(left_out),
        agreed=mean(by_old),
        agrees_more=Estimate.within(more, paired_difference(by_new, by_old), len(people)) if people else Estimate(),
        usage=sum((result.usage for result in results.values()), Usage()),
    )


@dataclass(frozen=True)
class BacktestOptions:
    """The arguments and flags of one `gradeloop backtest`."""

    rubric: Annotated[Path, typer.Argument(metavar="RUBRIC", help="The other rubric's file: YAML, JSON, or text.")]
    since: Annotated[str | None, typer.Option(metavar="AGE", help="Take threads started in this time only: 12h, 30d, 8w.")] = None
    of: Annotated[Path | None, typer.Option(metavar="RUBRIC", help="Take threads by this rubric; by default by similar ones.")] = None
    grader: GraderFlag = None
    labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with these labels, too, beside overrides.")] = None
    tenant: OfTenant = None
    limit: Limit = 1000
    asking: AskFlags = AskFlags()  # noqa: RUF009 - frozen


@app.command(epilog=codes_help("backtest"))
@takes(BacktestOptions)
def backtest(options: BacktestOptions) -> None:
    """Show what another rubric would have done to threads."""
    asking = options.asking
    checked_page(asking.output, overwrite=asking.overwrite)
    if (found := asyncio.run(run_backtest(options))) is None:
        return
    examples = [f"{row.end.replace('_', ' ')}: {row.name}: {row.why}" for row in found.examples]
    show_lines(found.model_dump(mode="json"), [*backtest_lines(found, options.rubric), *examples], as_json=asking.as_json)
    if asking.output is not None:
        typer.echo(f"wrote {asking.output} ({write_page(asking.output, backtest_page(found, options.rubric))})", err=True)
    raise typer.Exit(NO_VERDICT if found.ends["unknown"] else 0)


async def run_backtest(options: BacktestOptions) -> Backtest | None:
    """Ask what has to be asked, and return the report; None for a preview.

    Raises:
        InvalidRequest: There is no thread to test on, or a file is refused.
        Exit: Ctrl-C was pressed.
    """
    outside = own_outside_roots(list(options.asking.allow_outside))
    paths = (options.rubric, options.of)
    rubric, of = (Rubric.model_validate(load_rubric(one, FileScope.of(one, outside))) if one else None for one in paths)
    with explained(f"{options.rubric}: "):
        judge = CriteriaJudge.model_validate({"rubric": rubric})
    labels = read_labels(options.labels, judge).labels if options.labels else ()
    with explained("--grader: "):
        grader = ModelSpec.model_validate(options.grader) if options.grader else None
        own = judge.model_copy(update={"grader": Grader(model=grader)})  # threads name servers on loopback for nobody's worker
    client, since = GradingClient(await connect(await find())), age(options.since, "--since") if options.since else None
    listed = [one async for one in threads(client.temporal, tenant=options.tenant, since=since, limit=options.limit)]
    if len(listed) == options.limit:
        typer.echo(f"only the newest {options.limit:,} threads are looked at; narrow them by --since, or raise --limit", err=True)
    left_out = Counter(f"are {one.status}" for one in listed if one.status not in {*ENDS, "completed"})
    found = await _read([one for one in listed if one.status in {*ENDS, "completed"}], client, left_out, judge.rubric, of, grader)
    stories = found if of else similar_stories(found)
    left_out.update([OTHER_RUBRIC] * (len(found) - len(stories)))
    if not stories:
        others = "".join(f"; {count:,} {why}" for why, count in left_out.most_common() if why != OTHER_RUBRIC)
        raise InvalidRequest(
            f"none of {counted(len(listed), 'thread')} has a run that ended by such a rubric; name theirs with --of{others}"
        )
    asked = [request for story in stories for request in story.requests()]
    if options.asking.preview:
        seen = await preview_requests(asked, set(), dict(os.environ), own_store() if options.asking.store else None)
        changed = dict.fromkeys(one.id for story in stories for one in story.new.criteria if one.id not in story.kept)
        what = f"only {', '.join(changed)} changed" if changed else "no question changed"
        basis = f"{counted(len(stories), 'thread')}, {counted(sum(len(story.evaluations) for story in stories), 'draft')}; {what}"
        cost = f", {_price(seen.cost_usd)}" if seen.calls else ""
        text = f"{basis}: {counted(seen.calls, 'call')}{cost}" + (f"; {seen.cached:,} cached" if seen.cached else "")
        show_lines(seen.model_dump(mode="json"), [text], as_json=options.asking.as_json)
        return None
    results = await ask(options.asking, asked, Console(stderr=True, highlight=False, markup=False, emoji=False), [own]) if asked else []
    more = Counter[tuple[str, str]]()
    for one in labels:
        value = one.label_value.get("criteria")
        for key, passed in value.items() if isinstance(value, dict) else ():
            more[one.agent_run_id, key] += 1 if passed else -1
    said = {place: count > 0 for place, count in more.items() if count}  # people who are split say nothing
    return report_backtest(stories, {one.agent_run_id: one for one in results}, left_out, said)


async def _read(listed: Sequence[ListedThread], client: GradingClient, left_out: Counter[str], *about: Any) -> list[Story]:  # noqa: ANN401
    """Return the last runs of threads, and count those that are left out."""
    places, connection, silent = asyncio.Semaphore(CONCURRENCY), await find(), dict[str, str]()
    for queue in {one.task_queue for one in listed}:
        try:
            await wake_worker(queue, connection)
        except GradeloopError as error:
            silent[queue] = one_line(f"have no worker on {queue}: {error}")

    answered = set[str]()

    async def read(one: ListedThread, patience: int = 3) -> Story | str:
        async with places:
            try:  # of a queue without a worker one thread is asked for, since each takes 20 seconds
                thread = silent.get(one.task_queue) or (await client.checkpoint(one.thread_id))["thread"]
                answered.add(one.task_queue)
                return thread if isinstance(thread, str) else _story_or_reason(thread, *about)
            except ServerUnreachable:
                if one.task_queue not in answered and not await is_polled(client.temporal, one.task_queue):
                    return silent.setdefault(one.task_queue, f"have no worker on {one.task_queue}; start one")
                if patience == 1:
                    return f"have a worker on {one.task_queue} that is too busy; try again"
            except (GradeloopError, ValueError) as error:
                return one_line(f"cannot be read: {error}")
        return await read(one, patience - 1)  # its worker is busy

    found = await asyncio.gather(*map(read, listed))
    left_out.update(one for one in found if isinstance(one, str))
    return [one for one in found if isinstance(one, Story)]


def _story_or_reason(thread: Any, *about: Any) -> Story | str:  # noqa: ANN401 - JSON, and the arguments of `story_of`
    """Return the last run of a thread, or why it is left out."""
    if thread.get("forked_from"):  # its drafts are those of another thread
        return "are forks"
    if (story := story_of(thread, *about)) is not None:
        list(story.requests())  # refuses what no judgement can be asked about
    return story or OTHER_RUBRIC


def _price(cost_usd: float | None) -> str:
    return "what that costs is unknown: a model has no price" if cost_usd is None else money(cost_usd) or "nothing to pay"


def backtest_lines(found: Backtest, rubric: Path) -> Iterator[str]:
    """Yield a report: what would have become of the runs, the criteria, people's verdicts, cost, and the commands that go on."""
    ends, width = found.ends, len(f"{max(found.ends.values()):,}")
    ways = ", ".join(f"{count:,} after draft {draft}" for draft, count in found.diverged.items())
    ways = f"after draft {next(iter(found.diverged))}" if len(found.diverged) == 1 else ways
    yield f"{ends['sent_back']:>{width},} shipped answers would have been sent back (exact)"
    yield f"{ends['accepted']:>{width},} would have been accepted earlier: {counted(found.saved, 'draft')} saved (exact)"
    yield f"{ends['same']:>{width},} the same" + (f"; {ends['diverges']:,} take another way {ways}: not predicted" if ways else "")
    if ends["unknown"]:
        yield f"{ends['unknown']:>{width},} without a verdict: not predicted; the same command asks again for what is missing"
    for name, count in found.criteria.items():
        if count.get("asked"):
            same, fell, rose = (f"{count.get(key, 0):,}" for key in ("same", "fell", "rose"))
            yield f"{name}: {same} verdicts stay, {fell} fall, {rose} rise"
    if found.agreed is not None and found.agrees_more.value is not None:
        more, interval = found.agrees_more.texts("{:+.1%}")
        yield f"agreement with people: {found.agreed:.1%} of the old verdicts, {more} by the new ones (95 % interval {interval})"
    yield from (f"{counted(count, 'thread')} left out: they {why}" for why, count in found.left_out.items())
    yield f"{counted(found.asked, 'draft')} judged, {_price(found.usage.cost_usd) if found.usage.calls else 'nothing to pay'}"
    if found.examples:
        yield f"run one of them for real: gradeloop fork {quote(found.examples[0].name)} --rubric {quote(str(rubric))}"
    yield f"adopt it: gradeloop run TASK.yaml --rubric {quote(str(rubric))}"


def backtest_page(found: Backtest, rubric: Path) -> str:
    """Return the page of a report."""
    lines = list(backtest_lines(found, rubric))
    return document("backtest.html", title=f"{rubric.name} · gradeloop", found=found, name=rubric.name, lines=lines)
