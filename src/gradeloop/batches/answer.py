"""Words for a batch's result: labels of statuses, why a case failed, the gate, and the answer in one line."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gradeloop.batches.column_table import ColumnFigures, ColumnTable, Lead
from gradeloop.batches.contract import BatchSummary, CaseResult, CaseStatus
from gradeloop.contract.criterion import TOLERANCE
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.exit_codes import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.judges.contract import PassGate
from gradeloop.judges.pass_rule import JudgementCounts
from gradeloop.settings.endpoints import presets_by_name
from gradeloop.stats.correction import GatedRate, JudgeError
from gradeloop.stats.decided import EarlyAnswer
from gradeloop.text import counted, one_line

STATUS_LABELS: dict[CaseStatus, tuple[str, str]] = {
    "passed": ("passed", "green"),
    "failed": ("failed", "red"),
    "unsure": ("unsure", "yellow"),
    "error": ("error", "bold yellow"),
    "ungraded": ("ungraded", "dim yellow"),
    "waiting": ("waiting", "yellow"),
    "queued": ("not run", "dim"),
}
"""The label of each status, and its style on a terminal."""


def status_counts(numbers: Mapping[CaseStatus, int]) -> list[str]:
    """Return how many cases have each status; a status that no case has is left out."""
    labels: dict[CaseStatus, str] = {
        status: "errors" if status == "error" and numbers.get(status) != 1 else label for status, (label, _) in STATUS_LABELS.items()
    }
    return [f"{numbers[status]:,} {label}" for status, label in labels.items() if numbers.get(status)]


def _finding(row: CriterionRow) -> str:
    """Return the id of a criterion and why it failed; where nobody said why, that its words do not hold."""
    return f"{row.id}: {row.why_failed or (row.name if row.passed or row.unverified else f'not met: {row.name}')}"


OPTIONAL = " (optional)"
"""The mark behind a criterion on which no case hangs."""


@dataclass
class CriterionCount:
    """The verdicts on a criterion over the cases of a batch."""

    id: str
    name: str
    optional: bool
    """Whether no case hangs on it."""
    failed: int = 0
    judged: int = 0

    @property
    def share(self) -> float:
        """The part that failed of what was judged."""
        return self.failed / self.judged if self.judged else 0.0


class CriterionCounts:
    """Counts the verdicts on each criterion, case by case: what pages and files say of a batch's criteria."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], CriterionCount] = {}

    def take(self, rows: Iterable[CriterionRow], optional: Collection[str] = ()) -> None:
        """Count a case's verdicts, whether or not the case passed; a criterion without a verdict is not counted."""
        for row in rows:
            if row.verdict != "unverified":
                count = self._counts.setdefault((row.id, row.name), CriterionCount(row.id, row.name, row.id in optional))
                count.failed += row.verdict == "failed"
                count.judged += 1

    def worst(self, most: int) -> list[CriterionCount]:
        """Return the criteria that failed most often, the most often first and optional ones last; none that never failed."""
        failing = [count for count in self._counts.values() if count.failed]
        return sorted(failing, key=lambda count: (count.optional, -count.failed, -count.share, count.id))[:most]


LEAST_ALIKE = 30
"""The equal verdicts of a small model on a criterion from which on it looks as if it said one thing to everything."""

SMALL_BILLIONS = 8.0
"""The billions of parameters up to which a model counts as small, where its name says how many it has."""

SHOWN_CRITERIA = 3
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])")

ModelVerdicts = tuple[Sequence[tuple[str, bool]], str | None]
"""The verdicts of a model on one case, each a criterion's id and whether it passed, and the model."""


def model_verdicts(rows: Iterable[CriterionRow], model: str | None) -> ModelVerdicts:
    """Return the verdicts that a model gave among the rows of a case."""
    return [(row.id, row.passed) for row in rows if row.by in {"model", "cached"} and not row.unverified], model


def hint_of_verdicts(judged: Iterable[ModelVerdicts], error: JudgeError | None) -> str:
    """Return the sentence that suggests to measure a judge; empty where there is no sign that it says one thing to everything.

    Equal verdicts prove nothing: a good suite passes. They count where people's labels differ, and where the model is of the kind
    that answers so.

    `error`: the judge's error rates, measured where people labelled; None where nobody did.
    """
    counts, models = dict[str, Counter[bool]](), dict[str | None, None]()
    for verdicts, model in judged:
        models |= {model: None} if verdicts else {}
        for name, passed in verdicts:
            counts.setdefault(name, Counter())[passed] += 1
    alike = {name: count.total() for name, count in counts.items() if len(count) == 1}
    why = "although people's labels differ"
    if error is None or not (error.passed and error.failed) or len(alike) < len(counts):
        small = all(model is not None and is_small(model) for model in models)
        alike = {name: total for name, total in alike.items() if small and total >= LEAST_ALIKE}
        why = f"and {', '.join(filter(None, models))} is small or local"
    more = f" and {len(alike) - SHOWN_CRITERIA} more" if len(alike) > SHOWN_CRITERIA else ""
    cure = "measure whether the judge can tell cases apart: gradeloop check-judge JUDGE DATASET"
    return one_line(f"{', '.join(list(alike)[:SHOWN_CRITERIA])}{more}: all verdicts are the same, {why}; {cure}") if alike else ""


def is_small(model: str) -> bool:
    """Return whether a model is small by its name, or is called at a server of one's own."""
    provider, _, name = model.partition(":")
    preset = presets_by_name().get(provider)
    sizes = [float(size) / (1000 if unit == "m" else 1) for size, unit in _SIZE.findall(name.lower())]
    is_local = provider == "openai_compatible" or (preset is not None and preset.keyless and preset.cloud is None)
    return is_local or (bool(sizes) and max(sizes) <= SMALL_BILLIONS)


def below_threshold(result: CaseResult) -> str:
    """Return the threshold that only the score missed."""
    return "" if result.missed_threshold is None else f", below the threshold {result.missed_threshold:g}"


def failure_reason(result: CaseResult) -> str:
    """Return in one line why a case did not pass: its error, the criteria that decided, or the grader's explanation."""
    if result.status == "unsure":
        return one_line(unsure_reason(result))
    if result.error is not None:
        return one_line(result.error)
    if result.status == "failed" and result.left_out:
        return f"{failure_reason(result.model_copy(update={'left_out': ()}))} (not judged: {one_line('; '.join(result.left_out))})"
    below = f"score {score_text(result)}{below_threshold(result)}: " if result.missed_threshold is not None else ""
    if result.deciding:
        first, *others = result.deciding
        more = f" (and {', '.join(row.id for row in others)})" if others else ""
        return one_line(f"{below}{_finding(first)}{more}")
    if result.status == "passed" and result.worst is not None:
        return one_line(_finding(result.worst))
    return "" if result.status == "passed" else one_line(f"{below}{result.explanation}")


def unsure_reason(result: CaseResult) -> str:
    """Return on which criteria the votes disagree, how many there are of each, and why no escalation judge decided."""
    rows = {row.id: row for row in result.criteria}
    counts = [(name, [vote.passed for vote in rows[name].votes if vote.passed is not None]) for name in result.unsure if name in rows]
    said = "; ".join(f"{name}: {sum(votes)} of {len(votes)} votes pass it" for name, votes in counts)
    return f"unsure of {said or ', '.join(result.unsure)}{f' ({result.error})' if result.error else ''}"


def score_text(result: CaseResult) -> str:
    """Return the score with two decimals; an empty text without a score."""
    return "" if result.score is None else f"{result.score:.2f}"


_MOST_DECIMALS = 6
"""The most decimals of a percentage: enough to tell one case in a hundred thousand from its limit."""


def gate_exit_code(summary: BatchSummary, *, allow_errors: float | None = None, pass_rate: float | None = None) -> int:
    """Return the exit code of a batch's gate: 3 where cases have no verdict, else 1 where too few cases pass, else 0.

    It is 3, too, where it hangs on unsure cases whether enough pass. Where the rate corrected by labels decides, its decision counts, and
    3 is inconclusive. A batch that asks for no verdict at all
    ends with 0, unless a pass rate is named.

    Args:
        summary: The batch's counts and status.
        allow_errors: The share of all cases, 0 to 1, that may end in an error, where a flag names it; the batch's own where it is None.
            Errors count neither as passed nor as failed.
        pass_rate: The share of judged cases, 0 to 1, that must pass, where a flag names it; the batch's own where it is None.
    """
    # The order says what outweighs what. A batch that is not complete, or has too many errors, says nothing,
    # whatever its rate is: errors may be the very cases that fail. An early answer was computed for the rate
    # of the batch, and holds only if no other rate is asked for. Labels outweigh the raw rate. Last, unsure
    # cases keep the answer open only if it hangs on them.
    rate, allowed = rate_of(summary), summary.allow_errors if allow_errors is None else allow_errors
    decided = summary.decided if pass_rate in {None, summary.pass_rate} else None
    complete = summary.status in {"running", "finished"} and not summary.waiting and (decided is not None or not summary.open)
    if complete and rate is None and not summary.asks and not summary.errors and pass_rate is None:
        return SATISFIED
    if not complete or rate is None or summary.errors > allowed * summary.total + TOLERANCE:
        return NO_VERDICT
    if decided is not None or summary.baseline is not None:
        return {"passed": SATISFIED, "failed": CAPPED}.get(decided.answer if decided else "", NO_VERDICT)
    if (corrected := _deciding(summary)) is not None:
        return {"passed": SATISFIED, "failed": CAPPED}.get(corrected.decision or "", NO_VERDICT)
    wanted = summary.pass_rate if pass_rate is None else pass_rate
    if _hangs_on_unsure(summary, wanted):
        return NO_VERDICT
    return SATISFIED if _reaches(rate, wanted) else CAPPED


def _hangs_on_unsure(summary: BatchSummary, wanted: float) -> bool:
    """Return whether enough cases pass if all unsure ones do, and too few if none does."""
    total = summary.passed + summary.failed + summary.unsure
    reached = [_reaches(passed / total, wanted) for passed in (summary.passed, summary.passed + summary.unsure)] if total else [True]
    return bool(summary.unsure) and len(set(reached)) > 1


def _deciding(summary: BatchSummary) -> GatedRate | None:
    """Return the corrected rate where it decides; None where the raw one does."""
    found = summary.corrected
    return found if found is not None and found.decision is not None else None


def rate_of(summary: BatchSummary) -> float | None:
    """Return the share of judged cases that passed, 0 to 1; None where none was judged: errors are not verdicts."""
    judged = summary.passed + summary.failed
    return summary.passed / judged if judged else None


def why_open(summary: BatchSummary) -> str:
    """Return why the cases of a batch that have not ended have not."""
    known = summary.decided
    return f"{NOT_ASKED}the answer was known after {counted(known.asked, 'case')}" if known else "not run"


NOT_ASKED = "not asked: "
"""The beginning of the error of a case that an early end left out."""


def summary_counts(summary: BatchSummary) -> list[str]:
    """Return how many cases of a batch have each status, as `status_counts` does."""
    numbers: dict[CaseStatus, int] = {
        "passed": summary.passed,
        "failed": summary.failed,
        "unsure": summary.unsure,
        "error": summary.errors,
        "ungraded": summary.ungraded,
        "waiting": summary.waiting,
        "queued": summary.open,
    }
    return [count.replace(" not run", " not asked") if summary.decided else count for count in status_counts(numbers)]


AnswerWord = Literal["PASSED", "FAILED", "INCONCLUSIVE", "UNGRADED", "RUNNING", "PAUSED", "STOPPED"]

ANSWER_STYLES: dict[AnswerWord, str] = {
    "PASSED": "bold green",
    "FAILED": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "UNGRADED": "dim yellow",
    "RUNNING": "cyan",
    "PAUSED": "bold yellow",
    "STOPPED": "bold red",
}
"""The style of each answer on a terminal."""

ANSWER_COLOURS: dict[AnswerWord, Literal["passed", "failed", "error", "waiting", "running", "none"]] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "INCONCLUSIVE": "error",
    "UNGRADED": "none",
    "RUNNING": "running",
    "PAUSED": "waiting",
    "STOPPED": "error",
}
"""The colour of each answer, as pages name colours."""


@dataclass(frozen=True)
class BatchAnswer:
    """The answer to the first question about a batch: did it pass?"""

    word: AnswerWord
    detail: str = ""
    """The figure or the reason that belongs to the word: `77% of 80%`, `11 errors`."""
    words: str = field(default="", compare=False)
    """The figure as a sentence: `77% of 13 judged cases passed, 80% wanted`; empty if `detail` says it."""

    @property
    def text(self) -> str:
        """The whole answer, as pages, tables, the terminal and Markdown have it: `FAILED 77% of 80%`, `INCONCLUSIVE: 11 errors`."""
        separator = " " if self.word in {"PASSED", "FAILED", "RUNNING"} else ": "
        return f"{self.word}{separator}{self.detail}" if self.detail else self.word


def answer_of(summary: BatchSummary, *, allow_errors: float | None = None, pass_rate: float | None = None) -> BatchAnswer:
    """Return the answer of a batch, which agrees with the exit code of its gate; the arguments are those of `gate_exit_code`."""
    if summary.status in {"paused", "stopped"}:
        return BatchAnswer("PAUSED" if summary.status == "paused" else "STOPPED", one_line(summary.reason or ""))
    # The order decides which word a batch gets. One that was paused or stopped has no answer, whatever its rate
    # is. Cases that are still open keep it from having one, unless the answer was known without them.
    code = gate_exit_code(summary, allow_errors=allow_errors, pass_rate=pass_rate)
    decided = summary.decided
    if summary.open and decided is None:
        if summary.status == "running":
            return BatchAnswer("RUNNING", f"{summary.done:,} of {summary.total:,}")
        return BatchAnswer("INCONCLUSIVE", f"{summary.open:,} not run")
    rate, wanted = rate_of(summary), summary.pass_rate if pass_rate is None else pass_rate
    if code == NO_VERDICT:
        return BatchAnswer("INCONCLUSIVE", _why_inconclusive(summary, allow_errors))
    if rate is None:
        return BatchAnswer("UNGRADED", NO_ASSERTIONS)
    corrected = _deciding(summary)
    reached = f"{_percent(rate, wanted)} of {_plain(wanted, 4)}" if corrected is None else _corrected_text(corrected)
    words = "" if corrected else _in_words(rate, wanted, summary.passed + summary.failed, "case")
    known = early_answer(decided, summary.total, summary.baseline) if decided is not None else None
    return known or BatchAnswer("FAILED" if code == CAPPED else "PASSED", reached if code == CAPPED or rate < 1 or corrected else "", words)


def early_answer(known: EarlyAnswer, total: int, baseline: str | None = None) -> BatchAnswer:
    """Return an answer that was known before all of so many cases were asked, or that of a comparison with a baseline.

    It is certain where its risk is 0.
    """
    word: AnswerWord = "PASSED" if known.answer == "passed" else "FAILED"
    chance, early = f"at most a {_plain(known.risk, 2)} chance that", f"after {known.asked:,} of {total:,}"
    if baseline is None:
        return BatchAnswer(word, early, f"{chance} asking all would say otherwise" if known.risk else "")
    what = "a case" if word == "FAILED" else f"{chance} a case" if known.risk else "no case"
    return BatchAnswer(word, f"{f'{early} ' if known.asked < total else ''}against {one_line(baseline)}", f"{what} regressed")


def _in_words(rate: float, wanted: float, judged: int, noun: str) -> str:
    """Return what a rate and its limit are, as a sentence; empty where everything passed."""
    if rate == 1:
        return ""
    return f"{_percent(rate, wanted)} of {counted(judged, f'judged {noun}')} passed, {_plain(wanted, 4)} wanted"


NAMED_COLUMNS = 4
"""The columns that a sentence names on each side of the gate."""


def words_by_column(table: ColumnTable, summary: BatchSummary) -> list[str]:
    """Return sentences about the columns of a batch: whether the best is ahead of the next, and which are below the gate if it failed.

    There are none about a single column, and none about the gate where labels decide.
    """
    columns, lead = table.columns(), table.lead()
    failed = bool(columns) and _deciding(summary) is None and answer_of(summary).word == "FAILED"
    return [*([_lead_words(lead)] if lead else []), *([_gate_words(columns, summary)] if failed else [])]


def _lead_words(lead: Lead) -> str:
    best, second, ahead = one_line(lead.best.name), one_line(lead.second.name), lead.ahead
    by, low, high = (f"{100 * (value or 0.0):.1f}" for value in (ahead.value, ahead.low, ahead.high))
    where, within = f"on the {counted(ahead.of, 'test')} that both have", f"(95% interval {low} to {high})"
    if (ahead.low or 0.0) > 0:
        return f"Best: {best}, {by} points above {second} {where} {within}"
    leads = f"{best} is {by} points ahead of {second}" if by != "0.0" else f"{best} and {second} are level"
    return f"{leads}, which may be chance, {where} {within}"


def _gate_words(columns: Sequence[ColumnFigures], summary: BatchSummary) -> str:
    wanted, judged = summary.pass_rate, sorted((one for one in columns if one.rate.of), key=lambda one: one.rate.value or 0.0)
    texts = {one.key: f"{one_line(one.name)} {_percent(one.rate.value or 0.0, wanted)} of {one.rate.of:,}" for one in judged}
    sides = {
        f"Below {_plain(wanted, 4)}": [texts[one.key] for one in judged if not _reaches(one.rate.value or 0.0, wanted)],
        "reached by": [texts[one.key] for one in reversed(judged) if _reaches(one.rate.value or 0.0, wanted)],
        "without a verdict": [one_line(one.name) for one in columns if not one.rate.of],
    }
    more = {name: f" and {len(found) - NAMED_COLUMNS} more" if len(found) > NAMED_COLUMNS else "" for name, found in sides.items()}
    return "; ".join(f"{name}: {', '.join(found[:NAMED_COLUMNS])}{more[name]}" for name, found in sides.items() if found)


def gate_lines(found: GatedRate) -> list[str]:
    """Return what a person reads: the rate as the judge says, the corrected one, and the decision."""
    if not found.runs:
        return ["corrected pass rate: nothing was judged"]
    labels = found.error.passed + found.error.failed
    raw = f"{found.passed / found.runs:.1%} as the judge says"
    if found.corrected is None:
        lines = [f"corrected pass rate: unknown ({raw}); {labels} labels with a verdict, both kinds are needed, better than chance"]
    else:
        rate = found.corrected
        lines = [f"corrected pass rate: {rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%}), {raw}; by {labels} labels with a verdict"]
    if found.decision == "inconclusive":
        lines.append(f"inconclusive at {found.threshold:.1%}: {labels_cure(found)}")
    return lines


def labels_cure(found: GatedRate) -> str:
    """Return what would decide where the rate does not."""
    return "no number of labels would decide; judge more runs" if found.wanted is None else f"about {found.wanted} labels would decide"


def corrected_answer(found: GatedRate) -> BatchAnswer:
    """Return the answer where a rate corrected by labels decides."""
    words: dict[str | None, AnswerWord] = {"passed": "PASSED", "failed": "FAILED"}
    return BatchAnswer(words.get(found.decision, "INCONCLUSIVE"), _corrected_text(found))


def _corrected_text(found: GatedRate) -> str:
    rate = (
        "unknown" if found.corrected is None else f"{found.corrected.value:.1%} ({found.corrected.low:.1%} to {found.corrected.high:.1%})"
    )
    cure = f", {labels_cure(found)}" if found.decision == "inconclusive" else ""
    return f"{rate} corrected of {_plain(found.threshold or 0, 4)}{cure}"


def _why_inconclusive(summary: BatchSummary, allow_errors: float | None) -> str:
    allowed = summary.allow_errors if allow_errors is None else allow_errors
    if summary.waiting:
        return f"{counted(summary.waiting, 'case')} waiting for a person"
    corrected = _deciding(summary)
    if corrected is not None and rate_of(summary) is not None and summary.errors <= allowed * summary.total + TOLERANCE:
        return _corrected_text(corrected)
    if summary.baseline and rate_of(summary) is not None and summary.errors <= allowed * summary.total + TOLERANCE:
        return f"not compared with {one_line(summary.baseline)}"
    if summary.errors > allowed * summary.total + TOLERANCE or not summary.unsure:
        return counted(summary.errors, "error") if summary.errors else "nothing was judged"
    return f"{summary.unsure:,} unsure"


def answer_of_judgements(counts: JudgementCounts, gate: PassGate, known: EarlyAnswer | None = None, total: int = 0) -> BatchAnswer | None:
    """Return whether judgements pass by their gate, as the exit code of `gradeloop judge` says; None where no rate decides.

    `known` is the answer that was known before so many in `total` were made.
    """
    passed, judged, errors, unsure = counts
    if gate.pass_rate is None and known is None:
        return None
    if errors > gate.allow_errors * (judged + errors + unsure):
        return BatchAnswer("INCONCLUSIVE", counted(errors, "error"))
    if not judged:
        return BatchAnswer("INCONCLUSIVE", f"{unsure:,} unsure" if unsure else "nothing was judged")
    if known is not None:
        return early_answer(known, total)
    rate, wanted = passed / judged, gate.pass_rate or 0.0
    reached, detail = passed >= wanted * judged, f"{_percent(rate, wanted)} of {_plain(wanted, 4)}"
    words = _in_words(rate, wanted, judged, "run")
    return BatchAnswer("PASSED" if reached else "FAILED", "" if reached and rate == 1 else detail, words)


def next_step(summary: BatchSummary, answer: BatchAnswer) -> str:
    """Return the command or the deed that comes next; empty where nothing is left to do."""
    if answer.word in {"PAUSED", "STOPPED"}:
        return f"gradeloop eval --resume {shlex.quote(summary.batch_id)}"
    if summary.waiting:
        return "gradeloop inbox"
    batch, baseline = shlex.quote(summary.batch_id), shlex.quote(summary.baseline or "")
    if answer.word == "FAILED":
        return f"gradeloop diff {baseline} {batch}" if summary.baseline else report_step(summary)
    if summary.errors and (summary.decided or not summary.open):
        return f"gradeloop eval --retry errors --attach {batch}"
    if summary.decided and summary.open:
        return f"gradeloop eval --resume {batch} --all"
    unsure = report_step(summary) if summary.unsure else ""
    compare = f"gradeloop eval --attach {batch} --baseline {baseline}" if summary.baseline and not summary.open else ""
    return (compare or unsure) if answer.word == "INCONCLUSIVE" else ""


def report_step(summary: BatchSummary) -> str:
    """Return the command that opens the page of a batch."""
    return f"gradeloop report {shlex.quote(summary.batch_id)} --open"


def spending(summary: BatchSummary) -> list[str]:
    """Return the tokens and the cost of a batch, where they are not zero; an unknown cost is left out."""
    tokens, cost = summary.usage.tokens, summary.usage.cost_usd
    known = "tokens not reported" if tokens is None else counted(tokens, "token") if tokens else ""
    return [*([known] if known else []), *([f"${cost:.4f}"] if cost else [])]


def results_line(summary: BatchSummary, *, pass_rate: float | None = None) -> str:
    """Return the result of the batch in one line; `pass_rate` as for `code_of`."""
    parts = [f"Results: {', '.join(summary_counts(summary)) or 'none'} of {summary.total:,}{_rate_text(summary, pass_rate)}"]
    if summary.ungraded and rate_of(summary) is None:
        parts.append(f"UNGRADED: {'nothing was judged' if summary.asks else NO_ASSERTIONS}")
    parts += [f"{summary.cached:,} cached"] if summary.cached else []
    parts += [", ".join(spending(summary))] if spending(summary) else []
    cost, asked = summary.usage.cost_usd, summary.done
    parts += [f"about ${cost / asked * summary.open:.2f} not spent"] if summary.decided and summary.open and cost and asked else []
    if summary.status in {"paused", "stopped"}:
        parts.append(f"{summary.status}{': ' if summary.reason else ''}{one_line(summary.reason or '')}")
    return "; ".join(parts)


NO_ASSERTIONS = "the suite asks for no verdict; give its tests assertions"


def _rate_text(summary: BatchSummary, pass_rate: float | None) -> str:
    rate = rate_of(summary)
    if rate is None:
        return ""
    wanted = summary.pass_rate if pass_rate is None else pass_rate
    limit = "" if summary.baseline else f", {_plain(wanted, 4)} wanted"
    return f" ({_percent(rate, wanted)} of {summary.passed + summary.failed:,} judged{limit})"


def _reaches(rate: float, wanted: float) -> bool:
    return rate >= wanted - TOLERANCE


def _percent(rate: float, wanted: float) -> str:
    """Return a rate as a percentage, with enough decimals to show on which side of its limit it is, and that it is neither all nor none."""
    for decimals in range(1, _MOST_DECIMALS):
        rounded = round(rate, decimals + 2)
        if _reaches(rounded, wanted) == _reaches(rate, wanted) and (rounded in {0.0, 1.0}) == (rate in {0.0, 1.0}):
            return _plain(rate, decimals)
    return _plain(rate, _MOST_DECIMALS)


def _plain(rate: float, decimals: int) -> str:
    text = f"{rate * 100:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.')}%"
