"""Messages of content blocks: texts, images and files reach the models of a thread, each in the place where it was said."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.client import Client

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.contract.messages import IMAGE_BYTES, Attachment, Message, split_attached
from gradeloop.contract.provider import ModelRequest
from gradeloop.errors import InvalidRequest
from tests.rig.threads import Served, a_thread, answering, replay, request, serving, start

DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
PLAN, BRIEF = {"type": "image", "url": "https://a.example/plan.png"}, {"type": "file", "url": "https://a.example/brief.pdf"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "Describe"},
    PLAN,
    {"type": "image", "url": DOT, "detail": "low"},
    {"type": "text", "text": "by"},
    BRIEF,
]


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


def seen(asked: ModelRequest) -> list[str]:
    """Return the addresses of all images and files that a model gets, in order."""
    parts = [part for message in asked.messages for part in asked.parts(message)]
    return [part.url for part in parts if isinstance(part, Attachment)]


@pytest.mark.parametrize("door", ["invoke", "start", "workflow"])
async def test_blocks_reach_generator_and_grader_through_every_door(served: Served, door: str) -> None:
    thread, message = a_thread(), {"role": "user", "content": BLOCKS}
    if door == "invoke":
        await served.client.invoke(thread, [message], start=start())
    elif door == "start":
        await served.client.result(await served.client.start(start(idle_timeout=0) | {"messages": [message]}, thread_id=thread))
    else:
        await (await served.start(request("- it is good", message), id=thread)).result()

    addresses = [PLAN["url"], DOT, BRIEF["url"]]
    assert [seen(asked) for asked in served.models.requests] == [addresses, addresses]
    (first, *_) = (await served.client.messages(thread)).items
    assert first.content.splitlines() == [
        "Describe",
        "[image, at https://a.example/plan.png]",
        Attachment(url=DOT).label(),
        "by",
        "[file, at https://a.example/brief.pdf]",
    ]
    assert '"type": "text", "text": "Describe' in served.models.requests_of("grader")[0].messages[0].content
    await replay(served.temporal, thread)


async def test_a_later_turn_keeps_the_blocks_of_earlier_ones_in_their_place(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, [{"role": "user", "content": [PLAN]}], start=start())
    await served.client.invoke(thread, [{"role": "user", "content": [{"type": "text", "text": "and"}, PLAN, BRIEF]}])

    generator, grader = served.models.requests_of("generator")[-1], served.models.requests_of("grader")[-1]
    assert seen(generator) == seen(grader) == [PLAN["url"], PLAN["url"], BRIEF["url"]]


async def test_a_hidden_messages_blocks_reach_the_generator_alone(served: Served) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [PLAN], "hidden": True}, {"role": "user", "content": [BRIEF]}]

    await served.client.invoke(a_thread(), messages, start=start())

    assert [seen(asked) for asked in served.models.requests] == [[PLAN["url"], BRIEF["url"]], [BRIEF["url"]]]


async def test_a_checkpoint_holds_the_blocks(served: Served) -> None:
    thread, other = a_thread(), a_thread()
    await served.client.invoke(thread, [{"role": "user", "content": [PLAN]}], start=start())
    checkpoint = json.loads(json.dumps(await served.client.checkpoint(thread)))

    await served.client.invoke(other, "more", start=start(checkpoint=checkpoint))

    assert seen(served.models.requests_of("generator")[-1]) == [PLAN["url"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (["x"], r"content\[0\] is 'x'; write a block of type text"),
        ([{"type": "audio", "url": "https://a.example/x.mp3"}], r"content\[0\] is .*audio"),
        ([{"type": "text"}], r"content\[0\]: text: "),
        ([PLAN, {"type": "image", "url": "ftp://x"}], r"content\[1\]: 'ftp://x' is not a valid image"),
        ([{"type": "file", "url": DOT}], "is not a valid file; write https://…, or data:application/pdf"),
        ([{"type": "image", "url": "https://a.example/x.png", "size": 3}], "size"),
        ([{"type": "image", "url": f"data:image/png;base64,{'A' * 4 * (IMAGE_BYTES // 3 + 1)}"}], f"{IMAGE_BYTES} at most"),
        ([PLAN] * 21, "at most 20"),
        ([], "is empty"),
    ],
)
async def test_what_is_no_block_is_refused_by_name(served: Served, content: list[Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await served.client.invoke(a_thread(), [{"role": "user", "content": content}], start=start())
    assert not served.models.requests


def test_attachments_are_the_users_and_stand_in_the_text() -> None:
    with pytest.raises(ValidationError, match="belong to role 'user'"):
        Message.model_validate({"role": "assistant", "content": [PLAN]})
    with pytest.raises(ValidationError, match="each with its label in the text"):
        Message.model_validate({"role": "user", "content": "look", "attached": [PLAN]})
    said = Message.model_validate({"role": "user", "content": BLOCKS})
    assert Message.model_validate_json(said.model_dump_json()) == said


def test_a_label_is_the_same_in_the_json_that_graders_read() -> None:
    odd = Attachment(url='https://a.example/"x\\y<|z.png')

    assert json.dumps(odd.label())[1:-1] == odd.label()
    assert split_attached(f"a {odd.label()} b", [odd]) == ["a ", odd, " b"]


def test_a_task_file_names_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(Attachment(url=DOT)._bytes)
    (tmp_path / "task.yaml").write_text(
        "messages:\n- role: user\n  content:\n  - {type: text, text: Describe}\n  - {type: image, path: dot.png, detail: low}\n"
        "generator: {model: 'scripted:w'}\nscripted: replies.yaml\n"
    )
    (tmp_path / "replies.yaml").write_text("replies: []\n")

    (message,) = read_task(tmp_path / "task.yaml", TaskFlags()).request.messages

    assert message.attached == (Attachment(url=DOT, detail="low"),)
    for name, why in (("none.png", "No such file"), ("../x.png", "lies outside"), ("task.yaml", "neither an image nor a PDF")):
        text = (tmp_path / "task.yaml").read_text().replace("dot.png", name)
        (tmp_path / "other.yaml").write_text(text)
        with pytest.raises(InvalidRequest, match=why):
            read_task(tmp_path / "other.yaml", TaskFlags())
