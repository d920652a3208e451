"""A suite whose code imports files and packages, run by `gradeloop eval` from its file to its results."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.cli import CommandLine

SUITE = """
prompts: ["file://prompt.js"]
providers: [scripted:one]
tests:
  - vars: {q: Ada}
    assert: [{type: javascript, value: "file://checks/pad.js"}, {type: python, value: "file://checks/word.py"}]
"""
FILES = {
    "promptfooconfig.yaml": SUITE,
    "replies.yaml": json.dumps({"replies": [{"role": "generator", "when": "Greet Ada", "text": "Hello Ada."}]}),
    "texts.js": "module.exports = { greeting: 'Greet' };\n",
    "prompt.js": "const { greeting } = require('./texts');\nmodule.exports = ({ vars }) => `${greeting} ${vars.q}`;\n",
    "checks/pad.js": "const pad = require('pad');\nmodule.exports = (output) => pad(output) === `  ${output}`;\n",
    "checks/word.py": "import words\nimport installed\n\ndef get_assert(out, _):\n    return words.WORD in out and installed.N == 7\n",
    "checks/words.py": "WORD = 'Ada'\n",
    "node_modules/pad/index.js": "module.exports = (text) => `  ${text}`;\n",
}


@pytest.fixture
def gradeloop(commands: CommandLine, tmp_path: Path) -> CommandLine:
    """Return the command in the suite's folder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return replace(commands, folder=tmp_path)


@pytest.mark.slow
def test_code_imports_with_a_named_virtual_environment_and_names_what_it_lacks(gradeloop: CommandLine, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    (packages,) = (tmp_path / ".venv").glob("lib/python*/site-packages")
    (packages / "installed.py").write_text("N = 7\n")

    lacking = gradeloop("eval", "--scripted", "replies.yaml", "--allow-code")
    whole = gradeloop("eval", "--scripted", "replies.yaml", "--allow-code", "--imports", ".venv")

    why = "checks/word.py cannot be loaded: ModuleNotFoundError: No module named 'installed' (line 2); name a virtual environment that"
    assert (lacking.code, f"{why} has it with --imports, or put installed.py into {tmp_path}" in lacking.err) == (2, True), lacking.err
    assert whole.code == 0, whole.out + whole.err


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("absent", "--imports: [0]: 'absent' is not a folder; correct the path"),
        ("~", "holds your home folder, gradeloop's state or all temporary files; name one below or beside it"),
    ],
)
def test_a_folder_that_code_cannot_import_from_is_refused(gradeloop: CommandLine, folder: str, why: str) -> None:
    done = gradeloop("eval", "--allow-code", "--imports", str(Path(folder).expanduser()))

    assert (done.code, why in done.err) == (2, True), done.err
