"""The registry of rubrics by collection, id and version, and the judgements that the store keeps."""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, select
from sqlalchemy.exc import IntegrityError

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, parse_judge
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import clip, did_you_mean

NAME_CHARACTERS = 200

TRIES = 5
"""The most times that a new version is numbered anew because another process has just added one."""


class RegisteredRubric(Strict):
    """A rubric in a collection's list."""

    rubric_id: str
    version: int
    """The newest version."""
    sha256: str
    kind: str
    """`criteria` or `schema`."""
    changed: datetime


class JudgeRegistry:
    """Rubrics and judgements in a store; a rubric that is unchanged gets no new version."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None:
        """Open the store now rather than at the first write; raise StoreUnavailable where it is away, or is none of gradeloop."""
        await self._store.read(lambda _: None)

    async def create_rubric(self, collection: str, rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
        """Register a rubric as version 1 and return it; its own `id` names it, or one made of its content.

        Raises:
            InvalidRequest: The rubric is refused, or the collection has another one with that id.
        """
        judge = _parse(rubric)
        named = judge.model_copy(update={"id": judge.rubric_id, "version": 1})
        _refuse_name(collection, "collection")
        rows = await self._version_rows(collection, named.id)
        if rows and not _is_same(rows[0], named):
            raise InvalidRequest(f"the rubric {named.id!r} exists in {collection!r} already; add a version, or choose another id")
        if not rows and not await self._insert(collection, named):
            return await self.create_rubric(collection, named)  # another process was faster, perhaps with another content
        return named

    async def add_version(self, collection: str, rubric_id: str, rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
        """Register a rubric's next version and return it; content that equals any version returns that version.

        Raises:
            InvalidRequest: The rubric is refused, or the collection has none with that id.
        """
        judge = _parse(rubric)
        for _ in range(TRIES):
            rows = await self._require_versions(collection, rubric_id)
            if same := next((row for row in rows if _is_same(row, judge)), None):
                return _judge_of(same)
            new = judge.model_copy(update={"id": rubric_id, "version": rows[-1]["version"] + 1})
            if await self._insert(collection, new):
                return new
        raise InvalidRequest(f"others keep adding versions to {collection}/{rubric_id}; try again")

    async def get_rubric(self, collection: str, rubric_id: str, version: int | None = None) -> JudgeConfig:
        """Return a version of a rubric, the newest by default; raise InvalidRequest where there is no such rubric, or version."""
        rows = await self._require_versions(collection, rubric_id)
        row = rows[-1] if version is None else next((row for row in rows if row["version"] == version), None)
        if row is None:
            raise InvalidRequest(f"{collection}/{rubric_id} has no version {version}; it has 1 to {rows[-1]['version']}")
        return _judge_of(row)

    async def collections(self) -> list[str]:
        """Return the names of the collections, sorted."""
        rubrics = table("rubrics")
        return [row["collection"] for row in await self._rows(select(rubrics.c.collection).distinct().order_by(rubrics.c.collection))]

    async def list_rubrics(self, collection: str) -> list[RegisteredRubric]:
        """Return the rubrics of a collection, each with its newest version, by id."""
        rubrics, versions = table("rubrics"), table("rubric_versions")
        newest = (
            select(versions)
            .join(rubrics, (rubrics.c.collection == versions.c.collection) & (rubrics.c.rubric_id == versions.c.rubric_id))
            .where(versions.c.collection == collection, versions.c.version == rubrics.c.latest)
            .order_by(versions.c.rubric_id)
        )
        return [
            RegisteredRubric(
                rubric_id=row["rubric_id"],
                version=row["version"],
                sha256=row["sha256"],
                kind="schema" if "rubric_text" in json.loads(row["judge"]) else "criteria",
                changed=row["created"],
            )
            for row in await self._rows(newest)
        ]

    async def newest_versions(self, rubric_ids: Collection[str]) -> dict[str, list[tuple[str, int]]]:
        """Return the collections that have rubrics of these ids, each with its newest version, by the rubric's id."""
        rubrics = table("rubrics")
        query = select(rubrics).where(rubrics.c.rubric_id.in_(sorted(rubric_ids))).order_by(rubrics.c.collection)
        found: dict[str, list[tuple[str, int]]] = {}
        for row in await self._rows(query):
            found.setdefault(row["rubric_id"], []).append((row["collection"], row["latest"]))
        return found

    async def names_of(self, judge_sha256: str) -> list[str]:
        """Return the places, `COLLECTION/RUBRIC@VERSION`, of the rubrics with this sha256, sorted."""
        rows = table("rubric_versions")
        query = select(rows.c.collection, rows.c.rubric_id, rows.c.version).where(rows.c.sha256 == judge_sha256)
        return sorted(f"{row['collection']}/{row['rubric_id']}@{row['version']}" for row in await self._rows(query))

    async def save(self, judge: JudgeConfig, results: list[tuple[JudgeResult, int]]) -> None:
        """Store judgements, each with its repeat; one that is stored already is replaced."""
        judgements, sha256 = table("judgements"), judge.sha256()

        def write(connection: Connection) -> None:
            for result, repeat in results:
                row = {"judge_sha256": sha256, "agent_run_id": result.agent_run_id, "repeat": repeat, "result_type": result.result_type}
                connection.execute(judgements.delete().where(judgements.c.id == result.id))
                connection.execute(judgements.insert().values(id=result.id, result=result.model_dump_json(), **row))

        await self._store.write(write)

    async def judgements(self, judge: JudgeConfig, *, newest_first: bool = False) -> list[JudgeResult]:
        """Return a judge's stored results, by run or those that were stored last first; of one run or time, by repeat."""
        rows = table("judgements")
        order = rows.c.created.desc() if newest_first else rows.c.agent_run_id
        query = select(rows.c.result).where(rows.c.judge_sha256 == judge.sha256()).order_by(order, rows.c.repeat)
        return [JudgeResult.model_validate_json(row["result"]) for row in await self._rows(query)]

    async def _rows(self, query: Select[Any]) -> list[RowMapping]:
        return await self._store.read(lambda connection: list(connection.execute(query).mappings()))

    async def _version_rows(self, collection: str, rubric_id: str) -> list[RowMapping]:
        """Return the rows of a rubric's versions, oldest first."""
        rows = table("rubric_versions")
        here = (rows.c.collection == collection) & (rows.c.rubric_id == rubric_id)
        return await self._rows(select(rows).where(here).order_by(rows.c.version))

    async def _require_versions(self, collection: str, rubric_id: str) -> list[RowMapping]:
        """Return at least one row, or raise InvalidRequest."""
        if rows := await self._version_rows(collection, rubric_id):
            return rows
        known = [rubric.rubric_id for rubric in await self.list_rubrics(collection)]
        hint = did_you_mean(rubric_id, known) if known else " It has none yet."
        raise InvalidRequest(f"there is no rubric {clip(rubric_id)} in the collection {clip(collection)}.{hint}")

    # The number of a version is part of the table's key. Of two processes that number alike the second one
    # fails, reads again and takes the next number, or finds its own content. `latest` changes in the same
    # transaction, so a list never names a version that is not there.
    async def _insert(self, collection: str, judge: JudgeConfig) -> bool:
        """Store a version; False if another process has stored that number in the meantime."""
        rubrics, versions = table("rubrics"), table("rubric_versions")
        place = {"collection": collection, "rubric_id": judge.id}

        def write(connection: Connection) -> None:
            if judge.version == 1:
                connection.execute(rubrics.insert().values(latest=1, **place))
            judge_json = judge.model_dump_json(exclude_none=True)
            connection.execute(versions.insert().values(version=judge.version, sha256=judge.sha256(), judge=judge_json, **place))
            this_rubric = (rubrics.c.collection == collection) & (rubrics.c.rubric_id == judge.id)
            connection.execute(rubrics.update().where(this_rubric).values(latest=judge.version))

        try:
            await self._store.write(write)
        except IntegrityError:
            return False
        return True


def _parse(rubric: JudgeConfig | Mapping[str, Any] | str) -> JudgeConfig:
    judge = parse_judge(dict(rubric) if isinstance(rubric, Mapping) else rubric)
    _refuse_name(judge.rubric_id, "id")
    return judge


def _refuse_name(name: str, what: str) -> None:
    if not name.strip() or len(name) > NAME_CHARACTERS or set(name) & set("/@\n\t"):
        raise InvalidRequest(f"{what} {clip(name)} is not a name; 1 to {NAME_CHARACTERS} characters, without '/' and '@'")


def _is_same(row: RowMapping, judge: JudgeConfig) -> bool:
    """Return whether a stored version judges as a judge does, passes the same, and does the same with what it is unsure of."""
    return row["sha256"] == judge.sha256() and _afterwards(_judge_of(row)) == _afterwards(judge)


def _afterwards(judge: JudgeConfig) -> tuple[object, ...]:
    """Return what a judge says of its verdicts, which changes none of them."""
    return judge.abstain, judge.escalate, None if isinstance(judge, CriteriaJudge) else judge.pass_if


def _judge_of(row: RowMapping) -> JudgeConfig:
    return parse_judge(json.loads(row["judge"]))
