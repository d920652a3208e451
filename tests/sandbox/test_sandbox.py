"""Code that a model wrote runs where it can hurt nothing, and how it ended is never mixed up with what the sandbox lacks."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradeloop.sandbox import PRINTED_BYTES, run


def test_the_value_of_the_last_expression_and_what_it_prints_come_back() -> None:
    outcome = run("print('hello')\n[x * x for x in range(4)]")

    assert (outcome.status, outcome.value, outcome.stdout, outcome.error) == ("ok", [0, 1, 4, 9], "hello\n", "")


def test_the_codes_own_exception_is_its_own() -> None:
    outcome = run("print('before')\n{}['missing']")

    assert (outcome.status, outcome.stdout) == ("raised", "before\n")
    assert outcome.error.startswith("KeyError")


@pytest.mark.parametrize("code", ["def f(:", "x = = 1"])
def test_code_that_does_not_parse_is_the_codes_own_mistake(code: str) -> None:
    assert run(code).status == "raised"


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(60)",
        "def f(n):\n    return f(n + 1)\nf(0)",
        "x = ['a'] * 10 ** 9\nlen(x)",
        "[1] * (10 ** 12)",
    ],
    ids=["endless", "asleep", "too deep", "too large", "far too large"],
)
def test_a_limit_ends_the_code_and_says_so(code: str) -> None:
    started = time.monotonic()
    outcome = run(code, seconds=0.5)

    assert outcome.status == "limit", outcome
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "code",
    ["open('/etc/passwd').read()", "import os\nos.listdir('/')", "import socket\nsocket.socket()", "import subprocess", "__import__('os')"],
)
def test_files_network_and_processes_are_out_of_reach(code: str) -> None:
    outcome = run(code)

    assert outcome.status != "ok"
    assert outcome.value is None


@pytest.mark.parametrize("code", ["import subprocess", "import socket", "class A(dict):\n    pass", "def g():\n    yield 1\nlist(g())"])
def test_what_the_sandbox_lacks_of_python_is_no_word_on_the_code(code: str) -> None:
    assert run(code).status == "unsupported"


@pytest.mark.parametrize("code", ["import nothing_of_that_name", "undefined_name", "[].push(1)"])
def test_what_python_itself_lacks_is_the_codes_own_mistake(code: str) -> None:
    assert run(code).status == "raised"


def test_endless_output_is_bounded() -> None:
    outcome = run("for _ in range(100000):\n    print('x' * 100)")

    assert len(outcome.stdout.encode()) <= PRINTED_BYTES


def test_a_huge_exception_is_told_in_2000_characters() -> None:
    outcome = run("raise ValueError('x' * 1000000)")

    assert (outcome.status, len(outcome.error)) == ("raised", 2000)


def test_nothing_is_left_over_from_one_snippet_to_the_next() -> None:
    run("leftover = 1")

    assert run("leftover").error == "NameError: name 'leftover' is not defined"


def test_more_snippets_than_sandboxes_wait_their_turn() -> None:
    with ThreadPoolExecutor(8) as threads:
        values = [outcome.value for outcome in threads.map(run, [f"{number} + 1" for number in range(12)])]

    assert values == list(range(1, 13))
