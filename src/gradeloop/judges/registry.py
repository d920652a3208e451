"""The registry: rubrics by collection and id, each with its versions; what is unchanged is no new version."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeConfig, JudgeResult, parse_judge
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import clip, did_you_mean

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping


NAME_CHARACTERS = 200
TRIES = 5
"""For a version that somebody else adds at the same time."""


class RegisteredRubric(Strict):
    """A rubric in a list."""

    rubric_id: str
    version: int
    """The newest."""
    sha256: str
    kind: str
    """`criteria` or `schema`."""
    changed: datetime


class Registry:
    """Rubrics and judgements in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None:
        """Open the store now rather than when something is to be kept.

        Raises:
            StoreUnavailable: It cannot be reached, or is not one of ours.
        """
        await self._store.read(lambda _: None)

    async def create_rubric(self, collection: str, rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
        """Register a rubric as version 1 and return it; its own `id` names it, or one made of its content.

        Raises:
            InvalidRequest: The rubric is refused, or one of that id is there with another content.
        """
        judge = _read(rubric)
        named = judge.model_copy(update={"id": judge.rubric_id, "version": 1})
        _refuse_name(collection, "collection")
        held = await self._versions(collection, named.id)
        if held and held[0]["sha256"] != named.sha256():
            raise InvalidRequest(f"the rubric {named.id!r} exists in {collection!r} already; add a version, or choose another id")
        if not held and not await self._insert(collection, named):
            return await self.create_rubric(collection, named)  # somebody else was faster, perhaps with another content
        return named

    async def add_version(self, collection: str, rubric_id: str, rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
        """Register a rubric's next version and return it; one that is unchanged since any version returns that one.

        Raises:
            InvalidRequest: The rubric is refused, or there is none of that id.
        """
        judge = _read(rubric)
        for _ in range(TRIES):
            held = await self._versions(collection, rubric_id)
            if not held:
                raise await self._unknown(collection, rubric_id)
            if same := next((row for row in held if row["sha256"] == judge.sha256()), None):
                return _judge_of(same)
            following = judge.model_copy(update={"id": rubric_id, "version": held[-1]["version"] + 1})
            if await self._insert(collection, following):
                return following
        raise InvalidRequest(f"others keep adding versions to {collection}/{rubric_id}; try again")

    async def get_rubric(self, collection: str, rubric_id: str, version: int | None = None) -> JudgeConfig:
        """Return a version of a rubric, the newest by default.

        Raises:
            InvalidRequest: There is none.
        """
        held = await self._versions(collection, rubric_id)
        if not held:
            raise await self._unknown(collection, rubric_id)
        found = held[-1] if version is None else next((row for row in held if row["version"] == version), None)
        if found is None:
            raise InvalidRequest(f"{collection}/{rubric_id} has no version {version}; it has 1 to {held[-1]['version']}")
        return _judge_of(found)

    async def list_rubrics(self, collection: str) -> list[RegisteredRubric]:
        """Return the rubrics of a collection, each with its newest version, by id."""
        from sqlalchemy import select

        rubrics, versions = table("rubrics"), table("rubric_versions")
        newest = (
            select(versions)
            .join(rubrics, (rubrics.c.collection == versions.c.collection) & (rubrics.c.rubric_id == versions.c.rubric_id))
            .where(versions.c.collection == collection, versions.c.version == rubrics.c.latest)
            .order_by(versions.c.rubric_id)
        )
        rows = await self._store.read(lambda connection: list(connection.execute(newest).mappings()))
        return [
            RegisteredRubric(
                rubric_id=row["rubric_id"],
                version=row["version"],
                sha256=row["sha256"],
                kind="schema" if "rubric_text" in json.loads(row["judge"]) else "criteria",
                changed=row["created"],
            )
            for row in rows
        ]

    async def save(self, judge: JudgeConfig, results: list[tuple[JudgeResult, int]]) -> None:
        """Write judgements down, each with the repeat that it is; one that is there is replaced."""
        judgements, sha256 = table("judgements"), judge.sha256()

        def write(connection: "Connection") -> None:
            for result, repeat in results:
                row = {"judge_sha256": sha256, "agent_run_id": result.agent_run_id, "repeat": repeat, "result_type": result.result_type}
                connection.execute(judgements.delete().where(judgements.c.id == result.id))
                connection.execute(judgements.insert().values(id=result.id, result=result.model_dump_json(), **row))

        await self._store.write(write)

    async def judgements(self, judge: JudgeConfig) -> list[JudgeResult]:
        """Return what was written down of a judge's results, by run and repeat."""
        from sqlalchemy import select

        rows = table("judgements")
        asked = select(rows.c.result).where(rows.c.judge_sha256 == judge.sha256()).order_by(rows.c.agent_run_id, rows.c.repeat)
        found = await self._store.read(lambda connection: list(connection.execute(asked).scalars()))
        return [JudgeResult.model_validate_json(each) for each in found]

    async def _versions(self, collection: str, rubric_id: str) -> "list[RowMapping]":
        from sqlalchemy import select

        rows = table("rubric_versions")
        asked = select(rows).where(rows.c.collection == collection, rows.c.rubric_id == rubric_id).order_by(rows.c.version)
        return await self._store.read(lambda connection: list(connection.execute(asked).mappings()))

    async def _insert(self, collection: str, judge: JudgeConfig) -> bool:
        """Write a version down; False where somebody else has written that number in the meantime."""
        from sqlalchemy.exc import IntegrityError

        rubrics, versions = table("rubrics"), table("rubric_versions")
        place = {"collection": collection, "rubric_id": judge.id}

        def write(connection: "Connection") -> None:
            if judge.version == 1:
                connection.execute(rubrics.insert().values(latest=1, **place))
            told = judge.model_dump_json(exclude_none=True)
            connection.execute(versions.insert().values(version=judge.version, sha256=judge.sha256(), judge=told, **place))
            mine = (rubrics.c.collection == collection) & (rubrics.c.rubric_id == judge.id)
            connection.execute(rubrics.update().where(mine).values(latest=judge.version))

        try:
            await self._store.write(write)
        except IntegrityError:
            return False
        return True

    async def _unknown(self, collection: str, rubric_id: str) -> InvalidRequest:
        known = [rubric.rubric_id for rubric in await self.list_rubrics(collection)]
        hint = did_you_mean(rubric_id, known) if known else " It has none yet."
        return InvalidRequest(f"there is no rubric {clip(rubric_id)} in the collection {clip(collection)}.{hint}")


def _read(rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
    judge = parse_judge(dict(rubric) if isinstance(rubric, Mapping) else rubric)
    _refuse_name(judge.rubric_id, "id")
    return judge


def _refuse_name(name: str, what: str) -> None:
    if not name.strip() or len(name) > NAME_CHARACTERS or set(name) & set("/@\n\t"):
        raise InvalidRequest(f"{what} {clip(name)} is no name; 1 to {NAME_CHARACTERS} characters, without '/' and '@'")


def _judge_of(row: "RowMapping") -> JudgeConfig:
    return parse_judge(json.loads(row["judge"]))
