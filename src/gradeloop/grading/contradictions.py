"""Reasons that contradict their verdicts, by the phrases with which graders conclude; no model is asked."""

import re

from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.rubric import Rubric

_QUOTED = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|“[^”]*”|«[^»]*»|(?<!\w)['‘][^'’\n]*['’](?!\w)", re.DOTALL)
_TAKES_BACK = re.compile(r"\W*(?:but|however|yet|still|nevertheless|that said|on the other hand)\b", re.IGNORECASE)
_SUPPOSES_OR_DENIES = re.compile(
    r"\b(?:if|unless|would|could|might|may|should|whether|although|though|while|whereas|except|because|since|says?|said|states?|stated"
    r"|claims?|first|initially|earlier|previous(?:ly)?|otherwise)\b|(?:\b(?:no|not|none|nothing|never|n?either|nor|without)\b|n't\b)[^,:]*$",
    re.IGNORECASE,
)
_START, _END = r"(?:^|[,:(]\s*|\b(?:so|thus|therefore|hence|and),?\s+)", r"(?=\s*(?:$|[.,:;!)]|\b(?:because|since|as|and|so)\b))"
_SO, _SURELY = r"(?:so|thus|therefore|hence),?", r"(?:fully |clearly |therefore |thus )?"
_IT = r"(?:it|this|(?:the|this) (?:[\w'’]+ )?(?:answer|response|output|draft|reply|text|message|agent|assistant|model|solution|code))"
_RULE = r"(?:criteri(?:on|a)|requirements?|rubric|conditions?)"
_THE_RULE = rf"(?:all |both )?(?:the |this |these )?{_RULE}"
_SOME_RULE = rf"(?:[\w'’-]+ ){{0,4}}(?:{_RULE}|standards?|minimum|maximum|limit|threshold|expectations?)(?: (?:of|to|that)\b[^.,;]*)?"
_FAILS_TO = r"(?:does not|doesn't|do not|don't|did not|didn't|fails to) (?:fully |clearly )?(?:meet|satisfy|fulfill?|pass)"
_CONCLUSIONS = {
    True: rf"{_IT} {_SURELY}(?:meets|satisfies|fulfil?ls|passes) {_THE_RULE}|{_SO} {_IT} passes"
    rf"|{_THE_RULE} (?:is|are) {_SURELY}(?:met|satisfied|fulfilled)|verdict(?: is|:) (?:a )?pass(?:es|ed)?",
    False: rf"{_IT} {_SURELY}{_FAILS_TO}(?: {_SOME_RULE}| it)?|{_IT} {_SURELY}(?:fails|violates) {_THE_RULE}|{_SO} {_IT} fails"
    rf"|{_THE_RULE} (?:is|are) {_SURELY}(?:not (?:met|satisfied|fulfilled)|unmet|violated)|verdict(?: is|:) (?:a )?fail(?:s|ed|ure)?",
}
"""The phrases with which a reason concludes that a criterion passes, and that it fails, as alternatives of a regular expression."""
_CONCLUDES = {passed: re.compile(f"{_START}(?P<said>{phrases}){_END}", re.IGNORECASE) for passed, phrases in _CONCLUSIONS.items()}


def contradicted(reason: str, *, passed: bool) -> str:
    """Return in words how a reason concludes the opposite of its verdict; empty where it does not, or concludes both.

    What it quotes, supposes, denies or takes back is no conclusion: a false alarm costs more trust than a contradiction that is missed.
    """
    sentences = [sentence.strip() for sentence in re.split(r"(?<=[.!?;])\s+|\n+", _QUOTED.sub("…", reason))]
    found = {True: "", False: ""}
    for sentence, following in zip(sentences, [*sentences[1:], ""], strict=True):
        for verdict, phrases in _CONCLUDES.items():
            said = phrases.search(sentence)
            if said is None or _SUPPOSES_OR_DENIES.search(sentence[: said.start("said")]):
                continue
            if not any(map(_TAKES_BACK.match, (sentence[said.end() :], following))):
                found[verdict] = said["said"]
    return f"its reason concludes “{found[not passed]}”, which contradicts its verdict" if found[not passed] and not found[passed] else ""


def contradiction(row: CriterionRow, rubric: Rubric | None) -> str:
    """Return in words how a row's reason contradicts what its grader said; empty where it does not, or without the row's criterion.

    A pass that a threshold or a missing quote has turned into a fail contradicts nothing, and a negated criterion's verdict is inverted.
    """
    criterion = next((one for one in rubric.criteria if one.id == row.id), None) if rubric else None
    if criterion is None or row.unverified or row.by not in {"model", "cached"}:
        return ""
    passed = row.passed != criterion.negate
    was_passed = not passed and (criterion.require_quotes or (criterion.scale is not None and criterion.scale.threshold is not None))
    return "" if was_passed else contradicted(row.reason, passed=passed)
