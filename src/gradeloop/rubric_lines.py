"""A rubric, and what a grader was given, as lines for a terminal."""

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradeloop.call_groups import call_groups
from gradeloop.contracts import GivenPrompt
from gradeloop.criterion import Criterion
from gradeloop.printable import counted, one_line, printable
from gradeloop.rubric import Rubric
from gradeloop.terminal_table import Line, id_width


def rubric_lines(rubric: Rubric) -> Iterator[Line]:
    """Yield the rubric as it was read, a line per criterion."""
    named = f" {rubric.name}" if rubric.name else ""
    yield Line(Text(), Text(f"Rubric{named}: {len(rubric.criteria)} criteri{'on' if len(rubric.criteria) == 1 else 'a'}", "bold"))
    width = id_width(criterion.id for criterion in rubric.criteria)
    for position, criterion in enumerate(rubric.criteria):
        yield from _context(rubric, position)
        text = Text(one_line(criterion.text)).append("".join(f"  ({word})" for word in _properties(rubric, criterion)), "dim")
        yield Line(Text(f"  {criterion.id:{width}}  ", "cyan"), text)
    yield from _context(rubric, len(rubric.criteria))


def _context(rubric: Rubric, position: int) -> Iterator[Line]:
    return (Line(Text("  "), Text(one_line(line.text), "italic")) for line in rubric.context if line.before == position)


def _properties(rubric: Rubric, criterion: Criterion) -> Iterator[str]:
    """Yield what is special about a criterion."""
    words = {
        f"in {one_line(criterion.group or '')}": criterion.group is not None,
        f"check: {printable(criterion.check.tool if criterion.check else '')}": criterion.check is not None,
        "a person decides": criterion.human,
        "must not hold": criterion.negate,
        _scale(criterion): criterion.score is not None,
        f"by {one_line(criterion.grader.id if criterion.grader else '')}": criterion.grader is not None,
        f"{len(criterion.judges)} votes": len(criterion.judges) > 1,
        "quotes required" if criterion.require_quotes else "with quotes": criterion.quoted,
        f"weight {criterion.weight:g}": criterion.weight != 1,
        "optional": criterion.id not in rubric.pressing,
    }
    return (word for word, holds in words.items() if holds)


def _scale(criterion: Criterion) -> str:
    scale = criterion.score
    if scale is None:
        return ""
    return f"scored {scale.min:g} to {scale.max:g}" + ("" if scale.threshold is None else f", passes from {scale.threshold:g}")


def gate_lines(rubric: Rubric) -> Iterator[Text]:
    """Yield what satisfies the rubric, and how many calls a grading pass takes."""
    if rubric.cleared:
        yield Text("The rubric is empty: nothing is graded", "dim")
        return
    needs = {
        "required": "every required criterion and group",
        "any": "one of the required criteria or groups",
    }
    met = [needs[rubric.gate]] if rubric.gate in needs else []
    met += [f"a score of {rubric.threshold:g}"] if rubric.threshold is not None else []
    yield Text(f"Satisfied by: {' and '.join(met)}", "dim")
    for group in rubric.groups:
        how = "passes by its required criteria" if group.threshold is None else f"passes from a mean of {group.threshold:g}"
        yield Text(f"  {one_line(group.group)}: {how}{'' if group.required else ', optional'}, weight {group.weight:g}", "dim")
    calls = sum(len(group.judges) for group in call_groups(rubric))
    parts = [counted(calls, "grader call"), *([counted(len(rubric.checked), "check")] if rubric.checked else ())]
    parts += [counted(len(rubric.asked_of_people), "human decision")] if rubric.asked_of_people else []
    yield Text(f"Grading pass: {', '.join(parts)}", "dim")


def prompt_lines(given: GivenPrompt) -> Iterable[Text]:
    """Yield the messages that a grader was sent."""
    yield Text(f"call group of {', '.join(given.criteria)}, one of {given.groups}; prompt version {given.prompt_version}", "dim")
    yield Text("system", "bold")
    yield Text(printable(given.system))
    for message in given.messages:
        yield Text(message.role, "bold")
        yield Text(printable(message.content))
