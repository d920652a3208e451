"""Checks that need no model: the kinds that there are, each a row of a registry, and what runs them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, core_schema

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import LogProbs, Usage, code_of
from gradeloop.contract.rubric import Rubric
from gradeloop.extensions import Registry
from gradeloop.text import clip, did_you_mean

TEXT_CHECK = "text_check"
"""The tool that checks a text."""

FINISHED = "stop"
"""The reason for which every draft ended that came whole: one that was cut, refused or filtered is an error and no draft."""

Arguments = Mapping[str, JsonValue]
"""The arguments of a check: its `kind`, mostly a `value`, and `negate`, which inverts the outcome."""


@dataclass(frozen=True)
class CheckedDraft:
    """A draft that is checked, and the call that drafted it."""

    text: str
    spent: Usage | None = None
    """The usage of the draft, its repeated attempts included; None for an output that nobody here drafted."""
    ended: str = FINISHED
    """The reason for which it ended."""
    logprobs: LogProbs | None = None
    """The probabilities of its tokens; None where the reply does not say."""


@dataclass(frozen=True)
class CheckKind:
    """A kind of check. `gradeloop.grading.text_checks.text_kind` makes one of a function of a text.

    Example:
        ```python
        SHOUTS = text_kind("shouts", lambda draft, value: None if draft.isupper() else "it whispers", "it shouts", "it does not shout")
        KINDS = (SHOUTS,)  # of an extension with kinds={"checks": "acme.checks:KINDS"}
        ```
    """

    name: str
    """The kind in a check's arguments, and the type of a suite's assertion."""
    run: Callable[[CheckedDraft, Arguments], CheckOutcome]
    """Checks a draft with valid arguments; raises ValueError where it cannot decide."""
    describe: Callable[[Arguments], str]
    """Returns the requirement as a sentence: `it contains '5 days'`."""
    validate: Callable[[Arguments], None]
    """Raises ValueError where arguments are missing, unknown, or unfit."""
    tool: str = TEXT_CHECK
    """The tool that criteria name."""
    threshold: float | None = None
    """The threshold with which what is measured is compared where none is given; None where it has none."""
    takes_functions: bool = False
    """Whether the functions that the generator declares are the value where a check has none."""
    takes_grader: bool = False
    """Whether the argument `grader` is a model."""
    needs_logprobs: bool = False
    """Whether a call has to say how probable the draft's tokens are."""


CHECKS = Registry[CheckKind]("checks", "kind", "gradeloop.grading.text_checks:KINDS")
"""The kinds of checks by name: those of texts, and those of extensions."""


def kinds_of(tool: str) -> list[str]:
    """Return the names of the kinds that a tool checks."""
    return [kind.name for kind in CHECKS if kind.tool == tool]


def valid_kind(tool: str, arguments: Arguments) -> CheckKind:
    """Return the kind that a check's arguments name; raise ValueError where there is none, or the others do not fit it."""
    kind = CHECKS.rows.get(name := str(arguments.get("kind")))
    if kind is None or kind.tool != tool:
        raise ValueError(f"there is no kind {clip(name)}.{did_you_mean(name, kinds_of(tool))}")
    kind.validate(arguments)
    return kind


@dataclass(frozen=True)
class KindOf:
    """Annotates the parameter of a tool that names a kind of its checks, those of extensions among them."""

    tool: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the names."""
        return core_schema.literal_schema(kinds_of(self.tool))


def refuse_unknown(arguments: Arguments, *known: str) -> None:
    """Raise ValueError where a check has an argument that its kind does not know."""
    if odd := sorted(set(arguments) - set(known)):
        raise ValueError(f"unknown argument {odd[0]!r}; give {', '.join(known[:-1])} and {known[-1]}")


def run_check(tool: str, draft: CheckedDraft, arguments: Arguments) -> CheckOutcome:
    """Check a draft, and return whether it passes, with what was wanted and what was found as the gap.

    Raises:
        ValueError: The arguments are invalid, or something about the draft is not known; it may still pass.
    """
    return valid_kind(tool, arguments).run(draft, arguments)


def run_text_check(draft: str, arguments: Arguments) -> CheckOutcome:
    """Check a text; see `run_check`."""
    return run_check(TEXT_CHECK, CheckedDraft(draft), arguments)


def run_text_checks(output: str, checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Run the text checks of a rubric on an output, and return their outcomes as JSON by criterion.

    `checks`: for each criterion its `id`, the check's `arguments`, and what it `extract`s.

    Raises:
        ValueError: A check cannot decide; the message names it.
    """
    outcomes = {}
    for check in checks:
        text = code_of(output) if check["extract"] == "code" else output
        try:
            outcomes[check["id"]] = run_text_check(text, check["arguments"]).model_dump(mode="json")
        except ValueError as error:
            raise ValueError(f"the check text_check of {check['id']} could not decide: {error}") from None
    return outcomes


def needs_logprobs(rubric: Rubric) -> bool:
    """Tell whether a check of the rubric asks how probable a draft's tokens were."""
    kinds = ((check.tool, CHECKS.rows.get(str(check.arguments.get("kind")))) for _, check in rubric.checks())
    return any(kind is not None and kind.tool == tool and kind.needs_logprobs for tool, kind in kinds)
