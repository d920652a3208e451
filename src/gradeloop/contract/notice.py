"""Notices: what a worker posts to a webhook when a person is wanted, and what a workflow asks it to post."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from gradeloop.contract.base import OmitEmpty, Strict, Tolerant

NOTIFY = "notify"
"""The type of the activity that posts a notice to one webhook."""

NoticeKind = Literal["thread.waiting", "thread.over_budget", "batch.ended", "batch.over_budget", "monitor.alert", "monitor.clear"]
"""The events of which webhooks hear; `monitor.clear` ends an alert, `over_budget` stops a run or pauses a batch."""

ALL_KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)

TITLE_CHARACTERS = 80
"""The longest title: the beginning of a thread's first message, or the name of a batch's suite."""

CONTENT_CHARACTERS = 4_000
"""The longest text of a draft in a notice."""


class AskedOfPerson(Strict):
    """One question to a person."""

    kind: Literal["criterion", "call"]
    id: str
    """The criterion's id, or the id of the tool call."""


class NoticeContent(Strict):
    """Texts of a notice, which it has only if the webhook's settings say `content = true`."""

    questions: tuple[str, ...] = ()
    """The criteria that a person decides, or the tools that the model wants to call."""
    draft: str | None = None
    """The beginning of the draft that is asked about."""


class Notice(Strict):
    """The JSON that is posted to a webhook."""

    id: str
    """Equal for all deliveries of one notice; also the header `webhook-id`."""
    type: NoticeKind
    time: str
    """Time of the event: ISO 8601, UTC."""
    title: str
    """The subject: the beginning of the thread's task, or the batch's name."""
    answer: str
    """The answer in one line, as the first line of a page has it."""
    thread_id: OmitEmpty[str | None] = None
    grading_run_id: OmitEmpty[str | None] = None
    questions: OmitEmpty[tuple[AskedOfPerson, ...]] = ()
    """The questions to a person, by their ids."""
    batch_id: OmitEmpty[str | None] = None
    counts: OmitEmpty[dict[str, int]] = Field(default_factory=dict)
    """The number of a batch's cases by what became of them, and `total`."""
    monitor: OmitEmpty[str | None] = None
    runs: OmitEmpty[tuple[str, ...]] = ()
    """The ids of the newest failed runs of a monitor's sample."""
    url: OmitEmpty[str | None] = None
    """The page of the thread or the batch, where the settings name the address of the live pages."""
    content: OmitEmpty[NoticeContent | None] = None


class NoticeCall(Tolerant):
    """The argument of the activity `notify`: the webhook by its name, since only the worker has its address and secret."""

    webhook: str
    notice: Notice


class NoticeBatch(Tolerant):
    """The argument of the workflow that delivers a batch's notices, so that the batch itself waits for nobody."""

    calls: Annotated[tuple[NoticeCall, ...], Field(min_length=1)]


Webhooks = dict[str, tuple[NoticeKind, ...]]
"""The kinds of notices that each webhook of a worker gets, by the webhook's name."""


def wanted_by(webhooks: Webhooks, kind: NoticeKind) -> list[str]:
    """Return the names of the webhooks that get a kind of notice."""
    return [name for name, kinds in webhooks.items() if kind in kinds]
