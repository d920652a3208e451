"""One question to one grader about one case: what was said so far, and what it came to."""

from pydantic import BaseModel, ConfigDict

from gradeloop.call_groups import CallGroup
from gradeloop.mending import NoVerdict, mend, whole
from gradeloop.scoring import row_characters
from gradeloop.tally import Answer, curtailed
from gradeloop.transcript import Message
from gradeloop.usage import Usage
from gradeloop.verdict import Malformed, Verdict, VerdictRow


class Unit(BaseModel):
    """A conversation with a grader, as the store keeps it from one call to the next."""

    model_config = ConfigDict(extra="ignore")

    scratch: list[Message] = []
    """Answers that were no verdict, and what was asked then."""
    steps: int = 0
    repairs: int = 0
    pending: tuple[str, ...] = ()
    rows: tuple[VerdictRow, ...] = ()
    explanation: str = ""
    missing: tuple[str, ...] = ()
    error: str | None = None
    verdict: Verdict | None = None
    judge: str = ""
    """Who was asked."""
    cached: bool = False
    usage: Usage = Usage()

    @property
    def ended(self) -> bool:
        """True where there is nothing more to ask."""
        return self.verdict is not None or self.error is not None

    @property
    def is_clean(self) -> bool:
        """True where the verdict may stand for the same question asked elsewhere."""
        return self.verdict is not None and self.error is None and self.verdict.result != "failed"

    def take(self, message: Message, reading: Verdict | Malformed, group: CallGroup, rows: int) -> None:
        """Note an answer: a verdict, or one that is to be mended."""
        self.steps += 1
        self.scratch.append(message)
        if isinstance(reading, Verdict):
            self.verdict = whole(self, reading)
        else:
            try:
                following = mend(self, reading, group.ids)
            except NoVerdict as error:
                self.error = str(error)
            else:
                if isinstance(following, Verdict):
                    self.verdict = following
                else:
                    self.scratch.append(following)
        if self.ended:
            self.scratch = []
        if self.verdict is not None:
            self.verdict = curtailed(self.verdict, row_characters(rows))

    def answer(self) -> Answer:
        """Return what the tally counts."""
        return Answer(judge=self.judge, verdict=self.verdict, missing=self.missing, error=self.error, cached=self.cached)
