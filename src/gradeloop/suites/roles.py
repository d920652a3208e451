"""Who drafts and judges where a suite names nobody, and which models no worker here can serve."""

import os
from collections.abc import Iterator

from gradeloop.batches.case import Case
from gradeloop.default_model import named_default, refuse_unservable_model
from gradeloop.modelspec import ModelSpec
from gradeloop.request import Generator, Grader


class Roles:
    """The models of a suite's cases, each looked at once."""

    def __init__(self, *, scripted: bool) -> None:
        self.notes: list[str] = []
        """What was decided for the user."""
        self._scripted = scripted
        self._defaults: dict[str, ModelSpec] = {}
        self._served: set[str] = set()

    def generator(self) -> Generator:
        """Return the default one."""
        return Generator(model=self._default("generator"))

    def grader(self) -> Grader:
        """Return the default one."""
        return Grader(model=self._default("grader"))

    def _default(self, role: str) -> ModelSpec:
        if role not in self._defaults:
            chosen = named_default(os.environ, role)
            self._defaults[role] = chosen.spec
            self.notes.append(f"{role}: {chosen.spec.id}, because {chosen.variable} is set")
        return self._defaults[role]

    def refuse_unservable(self, case: Case) -> None:
        """Refuse a case whose models need a key, or a file of replies, that is not there; a named queue's worker has its own."""
        for where, model in _models(case):
            if model.id not in self._served and not os.environ.get("GRADELOOP_TASK_QUEUE"):
                refuse_unservable_model(f"case {case.id!r}: {where}", model, os.environ, scripted=self._scripted)
            self._served.add(model.id)


def _models(case: Case) -> Iterator[tuple[str, ModelSpec]]:
    if case.generator and case.generator.model:
        yield "generator.model", case.generator.model
    if case.grader and case.grader.model:
        yield "grader.model", case.grader.model
    for at, criterion in enumerate(case.rubric.criteria):
        yield from ((f"rubric.criteria[{at}].grader", judge) for judge in criterion.judges if isinstance(judge, ModelSpec))
