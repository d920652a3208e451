"""A pre-commit hook: what is about to be committed is graded by the repository's RUBRIC.md; what does not meet it is not committed.

As .git/hooks/pre-commit: exec python examples/hooks/pre_commit.py anthropic:claude-haiku-4-5
"""

import subprocess
import sys
from pathlib import Path

from gradeloop import GradeloopError
from gradeloop.testing import judge_outputs, require_satisfied


def main(grader: str | None) -> int:
    """Return 1, which stops the commit, where it does not meet the rubric; without a verdict it goes through, and says so."""
    rubric = Path("RUBRIC.md")  # git starts hooks in the repository's top folder
    diff = subprocess.run(["git", "diff", "--cached"], capture_output=True, check=True).stdout.decode(errors="replace")
    if not rubric.is_file() or not diff.strip():
        return 0
    try:
        require_satisfied(judge_outputs([diff], rubric.read_text(), request="Change this repository.", grader=grader)[0])
    except AssertionError as failing:
        print(f"RUBRIC.md: {failing}\nCommit all the same with: git commit --no-verify", file=sys.stderr)
        return 1
    except GradeloopError as error:
        print(f"RUBRIC.md: not graded: {error}", file=sys.stderr)
    return 0


sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
