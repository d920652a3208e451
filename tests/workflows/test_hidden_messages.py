"""Messages that graders must not see: marked by their sender, or by the thread's filter, whose mark is part of the record."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.contract import Case
from gradeloop.contract.evaluation import Quote, Verdict, VerdictRow
from gradeloop.contract.messages import HiddenMessages, Message
from gradeloop.contract.thread import Grader, ThreadRequest
from gradeloop.grading.quotes import verify_quotes
from gradeloop.judges.contract import CriteriaJudge
from tests.rig.threads import (
    JUDGE,
    Role,
    Served,
    a_thread,
    answering,
    draft,
    grade,
    replay,
    request,
    row,
    serving,
    start,
    wants,
)

SECRET = "the customer's name is Zebulon"


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


def asked(served: Served, role: Role) -> str:
    """Return all that the models of a role were sent."""
    return "\n".join(message.content for one in served.models.requests_of(role) for message in one.messages)


async def test_a_message_that_its_sender_hides_reaches_the_generator_alone(served: Served) -> None:
    thread = a_thread()
    messages: list[dict[str, Any]] = [{"role": "user", "content": SECRET, "hidden": True}, {"role": "user", "content": "Greet them."}]

    result = await served.client.invoke(thread, messages, start=start())
    shown = await served.client.prompt(thread, 0)

    assert result.status == "satisfied"
    assert SECRET in asked(served, "generator")
    assert SECRET not in asked(served, "grader")
    assert '{"record": 0, "role": "user", "type": "hidden", "text": ""}' in asked(served, "grader")
    assert '{"record": 1, "role": "user", "type": "text", "text": "Greet them."}' in asked(served, "grader")
    assert shown is not None
    assert SECRET not in "\n".join(message.content for message in shown.messages)
    await replay(served.temporal, thread)


@pytest.mark.parametrize("filtered", [{"source": "crm"}, {"name": "crm-bot", "role": "user"}])
async def test_a_filter_marks_what_joins_the_thread(served: Served, filtered: dict[str, str]) -> None:
    thread = a_thread()
    messages = [{"role": "user", "content": SECRET, "source": "crm", "name": "crm-bot"}, {"role": "user", "content": "Greet them."}]

    await served.client.invoke(thread, messages, start=start(grader={"model": JUDGE, "hide": [filtered]}))

    assert [message.hidden for message in (await served.client.messages(thread)).items] == [True, False, False]
    assert SECRET in asked(served, "generator")
    assert SECRET not in asked(served, "grader")
    await replay(served.temporal, thread)


async def test_a_tools_results_are_hidden_by_its_name_and_the_judged_draft_stays_whole(client: Client) -> None:
    def customer() -> str:
        """Return the customer."""
        return SECRET

    argument = request("- it greets", grader={"model": JUDGE, "hide": [{"name": "customer"}, {"role": "assistant"}]})
    argument["generator"] = argument["generator"] | {"tools": ["customer"]}
    replies = (wants("generator", "customer"), draft(step=1, text="Hello!"), grade(0, row("c1")))
    async with serving(client, *replies, tools=[customer]) as served:
        result = await served.run(argument)

    assert result.messages is not None
    assert [message.hidden for message in result.messages] == [False, True, True, False]
    assert (result.status, SECRET in asked(served, "generator")) == ("satisfied", True)
    assert SECRET not in asked(served, "grader")
    assert '"role": "assistant", "type": "text", "text": "Hello!"' in asked(served, "grader")


def test_a_quote_of_a_hidden_message_is_not_found() -> None:
    said = Message(role="user", content=SECRET)
    quoting = VerdictRow(id="c1", reason="x", passed=True, gap=None, quotes=(Quote(record=0, quote="name is Zebulon"),))
    found = Verdict(criteria=(quoting,), explanation="x", result="satisfied")

    verified = [verify_quotes(found, [said.model_copy(update={"hidden": hidden})]) for hidden in (False, True)]

    assert [one.criteria[0].quotes[0].quote_verified for one in verified if isinstance(one, Verdict) and one.criteria[0].quotes] == [
        True,
        False,
    ]


async def test_a_filter_that_changes_asks_the_grader_anew(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    again = await served.client.invoke(thread, rubric="- it is good")
    assert (again.status, served.models.count("grader")) == ("satisfied", 1)
    checkpoint = await served.client.checkpoint(thread)
    log: Any = checkpoint["thread"]
    log["log"][0]["hidden"] = True
    other = a_thread()

    await served.client.invoke(other, rubric="- it is good", start=start(rubric=..., checkpoint=checkpoint))

    assert served.models.count("grader") == 2


def test_what_cannot_be_hidden_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="an answer of role 'assistant' may be judged"):
        Message(role="assistant", content="x", hidden=True)
    with pytest.raises(ValueError, match="it would hide every message; give role, source or name"):
        Grader.model_validate({"hide": [{"role": None}]})
    assert not HiddenMessages(role="assistant").has(Message(role="assistant", content="x"))


def test_a_filter_where_no_thread_gathers_messages_is_refused() -> None:
    grader = {"model": JUDGE, "hide": [{"source": "crm"}]}

    with pytest.raises(ValueError, match="hide marks messages as they join a thread"):
        CriteriaJudge.model_validate({"rubric": "- x", "grader": grader})
    with pytest.raises(ValueError, match="hide marks messages as they join a thread"):
        Case.model_validate({"id": "a", "messages": [{"role": "user", "content": "x"}], "output": "y", "rubric": "- x", "grader": grader})


def test_a_request_without_a_filter_is_what_it_was() -> None:
    plain = ThreadRequest.model_validate(request("- x"))

    assert "hide" not in plain.model_dump_json()
    assert "hidden" not in plain.model_dump_json()
