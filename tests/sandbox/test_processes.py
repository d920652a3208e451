"""The processes in which functions of ours read foreign text."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import gradeloop.text
from gradeloop.sandbox import processes


@pytest.mark.slow
def test_a_process_whose_caller_has_gone_meanwhile_ends_without_a_word() -> None:
    root = str(Path(gradeloop.text.__file__).parents[1])
    request = {"root": root, "module": "gradeloop.text", "function": "clip", "arguments": {"text": "x"}, "seconds": 5}
    body = json.dumps(request).encode()
    child = subprocess.Popen(
        [sys.executable, processes.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    )
    assert child.stdin
    assert child.stdout
    assert child.stderr
    child.stdout.close()
    child.stdin.write(struct.pack("=QQ", len(body), 0) + body)
    child.stdin.close()

    said = child.stderr.read()
    child.stderr.close()

    assert (child.wait(timeout=240), said) == (0, b"")
