"""A thread that is full leaves out of its checkpoint what can be had again."""

from gradeloop.contract.evaluation import Verdict
from gradeloop.contract.messages import Log, Message
from gradeloop.contract.rubric import Rubric
from workflows.thread_state import FEW_EVENTS, Conversation, GradingRun, PassState, Thread, portable

VERDICT = Verdict(criteria=(), explanation="e" * 1000, result="satisfied")


def thread(size: int) -> Thread:
    """Return a thread with a message of that size and a pass in flight."""
    log = [Message(role="user", content="x" * min(size, 1_000_000)), Message(role="assistant", content="x" * max(size - 1_000_000, 1))]
    asked = Log([Message(role="assistant", content="y" * 1000)])
    conversations = {"0/0": Conversation(log=Log(), verdict=VERDICT), "1/0": Conversation(log=asked)}
    run = GradingRun(grading_run_id="r", ordinal=0, nonce="0", max_iterations=1, grading=PassState(draft=1, conversations=conversations))
    thread_state = Thread.model_validate({"thread_id": "t", "max_iterations": 1, "generator": {"model": "scripted:w"}, "log": log})
    thread_state.run, thread_state.verdicts, thread_state.rubrics = run, {"key": VERDICT}, {"sha": Rubric.model_validate("- a")}
    events = [{"seq": seq, "type": "message", "time": "t"} for seq in range(1, 601)]
    return Thread.model_validate(thread_state.model_dump(mode="json") | {"events": events})


def kept(size: int) -> tuple[int, int, int, list[str]]:
    """Return what is left of verdicts, rubrics, events and conversations."""
    copy = portable(thread(size))
    grading = copy.run.grading if copy.run else None
    return len(copy.verdicts), len(copy.rubrics), len(copy.events), list(grading.conversations) if grading else []


def test_a_small_thread_keeps_everything() -> None:
    assert kept(1000) == (1, 1, 600, ["0/0", "1/0"])


def test_a_full_one_lets_go_what_can_be_had_again_the_dearest_last() -> None:
    limit = thread(1).limit

    assert kept(int(limit * 0.95)) == (0, 0, FEW_EVENTS, ["0/0", "1/0"])
    assert kept(limit - 1800) == (0, 0, FEW_EVENTS, ["0/0"])
    assert kept(limit) == (0, 0, FEW_EVENTS, [])
