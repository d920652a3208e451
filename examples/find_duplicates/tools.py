"""The evidence tool of this example: a test suite that runs against the draft, in the sandbox."""

from typing import Any

from gradeloop.sandbox import SandboxError, run

TESTS = {
    "test_simple": "assert find_duplicates([1, 2, 1, 3, 3]) == [1, 3]",
    "test_none": "assert find_duplicates([1, 2, 3]) == []",
    "test_empty": "assert find_duplicates([]) == []",
    "test_each_once": "assert find_duplicates([7, 7, 7, 7]) == [7]",
    "test_order": "assert find_duplicates(['b', 'a', 'a', 'b']) == ['a', 'b']",
    "test_unhashable": "assert find_duplicates([[1], [2], [1]]) == [[1]]",
    "test_input_unchanged": "given = [2, 2, 1]\nfind_duplicates(given)\nassert given == [2, 2, 1]",
}


def run_test_suite(code: str) -> dict[str, Any]:
    """Run the test suite against a draft of `find_duplicates` and return which tests fail, and how.

    Args:
        code: The whole draft, as Python source.
    """
    failures = {}
    for name, test in TESTS.items():
        outcome = run(f"{code}\n\n{test}\n", seconds=2.0)
        if outcome.status == "unsupported":
            raise SandboxError(f"the draft uses what the sandbox lacks: {outcome.error}")
        if outcome.status != "ok":
            failures[name] = outcome.error
    return {"ok": not failures, **failures}
