"""The store and the registry, on SQLite and on a real PostgreSQL: versions, hashes, races, and clear words where it is not there."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, SchemaJudge
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.store.engine import STORE_FILE, Store, store_url
from gradeloop.store.upgrade import VERSION
from tests.rig.judging import FRANCE, MATCH, answers, fresh
from tests.rig.threads import serving

OTHER = FRANCE | {"rubric_text": "Another rubric."}


@pytest.fixture
def registry(url: str) -> Iterator[JudgeRegistry]:
    """Return a registry in an empty database."""
    store = Store(url)
    yield JudgeRegistry(store)
    store.close()


async def test_a_rubric_is_created_and_found_again(registry: JudgeRegistry) -> None:
    made = await registry.create_rubric("demo", FRANCE | {"id": "france"})

    assert await registry.get_rubric("demo", "france") == made
    assert await registry.get_rubric("demo", "france", 1) == made
    assert isinstance(made, SchemaJudge)
    assert (made.id, made.version) == ("france", 1)


async def test_a_rubric_without_an_id_is_named_by_its_content(registry: JudgeRegistry) -> None:
    made = await registry.create_rubric("demo", FRANCE)

    assert made.id == f"rubric-{made.sha256()[:12]}"


async def test_criteria_are_registered_too(registry: JudgeRegistry) -> None:
    made = await registry.create_rubric("demo", {"id": "haiku", "rubric": "- three lines\n- spring"})
    found = await registry.get_rubric("demo", "haiku")

    assert isinstance(found, CriteriaJudge)
    assert found == made
    assert [criterion.id for criterion in found.rubric.criteria] == ["c1", "c2"]


async def test_what_is_unchanged_is_no_new_version_and_any_change_is_one(registry: JudgeRegistry) -> None:
    await registry.create_rubric("demo", FRANCE | {"id": "france"})
    same = await registry.add_version("demo", "france", FRANCE)
    second = await registry.add_version("demo", "france", OTHER)
    third = await registry.add_version("demo", "france", FRANCE | {"judge_model": "openai:gpt-5"})
    ruled = await registry.add_version("demo", "france", FRANCE | {"pass_if": {"label": "match"}})
    first = await registry.add_version("demo", "france", FRANCE | {"name": "told otherwise"})

    assert [item.version for item in (same, second, third, ruled, first)] == [1, 2, 3, 4, 1]
    assert ruled.sha256() == same.sha256()
    assert await registry.get_rubric("demo", "france") == ruled
    assert (await registry.get_rubric("demo", "france", 2)).sha256() == second.sha256()


async def test_rubrics_are_listed_by_collection_with_their_newest_version(registry: JudgeRegistry) -> None:
    await registry.create_rubric("demo", FRANCE | {"id": "b"})
    await registry.add_version("demo", "b", OTHER)
    await registry.create_rubric("demo", {"id": "a", "rubric": "- x"})
    await registry.create_rubric("elsewhere", FRANCE | {"id": "c"})

    assert [(rubric.rubric_id, rubric.version, rubric.kind) for rubric in await registry.list_rubrics("demo")] == [
        ("a", 1, "criteria"),
        ("b", 2, "schema"),
    ]
    assert await registry.list_rubrics("nothing") == []


async def test_the_same_rubric_created_twice_is_one_and_another_of_its_id_is_refused(registry: JudgeRegistry) -> None:
    first = await registry.create_rubric("demo", FRANCE | {"id": "france"})

    assert await registry.create_rubric("demo", FRANCE | {"id": "france"}) == first
    with pytest.raises(InvalidRequest, match="the rubric 'france' exists in 'demo' already; add a version, or choose another id"):
        await registry.create_rubric("demo", OTHER | {"id": "france"})


async def test_versions_that_are_added_at_once_all_count(url: str) -> None:
    stores = [Store(url) for _ in range(6)]
    registries = [JudgeRegistry(store) for store in stores]
    await asyncio.gather(*(registry.create_rubric("demo", FRANCE | {"id": "france"}) for registry in registries))
    texts = [FRANCE | {"rubric_text": f"Version {at}."} for at in range(4)]

    made = await asyncio.gather(*(registry.add_version("demo", "france", text) for registry, text in zip(registries, texts, strict=False)))

    assert sorted(result.version for result in made) == [2, 3, 4, 5]
    assert len({result.sha256() for result in made}) == 4
    for store in stores:
        store.close()


async def test_what_is_not_there_is_told_with_what_is(registry: JudgeRegistry) -> None:
    await registry.create_rubric("demo", FRANCE | {"id": "france"})

    with pytest.raises(
        InvalidRequest, match=r"there is no rubric 'frence' in the collection 'demo'\. Did you mean 'france'\? Known: france\."
    ):
        await registry.get_rubric("demo", "frence")
    with pytest.raises(InvalidRequest, match="demo/france has no version 7; it has 1 to 1"):
        await registry.get_rubric("demo", "france", 7)
    with pytest.raises(InvalidRequest, match=r"in the collection 'other'\. It has none yet\."):
        await registry.add_version("other", "france", FRANCE)
    with pytest.raises(InvalidRequest, match="id 'a/b' is not a name"):
        await registry.create_rubric("demo", FRANCE | {"id": "a/b"})


async def test_judgements_are_kept_by_judge_and_replaced_by_their_id(registry: JudgeRegistry) -> None:
    judge = await registry.create_rubric("demo", FRANCE | {"id": "france"})
    fields = {"rubric_id": "france", "rubric_version": 1, "output": MATCH, "result_type": "DIRECT_RESULT"}
    first = JudgeResult.model_validate(fields | {"id": "judging-1", "agent_run_id": "b"})
    second = JudgeResult.model_validate(fields | {"id": "judging-2", "agent_run_id": "a"})

    await registry.save(judge, [(first, 0), (second, 0)])
    await registry.save(judge, [(first.model_copy(update={"model": "m"}), 0)])

    found = await registry.judgements(judge)
    assert [(item.agent_run_id, item.model) for item in found] == [("a", None), ("b", "m")]
    assert await registry.judgements(SchemaJudge(rubric_text="another")) == []


async def test_a_judge_out_of_the_registry_is_called_on_runs(client: Client, url: str) -> None:
    store = Store(url)
    async with serving(client, answers(MATCH)) as served:
        registry = JudgeRegistry(store)
        await registry.create_rubric("demo", OTHER | {"id": "france"})
        await registry.add_version("demo", "france", FRANCE)
        judge = await Judge.from_registry("demo", "france", registry=registry, client=client, task_queue=served.task_queue)
        result = await judge(fresh(f"registered-{url[:6]}"))
    store.close()

    assert (result.rubric_id, result.rubric_version, result.output) == ("france", 2, MATCH)


async def test_a_store_of_a_newer_version_is_refused_with_the_cure(url: str) -> None:
    store = Store(url)
    await JudgeRegistry(store).list_rubrics("demo")
    for statement in ("UPDATE store_version SET version_num = '0099'", "UPDATE store_oldest SET version = 99"):
        await store.write(lambda connection, statement=statement: connection.execute(text(statement)))  # type: ignore[misc]
    store.close()

    with pytest.raises(StoreUnavailable, match=f"is of version 99, .* this gradeloop knows {VERSION}; install a newer gradeloop"):
        await JudgeRegistry(Store(url)).list_rubrics("demo")


async def test_a_store_that_cannot_be_reached_is_told_without_its_password() -> None:
    store = Store("postgresql://me:secret@127.0.0.1:1/none")

    with pytest.raises(StoreUnavailable) as caught:
        await JudgeRegistry(store).list_rubrics("demo")

    assert "the store 'postgresql://me@127.0.0.1:1/none' cannot be used" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_text("text" * 1000)

    with pytest.raises(StoreUnavailable, match="file is not a database"):
        await JudgeRegistry(Store(f"sqlite:///{tmp_path / STORE_FILE}")).list_rubrics("demo")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("mysql://me:secret@h/d", "GRADELOOP_STORE names 'mysql://me@h/d', which is neither SQLite nor PostgreSQL; set GRADELOOP_STORE to"),
        ("sqlite:///results.db", "GRADELOOP_STORE names 'sqlite:///results.db', whose path is not absolute"),
    ],
)
def test_a_store_that_is_none_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, named: str, message: str) -> None:
    monkeypatch.setenv("GRADELOOP_STORE", named)

    with pytest.raises(InvalidRequest) as caught:
        store_url(embedded=True)

    assert message in str(caught.value)


def test_beside_the_embedded_server_a_store_needs_no_name_and_elsewhere_it_does(environment: Path) -> None:
    assert store_url(embedded=True) == f"sqlite:///{environment / STORE_FILE}"
    with pytest.raises(
        InvalidRequest, match="no store of results is named, and the server is not the embedded one; set GRADELOOP_STORE to"
    ):
        store_url(embedded=False)
