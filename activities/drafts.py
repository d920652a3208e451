"""The call that drafts a case: what a model is sent, and the draft that its reply is."""

from gradeloop.batches.contract import Case, CaseCall
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step
from gradeloop.contract.thread import Generator
from gradeloop.grading.call_checks import needs_logprobs
from gradeloop.grading.function_calls import show_calls
from gradeloop.grading.prompts import build_generator_system

NOBODY = Generator(activity="given", task_queue="given")
"""The generator of an output that was given: nobody asks it for anything."""


def draft_request(case: Case, call: CaseCall, model: ModelSpec) -> ModelRequest:
    """Return the call of a case's draft."""
    generator = case.generator or NOBODY
    return ModelRequest(
        spec=model,
        step=Step(role="generator"),
        messages=case.messages,
        system=build_generator_system(generator.system_prompt, case.rubric if generator.show_rubric else None),
        functions=generator.functions,
        function_choice=generator.function_choice,
        output_form=generator.output_form,
        images=case.images,
        raised=call.raised,
        logprobs=needs_logprobs(case.rubric),
    )


def draft_text(case: Case, reply: Message) -> str:
    """Return the draft that a reply is: its text, or as JSON the functions that it calls, which nobody runs."""
    shown = case.generator.shown_as if case.generator else None
    return show_calls(reply, shown or "chat")
