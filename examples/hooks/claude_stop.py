"""A stop hook of Claude Code: the change is graded by RUBRIC.md before the agent ends, once; what fails goes back to it.

In .claude/settings.json: {"hooks": {"Stop": [{"hooks": [{"type": "command", "timeout": 300,
  "command": "python examples/hooks/claude_stop.py anthropic:claude-haiku-4-5"}]}]}}
"""

import json
import subprocess
import sys
from pathlib import Path

from gradeloop import GradeloopError
from gradeloop.testing import judge_outputs, require_satisfied


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False).stdout.decode(errors="replace")


def main(grader: str | None) -> int:
    """Return 2, which has the agent go on, where the change does not meet the rubric; without a verdict the agent may end."""
    event = json.load(sys.stdin)
    folder = Path(event["cwd"])
    rubric, new = folder / "RUBRIC.md", git(folder, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    diff = git(folder, "diff", "HEAD") + "".join(git(folder, "diff", "--no-index", "/dev/null", name) for name in new if name)
    if event.get("stop_hook_active") or not rubric.is_file() or not diff.strip():
        return 0
    try:
        require_satisfied(judge_outputs([diff], rubric.read_text(), request="Change this repository.", grader=grader)[0])
    except AssertionError as failing:
        print(f"RUBRIC.md: {failing}\nMend what fails, leave the rest as it is.", file=sys.stderr)
        return 2
    except GradeloopError as error:
        print(f"RUBRIC.md: not graded: {error}", file=sys.stderr)
    return 0


sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
