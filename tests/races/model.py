"""What a thread is meant to do, as a serial machine without a line of the workflow: one message after the other, then one end after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from tests.races.events import Answer, Cancel, Close, Decide, End, Event, Interrupt, Invoke, Override, Resume, Supply, Update
from tests.races.story import MAX_ITERATIONS, PASSES_FROM, Line, Rubric, Story, Tool, draft_text, found, look_id, search_id

Stop = Literal["person", "cancel", "rubric", "override"]
"""Who wants the calls in flight to stop."""

STRENGTH: dict[Stop | None, int] = {None: 0, "override": 1, "rubric": 1, "person": 2, "cancel": 3}

QUEUED = 8
"""The most turns that wait behind the one in flight."""

BROKEN = "Broken: it broke"
"""What a model is told of a tool whose call failed for good."""


class Judged(NamedTuple):
    """An evaluation."""

    run: int
    iteration: int
    result: str
    status: str
    draft: int
    rubric: Rubric


class Outcome(NamedTuple):
    """What the caller of a turn gets; `run` is the run's number in the thread."""

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
    verdict: Literal["passes", "fails", "error"] | None = None


@dataclass
class Pass:
    """The judging of one draft."""

    draft: int
    checked: bool = False
    broken: bool = False
    """Whether the check could not decide."""
    decision: bool | None = None
    conversations: dict[int, Conversation] = field(default_factory=dict)


@dataclass
class Run:
    """One attempt at one rubric."""

    number: int
    rubric: Rubric
    status: str = "running"
    iteration: int = 0
    grading: Pass | None = None


@dataclass(eq=False)
class Turn:
    """A turn that callers asked for; `resumes` where it goes on with the interrupted one, whatever its rubric."""

    keys: list[str]
    text: str = ""
    rubric: Rubric | None = None
    resumes: bool = False
    resumed: bool = False
    """Whether it went on after an interruption because somebody asked for just that."""
    doomed: bool = False
    """Whether an interrupt came after it, so that it ends unless the run in flight ends by itself."""
    start: int = 0


@dataclass(frozen=True)
class Waiter:
    """A caller who waits for a turn; a patient one also while a person is waited for."""

    update: str
    turn: Turn
    patient: bool = False


class Model:
    """A thread between two events: everything in it has come to rest but the calls in flight."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.log: list[Line] = []
        self.evaluations: list[Judged] = []
        self.overridden: set[int] = set()
        self.runs: list[Run] = []
        self.run: Run | None = None
        self.rubric: Rubric = "first"
        self.former: Rubric | None = None
        self.pending: Rubric | None = None
        self.status: Literal["idle", "running", "waiting", "interrupted"] = "idle"
        self.reason: str | None = None
        self.stopping: Stop | None = None
        self.turn: Turn | None = None
        self.queue: list[Turn] = []
        self.request = 0
        """Index of the user's current message."""
        self.exchange = False
        """Whether the generator is on its way to a draft."""
        self.flight: dict[str, bool] = {}
        """The calls in flight, and whether they were made: those that are due only now have not left the workflow yet."""
        self.words: dict[str, bool] = {}
        """What people said of tool calls: approved, or denied."""
        self.asked: set[str] = set()
        """The tool calls that wait for a person."""
        self.known = False
        """Whether this run of the workflow knows what its worker can do."""
        self.unknowable = False
        """Whether the worker would not say so."""
        self.closing = False
        self.closed: Literal["completed", "cancelled", "failed"] | None = None
        """How the workflow ended; one that was never given anything to do fails."""
        self.long = False
        """Whether the history is so long that the thread goes on in a new run of its workflow when it can."""
        self.rolled = False
        """Whether it has just done so."""
        self.fresh = True
        """Whether a run of the workflow has yet to see its first task."""
        self.waited = False
        """Whether a person was waited for when the task began."""
        self.calls = 0
        self.attempts = 0
        self.rejected = 0
        self.answers: dict[str, Outcome | str] = {}
        self._waiters: list[Waiter] = []
        self._outcomes: dict[str, Outcome] = {}

    # -- What the schedule gives it

    def task(self, *events: Event, long: bool = False, rolled: bool = False) -> list[str]:
        """Take the events of one workflow task and return the calls that are made at its end.

        Messages count in their order, then results, then a cancel, then the ends of calls without a result: somebody wants those to stop.

        Args:
            events: What came, in any order of messages and ends.
            long: Whether the history is so long that the thread goes on in a new run of its workflow when it can.
            rolled: Whether it did so in this task, which nobody but an operator sees.
        """
        self.long, self.waited = self.long or long, self.status == "waiting"
        for event in events:
            if not isinstance(event, End | Cancel):
                self._take(event)
        if not self.fresh:  # in a run's first task, handlers see the thread before the run itself does
            self._rest()
        for end in [event for event in events if isinstance(event, End) and event.how == "arrived"]:
            self._end(end)
        if any(isinstance(event, Cancel) for event in events):
            self._cancel()
        for end in [event for event in events if isinstance(event, End) and event.how != "arrived"]:
            self._end(end)
        self._rest()
        if rolled and self.long and not self.closed and self.status != "running":
            self._roll()
        self.fresh = self.rolled
        if self.rolled:  # the calls that are due now are made by the next run of the workflow, in a task of its own
            self.rolled = False
            return []
        made = [call for call, left in self.flight.items() if not left]
        self.flight = dict.fromkeys(self.flight, True)
        return sorted(made)

    def start_again(self) -> None:
        """Start the closed thread again from its checkpoint."""
        if self.status == "running":  # it was lost in the middle of a turn
            self.stopping, self.flight, self.reason = None, {}, None
            self._put_pending_in_force()
            self.status = "interrupted"
            self._settle()
        self.closing, self.closed, self.long = False, None, False
        self.queue.clear()
        self._forget_worker()
        self.fresh = True

    @property
    def waiting_calls(self) -> list[str]:
        """The tool calls that wait for a person."""
        return sorted(self.asked) if self.status == "waiting" else []

    @property
    def waits_for_decision(self) -> bool:
        """Whether a draft waits for a person's word."""
        return self.status == "waiting" and not self.asked

    # -- Messages

    def _take(self, event: Event) -> None:
        match event:
            case Invoke():
                self._invoke(event)
            case Resume():
                self._resume(event.update)
            case Decide():
                self._decide(event)
            case Answer():
                self._answer_call(event)
            case Override():
                self._override(event)
            case Supply():
                self._supply(event.rubric)
            case Interrupt():
                self._interrupt()
            case Close():
                self.closing = True

    def _reply(self, event: Update | str, answer: Outcome | str) -> None:
        self.answers[event if isinstance(event, str) else event.update] = answer

    def _invoke(self, event: Invoke) -> None:
        """Attach to the turn of the key, have it go on, or add a turn."""
        key, turn = event.key, self.turn
        queued = next((one for one in self.queue if key in one.keys and not one.doomed), None)
        current = turn if turn is not None and key in turn.keys else None
        if queued is not None:
            self._wait(event.update, queued)
        elif current is not None and self.waited and self.status in ("running", "waiting"):
            self._wait(event.update, current, patient=True)
        elif current is not None and self.status == "running":
            if self.stopping in ("person", "cancel"):
                self._submit(event.update, Turn([key], resumes=True))
            else:
                self._wait(event.update, current)
        elif current is not None and self.status == "waiting":
            self._wait(event.update, current, patient=True)
        elif current is not None and self.status == "interrupted":
            self._submit(event.update, Turn([key], resumes=True))
        elif key in self._outcomes:
            self._reply(event, self._outcomes[key])
        elif why := self._refusal(event):
            self._reply(event, why)
        else:
            self._submit(event.update, Turn([key], event.text, event.rubric))

    def _refusal(self, event: Invoke) -> str | None:
        if self.closing:
            return "ThreadClosing"
        if len(self.queue) >= QUEUED:
            return "Backpressure"
        nothing = not event.text and not self.queue and self.status == "idle"
        graded = (event.rubric or self.rubric) != "cleared"
        return "InvalidRequest" if nothing and (self._last_draft() is None or not graded) else None

    def _resume(self, update: str) -> None:
        if self.status == "interrupted" or self.stopping in ("person", "cancel"):
            self._submit(update, Turn([f"resume/{update}"], resumes=True))
        elif self.status == "running" and self.turn is not None and self.turn.resumed:
            self._wait(update, self.turn)
        else:
            self._reply(update, "NothingToResume")

    def _submit(self, update: str, turn: Turn) -> None:
        """Begin a turn at once where nothing is in its way, else queue it."""
        self._waiters.append(Waiter(update, turn))
        self.queue.append(turn)
        self._serve()

    def _wait(self, update: str, turn: Turn, *, patient: bool = False) -> None:
        self._waiters.append(Waiter(update, turn, patient))

    def _decide(self, event: Decide) -> None:
        run = self.run
        if not self.waits_for_decision or run is None or run.grading is None or (event.run, event.iteration) != (run.number, run.iteration):
            return self._reply(event, "StaleDecision")
        run.grading.decision = event.passed
        self._reply(event, "done")
        return self._go_on_from_waiting()

    def _answer_call(self, event: Answer) -> None:
        if event.call not in self.waiting_calls:
            return self._reply(event, "StaleDecision")
        self.words[event.call] = event.approved
        self.asked.discard(event.call)
        self._reply(event, "done")
        return None if self.asked else self._go_on_from_waiting()

    def _go_on_from_waiting(self) -> None:
        self.status = "running"
        self._drive()

    def _override(self, event: Override) -> None:
        """Pass a criterion; the run ends where its newest evaluation is satisfied by it."""
        index, run = event.evaluation, self.run
        judged = self.evaluations[index] if index < len(self.evaluations) else None
        if judged is None or judged.result == "grader_error" or judged.rubric not in (self.rubric, self.former):
            return self._reply(event, "StaleDecision")
        self._reply(event, "done")
        if self.story.person or self.story.groups > 1 and judged.result != "satisfied":
            return None  # the rubric asks for more than that
        self.overridden.add(index)
        newest = run is not None and index == len(self.evaluations) - 1 and judged.run == run.number
        if run is None or not newest or run.status != "running":
            return None
        run.status, run.grading, self.exchange = "satisfied", None, False
        if self.status == "running":
            return self._stop("override")
        self.status, self.reason = "idle", None
        self._settle()
        return self._serve()

    def _supply(self, rubric: Rubric | None) -> None:
        """Take a rubric: at once where nothing runs, else with the draft to come or in place of the one that grades."""
        if rubric is None:
            self.rejected += 1
        elif self.status == "idle":
            self._judge_idle(rubric)
        elif rubric == self.rubric:
            self.pending = None
        elif self.status == "interrupted":
            self.pending = rubric
            self._put_pending_in_force()
        elif self.status == "waiting":
            self.pending = rubric
            self._replace_while_waiting()
        else:
            self.pending = rubric
            if self.run is not None and self.run.grading is not None:
                self._stop("rubric")

    def _judge_idle(self, rubric: Rubric) -> None:
        if self._last_draft() is None:
            self._replace_rubric(rubric)
        else:
            self._begin(Turn([], rubric=rubric))

    def _replace_while_waiting(self) -> None:
        """Put a rubric in force while a person is waited for: what the grading asked is void, a generator's call still waits."""
        drafting = self.exchange
        self._put_pending_in_force()
        if not drafting:
            self._go_on_from_waiting()

    def _interrupt(self) -> None:
        if self.status == "running":
            self._stop("person")
        elif self.status == "waiting":
            self._interrupted()
            self._drop(list(self.queue))

    # -- Stopping

    def _stop(self, who: Stop) -> None:
        """Ask the calls in flight to stop; those that have not left the workflow never will."""
        if STRENGTH[who] > STRENGTH[self.stopping]:
            self.stopping = who
        if who in ("person", "cancel"):
            for turn in self.queue:
                turn.doomed = True
        self.flight = {call: made for call, made in self.flight.items() if made}
        if not self.flight:
            self._stopped()

    def _stopped(self) -> None:
        """Come to rest once no call is in flight: what arrived counts, and may have ended the run."""
        who, self.stopping = self.stopping, None
        self._evaluate_finished()
        if self.pending is not None and not (self._due() and who == "rubric"):
            self._put_pending_in_force()
            ended = False
        else:
            ended = self._is_over()
        if who in ("rubric", "override"):
            return self._drive()
        if ended:
            self._end_turn(serve=who != "cancel")
        else:
            self._interrupted()
            self._drop([turn for turn in self.queue if turn.doomed])
        if who == "cancel":
            self._drop(list(self.queue))
            self.closed = "cancelled"
        for turn in self.queue:
            turn.doomed = False
        return self._serve()

    def _cancel(self) -> None:
        if self.closed:
            return
        if self.status == "running":
            self._stop("cancel")
            return
        if self.status == "waiting":  # and so it does when it is started again
            self._answer_waiters(lambda waiter: waiter.turn is self.turn, self._outcome("interrupted", "person"))
        self._drop(list(self.queue))
        self.closed = "cancelled"

    def _interrupted(self, reason: str = "person") -> None:
        self.status, self.reason = "interrupted", reason
        self._settle()

    def _drop(self, turns: list[Turn]) -> None:
        """End turns of which nothing is recorded."""
        self.queue = [turn for turn in self.queue if turn not in turns]
        self._answer_waiters(lambda waiter: waiter.turn in turns, Outcome("interrupted"))

    # -- Turns

    def _serve(self) -> None:
        """Begin the next turn where none is in its way."""
        while self.queue and self.status in ("idle", "interrupted") and not self.closed:
            self._begin(self.queue.pop(0))

    def _begin(self, turn: Turn) -> None:
        same = turn.rubric in (None, self.rubric)
        if self.turn is not None and (turn.resumes or (self.status == "interrupted" and not turn.text)):
            self._continue(turn, turn.rubric if not same else None)
            return
        goes_on = self.status == "interrupted" and same and self.run is not None and self.run.status == "running"
        if self._open_call():
            self.log.append(Line("tool", "not run: the turn was interrupted"))
        if turn.rubric is not None and not same:
            self._supersede()
            self._replace_rubric(turn.rubric)
        turn.start, self.turn, self.exchange = len(self.log), turn, False
        self.status, self.reason = "running", None
        if turn.text:
            self.request = len(self.log)
            self.log.append(Line("user", turn.text))
        if goes_on and self.run is not None:
            self.run.grading = None
        else:
            self._open_run(None if turn.text else self._last_draft())
        self._drive()

    def _continue(self, turn: Turn, rubric: Rubric | None) -> None:
        """Go on with the interrupted turn, under another rubric where one is given."""
        active = self.turn
        assert active is not None
        self._join(turn, active)
        for other in [queued for queued in self.queue if queued.resumes]:
            self.queue.remove(other)
            self._join(other, active)
        if self.status != "interrupted":  # what was to go on has ended by itself
            self._settle()
            return
        active.resumed, self.unknowable = True, False
        if rubric is not None:
            self.pending = rubric
            self._put_pending_in_force()
        self.status, self.reason = "running", None
        self._drive()

    def _join(self, turn: Turn, active: Turn) -> None:
        active.keys += [key for key in turn.keys if key not in active.keys]
        self._waiters = [replace(waiter, turn=active) if waiter.turn is turn else waiter for waiter in self._waiters]

    def _end_turn(self, *, serve: bool = True) -> None:
        self.status, self.reason, self.exchange = "idle", None, False
        self._settle()
        if serve:
            self._serve()

    def _settle(self) -> None:
        """Note how the turn ended so far, and answer those who wait for it."""
        turn, run = self.turn, self.run
        if turn is None:
            return
        status = self.status if self.status in ("interrupted", "waiting") else run.status if run else None
        outcome = self._outcome(status, self.reason)
        for key in turn.keys:
            self._outcomes[key] = outcome
        self._answer_waiters(lambda waiter: waiter.turn is turn and (not waiter.patient or status != "waiting"), outcome)

    def _outcome(self, status: str | None, reason: str | None) -> Outcome:
        """Return what the turn has come to; its output is the best draft, or the last one where none was judged."""
        run, start = self.run, self.turn.start if self.turn else 0
        judged = [judged for judged in self.evaluations if run and judged.run == run.number]
        best = self._best(judged) if self.rubric != "cleared" else None
        last = self._last_draft(start)
        output = best.draft if best else last
        return Outcome(status, run.number if run else None, len(judged), None if output is None else draft_text(output), reason)

    def _best(self, judged: list[Judged]) -> Judged | None:
        """Return the evaluation of the best draft: a satisfied one, then one with a grade, then the latest."""
        rank = {"satisfied": 2, "needs_revision": 1}
        met = {self.evaluations[at] for at in self.overridden}
        return max(judged, key=lambda one: (3 if one in met else rank.get(one.result, 0), one.iteration), default=None)

    def _answer_waiters(self, chosen: Callable[[Waiter], bool], outcome: Outcome) -> None:
        for waiter in self._waiters:
            if chosen(waiter):
                self._reply(waiter.update, outcome)
        self._waiters = [waiter for waiter in self._waiters if not chosen(waiter)]

    def _rest(self) -> None:
        """End a workflow that has nothing left to do, or let it go on in a new run."""
        if self.closed or self.status == "running":
            return
        if self.closing:
            if self.turn is not None and self.status == "waiting":
                outcome = self._outcomes[self.turn.keys[0]] if self.turn.keys else Outcome("waiting")
                self._answer_waiters(lambda waiter: waiter.turn is self.turn, outcome)
            self._drop(list(self.queue))
            self.closed = "completed" if self.turn else "failed"

    def _roll(self) -> None:
        """Go on in a new run of the workflow where the history is long."""
        if self.long:
            self._forget_worker()
            self.long, self.rolled = False, True
            if self.status == "running":  # callers come again, and find a turn that runs
                self._waiters = [replace(waiter, patient=False) for waiter in self._waiters]

    def _forget_worker(self) -> None:
        self.known = self.unknowable = False

    # -- Rubrics and runs

    def _replace_rubric(self, rubric: Rubric) -> None:
        self.rubric, self.former = rubric, self.rubric

    def _supersede(self) -> None:
        if self.run is not None and self.run.status == "running":
            self.run.status, self.run.grading = "superseded", None

    def _open_run(self, draft: int | None) -> None:
        """Open a run where a rubric is in force, over a draft where there is one to judge."""
        self.run = None
        if self.rubric != "cleared":
            self.run = Run(len(self.runs), self.rubric, grading=None if draft is None else Pass(draft))
            self.runs.append(self.run)

    def _put_pending_in_force(self) -> None:
        """Replace the rubric: its run judges the draft to come where one is due, else the last one."""
        if self.pending is None:
            return
        rubric, self.pending, ended = self.pending, None, self.run
        self._supersede()
        self._replace_rubric(rubric)
        self._open_run(None if self._due() else self._last_draft())
        self.run = self.run or ended

    def _due(self) -> bool:
        """Whether a draft is still to come: the generator is at it, or there was no answer to the user's current message."""
        return self.exchange or (bool(self.log) and self._last_draft(self.request) is None)

    def _last_draft(self, start: int = 0) -> int | None:
        drafts = [at for at, line in enumerate(self.log) if at >= start and line.role == "assistant" and line.text.startswith("draft")]
        return drafts[-1] if drafts else None

    def _is_over(self) -> bool:
        """Whether the turn has nothing left to do."""
        if self.run is None or self.rubric == "cleared":
            return not self._due()
        return self.run.status != "running"

    # -- What is driven while the thread runs

    def _drive(self) -> None:
        """Find the calls that are due; where there are none, the turn ends, waits for a person, or begins its next iteration."""
        while self.status == "running" and not self.stopping:
            self.asked.clear()
            if self._is_over():
                self._end_turn()
                return
            drafting = self.run is None or self.rubric == "cleared" or self.run.grading is None
            due, waits = self._calls_of_draft() if drafting else self._calls_of_pass()
            for call in due:
                self.flight.setdefault(call, False)
            if self.flight:
                return
            if waits:
                self.status = "waiting"
                self._settle()
            elif not drafting:
                self._evaluate_finished(asking=True)

    def _calls_of_draft(self) -> tuple[list[str], bool]:
        """Return the generator's next call, and whether it waits for a person; a denied tool call is answered."""
        self.exchange = True
        call = self._open_call()
        if call is None:
            return [f"generate {len(self.log)}"], False
        if not self.known and not self.unknowable:
            return ["admit"], False
        allowed = self._allowed("look", call)
        if allowed is False:
            self.log.append(Line("tool", f"not run: ann denied it: no {call}"))
            return self._calls_of_draft()
        return ([call], False) if allowed else ([], True)

    def _calls_of_pass(self) -> tuple[list[str], bool]:
        """Return the calls that judge the draft, and whether anything waits for a person."""
        run, grading = self._grading()
        if not self.known and not self.unknowable:
            return ["admit"], False
        if grading.broken:
            return [], False
        if not grading.checked:
            call = f"count {grading.draft} at {run.number}.{run.iteration}"
            allowed = self._allowed("count", call)
            grading.broken = allowed is False
            return ([call], False) if allowed else ([], allowed is None)
        found_due = list(self._calls_of_graders(run, grading))
        return [call for call in found_due if call], None in found_due

    def _calls_of_graders(self, run: Run, grading: Pass) -> Iterator[str | None]:
        """Yield the next call of every grader that has not ended; None where it waits for a person."""
        for group in range(self.story.groups):
            conversation = grading.conversations.setdefault(group, Conversation())
            if conversation.verdict is not None:
                continue
            if conversation.searching:
                call = search_id(grading.draft, run.number, group)
                allowed = self._allowed("search", call)
                if allowed is not False:
                    yield call if allowed else None
                    continue
                conversation.searching = False
            yield f"grade {run.rubric} {group} of {grading.draft} at {run.number}.{run.iteration} step {conversation.steps}"

    def _allowed(self, tool: Tool, call: str) -> bool | None:
        """Return whether a tool may be called; None where a person has to say so first."""
        if tool not in self.story.approved:
            return True
        if call not in self.words:
            self.asked.add(call)
            return None
        return self.words[call]

    def _open_call(self) -> str | None:
        """Return the tool call of the generator that has no result yet."""
        last = self.log[-1] if self.log else None
        return last.text.removeprefix("calls ") if last and last.text.startswith("calls ") else None

    def _grading(self) -> tuple[Run, Pass]:
        assert self.run is not None
        assert self.run.grading is not None
        return self.run, self.run.grading

    def _evaluate_finished(self, *, asking: bool = False) -> None:
        """Record the evaluation of a draft whose judging is done; a person is asked only where nobody wants to stop."""
        grading = self.run.grading if self.run and self.run.status == "running" else None
        if self.run is None or grading is None:
            return
        verdicts = [grading.conversations.get(group, Conversation()).verdict for group in range(self.story.groups)]
        if not grading.broken and (not grading.checked or None in verdicts):
            return
        if grading.broken or "error" in verdicts:
            self._record("grader_error")
        elif "fails" in verdicts:
            self._record("needs_revision")
        elif not self.story.person or grading.decision:
            self._record("satisfied")
        elif grading.decision is False:
            self._record("needs_revision")
        elif asking:
            self.status = "waiting"
            self._settle()

    def _record(self, result: str) -> None:
        run, grading = self._grading()
        last = run.iteration + 1 >= MAX_ITERATIONS
        run.status = ("max_iterations_reached" if last else "running") if result == "needs_revision" else result
        self.evaluations.append(Judged(run.number, run.iteration, result, run.status, grading.draft, run.rubric))
        run.grading = None
        if run.status == "running" and self.pending is None:
            self.log.append(Line("feedback", run.rubric))
            run.iteration, self.exchange = run.iteration + 1, True
            self._roll()

    # -- Ends of calls

    def _end(self, event: End) -> None:
        """Take the end of a call: its result counts whoever wants to stop, an error only where nobody does."""
        del self.flight[event.call]
        paid = event.call.startswith(("generate", "grade"))
        if paid and event.how != "cancelled":
            self.attempts += 1
            self.calls += event.how == "arrived"
        if event.how == "arrived":
            self._arrived(event.call)
        elif self.stopping is None:
            self._failed(event.call)
        if self.stopping is None:
            self._drive()
        elif not self.flight:
            self._stopped()

    def _arrived(self, call: str) -> None:
        kind, grading = call.partition(" ")[0], self.run.grading if self.run else None
        self.known = self.known or kind in ("admit", "generate", "grade")
        if kind == "generate":
            self._drafted()
        elif kind.startswith("look-"):
            self.log.append(Line("tool", found(call)))
        elif grading is None:
            return  # the run that asked has ended
        elif kind == "count":
            grading.checked = True
        elif kind.startswith("search-"):
            grading.conversations[int(call.rpartition("-")[2])].searching = False
        elif kind == "grade":
            self._graded(grading.conversations[int(call.split()[2])], group=int(call.split()[2]))

    def _drafted(self) -> None:
        """Append the generator's turn: it calls its tool first, then it writes."""
        here = len(self.log)
        if self.log[-1].role != "tool":
            self.log.append(Line("assistant", f"calls {look_id(here)}"))
            return
        self.log.append(Line("assistant", draft_text(here)))
        self.exchange = False
        if self.pending is not None:
            self._put_pending_in_force()
        elif self.run is not None and self.run.status == "running":
            self.run.grading = Pass(here)

    def _graded(self, conversation: Conversation, group: int) -> None:
        """Take a grader's turn: it calls its tool first, then it judges; one of several passes every draft."""
        conversation.steps += 1
        if conversation.steps == 1:
            conversation.searching = True
        else:
            assert self.run is not None
            conversation.verdict = "passes" if self.run.iteration >= PASSES_FROM or group else "fails"

    def _failed(self, call: str) -> None:
        """Take an error for good: of a tool its model is told, of a grader or a check it is no grade, of the generator it interrupts."""
        kind, grading = call.partition(" ")[0], self.run.grading if self.run else None
        if kind == "admit":
            self.unknowable = True
        elif kind.startswith("look-"):
            self.log.append(Line("tool", BROKEN))
        elif kind == "generate":
            self._put_pending_in_force()
            self._interrupted("failure")
            self._serve()
        elif grading is not None and kind == "count":
            grading.broken = True
        elif grading is not None and kind.startswith("search-"):
            grading.conversations[int(call.rpartition("-")[2])].searching = False
        elif grading is not None:
            grading.conversations[int(call.split()[2])].verdict = "error"
