"""The cache of what calls refer to: bounded by bytes and by number, the least used dropped first."""

from activities.state_cache import ByteBoundedCache, GradingSettings
from gradeloop.contract.thread import Generator


def test_the_least_used_is_dropped_where_all_are_too_large() -> None:
    cache: ByteBoundedCache[str, str] = ByteBoundedCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    cache.get("a")

    cache.put("c", "C", 4)

    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]


def test_the_one_used_last_is_kept_however_large() -> None:
    cache: ByteBoundedCache[str, str] = ByteBoundedCache(10)
    cache.put("a", "A", 4)

    cache.put("b", "B", 100)

    assert [cache.get(key) for key in "ab"] == [None, "B"]


def test_the_least_used_is_dropped_where_there_are_too_many() -> None:
    cache: ByteBoundedCache[str, str] = ByteBoundedCache(10, 2)
    for key in "abc":
        cache.put(key, key.upper())

    assert [cache.get(key) for key in "abc"] == [None, "B", "C"]


def test_what_is_in_use_is_not_dropped() -> None:
    cache: ByteBoundedCache[str, str] = ByteBoundedCache(10, in_use=lambda value: value == "A")
    for key in "abc":
        cache.put(key, key.upper(), 5)

    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]


def test_a_value_that_is_put_again_counts_once_and_a_dropped_one_not_at_all() -> None:
    cache: ByteBoundedCache[str, str] = ByteBoundedCache(10)
    for _ in range(3):
        cache.put("a", "A", 5)
    cache.put("b", "B", 5)
    cache.drop("b")
    cache.drop("unknown")

    cache.put("c", "C", 5)

    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]


def test_settings_that_say_nothing_of_an_outage_keep_their_sha256() -> None:
    plain = GradingSettings(generator=Generator(activity="a", task_queue="q"), grader=None, rubric=None)

    assert "outage_timeout" not in plain.model_dump_json()
    assert plain.model_copy(update={"outage_timeout": 60.0}).sha256() != plain.sha256()
