"""The report of what tests cost: processes that lose their parent count, and shares are compared, not seconds."""

import subprocess
import sys

import pytest

from tests.cost import above, places
from tests.house_counts import ROOT, Record

ORPHAN = """
import subprocess, sys
from tests.supervised import adopt_orphans, children, end_what_is_left, reaped
adopt_orphans()
spin = "import time\\nuntil = time.process_time() + 1.0\\nwhile time.process_time() < until: pass"
start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", start], check=True)
end_what_is_left()
print(reaped() >= 1.0, children())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
def test_a_process_that_lost_its_parent_is_counted() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "True []\n"


def test_a_folder_is_named_that_takes_more_than_its_share_whatever_the_hosts_speed() -> None:
    recorded: dict[str, Record] = {"cpu_seconds.tests/cli": 100.0, "cpu_seconds.tests/web": 50.0, "total.lines": 1}

    assert not above({"tests/cli": 400.0, "tests/web": 200.0, "tests/new": 900.0}, recorded)
    assert above({"tests/cli": 100.0, "tests/web": 80.0}, recorded) == ["tests/web: 80.0 s of CPU, 60.0 would be as before"]


def test_every_folder_of_tests_is_measured_once() -> None:
    assert {"tests/cli", "tests/workflows", "tests/test_*.py"} <= set(places())
    assert len(places()) == len(set(places()))
