"""The page of what a name means: a thread, or what an extension reports on, such as a batch."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradeloop.client.client import GradingClient, open_thread
from gradeloop.client.listing import LATEST
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.extensions import Registry
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.temporal.connect import connect, find
from gradeloop.text import clip


@dataclass(frozen=True)
class ReportOptions:
    """Flags of a command about its report, beside the name."""

    runs: tuple[str, ...] = ()
    """Files of runs that were judged, for their transcripts."""
    passes: tuple[str, ...] = ()
    """Values that pass a judgement, as KEY=VALUE."""
    pass_rate: float | None = None
    """The share of judged runs, 0 to 1, that has to pass; None where the command names none."""
    markdown: bool = False
    """Whether to return a summary as Markdown instead."""
    mapping: Path | None = None
    """The mapping file by which the runs are read."""

    @property
    def has_rule(self) -> bool:
        """True where the command says what passes."""
        return bool(self.passes) or self.pass_rate is not None

    def refuse_judging(self, name: str, kind: str, cure: str) -> None:
        """Refuse what only judgements have.

        Raises:
            InvalidRequest: It is asked for.
        """
        if self.has_rule:
            raise InvalidRequest(f"--pass and --pass-rate are for judgements, and {clip(name)} is a {kind}; leave them out")
        if self.markdown:
            raise InvalidRequest(f"a summary as Markdown is of judgements here, and {clip(name)} is a {kind}; {cure}")


Claim = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class ReportSubject:
    """A kind of what `gradeloop report` shows."""

    name: str
    place: str
    """Place where a named one is found: `a thread on the server`."""
    claims: Mapping[int, Claim]
    """Says whether a name means one of these; the claims of all kinds are asked in the order of their numbers."""
    page: Callable[[str, ReportOptions], Awaitable[str]]
    listed_by: str = ""
    """The command that lists them."""


async def _is_thread(name: str) -> bool:
    if name == LATEST:
        return True
    try:
        await GradingClient(await connect(await find())).task_queue_of(name)
    except ServerUnreachable:
        raise
    except GradeloopError:
        return False
    return True


async def _thread_page(name: str, options: ReportOptions) -> str:
    options.refuse_judging(name, "thread", "name a file that ends in .html")
    client, thread_id, _ = await open_thread(name)
    return run_page(await read_thread_report(client, thread_id))


OWN = (ReportSubject("thread", "a thread on the server", {20: _is_thread}, _thread_page, "gradeloop list"),)

SUBJECTS = Registry[ReportSubject]("subjects", "kind of report", "gradeloop.reports.subject:OWN")


async def report_page(name: str, kind: str | None = None, options: ReportOptions = ReportOptions()) -> str:
    """Return the page of what a name means.

    Args:
        name: An id, a file, or `latest`.
        kind: The kind of it, where the user says so; found out otherwise.
        options: What else the command says.

    Raises:
        GradeloopError: There is nothing of that name, or it cannot be read.
    """
    subject = SUBJECTS.find(kind) if kind else await _subject_of(name)
    return await subject.page(name, options)


async def _subject_of(name: str) -> ReportSubject:
    """Return the kind of what a name means: the first whose claim holds.

    Raises:
        InvalidRequest: It means nothing.
        ServerUnreachable: The server does not answer, and the name can mean nothing else.
    """
    unreachable: ServerUnreachable | None = None
    claims = {rank: (subject, claim) for subject in SUBJECTS for rank, claim in subject.claims.items()}
    for rank in sorted(claims):
        subject, claim = claims[rank]
        try:
            if await claim(name):
                return subject
        except ServerUnreachable as error:
            unreachable = error
    if unreachable is not None:
        raise unreachable
    in_order: Sequence[ReportSubject] = sorted(SUBJECTS, key=lambda subject: max(subject.claims))
    *places, last = ["a file", *(subject.place for subject in in_order)]
    lists = " and ".join(f"`{subject.listed_by}`" for subject in in_order if subject.listed_by)
    raise InvalidRequest(f"{clip(name)} is not {', '.join(places)}, or {last}; {lists} list what exists")
