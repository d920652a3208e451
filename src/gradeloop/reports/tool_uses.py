"""The evidence of a thread or a judgement: each tool call with its arguments and output, from the workflow's histories."""

import re
from collections.abc import Sequence

from pydantic import JsonValue, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from gradeloop.evaluation import CheckOutcome
from gradeloop.evidence import Evidence, check_outcome, evidence_of
from gradeloop.reports.recorded_activity import RecordedActivity, recorded_activities
from gradeloop.reports.run_story import ToolUse
from gradeloop.reports.workflow_histories import Unreadable, decoded, histories, mapping

EVIDENCE = "evidence "
"""How the summary of a tool call begins; the tool's name comes after."""

READ_TRANSCRIPT = "read_transcript"

GRADE = "grade"
"""The activity that asks a grader; it names the pass, and the criteria of the conversation."""

_OPERATION = re.compile(r"(?P<run>.*):(?P<iteration>\d+):(?P<role>check|grader|generator)\.(?P<rest>.*)", re.DOTALL)
"""Of a tool call's id: run, iteration and step, as `workflows/tool_calls.py` puts them together."""

_GROUP = re.compile(r"\d+\.(?P<group>\d+)\.(?P<sample>\d+)\.\d+\.\d+")
"""Of a grader's step: draft, call group, sample, turn, position."""

_SCRATCH = re.compile(r"scratch/(?P<run>.*)/(?P<iteration>\d+)/(?P<group>\d+)/(?P<sample>\d+)", re.DOTALL)

Place = tuple[str, int]


async def tool_uses(temporal: Client, workflow_id: str) -> tuple[list[ToolUse], list[str]]:
    """Return the tool calls of all runs of a workflow, in the order in which they were made, and what could not be read, in words.

    Args:
        temporal: Connected as the worker is, so that it reads what the worker wrote.
        workflow_id: Of a thread, or of a judgement.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    held = await histories(temporal, workflow_id)
    reading = _Reading(temporal, workflow_id)
    found = [await reading.use(each) for run in held.runs for each in recorded_activities(run)]
    return [each for each in found if each is not None], list(dict.fromkeys((*held.notes, *reading.notes)))


class _Reading:
    """Tells tool calls among a workflow's activities."""

    def __init__(self, temporal: Client, workflow_id: str) -> None:
        self._temporal = temporal
        self._workflow_id = workflow_id
        self._grades: list[RecordedActivity] = []
        """Those that nobody has had to look into yet."""
        self._asked: dict[tuple[str, int, str, str], Sequence[JsonValue]] = {}
        """The criteria of a conversation, by run, iteration, call group and sample."""
        self._place: Place | None = None
        """Run and iteration of the newest pass that was looked into."""
        self.notes: list[str] = []

    async def use(self, activity: RecordedActivity) -> ToolUse | None:
        """Return the activity as a tool call; None where it is none, or cannot be read."""
        if activity.type == GRADE:
            self._grades.append(activity)
            return None
        tool = await self._tool(activity)
        if tool is None:
            return None
        try:
            return await self._use(tool, activity)
        except (Unreadable, ValidationError) as error:
            self.notes.append(f"a call of {tool} cannot be read and is not shown: {' '.join(str(error).split())[:200]}")
            return None

    async def _tool(self, activity: RecordedActivity) -> str | None:
        """Return the name of the tool that an activity calls, if it is one."""
        try:
            summary = await self._value(activity.summary)
        except Unreadable:
            return activity.type.removeprefix("tool.") if activity.type.startswith("tool.") else None
        if not isinstance(summary, str) or not summary.startswith(EVIDENCE):
            return None
        return READ_TRANSCRIPT if activity.type == READ_TRANSCRIPT else summary.removeprefix(EVIDENCE)

    async def _use(self, tool: str, activity: RecordedActivity) -> ToolUse:
        asked = mapping(await self._value(activity.input))
        told = await self._told(asked, activity)
        evidence = await self._evidence(activity, asked, is_check=told["role"] == "check")
        found = {"tool": tool, "output": evidence.text, "failed": evidence.failed, "bytes": evidence.bytes}
        return ToolUse.model_validate(told | found | {"seconds": activity.seconds, "attempts": activity.attempts})

    async def _told(self, asked: dict[str, JsonValue], activity: RecordedActivity) -> dict[str, object]:
        """Return who called, where and with what, as the request tells."""
        if activity.type == READ_TRANSCRIPT and "record" in asked:
            await self._learn()
            run, iteration = self._place or (None, None)
            arguments = {key: asked[key] for key in ("record", "offset") if asked.get(key)} | {"record": asked["record"]}
            return {"role": "grader", "grading_run_id": run, "iteration": iteration, "arguments": arguments}
        arguments = mapping(asked.get("arguments"))
        found = _OPERATION.fullmatch(str(asked.get("operation_id") or ""))
        if found is None:  # a history of before calls had ids
            role = "check" if asked.get("check") else "grader" if asked.get("draft") else "generator"
            return {"role": role, "arguments": arguments, "criterion": asked.get("call") if role == "check" else None}
        criterion = asked.get("call") if found["role"] == "check" else await self._criterion(found)
        place = {} if found["run"] == self._workflow_id else {"grading_run_id": found["run"], "iteration": int(found["iteration"])}
        return {"role": found["role"], "arguments": arguments, "criterion": criterion} | place

    async def _criterion(self, found: re.Match[str]) -> JsonValue:
        """Return the criterion that a grader was asked about; None where it was asked about several, or that cannot be told."""
        step = _GROUP.fullmatch(found["rest"]) if found["role"] == "grader" else None
        if step is None:
            return None
        await self._learn()
        ids = self._asked.get((found["run"], int(found["iteration"]), step["group"], step["sample"]), ())
        return ids[0] if len(ids) == 1 else None

    async def _learn(self) -> None:
        """Look into the calls of graders that came since."""
        grades, self._grades = self._grades, []
        for each in grades:
            try:
                asked = mapping(await self._value(each.input))
            except Unreadable as error:
                self.notes.append(f"a grader call cannot be read, so the criterion of its tool calls is unknown: {error}")
                continue
            found = _SCRATCH.fullmatch(str(mapping(asked.get("scratch")).get("key")))
            ids = asked.get("asked")
            if found is not None and isinstance(ids, list):
                self._place = found["run"], int(found["iteration"])
                self._asked[(*self._place, found["group"], found["sample"])] = ids

    async def _evidence(self, activity: RecordedActivity, asked: dict[str, JsonValue], *, is_check: bool) -> Evidence:
        """Return what a call found, or its error; empty where it has not ended."""
        call = str(asked.get("call") or "")
        if (trouble := await activity.trouble(self._temporal)) is not None:
            return evidence_of(call, trouble, failed=True)
        if activity.ended is None:
            return Evidence(call=call, text="")
        value = await self._value(activity.output)
        if "check" not in asked and activity.type != READ_TRANSCRIPT:  # somebody else's, who returns what he likes
            return _foreign(call, value, is_check=is_check)
        found = Evidence.model_validate(value)
        return found.model_copy(update={"text": _decided(found.outcome)}) if found.outcome else found

    async def _value(self, payloads: Sequence[Payload]) -> JsonValue:
        values = await decoded(self._temporal, payloads)
        return values[0] if values else None


def _foreign(call: str, value: JsonValue, *, is_check: bool) -> Evidence:
    if not is_check:
        return evidence_of(call, value)
    try:
        return Evidence(call=call, text=_decided(check_outcome(value)))
    except TypeError as error:
        return evidence_of(call, f"checker_error: {error}", failed=True)


def _decided(outcome: CheckOutcome) -> str:
    return "passed" if outcome.passed else f"not passed: {outcome.gap}"
