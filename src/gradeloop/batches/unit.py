"""One question to one grader about one case: what was said so far, and what it came to."""

from pydantic import ConfigDict, Field

from gradeloop.call_groups import CallGroup
from gradeloop.mending import GraderConversation
from gradeloop.scoring import row_characters
from gradeloop.tally import curtailed
from gradeloop.transcript import Message
from gradeloop.usage import Usage
from gradeloop.verdict import Malformed, Verdict


class Unit(GraderConversation):
    """A conversation with a grader, as the store keeps it from one call to the next."""

    model_config = ConfigDict(extra="ignore")

    scratch: list[Message] = Field(default_factory=list)
    """Answers that were no verdict, and what was asked then."""
    judge: str = ""
    """The id of the grader that was asked."""
    usage: Usage = Usage()

    @property
    def is_clean(self) -> bool:
        """True where the verdict may stand for the same question asked elsewhere."""
        return self.verdict is not None and self.error is None and self.verdict.result != "failed"

    def note(self, message: Message, reading: Verdict | Malformed, group: CallGroup, rows: int) -> None:
        """Note an answer, and the message that asks for a better one where there is no verdict yet."""
        self.steps += 1
        following = self.take(reading, group.ids)
        self.scratch = [*self.scratch, message, following] if isinstance(following, Message) else []
        if self.verdict is not None:
            self.verdict = curtailed(self.verdict, row_characters(rows))
