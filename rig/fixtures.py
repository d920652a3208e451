"""Fixtures of every test: an environment without keys, and workflows that may wait for a processor. A conftest imports them."""

import asyncio
import asyncio.selector_events
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker._workflow import _WorkflowWorker

PRIVATE = (
    "ANTHROPIC_", "OPENAI_", "GOOGLE_", "GEMINI_", "PALM_", "OPENROUTER_", "MISTRAL_", "AZURE_OPENAI_", "GITHUB_TOKEN", "TEMPORAL_",
    "GRADELOOP_TASK_QUEUE", "GRADELOOP_BASE_URLS", "GRADELOOP_MODELS", "GRADELOOP_PRICES", "GRADELOOP_LOG",
    "GRADELOOP_HEALTH_ADDRESS", "GRADELOOP_METRICS_ADDRESS", "GRADELOOP_TRACE_CONTENT", "OTEL_",
)  # fmt: skip
"""How the environment variables begin that would tie a test to the machine it runs on, or let it pay."""

DEADLOCK_SECONDS = 30
"""How long a workflow may think before the SDK fails its task; its own 2 seconds pass on a machine that is busy with other tests, too."""


FOLDERS = itertools.count()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the test no provider key, no Temporal server, no probe, and a state folder of its own, which is returned."""
    for name in [name for name in os.environ if name.startswith(PRIVATE)]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp(f"state-{next(FOLDERS)}", numbered=False)  # pytest would read all the others to find a number
    profiles = folder / "no-profiles.toml"
    profiles.touch()
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profiles))
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder))
    monkeypatch.setenv("GRADELOOP_PROCESSES", "1")  # also on a machine with more cores than two
    monkeypatch.setenv("GRADELOOP_PROBE", "off")  # a test's server counts its calls; the tests of the probe turn it on
    return folder


@pytest.fixture(autouse=True, scope="session")
def patient_detector_of_deadlocks() -> Iterator[None]:
    """Have no workflow task fail for the time that it waited for a processor."""
    made = _WorkflowWorker.__init__

    def make(worker: _WorkflowWorker, *arguments: Any, **options: Any) -> None:
        made(worker, *arguments, **options)
        worker._deadlock_timeout_seconds = DEADLOCK_SECONDS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_WorkflowWorker, "__init__", make)
        yield


@pytest.fixture(autouse=True, scope="session")
def named_connections() -> Iterator[None]:
    """Have the warning of a connection that nobody closed name the test that opened it: Python finds it in any later one."""
    transport: Any = asyncio.selector_events._SelectorTransport  # type: ignore[attr-defined]
    made, shown = transport.__init__, transport.__repr__

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        self.opened_in = f"{os.environ.get('PYTEST_CURRENT_TEST')} by {type(arguments[2]).__name__}"
        made(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "__init__", make)
        patch.setattr(transport, "__repr__", lambda self: f"{shown(self)} opened in {self.opened_in}")
        yield
