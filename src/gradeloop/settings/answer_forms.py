"""The form in which a model is asked for a verdict, by what is known of the model and its endpoint."""

from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import Grader
from gradeloop.grading.answer_form import AnswerForm, completion_tokens, model_key
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET
from gradeloop.settings.catalog import capability_of

SHORT_CONTEXT = 8_192
"""The tokens of a context up to which the short prompt is used, where nothing else is asked for."""

SMALL_MODEL = 4_000_000_000
"""The weights up to which it is used, too: a model with 0.135 billion fills each text that the full form offers, `unjudgeable` among them.
Up to which size others do is not measured."""

CHARACTERS_A_TOKEN = 3
"""The characters of records that a token stands for; English prose has four, JSON and code have less."""

PROMPT_TOKENS = {"full": 2_500, "short": 900}
"""The tokens that are kept for what stands in a prompt beside the records: our text, a rubric of a usual size, tags."""


def may_reason(model: ModelSpec) -> bool:
    """Return whether a model may think before it answers, in tokens of its completion."""
    takes = capability_of(model)
    return bool(takes.reasons or takes.efforts or takes.thinking or (takes.reasons is None and takes.efforts is None))


def form_of(model: ModelSpec, grader: Grader, known: AnswerForm | None = None) -> AnswerForm:
    """Return the form in which a model is asked: the known one where that was chosen for it.

    Args:
        model: The model, of which the worker knows what its endpoint takes.
        grader: The grader, which may ask for the full or the short prompt.
        known: The form of the conversation so far, or of an earlier one with the same judge.
    """
    # A form that is known stays, so that a judge's prompts begin alike and a repair has the form of its answer.
    # It is chosen anew for another model, such as a fallback, and where the grader asks for another prompt.
    if known is not None and known.model == model_key(model) and grader.prompt in {None, known.profile}:
        return known
    takes = capability_of(model)
    small = (takes.context or SHORT_CONTEXT + 1) <= SHORT_CONTEXT or (takes.parameters or SMALL_MODEL + 1) <= SMALL_MODEL
    profile = grader.prompt or ("short" if small else "full")
    room = None if takes.context is None else takes.context - PROMPT_TOKENS[profile] - completion_tokens(AnswerForm(profile=profile), 1)
    budget = None if room is None else min(TRANSCRIPT_BUDGET, max(1_000, room * CHARACTERS_A_TOKEN))
    by_schema = takes.answer == "schema"
    return AnswerForm(
        by="schema" if by_schema else "tags",
        profile=profile,
        bounds=takes.bounds if by_schema else "none",
        properties=takes.properties if by_schema else None,
        budget=None if budget == TRANSCRIPT_BUDGET else budget,
        model=model_key(model),
    )
