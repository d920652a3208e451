"""What a thread keeps, in the model: its conversation, rubrics, runs and evaluations, and which calls they need next."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.races.story import MAX_ITERATIONS, PASSES_FROM, TO_FILL, Given, Line, Rubric, Story, Tool, draft_text, found, look_id, search_id

BROKEN = "Broken: it broke"
"""What a model is told of a tool whose call failed for good."""


class Judged(NamedTuple):
    """An evaluation; `draft` is the index of the judged message."""

    run: int
    iteration: int
    result: str
    status: str
    draft: int
    rubric: Rubric
    ruled: bool
    """Whether it has a verdict on the first criterion, also beside others that nobody could give."""


class Outcome(NamedTuple):
    """What the caller of a turn gets; `run` is the number of the run in the thread."""

    status: str | None
    run: int | None = None
    iterations: int = 0
    output: str | None = None
    reason: str | None = None


@dataclass
class Conversation:
    """A grader's conversation over a draft."""

    steps: int = 0
    searching: bool = False
    """Whether its tool has still to answer."""
    verdict: Literal["passes", "fails", "error"] | None = None


@dataclass
class Pass:
    """The judging of one draft."""

    draft: int
    checked: bool = False
    broken: bool = False
    """Whether the check could not decide."""
    decision: bool | None = None
    """Whether a person likes the draft."""
    conversations: dict[int, Conversation] = field(default_factory=dict)


@dataclass
class Run:
    """One attempt at one rubric."""

    number: int
    rubric: Rubric
    status: str = "running"
    iteration: int = 0
    grading: Pass | None = None


@dataclass
class Thread:
    """The state of a thread beside its turns."""

    story: Story
    log: list[Line] = field(default_factory=list)
    request: int = 0
    """Index of the user's current message."""
    exchange: bool = False
    """Whether the generator is on its way to a draft; feedback sends it there."""
    rubric: Rubric = "first"
    given: Given = TO_FILL
    """The newest rubric as it was sent, which another name fills again."""
    named: Rubric = "first"
    """What the variable `name` is."""
    former: Rubric | None = None
    """The rubric before, whose verdicts can still be overridden."""
    pending: Rubric | None = None
    """A rubric that came while a turn was running, and is not in force yet."""
    runs: list[Run] = field(default_factory=list)
    run: Run | None = None
    """The current run; None where nothing is graded."""
    evaluations: list[Judged] = field(default_factory=list)
    overridden: set[int] = field(default_factory=set)
    """Indices of the evaluations that a person made a pass."""
    words: dict[str, bool] = field(default_factory=dict)
    """What people said of tool calls: approved, or denied."""
    asked: set[str] = field(default_factory=set)
    """The tool calls that wait for a person."""
    known: bool = False
    """Whether this run of the workflow knows what its worker can do."""
    unknowable: bool = False
    """Whether the worker would not say so."""

    # -- Rubrics and runs

    def replace_rubric(self, rubric: Rubric) -> None:
        """Put a rubric in force; the one before is remembered."""
        if rubric != self.rubric:
            self.rubric, self.former = rubric, self.rubric

    def fill(self, given: Given | None, named: Rubric | None) -> Rubric | None:
        """Take a rubric or a name, and return the rubric that they make; None where neither is given."""
        if given is None and named is None:
            return None
        self.given, self.named = given or self.given, named or self.named
        return self.named if self.given == TO_FILL else self.given

    def supersede(self) -> None:
        """End a run that is still open."""
        if self.run is not None and self.run.status == "running":
            self.run.status, self.run.grading = "superseded", None

    def open_run(self, draft: int | None) -> None:
        """Open a run where a rubric is in force, over a draft where there is one to judge."""
        self.run = None
        if self.rubric != "cleared":
            self.run = Run(len(self.runs), self.rubric, grading=None if draft is None else Pass(draft))
            self.runs.append(self.run)

    def take_pending(self) -> None:
        """Put the pending rubric in force: its run judges the draft to come where one is due, else the last one."""
        if self.pending is None:
            return
        rubric, self.pending, ended = self.pending, None, self.run
        self.supersede()
        self.replace_rubric(rubric)
        self.open_run(None if self.is_draft_due() else self.last_draft())
        self.run = self.run or ended

    def is_draft_due(self) -> bool:
        """Whether a draft is to come: the generator is at it, or the user's current message has no answer."""
        return self.exchange or (bool(self.log) and self.last_draft(self.request) is None)

    def last_draft(self, start: int = 0) -> int | None:
        """Return the index of the newest draft from a message on."""
        return max((at for at, line in enumerate(self.log) if at >= start and line.text == draft_text(at)), default=None)

    @property
    def is_grading(self) -> bool:
        """Whether a draft is being judged."""
        return self.run is not None and self.run.grading is not None

    @property
    def is_turn_over(self) -> bool:
        """Whether the turn has nothing left to do."""
        if self.run is None or self.rubric == "cleared":
            return not self.is_draft_due()
        return self.run.status != "running"

    @property
    def owes_a_run(self) -> bool:
        """Whether a person ended the run by its verdict on an older draft than the user's current message asks for."""
        ended = self.run is not None and self.run.status == "satisfied" and self.rubric != "cleared"
        return ended and self.evaluations[-1].draft < self.request

    def outcome(self, status: str | None, reason: str | None, start: int) -> Outcome:
        """Return what the turn that began at message `start` has come to: the best draft, or the last one where none was judged.

        While a person is waited for, it is the draft that they are asked about, and none where the generator's call waits.
        """
        run = self.run
        judged = [(at, judged) for at, judged in enumerate(self.evaluations) if run and judged.run == run.number]
        own = [one for one in judged if one[1].draft >= self.request]
        rank = {"satisfied": 2, "needs_revision": 1}
        best = max(own, key=lambda one: (3 if one[0] in self.overridden else rank.get(one[1].result, 0), one[0]), default=None)
        output = best[1].draft if best and self.rubric != "cleared" else self.last_draft(start)
        if status == "waiting":
            output = run.grading.draft if run and run.grading else None
        return Outcome(status, run.number if run else None, len(judged), None if output is None else draft_text(output), reason)

    # -- The calls that are due

    def due_calls(self) -> tuple[list[str], bool]:
        """Return the calls that are due, and whether anything waits for a person."""
        self.asked.clear()
        if self.run is None or self.rubric == "cleared" or self.run.grading is None:
            return self._calls_of_draft()
        return self._calls_of_pass(self.run, self.run.grading)

    def open_call(self) -> str | None:
        """Return the tool call of the generator that has no result yet."""
        last = self.log[-1] if self.log else None
        return last.text.removeprefix("calls ") if last and last.text.startswith("calls ") else None

    def close_call(self) -> None:
        """Answer the tool call that an interruption left open."""
        if self.open_call():
            self.log.append(Line("tool", "not run: the turn was interrupted"))

    def _calls_of_draft(self) -> tuple[list[str], bool]:
        self.exchange = True
        call = self.open_call()
        if call is not None and not self.known and not self.unknowable:
            return ["admit"], False
        allowed = True if call is None else self._allowed("look", call)
        if call is not None and allowed:
            return [call], False
        if allowed is None:
            return [], True
        if not allowed:
            self.log.append(Line("tool", f"not run: ann denied it: no {call}"))
        return [f"generate {len(self.log)}"], False

    def _calls_of_pass(self, run: Run, grading: Pass) -> tuple[list[str], bool]:
        if not self.known and not self.unknowable:
            return ["admit"], False
        if not grading.checked and not grading.broken:
            call = f"count {grading.draft} at {run.number}.{run.iteration}"
            allowed = self._allowed("count", call)
            return ([call], False) if allowed else ([], True)
        due = [] if grading.broken else list(self._calls_of_graders(run, grading))
        return [call for call in due if call is not None], None in due

    def _calls_of_graders(self, run: Run, grading: Pass) -> Iterator[str | None]:
        """Yield the next call of every grader that has not ended; None where it waits for a person."""
        for group in range(self.story.groups):
            conversation = grading.conversations.setdefault(group, Conversation())
            call = search_id(grading.draft, run.number, group)
            allowed = self._allowed("search", call) if conversation.searching else False
            conversation.searching = conversation.searching and allowed is not False
            if conversation.searching:
                yield call if allowed else None
            elif conversation.verdict is None:
                yield f"grade {run.rubric} {group} of {grading.draft} at {run.number}.{run.iteration} step {conversation.steps}"

    def _allowed(self, tool: Tool, call: str) -> bool | None:
        """Return whether a tool may be called; None where a person has to say so first."""
        if tool not in self.story.approved:
            return True
        if call not in self.words:
            self.asked.add(call)
        return self.words.get(call)

    # -- What calls come to

    def take_word(self, call: str, *, approved: bool) -> None:
        """Note what a person said of a tool call; a check that is denied cannot decide."""
        self.words[call] = approved
        self.asked.discard(call)
        if self.run and self.run.grading and call.startswith("count") and not approved:
            self.run.grading.broken = True

    def take_result(self, call: str) -> None:
        """Record the result of a call."""
        kind, grading = call.partition(" ")[0], self.run.grading if self.run else None
        self.known = self.known or kind in ("admit", "generate", "grade")
        if kind == "generate":
            self._take_turn_of_generator()
        elif kind.startswith("look-"):
            self.log.append(Line("tool", found(call)))
        elif grading is None:
            return  # the run that asked has ended
        elif kind == "count":
            grading.checked = True
        elif kind.startswith("search-"):
            grading.conversations[int(call.rpartition("-")[2])].searching = False
        elif kind == "grade":
            self._take_turn_of_grader(grading, int(call.split()[2]))

    def _take_turn_of_generator(self) -> None:
        """Append the generator's turn: it calls its tool first, then it writes."""
        here = len(self.log)
        if self.log[-1].role != "tool":
            self.log.append(Line("assistant", f"calls {look_id(here)}"))
            return
        self.log.append(Line("assistant", draft_text(here)))
        self.exchange = False
        if self.pending is not None:
            self.take_pending()
        elif self.run is not None and self.run.status == "running":
            self.run.grading = Pass(here)

    def _take_turn_of_grader(self, grading: Pass, group: int) -> None:
        """Take a grader's turn: it calls its tool first, then it judges; all but the first of several pass every draft."""
        conversation = grading.conversations[group]
        conversation.steps += 1
        if conversation.steps == 1:
            conversation.searching = True
        elif self.run is not None:
            conversation.verdict = "passes" if self.run.iteration >= PASSES_FROM or group else "fails"

    def take_error(self, call: str) -> None:
        """Record an error for good: of a tool its model is told, of a grader or a check it is no grade."""
        kind, grading = call.partition(" ")[0], self.run.grading if self.run else None
        if kind == "admit":
            self.unknowable = True
        elif kind.startswith("look-"):
            self.log.append(Line("tool", BROKEN))
        elif grading is not None and kind == "count":
            grading.broken = True
        elif grading is not None and kind.startswith("search-"):
            grading.conversations[int(call.rpartition("-")[2])].searching = False
        elif grading is not None and kind == "grade":
            grading.conversations[int(call.split()[2])].verdict = "error"

    def evaluate(self) -> bool:
        """Record the evaluation of the draft where its judging is done; False where it is not, or a person has to decide."""
        grading = self.run.grading if self.run and self.run.status == "running" else None
        if self.run is None or grading is None:
            return False
        verdicts = [grading.conversations.get(group, Conversation()).verdict for group in range(self.story.groups)]
        if not grading.broken and (not grading.checked or None in verdicts):
            return False
        if grading.broken or "error" in verdicts:
            self._record(self.run, grading, "grader_error")
        elif "fails" in verdicts or grading.decision is False:
            self._record(self.run, grading, "needs_revision")
        elif self.story.person and grading.decision is None:
            return False
        else:
            self._record(self.run, grading, "satisfied")
        return True

    def _record(self, run: Run, grading: Pass, result: str) -> None:
        """Record an evaluation; where the run goes on, the generator gets it as feedback, unless another rubric has come."""
        last = run.iteration + 1 >= MAX_ITERATIONS
        run.status = ("max_iterations_reached" if last else "running") if result == "needs_revision" else result
        ruled = grading.conversations.get(0, Conversation()).verdict not in (None, "error")
        self.evaluations.append(Judged(run.number, run.iteration, result, run.status, grading.draft, run.rubric, ruled))
        run.grading = None
        if run.status == "running" and self.pending is None:
            self.log.append(Line("feedback", run.rubric))
            run.iteration, self.exchange = run.iteration + 1, True
