"""Groups of criteria as they are written, one inside the other, put in line."""

from collections.abc import Iterator
from typing import Any

from gradeloop.printable import clip


def places(criteria: Any) -> Iterator[tuple[tuple[int | str, ...], Any, str | None]]:  # noqa: ANN401 - raw input of any shape
    """Yield each criterion of a raw list with its path and its group's name, the members of groups one by one."""
    for at, each in enumerate(criteria):
        if isinstance(each, dict) and "group" in each and "criteria" in each and isinstance(each["criteria"], list):
            for inner, member in enumerate(each["criteria"]):
                yield (at, "criteria", inner), member, str(each["group"])
        else:
            yield (at,), each, None


def flat(raw: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Put the members of groups in line with the other criteria, each with the name of its group.

    Raises:
        ValueError: The rubric is no object, its criteria are no list, or a group holds none, or a group.
    """
    if isinstance(raw, list):
        raise ValueError("the rubric is a list; write 'criteria:' above it")  # noqa: TRY004 - pydantic tells no other
    criteria = raw.get("criteria")
    if criteria is None:
        return raw
    if not isinstance(criteria, list | tuple):
        raise ValueError(f"criteria: {clip(str(criteria))} is no list; write each criterion after '- '")  # noqa: TRY004 - the same
    nested = [each for each in criteria if isinstance(each, dict) and "group" in each and "criteria" in each]
    for each in nested:
        if not each["criteria"] or not isinstance(each["criteria"], list):
            raise ValueError(f"the group {clip(str(each['group']))} has no criteria; give it a list of them, or leave it out")
        if any(isinstance(member, dict) and "criteria" in member for member in each["criteria"]):
            raise ValueError(f"the group {clip(str(each['group']))} has a group in it; groups are one level deep")
    groups = [*(raw.get("groups") or ()), *({key: value for key, value in each.items() if key != "criteria"} for each in nested)]
    flat = [_member(each, name) for _, each, name in places(criteria)]
    named = {group.get("group") if isinstance(group, dict) else group.group for group in groups}
    used = dict.fromkeys(each["group"] for each in flat if isinstance(each, dict) and isinstance(each.get("group"), str))
    groups += [{"group": name} for name in used if name not in named]
    return raw | {"criteria": flat} | ({"groups": groups} if groups else {})


def _member(raw: Any, group: str | None) -> Any:  # noqa: ANN401 - raw input of any shape
    if group is None:
        return raw
    if isinstance(raw, str):
        return {"description": raw, "group": group}
    return raw | {"group": group} if isinstance(raw, dict) and not (len(raw) == 1 and "description" not in raw) else raw
