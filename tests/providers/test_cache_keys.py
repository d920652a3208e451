"""Keys of prompt caches: equal beginnings share one while they are few, and a run's own calls stay together."""

from collections import Counter
from typing import Any

import pytest

from activities.providers.openai_responses import CacheKeys, cache_key
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step


def asked(thread: str, **more: Any) -> ModelRequest:
    """Return a call of a thread."""
    values: dict[str, Any] = {"spec": ModelSpec(id="openai:gpt-6-luna"), "system": "the policy and the rubric"} | more
    return ModelRequest(step=Step(role="grader"), messages=(Message(role="user", content="x"),), thread=thread, **values)


def test_few_calls_of_all_runs_have_one_key() -> None:
    keys = CacheKeys()

    assert {keys.key(asked(f"thread-{number}")) for number in range(8)} == {cache_key(asked(""))}


def test_another_prompt_or_model_has_other_keys() -> None:
    keys = CacheKeys()
    others = (asked("a"), asked("a", system="another"), asked("a", spec=ModelSpec(id="openai:gpt-6-sol")))

    assert len({keys.key(request) for request in others}) == 3


def test_many_calls_a_minute_have_keys_of_fewer_than_fifteen_each(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, now = CacheKeys(), 1000.0
    monkeypatch.setattr("activities.providers.openai_responses.time.monotonic", lambda: now)
    found: list[tuple[float, str]] = []
    for number in range(1800):  # 600 a minute
        found.append((now, keys.key(asked(f"thread-{number}"))))
        now += 0.1
    a_minute = Counter(key for when, key in found if 1060 <= when < 1120)

    assert sum(a_minute.values()) == 600
    assert max(a_minute.values()) <= 15
    assert len(a_minute) <= 128


def test_the_calls_of_a_run_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, now = CacheKeys(), 1000.0
    monkeypatch.setattr("activities.providers.openai_responses.time.monotonic", lambda: now)
    for number in range(700):
        keys.key(asked(f"thread-{number}"))
        now += 0.1
    of_runs = []
    for _ in range(3):
        of_runs.append([keys.key(asked(f"run-{number}")) for number in range(50)])
        now += 5.0

    assert of_runs[0] == of_runs[1] == of_runs[2]
    assert len(set(of_runs[0])) > 20


def test_when_it_is_quiet_again_there_is_one_key_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, now = CacheKeys(), 1000.0
    monkeypatch.setattr("activities.providers.openai_responses.time.monotonic", lambda: now)
    for number in range(200):
        keys.key(asked(f"thread-{number}"))
    now += 61.0

    assert {keys.key(asked(f"thread-{number}")) for number in range(8)} == {cache_key(asked(""))}
