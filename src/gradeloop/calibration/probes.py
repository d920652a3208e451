"""Probes: changes that ought to change no verdict, and how many they change."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from gradeloop.calibration.check_report import Answered, ProbeFinding, Question, Row, compare_orders, run_of, share_of_items, verdicts_of
from gradeloop.calibration.labelled_sets import Item, LabelledSet
from gradeloop.contract.transcript import RunMessage
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig
from gradeloop.stats.intervals import holm, mcnemar

ProbeName = Literal["order", "verbosity", "style", "self-preference", "paraphrase", "repetition"]

PADDING = (
    "To put this into a wider context, and to be as thorough as possible, it is worth going over the above once more. "
    "Everything that was said so far remains as it was said. There are many ways to look at a question like this one, with merits of their "
    "own. "
    "In summary, the answer is the one given above, and nothing in this paragraph adds to it or takes anything away from it."
)
"""Words that say nothing, with which an answer is made longer."""

WHAT: dict[ProbeName, str] = {
    "order": "pairs are asked in both orders, criteria in reverse",
    "verbosity": "an answer (of a pair, the one that people like less) is made longer by a paragraph that says nothing",
    "style": "Markdown is stripped from the answers",
    "self-preference": "answers by models of the judge's own family, beside what people say of them",
    "paraphrase": "the rubric is worded differently",
    "repetition": "nothing: the same is asked again",
}


def probe_questions(name: ProbeName, questions: Sequence[Question]) -> list[Question]:
    """Return the questions of a probe, changed; none where the probe changes nothing, or needs no questions of its own."""
    change = _CHANGES.get(name)
    changed = [(old, change(old)) for old in questions] if change else []
    return [new for old, new in changed if (new.judge, new.run, new.repeat) != (old.judge, old.run, old.repeat)]


def probe_finding(name: ProbeName, labelled: LabelledSet, answers: Sequence[Answered], probed: Sequence[Answered]) -> ProbeFinding:
    """Return what a probe found.

    `answers`: the answers without the change.
    """
    if name == "self-preference":
        return _self_preference(labelled, answers)
    if name == "order" and labelled.form == "pair":
        same, first = compare_orders(answers)
        changed_pairs = share_of_items((item, 1 - part, whole) for item, part, whole in same)
        return ProbeFinding(name="order", changed=changed_pairs, toward=share_of_items(first), what=WHAT["order"])
    items = {item.id: item for item in labelled.items}
    asked = {answer.question.item.id for answer in probed}
    before = {item: value for item, value in verdicts_of(answers).items() if item in asked and value is not None}
    after = {item: value for item, value in verdicts_of(probed).items() if value is not None and item in before}
    changed = {item: None for item in after if after[item] != before[item]}
    toward = None
    if name == "verbosity":
        toward = share_of_items((items[one], float(_is_toward(before[one], after[one], _padded_side(items[one]))), 1.0) for one in changed)
    share = share_of_items((items[one], float(one in changed), 1.0) for one in after)
    return ProbeFinding(name=name, changed=share, toward=toward, what=WHAT[name], asked=tuple(after), changed_items=tuple(changed))


# A judge changes some verdicts when it is just asked again. A probe has shown something only if it changes
# more than that, of the same items: McNemar's test looks at the items that one of the two changes and the
# other does not. Several probes are tested, so their chances are corrected after Holm.
def against_repetition(findings: Sequence[ProbeFinding]) -> list[ProbeFinding]:
    """Return findings with how likely it is that what they change is what asking again changes, by the items of both."""
    again = next((finding for finding in findings if finding.name == "repetition"), None)
    if again is None:
        return list(findings)
    tested, chances = [finding for finding in findings if finding.asked and finding is not again], []
    for finding in tested:
        both = set(finding.asked) & set(again.asked)
        one, other = both & set(finding.changed_items), both & set(again.changed_items)
        chances.append(mcnemar(len(one - other), len(other - one)))
    corrected = {finding.name: chance for finding, chance in zip(tested, holm(chances), strict=True)}
    return [finding.model_copy(update={"by_chance": corrected.get(finding.name)}) for finding in findings]


def _is_toward(before: object, after: object, side: str) -> bool:
    """Return whether a verdict went to the side of the padded answer: it wins, passes, or scores more."""
    if side:
        return after == side or (after == "tie" and before != side)
    return float(after) > float(before)  # type: ignore[arg-type]  # a verdict or score, since there is one answer


FAMILIES = {
    "anthropic": ("claude",),
    "openai": ("gpt", "o1", "o3", "o4", "chatgpt", "text-davinci"),
    "google": ("gemini", "gemma", "palm", "bard"),
    "meta": ("llama",),
    "mistral": ("mistral", "mixtral", "magistral"),
    "qwen": ("qwen", "qwq"),
    "deepseek": ("deepseek",),
    "xai": ("grok",),
    "cohere": ("command",),
}
"""The names by which models of a family are known."""


def family_of(model: str) -> str | None:
    """Return the family of a model by its name; None for one that is not known."""
    name = model.lower().rpartition(":")[2].rpartition("/")[2]
    return next((family for family, names in FAMILIES.items() if any(re.search(rf"(^|[^a-z]){known}", name) for known in names)), None)


# How often the judge prefers its own family says nothing, as those answers may be better. People's labels
# are the measure: only verdicts that differ from them count, and bias is when more of these go toward the
# family than against it.
def _self_preference(labelled: LabelledSet, answers: Sequence[Answered]) -> ProbeFinding:
    """Compare how often the judge and people prefer answers of the judge's own family: what differs are verdicts for and against it."""
    own = next((family_of(answer.result.model) for answer in answers if answer.result.model), None)
    verdicts, known, differing = verdicts_of(answers), list[Row](), list[Row]()
    for item in labelled.items:
        sides = [letter for letter, model in zip("AB", item.models, strict=False) if own is not None and family_of(model) == own]
        verdict = verdicts.get(item.id)
        if len(sides) != 1 or verdict is None:
            continue
        people = [annotation.value for annotation in item.annotations]
        label = max(people, key=people.count)
        known.append((item, float(verdict != label), 1.0))
        if verdict != label:
            differing.append((item, float(verdict == sides[0] or (verdict == "tie" and label != sides[0])), 1.0))
    what = WHAT["self-preference"] + (f" (family {own})" if own else " (the judge's family is not known)")
    return ProbeFinding(name="self-preference", changed=share_of_items(known), toward=share_of_items(differing), what=what)


def _reversed(question: Question) -> Question:
    """Return a question with the criteria of its rubric in reverse; pairs are asked in both orders anyway."""
    judge = question.judge
    if not isinstance(judge, CriteriaJudge) or len(judge.rubric.criteria) < 2:  # noqa: PLR2004 - one has no order
        return question
    rubric = judge.rubric.model_copy(update={"criteria": judge.rubric.criteria[::-1]})
    return replace(question, judge=judge.model_copy(update={"rubric": rubric}))


def _padded_side(item: Item) -> str:
    """Return which answer of a pair is padded: the one that most people like less, B where they are split; nothing for one answer."""
    if len(item.answers) == 1:
        return ""
    values = [annotation.value for annotation in item.annotations]
    return "A" if values.count("B") > values.count("A") else "B"


def _with_answers(question: Question, change: Callable[[str], str], which: Sequence[int]) -> Question:
    """Return a question about an item with the last message of some answers changed."""

    def changed(messages: tuple[RunMessage, ...]) -> tuple[RunMessage, ...]:
        return (*messages[:-1], messages[-1].model_copy(update={"content": change(messages[-1].content)}))

    answers = tuple(changed(messages) if at in which else messages for at, messages in enumerate(question.item.answers))
    item = question.item.model_copy(update={"answers": answers})
    return replace(question, item=item, run=run_of(item, question.order))


_MARKDOWN = (
    (re.compile(r"^```[^\n]*\n?", re.MULTILINE), ""),
    (re.compile(r"^ {0,3}#{1,6} +", re.MULTILINE), ""),
    (re.compile(r"^( *)[-*+] +", re.MULTILINE), r"\1"),
    (re.compile(r"^ {0,3}> ?", re.MULTILINE), ""),
    (re.compile(r"\*\*(.+?)\*\*|__(.+?)__", re.DOTALL), r"\1\2"),
    (re.compile(r"(?<![\w*])\*(?!\s)([^*\n]+)(?<!\s)\*(?![\w*])"), r"\1"),
    (re.compile(r"`([^`\n]+)`"), r"\1"),
    (re.compile(r"\[([^\]\n]+)\]\([^)\n]+\)"), r"\1"),
)


def plain_text(text: str) -> str:
    """Return a text without Markdown's marks: headings, lists, quotes, emphasis, code and links keep their words."""
    for pattern, words in _MARKDOWN:
        text = pattern.sub(words, text)
    return text


_WORDINGS = (
    ("must not", "is not allowed to"),
    ("must", "has to"),
    ("should not", "ought not to"),
    ("should", "ought to"),
    ("the agent", "the assistant"),
    ("the answer", "the response"),
    ("names", "mentions by name"),
    ("says", "states"),
    ("contains", "includes"),
    ("correct", "right"),
    ("does not", "doesn't"),
    ("is not", "isn't"),
)
"""Words and what stands for them in a paraphrase; of two that fit at a place, the first counts."""


def paraphrase(text: str) -> str:
    """Return a rubric in other words with the same meaning, by a table of words and a sentence before it."""
    known = dict(_WORDINGS)
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word, _ in _WORDINGS), re.IGNORECASE)
    return "What follows is what counts here:\n" + pattern.sub(lambda found: _cased(found[0], known[found[0].lower()]), text)


def _cased(model: str, word: str) -> str:
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def _paraphrased(judge: JudgeConfig) -> JudgeConfig:
    if not isinstance(judge, CriteriaJudge):
        return judge.model_copy(update={"rubric_text": paraphrase(judge.rubric_text), "id": ""})
    criteria = tuple(
        one.model_copy(update={"description": paraphrase(one.description).partition("\n")[2]}) if isinstance(one.description, str) else one
        for one in judge.rubric.criteria
    )
    return judge.model_copy(update={"rubric": judge.rubric.model_copy(update={"criteria": criteria}), "id": ""})


_CHANGES: dict[ProbeName, Callable[[Question], Question]] = {
    "order": _reversed,
    "verbosity": lambda asked: _with_answers(asked, lambda text: f"{text}\n\n{PADDING}", (int(_padded_side(asked.item) == "B"),)),
    "style": lambda asked: _with_answers(asked, plain_text, range(len(asked.item.answers))),
    "paraphrase": lambda asked: replace(asked, judge=_paraphrased(asked.judge)),
    "repetition": lambda asked: replace(asked, repeat=asked.repeat + 1),
}
"""The change that a probe makes to a question; probes that ask no questions of their own have none."""
