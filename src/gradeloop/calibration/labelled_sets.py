"""Labelled sets read from files: public ones by their shape, and one's own as CSV or JSON lines."""

import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import Field, JsonValue, ValidationError

from gradeloop.contract.base import Strict
from gradeloop.contract.transcript import RunMessage
from gradeloop.errors import InvalidRequest, explain
from gradeloop.judges.judgements import json_lines, read_text
from gradeloop.text import clip
from gradeloop.transcripts.assemble import ANSWERS, QUESTIONS

Form = Literal["pair", "verdict", "score"]
"""The question: which of two answers is better, whether one passes, or how good it is."""

Preference = Literal["A", "B", "tie"]
"""The better one of two answers."""

Row = Mapping[str, Any]


TIES = "Ties"
"""RewardBench 2's subset whose single answers are rated."""

Sections = Mapping[str, Mapping[str, int]]
"""The sections of a set, each with the weights of its categories."""


class Annotation(Strict):
    """One person's label of an item."""

    by: str = "label"
    value: bool | float | Preference


class Item(Strict):
    """One labelled item: a conversation, one answer or two, and what people say."""

    id: str
    messages: tuple[RunMessage, ...]
    """The conversation before the answers."""
    answers: tuple[tuple[RunMessage, ...], ...]
    """The answer, or the two answers A and B, each as its messages."""
    annotations: tuple[Annotation, ...]
    category: str = ""
    criterion: str = ""
    """The criterion of this item, where every item has its own."""
    models: tuple[str, ...] = ()
    """The authors of the answers, in their order."""
    group: str = ""
    """Items of one group are the comparisons of one best answer."""
    cluster: str = ""
    """The question, prompt or document that items share, which therefore resemble each other; the item itself by default."""


class LabelledSet(Strict):
    """A labelled set, with what it was taken for and why."""

    name: str
    why: str
    form: Form
    official: str
    """The figure that the set's authors publish of a judge, by its name."""
    items: tuple[Item, ...]
    scale: tuple[int, int] = (0, 1)
    """The scale of its scores, from worst to best."""
    sections: Sections = Field(default_factory=dict)
    """The sections whose mean its authors publish."""

    def asked_for(self, item: Item) -> "LabelledSet":
        """Return the set as an item is asked: a single answer among pairs is rated from 1 to 10."""
        is_rated = self.form == "pair" and len(item.answers) == 1
        return self.model_copy(update={"form": "score", "scale": (1, 10)}) if is_rated else self


SCALES = ((0, 1), (1, 5), (0, 5), (1, 7), (1, 10), (0, 10), (0, 100))


class _Format(NamedTuple):
    """A format of labelled sets: which keys tell it, and how a row becomes items."""

    name: str
    form: Form
    official: str
    keys: tuple[str, ...]
    read: Callable[[Row, str, Path], Iterator[Item]]
    scale: tuple[int, int] | None = None
    """The scale of its scores, where the format says it."""
    told_by: str = "its rows have"
    sections: Sections = MappingProxyType({})


def read_labelled_set(path: Path) -> LabelledSet:
    """Read a labelled set; its format is found by the keys of its first row.

    Raises:
        InvalidRequest: The file cannot be read, has no format that is known, or a row that breaks it; the message names file and row.
    """
    rows = _rows(path)
    keys = set(next(iter(rows.values())))
    known = next((one for one in _FORMATS if set(one.keys) <= keys), None) or _own_format(path, keys, list(rows.values()))
    items: list[Item] = []
    for number, (place, row) in enumerate(rows.items(), 1):
        try:
            items += known.read(row, f"{number}", path)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            lacking = f"it lacks {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            problem = explain(error) if isinstance(error, ValidationError) else lacking
            raise InvalidRequest(f"{path}, {place}, read as {known.name}: {problem}") from None
    merged = _merge(items)
    if not merged:
        raise InvalidRequest(f"{path}, read as {known.name}, has no label at all; there is nothing to compare a judge with")
    scale, why = (known.scale or _scale_of(merged)) if known.form == "score" else (0, 1), f"{known.told_by} {', '.join(known.keys)}"
    return LabelledSet(
        name=known.name, why=why, form=known.form, official=known.official, items=tuple(merged), scale=scale, sections=known.sections
    )


def _scale_of(items: Sequence[Item]) -> tuple[int, int]:
    """Return the scale of scores: the first usual one that has all of them. Raise InvalidRequest where none has."""
    values = [float(one.value) for item in items for one in item.annotations if not isinstance(one.value, str)]
    found = next((scale for scale in SCALES if scale[0] <= min(values) and max(values) <= scale[1]), None)
    if found is None:
        known = ", ".join(f"{low} to {high}" for low, high in SCALES)
        raise InvalidRequest(f"the labels are {min(values):g} to {max(values):g}, which is on no usual scale ({known}); rescale them")
    return found


def _merge(items: Sequence[Item]) -> list[Item]:
    """Join the annotations of several people on one item; of two of one person the first counts."""
    merged: dict[str, Item] = {}
    for item in items:
        if (known := merged.get(item.id)) is None:
            merged[item.id] = item
        else:
            people = {annotation.by for annotation in known.annotations}
            more = tuple(annotation for annotation in item.annotations if annotation.by not in people)
            merged[item.id] = known.model_copy(update={"annotations": known.annotations + more})
    return [item for item in merged.values() if item.annotations]


def _rows(path: Path) -> Mapping[str, Row]:
    """Return the rows of a JSON list, JSON lines, or CSV by their places: `line 3`, `row 2`."""
    if path.suffix == ".parquet":
        raise InvalidRequest(
            f"{str(path)!r} is Parquet, which is not read; write it as JSON lines, with pandas: "
            "read_parquet(...).to_json(..., orient='records', lines=True)"
        )
    text = read_text(path, "the labelled set")
    rows = _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)
    if not rows:
        raise InvalidRequest(f"the labelled set {str(path)!r} is empty; write a row an item")
    if odd := next((place for place, row in rows.items() if not isinstance(row, dict)), None):
        raise InvalidRequest(f"{path}, {odd}: it is not an object; write an object with the item and its label")
    return rows


def _csv_rows(path: Path, text: str) -> dict[str, Row]:
    rows = list(csv.DictReader(text.splitlines(keepends=True)))
    if bad := next((number for number, row in enumerate(rows, 1) if None in row or None in row.values()), None):
        raise InvalidRequest(f"{path}, row {bad}: it has not as many cells as the head of the table; quote cells that hold commas")
    return {f"row {number}": row for number, row in enumerate(rows, 1)}


def _json_rows(path: Path, text: str) -> dict[str, Any]:
    if text.lstrip().startswith("["):
        try:
            return {f"row {number}": row for number, row in enumerate(json.loads(text), 1)}
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{path}: no JSON: {error}") from None
    return {f"line {number}": row for number, row in json_lines(path, text, "write an item a line")}


def _said(role: str, text: Any) -> RunMessage:  # noqa: ANN401 - raw input of any shape
    if not isinstance(text, str):
        raise ValueError(f"{clip(json.dumps(text))} is not a string")  # noqa: TRY004 - every problem of a row is told alike
    return RunMessage.model_validate({"role": role, "content": text})


def _conversation(value: Any) -> tuple[RunMessage, ...]:  # noqa: ANN401 - raw input of any shape
    """Return a prompt as messages: a text is the user's."""
    if isinstance(value, str):
        return (_said("user", value),)
    return tuple(_said("system" if message["role"] == "developer" else message["role"], message["content"]) for message in value)


def _answers(*texts: Any) -> tuple[tuple[RunMessage, ...], ...]:  # noqa: ANN401 - raw input of any shape
    return tuple((_said("assistant", text),) for text in texts)


def _text(row: Row, *keys: str) -> str:
    """Return as text what a row has under the first of some keys that is not empty; an empty text without any."""
    return next((str(row[key]) for key in keys if row.get(key)), "")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def _list_at(row: Row, key: str) -> list[Any]:
    if not isinstance(row[key], list):
        raise ValueError(f"{key} is {clip(json.dumps(row[key]))}; write a list")  # noqa: TRY004 - as above
    return list(row[key])


def _reward_bench(row: Row, number: str, _: Path) -> Iterator[Item]:
    """Yield the best answer against every worse one; which of them is A is decided by their content, so that half of them are."""
    name = _text(row, "id") or number
    chosen, rejected = ([row[key]] if isinstance(row[key], str) else _list_at(row, key) for key in ("chosen", "rejected"))
    if row.get("subset") == TIES:
        yield from _rated_answers(row, name, chosen, rejected)
        return
    best, models = chosen[0], row.get("models") or [row[key] for key in ("chosen_model", "rejected_model") if row.get(key)]
    for at, worse in enumerate(rejected):
        # The sets name the better answer first. A judge that prefers the first place would look right on every
        # pair; the digest puts half of them the other way round, the same ones in every run, so that kept
        # verdicts are found again.
        first = int(_digest(name, str(at)), 16) % 2 == 0
        pair = (best, worse) if first else (worse, best)
        other = len(chosen) + at
        authors = (str(models[0]), str(models[other])) if isinstance(models, list) and len(models) > other else ()
        yield Item(
            id=f"{name}/{at}",
            messages=_conversation(row["prompt"]),
            answers=_answers(*pair),
            annotations=(Annotation(value="A" if first else "B"),),
            category=_text(row, "subset"),
            models=authors if first or not authors else (authors[1], authors[0]),
            group=name,
            cluster=name,
        )


def _rated_answers(row: Row, name: str, chosen: Sequence[str], rejected: Sequence[str]) -> Iterator[Item]:
    """Yield each answer of a row of Ties on its own; a prompt has the row `ref:N` with one correct answer, and `tied:N` with several."""
    kind, _, prompt = name.partition(":")
    if kind not in {"ref", "tied"} or not prompt:
        raise ValueError(f"id is {clip(name)}; in Ties RewardBench 2 writes ref:NUMBER or tied:NUMBER")
    about: dict[str, Any] = {"messages": _conversation(row["prompt"]), "category": TIES, "group": kind, "cluster": f"{TIES} {prompt}"}
    for at, answer in enumerate((*chosen, *rejected)):
        yield Item(id=f"{name}/{at}", answers=_answers(answer), annotations=(Annotation(value=at < len(chosen)),), **about)


def _health_bench(row: Row, number: str, _: Path) -> Iterator[Item]:
    labels, people = _list_at(row, "binary_labels"), row.get("anonymized_physician_ids") or []
    name = _text(row, "completion_id", "prompt_id") or number
    yield Item(
        id=f"{name}/{_digest(row['rubric'])}",
        messages=_conversation(row["prompt"]),
        answers=_answers(row["completion"]),
        annotations=tuple(
            Annotation.model_validate({"by": str(people[at]) if at < len(people) else f"physician {at + 1}", "value": _yes_or_no(label)})
            for at, label in enumerate(labels)
        ),
        category=_text(row, "category"),
        criterion=str(row["rubric"]),
        cluster=_text(row, "prompt_id"),
    )


def _mt_bench(row: Row, _number: str, _: Path) -> Iterator[Item]:
    """Yield what one person preferred; another person's row may have the same two models the other way round."""
    winner = "tie" if str(row["winner"]).startswith("tie") else row["winner"]
    value: Preference = _own_value("pair", winner, "winner", "MT-Bench writes model_a, model_b or tie")
    turn = int(row.get("turn") or 1)
    conversations = [_conversation(_list_at(row, name))[: 2 * turn] for name in _CONVERSATIONS]
    names = (str(row["model_a"]), str(row["model_b"]))
    # Two people may have seen the same two models in opposite order. Sorted by name their labels meet in one
    # item; unsorted each would be an item with one label, and nothing would say how far people agree.
    if names[0] > names[1]:
        swapped: dict[Preference, Preference] = {"A": "B", "B": "A", "tie": "tie"}
        names, conversations, value = names[::-1], conversations[::-1], swapped[value]
    yield Item(
        id=f"{row['question_id']}/{names[0]}/{names[1]}/turn {turn}",
        messages=(),
        answers=(conversations[0], conversations[1]),
        annotations=(Annotation(by=_person(row.get("judge")), value=value),),
        category=f"turn {turn}",
        models=names,
        cluster=str(row["question_id"]),
    )


def _person(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "/".join(map(str, value)) if isinstance(value, list) else str(value or "label")


def _flask(row: Row, number: str, _: Path) -> Iterator[Item]:
    """Yield a score a skill; in FLASK's own rows the question is `text`, the response `target_txt`, and `answer` a reference."""
    names = ("target_txt",) if "target_txt" in row else ("response", "output", "text", "answer")
    answer = next((row[name] for name in names if isinstance(row.get(name), str)), None)
    if answer is None:
        raise KeyError(names[0])
    name = _text(row, "question_id", "idx") or number
    for skill, score in row["score"].items():
        if (number_given := _number(score)) is not None:
            yield Item(
                id=f"{name}/{skill}",
                messages=_conversation(row["instruction"] if "instruction" in row else row["text"]),
                answers=_answers(answer),
                annotations=(Annotation(by=_person(row.get("annotator")), value=number_given),),
                category=skill,
                criterion=f"{skill}, on a scale from 1 (worst) to 5 (best)",
                cluster=name,
            )


def _number(score: JsonValue) -> float | None:
    """Return a score that is a number, or one as text; None for `N/A`."""
    try:
        number = math.nan if isinstance(score, bool) else float(str(score))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _by_columns(
    form: Form, prompt: str | None, answers: Sequence[str], label: str, cure: str = "write A, B or tie", **about: str
) -> Callable[[Row, str, Path], Iterator[Item]]:
    """Return how rows are read by the names of their columns.

    `about`: the columns of an item's other fields, and of the person as `created_by`; without its own a category is the folder's name.
    """

    def read(row: Row, number: str, path: Path) -> Iterator[Item]:
        said = row[label]
        if said in {"", None}:
            raise ValueError(f"{label} is empty; label every row, or leave the row out")
        named = {field: _text(row, column) if column else path.parent.name for field, column in about.items()}
        by, name = named.pop("created_by", ""), named.pop("id", "")
        yield Item(
            id=name or number,
            messages=_conversation(row[prompt]) if prompt else (),
            answers=_answers(*(row[name] for name in answers)),
            annotations=(Annotation(by=by or "label", value=_own_value(form, said, label, cure)),),
            **named,
        )

    return read


_MODELS, _CONVERSATIONS = ("model_a", "model_b"), ("conversation_a", "conversation_b")

_REWARD_BENCH_SECTIONS: Sections = {
    "Chat": {"alpacaeval-easy": 100, "alpacaeval-length": 95, "alpacaeval-hard": 95, "mt-bench-easy": 28, "mt-bench-med": 40},
    "Chat Hard": {
        "mt-bench-hard": 37, "llmbar-natural": 100, "llmbar-adver-neighbor": 134, "llmbar-adver-GPTInst": 92,
        "llmbar-adver-GPTOut": 47, "llmbar-adver-manual": 46,
    },
    "Safety": {
        "refusals-dangerous": 100, "refusals-offensive": 100, "xstest-should-refuse": 250, "xstest-should-respond": 154, "donotanswer": 136,
    },
    "Reasoning": {"math-prm": 984, **{f"hep-{name}": 164 for name in ("cpp", "go", "java", "js", "python", "rust")}},
}  # fmt: skip
"""RewardBench's sections with the weights of their subsets: allenai/reward-bench, rewardbench/constants.py."""

_REWARD_BENCH_2_SECTIONS: Sections = {name: {name: 1} for name in ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)}

_JUDGE_BENCH = {"id": "pair_id", "category": "source", "cluster": "original_id"}

_FORMATS = (
    _Format(
        *("JudgeBench", "pair", "net_accuracy", ("question", "response_A", "response_B", "label")),
        _by_columns("pair", "question", ("response_A", "response_B"), "label", "JudgeBench writes A>B or B>A", **_JUDGE_BENCH),
    ),
    _Format(
        *("RewardBench 1", "pair", "section_mean", ("prompt", "chosen", "rejected", "chosen_model", "rejected_model"), _reward_bench),
        sections=_REWARD_BENCH_SECTIONS,
    ),
    _Format(
        *("RewardBench 2", "pair", "section_mean", ("prompt", "chosen", "rejected", "subset"), _reward_bench),
        sections=_REWARD_BENCH_2_SECTIONS,
    ),
    _Format("HealthBench meta-evaluation", "verdict", "macro_f1", ("prompt", "completion", "rubric", "binary_labels"), _health_bench),
    _Format("MT-Bench human judgements", "pair", "accuracy", ("question_id", *_MODELS, "winner", *_CONVERSATIONS), _mt_bench),
    _Format(
        *("LLMBar", "pair", "order_accuracy", ("input", "output_1", "output_2", "label")),
        _by_columns("pair", "input", ("output_1", "output_2"), "label", "LLMBar writes 1 or 2", category=""),
    ),
    _Format("FLASK", "score", "spearman", ("text", "target_txt", "score"), _flask, (1, 5)),
    _Format("FLASK", "score", "spearman", ("instruction", "score"), _flask, (1, 5)),
)

_PROMPTS = ("prompt", *QUESTIONS, "input")
_FIRST, _SECOND = ("a", "response_a", "output_a", "answer_a"), ("b", "response_b", "output_b", "answer_b")
_LABELS = ("label", "score", "winner", "passed")
_YES, _NO = {"true", "yes", "pass", "passed", "1", "correct", "good"}, {"false", "no", "fail", "failed", "0", "incorrect", "bad"}
_WINNERS = {"a": "A", "b": "B", "tie": "tie", "a>b": "A", "b>a": "B", "a=b": "tie", "1": "A", "2": "B", "model_a": "A", "model_b": "B"}


def _own_format(path: Path, keys: set[str], rows: Sequence[Row]) -> _Format:
    """Return how rows of one's own are read: by the names of their columns. Raise InvalidRequest where needed columns are missing."""
    lower, columns = {key.lower(): key for key in keys}, (_PROMPTS, ANSWERS, _LABELS, _FIRST, _SECOND)
    prompt, answer, label, first, second = (next((lower[name] for name in names if name in lower), None) for names in columns)
    answers = (first, second) if first and second else (answer,) if answer else ()
    if label is None or not answers:
        known = ", ".join(known.name for known in _FORMATS)
        raise InvalidRequest(
            f"{path}: its rows have {', '.join(sorted(keys))}, which is none of {known}; "
            "of your own, name columns prompt, output (or a and b) and label"
        )
    values = [row[label] for row in rows if row.get(label) not in {"", None}]
    form: Form = "pair" if len(answers) > 1 else "verdict" if all(_yes_or_no(value) is not None for value in values) else "score"

    about = {name: lower[name] for name in ("id", "created_by", "category", "criterion", "cluster") if name in lower}
    named = tuple(name for name in (prompt, *answers, label) if name)
    official = "spearman" if form == "score" else "accuracy_all"
    return _Format(
        "labelled rows", form, official, named, _by_columns(form, prompt, answers, label, **about), told_by="its columns are named"
    )


def _yes_or_no(value: JsonValue) -> bool | None:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    return True if text in _YES else False if text in _NO else None


def _own_value(form: Form, value: JsonValue, label: str, cure: str) -> Any:  # noqa: ANN401 - one of an annotation's values
    if form == "pair":
        if (winner := _WINNERS.get(str(value).strip().lower())) is None:
            raise ValueError(f"{label} is {clip(str(value))}; {cure}")
        return winner
    if form == "verdict":
        return _yes_or_no(value)
    if (number := _number(value)) is None:
        raise ValueError(f"{label} is {clip(str(value))}; write numbers, or true and false, in all rows")
    return number
