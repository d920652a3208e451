"""A format of somebody else's: an extension gives its row, and files of it are read like any other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Extension
from gradeloop.transcripts.assemble import run_of
from gradeloop.transcripts.formats import Format
from gradeloop.transcripts.message_forms import messages_at
from gradeloop.transcripts.readers import Reading, read_run_file
from gradeloop.transcripts.registry import FORMATS
from tests.rig.extensions import install

CHAT = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At six."}]


def recognise(value: Any) -> str | None:
    return "an object with acme_turns" if isinstance(value, dict) and "acme_turns" in value else None


def parse(value: dict[str, Any], name: str) -> Iterator[AgentRun]:
    yield run_of(name, messages_at(value, "acme_turns"), {"log": "acme"})


ROWS = (Format("acme log", recognise, parse),)


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FORMATS, Extension("acme", kinds={"formats": f"{__name__}:ROWS"}))


def test_a_file_in_the_format_of_an_extension_is_read_before_ours_are_tried(acme: None, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({"acme_turns": CHAT, "messages": []}))
    reading = Reading()

    (run,) = read_run_file(tmp_path / "log.json", reading)

    assert [message.content for message in run.transcripts[0].messages] == ["When?", "At six."]
    assert (run.id, run.metadata) == ("log", {"log": "acme"})
    assert list(reading.formats) == [(str(tmp_path / "log.json"), "acme log", "an object with acme_turns")]


def test_what_it_cannot_read_is_told_with_file_line_and_path(acme: None, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"acme_turns":\n[{"role": "nobody",\n"content": "x"}]}')

    with pytest.raises(InvalidRequest, match=r"log.json, line 2: acme_turns\[0\].role: the role is 'nobody'"):
        list(read_run_file(tmp_path / "log.json"))


def test_our_formats_are_read_as_before(acme: None, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text(json.dumps({"messages": CHAT}))
    reading = Reading()

    assert len(list(read_run_file(tmp_path / "chat.json", reading))) == 1
    assert [name for _, name, _ in reading.formats] == ["messages"]
