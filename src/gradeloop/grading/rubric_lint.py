"""Criteria that invite a wrong verdict: compound, vague, doubly negated, or unverifiable from a transcript; by rules, without a model."""

import re
from collections.abc import Callable, Iterator
from typing import Literal

from gradeloop.contract.base import Strict
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.rubric import Rubric

Problem = Literal["compound", "vague", "double negation", "unverifiable"]


class LintFinding(Strict):
    """A possible defect of a criterion, with a better wording where a rule knows one."""

    criterion: str
    problem: Problem
    words: str
    """The words of the criterion that the rule found."""
    why: str
    better: tuple[str, ...] = ()
    """Criteria to write instead; empty where only the author can know."""


def lint_rubric(rubric: Rubric) -> list[LintFinding]:
    """Return the findings on a rubric's criteria that a model judges, in order.

    Compound criteria are where judges are exploited most: https://arxiv.org/abs/2605.12474.
    """
    return [finding for criterion in rubric.criteria if criterion.check is None for rule in _RULES for finding in rule(criterion)]


_VERB = (
    r"(?:is|are|has|have|does|do|must|should|can|may|will|never|always|"
    r"(?!this\b|its\b|his\b|us\b|as\b|\w*(?:ss|ness|ous|ies's)\b)[a-z]{2,}(?:s|es))"
)
_CLAUSE = re.compile(rf"^(?P<subject>(?:the |an? |its? |each |every )?(?:\w+ )??)(?P<rest>{_VERB}\b.*)$", re.IGNORECASE | re.DOTALL)
_NEXT_CLAIM = rf"(?:it |they |the \w+ )?(?:also |not |does not |must |is |has |{_VERB}\b)"
_SUBJECT = re.compile(r"(?:it|they|the|an?|every|each|its)\b", re.IGNORECASE)
_JOINT = re.compile(rf"(?:,? and(?: also)?| as well as|;) (?={_NEXT_CLAIM})", re.IGNORECASE)


def _compound(criterion: Criterion) -> Iterator[LintFinding]:
    """Yield a finding about a criterion of several claims; its claims are the better criteria."""
    text = criterion.text.strip().rstrip(".")
    first = _CLAUSE.match(text)
    parts = [part.strip(" ,.") for part in _JOINT.split(text)] if first else [text]
    sentences = [part.strip() for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text)]
    found = parts if len(parts) > 1 else sentences
    if len(found) < 2:  # noqa: PLR2004 - one claim
        return
    subject = first["subject"] if first and len(parts) > 1 else ""
    better = [part if at == 0 or not subject or _SUBJECT.match(part) else f"{subject}{part}" for at, part in enumerate(found)]
    better = [part[:1].upper() + part[1:] for part in better]
    why = "it makes several claims, and one verdict cannot say which of them fails"
    yield LintFinding(criterion=criterion.id, problem="compound", words=text, why=why, better=tuple(better))


_VAGUE = {
    r"appropriate(?:ly)?|suitabl[ey]|proper(?:ly)?|adequate(?:ly)?": "say what it has to contain or do",
    r"good|great|excellent|high[- ]quality|well[- ]written|well": "say what makes it so, as something that can be seen",
    r"clear(?:ly)?|understandable|readable|easy to (?:read|understand|follow)": (
        "say for whom, and what may not be in it: jargon, or long sentences"
    ),
    r"concise(?:ly)?|brief(?:ly)?|short|not too long": "give a number of words or sentences",
    r"helpful(?:ly)?|useful(?:ly)?|user[- ]friendly": "say what the reader can do afterwards",
    r"relevant|reasonabl[ey]|sufficient(?:ly)?|enough": "name what counts, and how much of it",
    r"professional(?:ly)?|natural(?:ly)?|engaging|creative(?:ly)?": "name marks by which it is told: no slang, no exclamation marks",
    r"correct(?:ly)?|accurate(?:ly)?": "say what is correct: give the value, or the source to compare with",
    r"detailed|comprehensive(?:ly)?|thorough(?:ly)?|complete(?:ly)?": "list what must be covered",
    r"etc\.?|and so on|some|several|many|various": "list or count them",
}
"""Words that people read differently, with what to write instead."""


def _vague(criterion: Criterion) -> Iterator[LintFinding]:
    """Yield a finding about every kind of word that two people read differently."""
    for words, why in _VAGUE.items():
        if found := re.search(rf"\b(?:{words})(?!\w)", criterion.text, re.IGNORECASE):
            yield LintFinding(criterion=criterion.id, problem="vague", words=found[0], why=f"people read {found[0]!r} differently; {why}")


_POSITIVE: tuple[tuple[str, str], ...] = (
    (r"\b(?:does not|doesn't|do not|don't|never) (?:lack|miss|omit|leave out)(?:s)?\b", "includes"),
    (r"\b(?:does not|doesn't|do not|don't|never) (?:fail|fails|forget|forgets) to (\w+)\b", r"\1s"),
    (r"\b(?:is not|isn't|are not|aren't|is never) without\b", "has"),
    (r"\b(is|are) (?:not|never) (?:un|in(?=accurate|complete|correct|consistent))([a-z]{4,})\b", r"\1 \2"),
    (r"\b(isn't|aren't) (?:un|in(?=accurate|complete|correct|consistent))([a-z]{4,})\b", r"is \2"),
)
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|nothing|without|neither|nor|lacks?|fails? to|avoids?|omits?)\b|n't\b", re.IGNORECASE)


def _doubly_negated(criterion: Criterion) -> Iterator[LintFinding]:
    """Yield a finding about a criterion that denies twice: in its words, or by `negate` and its words."""
    text = criterion.text
    for pattern, words in _POSITIVE:
        if found := re.search(pattern, text, re.IGNORECASE):
            better = re.sub(pattern, words, text, count=1, flags=re.IGNORECASE)
            why = "it denies twice; graders lose count"
            yield LintFinding(criterion=criterion.id, problem="double negation", words=found[0], why=why, better=(better,))
            return
    count = len(_NEGATIONS.findall(text))
    if criterion.negate and count:
        why = "negate turns it around, and its words deny, too; leave negate out and say what must hold"
        yield LintFinding(criterion=criterion.id, problem="double negation", words=text, why=why)
    elif count > 1 and not re.search(r"\bneither\b.*\bnor\b", text, re.IGNORECASE) and len(re.split(r"[.;]|\band\b|\bor\b", text)) < count:
        why = "it denies twice; say what must be there instead"
        yield LintFinding(criterion=criterion.id, problem="double negation", words=text, why=why)


_UNSEEN = {
    r"understands?|thinks?|knows?|believes?|intends?|feels?|realizes?|means well": (
        "a transcript shows what is said and done; name the words or acts that show it"
    ),
    r"(?:users?|customers?|readers?) (?:will|would|are|is|feels?)|satisf(?:y|ies) the (?:user|customer)s?": (
        "what people make of it is not in the transcript; name what the answer contains"
    ),
    r"in production|in real life|at scale|in the future|long[- ]term": (
        "it happens after the transcript; name what can be seen in it, or give an evidence tool"
    ),
    r"up[- ]to[- ]date|currently|the latest|today|as of now": (
        "a judge does not know today's state; give the date or the source to compare with"
    ),
    r"compiles|runs without errors?|passes (?:all |the )?tests?|is efficient|performs well": (
        "a judge cannot run it; use a check, or an evidence tool"
    ),
    r"plagiari\w+|is original|was written by (?:a )?human": "its origin cannot be seen in it",
}
"""Words for what no transcript shows, with what to write instead."""


def _unverifiable(criterion: Criterion) -> Iterator[LintFinding]:
    """Yield a finding about what no transcript shows."""
    for words, why in _UNSEEN.items():
        if found := re.search(rf"\b(?:{words})\b", criterion.text, re.IGNORECASE):
            yield LintFinding(criterion=criterion.id, problem="unverifiable", words=found[0], why=why)


_RULES: tuple[Callable[[Criterion], Iterator[LintFinding]], ...] = (_compound, _vague, _doubly_negated, _unverifiable)
