"""What a thread is meant to do: a serial machine that takes one message after the other, then one end of a call after the other.

Whatever a message begins has begun before the next one is taken. What follows from it, a call or a verdict or a turn's end, takes time: the
messages of one workflow task come before it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from tests.races.events import Answer, Cancel, Close, Decide, Elapsed, End, Event, Interrupt, Invoke, Override, Resume, Sent, Supply
from tests.races.story import Given, Line, Rubric, Story
from tests.races.thread import Outcome, Thread

Stop = Literal["override", "rubric", "person", "cancel"]
"""Who wants the calls in flight to stop, the strongest last."""

STRENGTH: dict[Stop | None, int] = {None: 0, "override": 1, "rubric": 1, "person": 2, "cancel": 3}

QUEUED = 8
"""The most turns that wait behind the one in flight."""


@dataclass(eq=False)
class Turn:
    """A turn that callers asked for."""

    keys: list[str]
    text: str = ""
    rubric: Given | None = None
    named: Rubric | None = None
    resumes: bool = False
    """Whether it goes on with the interrupted turn, whatever its rubric."""
    resumed: bool = False
    """Whether it went on after an interruption, for whoever asked for that."""
    doomed: bool = False
    """Whether an interrupt came after it, so that it ends unless the turn in flight ends by itself."""
    start: int = 0
    """Index of its first message."""


@dataclass(frozen=True)
class Waiter:
    """A caller who waits for a turn."""

    update: str
    turn: Turn
    patient: bool = False
    """Whether the caller waits on while a person is waited for."""
    joined: bool = False
    """Whether the caller resumes, and came to a turn that does so: it has no outcome of before."""


@dataclass
class Model:
    """A thread between two events: everything in it has come to rest but the calls in flight."""

    story: Story
    status: Literal["idle", "running", "waiting", "interrupted"] = "idle"
    reason: str | None = None
    stopping: Stop | None = None
    turn: Turn | None = None
    """The turn in flight, or the last one."""
    queue: list[Turn] = field(default_factory=list)
    flight: dict[str, bool] = field(default_factory=dict)
    """The calls in flight, and whether they were made: those that are due only now have not left the workflow yet."""
    pausing: set[str] = field(default_factory=set)
    """Those of them that had no answer, and are made again after a pause."""
    closing: bool = False
    closed: Literal["completed", "cancelled", "failed"] | None = None
    """How the workflow ended; one that was never given anything to do fails."""
    long: bool = False
    """Whether the history is so long that the thread goes on in a new run of its workflow when it can."""
    rolled: bool = False
    """Whether it has just done so."""
    fresh: bool = True
    """Whether a run of the workflow has yet to see its first task."""
    calls: int = 0
    """How many paid calls returned."""
    attempts: int = 0
    """How many were paid for, with a result or without."""
    rejected: int = 0
    """How many malformed rubrics came."""
    answers: dict[str, Outcome | str] = field(default_factory=dict)
    """The answer to every update that has one, by the update's name: an outcome, `done`, or the type of the refusal."""

    def __post_init__(self) -> None:
        self.thread = Thread(self.story)
        self._waiters: list[Waiter] = []
        self._outcomes: dict[str, Outcome] = {}
        self._taking = False
        self._before: dict[str, Outcome] = {}
        """What a turn that waits came to before this task brought another rubric, by status: a cancel and a close find it so."""

    # -- What the schedule gives it

    def task(self, *events: Event, long: bool = False, rolled: bool = False) -> list[str]:
        """Take the events of one workflow task and return the calls that are made at its end.

        Messages count in their order, then a cancel, which asks the calls in flight to stop, then the ends of calls.

        Args:
            events: What came, messages and ends in any order.
            long: Whether the history is so long that the thread goes on in a new run of its workflow when it can.
            rolled: Whether it did so in this task, which nobody but an operator sees.
        """
        self.long, self._before = self.long or long, {}
        self._take_messages([event for event in events if not isinstance(event, End | Elapsed | Cancel)])
        if not self.fresh:  # in a run's first task, handlers see the thread before the run itself does
            self._rest()
        if any(isinstance(event, Cancel) for event in events):
            known = set(self.answers)
            self._cancel()
            if rolled:  # the next run is cancelled before it knows who waits: they hear nothing, and ask again
                self.answers |= dict.fromkeys(set(self.answers) - known, "lost")
        for event in events:
            if isinstance(event, End):
                self._end(event)
            elif isinstance(event, Elapsed):
                self.pausing.discard(event.call)
        self._rest()
        if rolled and not self.closed and self.status != "running":
            self._roll()
        return self._made()

    def _made(self) -> list[str]:
        """Return the calls that leave the workflow now; after a roll-over the next run makes them, in a task of its own."""
        self.fresh, self.rolled = self.rolled, False
        if self.fresh:
            return []
        made = [call for call, left in self.flight.items() if not left and call not in self.pausing]
        self.flight |= dict.fromkeys(made, True)
        return sorted(made)

    def start_again(self, text: str = "", rubric: Rubric | None = None) -> None:
        """Start the closed thread again from its checkpoint; what the start brings is a turn, or a rubric that is supplied."""
        self.answers |= {waiter.update: "lost" for waiter in self._waiters}
        self._waiters.clear()
        unended = self.thread.run if self.stopping == "override" and self.thread.pending is None else None
        if self.status == "running":  # it was lost in the middle of a turn
            self.stopping, self.flight = None, {}
            self.pausing.clear()
            self.thread.take_pending()
            self._interrupted("")
        self.closing, self.closed, self.long, self.fresh = False, None, False, True
        self.queue.clear()
        self._forget_worker()
        if text:
            self.queue.append(Turn([], text, rubric))
            self._serve()
            if unended and self.thread.run is not unended:  # nobody heard that it ended, whatever a person said of its draft
                unended.status = "running"
        elif self.thread.fill(rubric, None) not in (None, self.thread.rubric):
            self._supply(rubric)

    @property
    def waiting_calls(self) -> list[str]:
        """The tool calls that wait for a person."""
        return sorted(self.thread.asked) if self.status == "waiting" else []

    @property
    def waits_for_decision(self) -> bool:
        """Whether a draft waits for a person's word."""
        return self.status == "waiting" and not self.thread.asked

    # -- Messages

    def _take_messages(self, messages: list[Sent]) -> None:
        """Take messages in their order: each begins at once what it asks for, and what has begun is driven after the last one."""
        self._taking = True
        for message in messages:
            self._take(message)
        self._taking = False
        if self.stopping and not self.flight:
            self._stopped()
        self._drive()

    def _take(self, event: Sent) -> None:
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

    def _invoke(self, event: Invoke) -> None:
        """Attach to the turn of the key, have it go on, or add a turn."""
        key, turn = event.key, self.turn
        queued = next((one for one in self.queue if key in one.keys), None)
        if queued is not None:
            taken = queued.resumes and any(one.text for one in self._served_after_stop)  # another turn goes on with the run
            if queued.doomed and not taken:  # it is asked for again, and served after the stop
                queued.doomed = False
                self.queue = [*(one for one in self.queue if one is not queued), queued]
            self._waiters.append(Waiter(event.update, queued))
        elif turn is not None and key in turn.keys and self.status != "idle":
            self._invoke_again(event.update, key, turn)
        elif key in self._outcomes:
            self.answers[event.update] = self._outcomes[key]
        elif why := self._refusal(event):
            self.answers[event.update] = why
        else:
            self._submit(event.update, Turn([key], event.text, event.rubric, event.named))

    def _invoke_again(self, update: str, key: str, turn: Turn) -> None:
        """Attach to the turn in flight, or have it go on where it is interrupted or about to be."""
        stops = self.stopping in ("person", "cancel") and not any(one.text for one in self._served_after_stop)
        if self.status == "interrupted" or stops:
            self._submit(update, Turn([key], resumes=True))
        else:
            self._waiters.append(Waiter(update, turn, patient=self.status == "waiting"))

    @property
    def _served_after_stop(self) -> list[Turn]:
        """The turns that wait, but for those that the stop in progress drops."""
        return [one for one in self.queue if not one.doomed]

    def _refusal(self, event: Invoke) -> str | None:
        if self.closing:
            return "ThreadClosing"
        if len(self.queue) >= QUEUED:
            return "Backpressure"
        nothing = not event.text and not self.queue and self.status == "idle"
        graded = (event.rubric or self.thread.rubric) != "cleared"
        return "InvalidRequest" if nothing and (self.thread.last_draft() is None or not graded) else None

    def _resume(self, update: str) -> None:
        waiting = self._served_after_stop
        if self.status == "interrupted" or (self.stopping in ("person", "cancel") and not waiting):
            self._submit(update, Turn([f"resume/{update}"], resumes=True))
        elif self.stopping in ("person", "cancel") and (waiting[0].resumes or not waiting[0].text):
            self._waiters.append(Waiter(update, waiting[0], joined=True))
        elif self.status == "running" and self.stopping not in ("person", "cancel") and self.turn is not None and self.turn.resumed:
            self._waiters.append(Waiter(update, self.turn))
        else:
            self.answers[update] = "NothingToResume"

    def _decide(self, event: Decide) -> None:
        run = self.thread.run
        place = (run.number, run.iteration) if run else None
        if not self.waits_for_decision or run is None or run.grading is None or (event.run, event.iteration) != place:
            self.answers[event.update] = "StaleDecision"
            return
        run.grading.decision = event.passed
        self.answers[event.update] = "done"
        self._go_on_from_waiting()

    def _answer_call(self, event: Answer) -> None:
        if event.call not in self.waiting_calls:
            self.answers[event.update] = "StaleDecision"
            return
        self.thread.take_word(event.call, approved=event.approved)
        self.answers[event.update] = "done"
        if not self.thread.asked:
            self._go_on_from_waiting()

    def _go_on_from_waiting(self) -> None:
        self.status = "running"
        self._drive()

    def _override(self, event: Override) -> None:
        """Pass a criterion; the run ends where its newest evaluation is satisfied by it, and a later turn goes on in a run of its own."""
        thread, index = self.thread, event.evaluation
        judged = thread.evaluations[index] if index < len(thread.evaluations) else None
        known = judged is not None and judged.ruled and judged.rubric in (thread.rubric, thread.former)
        self.answers[event.update] = "done" if known else "StaleDecision"
        open_yet = self.story.person or (judged is not None and judged.result == "grader_error")  # another criterion has no verdict
        if judged is None or not known or open_yet:
            return
        thread.overridden.add(index)
        run = thread.run
        if run is None or run.status != "running" or (judged.run, index) != (run.number, len(thread.evaluations) - 1):
            return
        grading, run.status, run.grading = thread.is_grading, "satisfied", None
        if thread.owes_a_run:
            thread.pending = thread.pending or thread.rubric
            self._hurry_pending(grading=grading)
            return
        thread.exchange = False
        if self.status == "running":
            self._stop("override")
        else:
            self._end_turn()

    def _supply(self, rubric: Rubric | None) -> None:
        """Take a rubric: at once where nothing runs, else with the draft to come, or in place of the one that grades."""
        thread = self.thread
        thread.fill(rubric, None)
        if rubric is None:
            self.rejected += 1
        elif self.status == "idle" and (rubric == "cleared" or thread.last_draft() is None):
            thread.close_call()
            thread.replace_rubric(rubric)
            thread.run = None
        elif self.status == "idle":
            self._begin(Turn([], rubric=rubric))
        elif rubric == thread.rubric:
            thread.pending = rubric if thread.owes_a_run else None
        else:
            thread.pending = rubric
            self._hurry_pending(grading=thread.is_grading)

    def _hurry_pending(self, *, grading: bool) -> None:
        """Put a rubric in force that waits for no call; what a grading asked of a person is void, a generator's call still waits."""
        thread, waits_for_draft = self.thread, self.thread.exchange
        if self.status != "running":
            if self.status == "waiting" and self.turn is not None and not self._before:
                start = self.turn.start
                self._before = {
                    "interrupted": thread.outcome("interrupted", "person", start),
                    "waiting": thread.outcome("waiting", None, start),
                }
            thread.take_pending()
        elif grading:
            self._stop("rubric")
        if self.status == "waiting" and not waits_for_draft:
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
        if who == "person":
            for turn in self.queue:
                turn.doomed = True
        self.flight = {call: made for call, made in self.flight.items() if made}
        self.pausing.clear()
        if not self.flight and not self._taking:
            self._stopped()

    def _stopped(self) -> None:
        """Come to rest once no call is in flight: what arrived counts, and may have ended the turn."""
        who, self.stopping = self.stopping, None
        run_ended = self.thread.run is not None and self.thread.run.status != "running"
        judged = bool(self.thread.known or self.thread.unknowable) and self._evaluate()  # else the worker has to be asked first
        replaced = self.thread.pending is not None
        self.thread.take_pending()
        # Nothing is left to do for a rubric that asks for nothing, where the pass that it replaced was not cut short.
        replaced = replaced and not (self.thread.rubric == "cleared" and (run_ended or judged))
        if who in ("rubric", "override"):
            self._drive()
            return
        doomed = [turn for turn in self.queue if turn.doomed]
        for turn in doomed:
            turn.doomed = False
        if self.thread.is_turn_over and not replaced:
            for turn in [turn for turn in self.queue if turn.resumes]:
                self._join(turn)
            self._end_turn(serve=who != "cancel")
        else:
            self._interrupted()
            self._drop(doomed)
        if who == "cancel":
            self._drop(list(self.queue))
            self.closed = "cancelled"
        self._serve()

    def _cancel(self) -> None:
        if self.closed:
            return
        if self.status == "running":
            self._stop("cancel")
            return
        if self.status == "waiting" and self.turn is not None:  # as it does again when the thread is started again
            found = self._before.get("interrupted") or self.thread.outcome("interrupted", "person", self.turn.start)
            self._answer(lambda waiter: waiter.turn is self.turn, found)
        self._drop(list(self.queue))
        self.closed = "cancelled"

    def _interrupted(self, reason: str = "person") -> None:
        self.status, self.reason = "interrupted", reason or None
        self._settle()

    def _drop(self, turns: list[Turn]) -> None:
        """End turns of which nothing is recorded."""
        self.queue = [turn for turn in self.queue if turn not in turns]
        for turn in turns:
            known = next((self._outcomes[key] for key in turn.keys if key in self._outcomes), Outcome("interrupted", reason="person"))
            self._answer(partial(_joined, turn), Outcome("interrupted", reason="person"))
            self._answer(partial(_waits_for, turn), known)

    # -- Turns

    def _submit(self, update: str, turn: Turn) -> None:
        """Begin a turn at once where nothing is in its way, else queue it."""
        self._waiters.append(Waiter(update, turn))
        self.queue.append(turn)
        self._serve()

    def _serve(self) -> None:
        """Begin the next turn where none is in its way."""
        while self.queue and self.status in ("idle", "interrupted") and not self.closed:
            self._begin(self.queue.pop(0))

    def _begin(self, turn: Turn) -> None:
        """Go on with the interrupted turn, or append the turn's message and open a run, or go on with the interrupted one."""
        thread, rubric = self.thread, self.thread.fill(turn.rubric, turn.named)
        same = rubric in (None, thread.rubric)
        if self.turn is not None and self.status == "interrupted" and (turn.resumes or not turn.text):
            self._continue(turn, None if same else rubric)
            return
        goes_on = self.status == "interrupted" and same and thread.run is not None and thread.run.status == "running"
        thread.close_call()
        if rubric is not None and not same:
            thread.supersede()
            thread.replace_rubric(rubric)
        turn.start, self.turn, thread.exchange = len(thread.log), turn, False
        self.status, self.reason = "running", None
        if turn.text:
            thread.request = len(thread.log)
            thread.log.append(Line("user", turn.text))
        if goes_on and thread.run is not None:
            thread.run.grading = None
        else:
            thread.open_run(None if turn.text else thread.last_draft())
        self._drive()

    def _continue(self, turn: Turn, rubric: Rubric | None) -> None:
        """Go on with the interrupted turn, under another rubric where one is given."""
        for other in [turn, *(queued for queued in self.queue if queued.resumes)]:
            self._join(other)
        if self.turn is not None:
            self.turn.resumed = True
        if rubric is not None:
            self.thread.pending = rubric
            self.thread.take_pending()
        self.thread.unknowable = False
        self.status, self.reason = "running", None
        self._drive()

    def _join(self, turn: Turn) -> None:
        """Have the callers of a turn wait for the current one."""
        active = self.turn
        if active is not None:
            self.queue = [queued for queued in self.queue if queued is not turn]
            active.keys += [key for key in turn.keys if key not in active.keys]
            self._waiters = [replace(waiter, turn=active) if waiter.turn is turn else waiter for waiter in self._waiters]

    def _end_turn(self, *, serve: bool = True) -> None:
        self.status, self.reason, self.thread.exchange = "idle", None, False
        self._settle()
        if serve:
            self._serve()

    def _settle(self) -> None:
        """Note how the turn ended so far, and answer those who wait for it."""
        turn, run = self.turn, self.thread.run
        if turn is None:
            return
        status = self.status if self.status in ("interrupted", "waiting") else run.status if run else None
        outcome = self.thread.outcome(status, self.reason, turn.start)
        self._outcomes |= dict.fromkeys(turn.keys, outcome)
        self._answer(lambda waiter: waiter.turn is turn and (not waiter.patient or status != "waiting"), outcome)

    def _answer(self, chosen: Callable[[Waiter], bool], outcome: Outcome) -> None:
        self.answers |= {waiter.update: outcome for waiter in self._waiters if chosen(waiter)}
        self._waiters = [waiter for waiter in self._waiters if not chosen(waiter)]

    # -- The workflow itself

    def _drive(self) -> None:
        """Find the calls that are due; where there are none, the turn ends, waits for a person, or begins its next iteration."""
        while self.status == "running" and not self.stopping and not self._taking:
            if self.thread.is_turn_over and self.thread.pending is None:
                self._end_turn()
                return
            if self.thread.is_turn_over:
                self.thread.take_pending()
                continue
            due, waits = self.thread.due_calls()
            for call in due:
                self.flight.setdefault(call, False)
            if self.flight:
                return
            if waits or not self._evaluate():
                self.status = "waiting"
                self._settle()
                if self.thread.pending is not None:
                    self._hurry_pending(grading=False)

    def _evaluate(self) -> bool:
        """Record an evaluation where one is due; between two iterations the thread may go on in a new run of its workflow."""
        done = self.thread.evaluate()
        if done and self.thread.run is not None and self.thread.run.status == "running" and self.thread.pending is None:
            self._roll()
        return done

    def _rest(self) -> None:
        """End a workflow that is asked to close and has nothing left to do."""
        if self.closed or self.status == "running" or not self.closing:
            return
        if self.turn is not None and self.status == "waiting":
            outcome = self._before.get("waiting") or self.thread.outcome("waiting", None, self.turn.start)
            self._answer(lambda waiter: waiter.turn is self.turn, outcome)
        self._drop(list(self.queue))
        self.closed = "completed" if self.turn else "failed"

    def _roll(self) -> None:
        """Go on in a new run of the workflow where the history is long: callers come again, and find a turn that runs or waits."""
        if self.long:
            self._forget_worker()
            self.long, self.rolled = False, True
            self._waiters = [replace(waiter, patient=waiter.patient and self.status == "waiting") for waiter in self._waiters]

    def _forget_worker(self) -> None:
        self.thread.known = self.thread.unknowable = False

    def _end(self, event: End) -> None:
        """Take the end of a call: its result counts whoever wants to stop, an error only where nobody does."""
        del self.flight[event.call]
        paid = event.call.startswith(("generate", "grade"))
        self.calls += paid and event.how in ("arrived", "unanswered")
        self.attempts += paid and event.how != "cancelled"
        if event.how == "arrived":
            self.thread.take_result(event.call)
        elif event.how == "unanswered" and self.stopping is None:
            self.flight[event.call] = False
            self.pausing.add(event.call)
        elif self.stopping is None and event.call.startswith("generate"):
            self.thread.take_pending()
            self._interrupted("failure")
            self._serve()
        elif self.stopping is None:
            self.thread.take_error(event.call)
        if self.stopping is None:
            self._drive()
        elif not self.flight:
            self._stopped()


def _waits_for(turn: Turn, waiter: Waiter) -> bool:
    return waiter.turn is turn


def _joined(turn: Turn, waiter: Waiter) -> bool:
    return waiter.turn is turn and waiter.joined
