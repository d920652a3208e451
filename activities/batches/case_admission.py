"""Admission of cases: a worker refuses those that it cannot serve before anything is paid for."""

from temporalio.exceptions import ApplicationError

from activities.capabilities import Admission, WorkerServices
from activities.errors import invalid
from activities.state_cache import GradingSettings
from gradeloop.batches.case_checks import refuse_undecidable
from gradeloop.batches.contract import Case
from gradeloop.contract.thread import Generator, Grader
from gradeloop.judges.contract import SchemaJudge, refuse_unanswered

NOBODY = Generator(activity="given", task_queue="given")
"""The generator of an output that was given: nobody asks it for anything."""


def case_settings(case: Case, *, priced: bool = False) -> GradingSettings:
    """Return the settings of a case."""
    return GradingSettings(generator=case.generator or NOBODY, grader=case.grader, rubric=case.rubric, priced=priced)


async def refuse_case(services: WorkerServices, case: Case) -> None:
    """Refuse a case of a batch that a worker cannot serve.

    Raises:
        ApplicationError: Of type `InvalidRequest`; its message names the case.
    """
    settings = case_settings(case)
    try:
        if case.judging is not None:
            refuse_unanswered(case.judging.run)
            services.providers.refuse_unknown(case.judging.judge.models if isinstance(case.judging.judge, SchemaJudge) else ())
        services.refuse_unservable(settings)
        if case.escalate is not None:
            services.refuse_unservable(settings.model_copy(update={"grader": Grader(model=case.escalate)}))
        await refuse_undecidable(case, services.tools.code)
    except (ApplicationError, ValueError) as error:
        why = error.message if isinstance(error, ApplicationError) else error
        raise invalid(f"the case {case.id!r}: {why}") from None


ADMISSION = Admission(Case, refuse_case)
