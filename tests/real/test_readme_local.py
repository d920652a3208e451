"""The README's commands for a model of one's own machine, run as they stand against a real server."""

import asyncio
import re
from pathlib import Path

from gradeloop.exit_codes import CAPPED, SATISFIED
from rig.real_model import NAME, Tap
from tests.cli.test_cli_local import quiet
from tests.docs.runner import split_commands
from tests.rig.cli import CommandLine

README = Path(__file__).parents[2] / "README.md"


async def test_the_commands_of_the_readme_find_a_real_server_and_run_a_task_by_it(gradeloop: CommandLine, tap: Tap) -> None:
    (block,) = [text for text in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL) if "gradeloop doctor" in text]
    install, *commands = split_commands(block)
    here = quiet(LLAMACPP_BASE_URL=tap.url) | {"GRADELOOP_BASE_URLS": ""}
    looked, wrote, ran = [await asyncio.to_thread(gradeloop, *words[1:], **here) for words in commands]

    assert install == ["pip", "install", "gradeloop[openai,embedded]"]
    assert [words[:2] for words in commands] == [["gradeloop", name] for name in ("doctor", "init", "run")]
    assert looked.code == 0, looked.err
    assert f"server llamacpp: at {tap.url}: {NAME}; context of " in looked.out
    assert f"found at {tap.url}: llamacpp:{NAME}" in wrote.out
    assert f"no provider's key is set, so it uses llamacpp:{NAME}" in wrote.out
    assert ran.code in {SATISFIED, CAPPED}, ran.err + ran.out
    assert tap.calls[-1].by_schema
