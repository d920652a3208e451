"""Runs that are too long for a judge to be shown at once: overlapping parts, the findings on them, and the judgement of the whole."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from typing import Any, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import Priority
from gradeloop.contract.transcript import (
    AgentRun,
    MessagePlace,
    PartFinding,
    RunExcerpt,
    RunMessage,
    RunTranscript,
    draft_index,
    messages_of,
    request_index,
    run_as_messages,
)
from gradeloop.grading.prompts import RECORD_CHARACTERS, elide, read_prompt_text, record_starts
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, JudgingRequest, hashed_id, judging_id
from gradeloop.judges.prompt import is_cut
from gradeloop.text import objects_in

CHUNKS_VERSION = "1"
"""The version of how runs are taken apart, raised when the same run comes to other parts or to another last question."""

PART_CHARACTERS = 500_000
"""The most characters of a part's records: with what stands around them, less than a judge is shown."""

PART_BYTES = 768 * 1024
"""The most bytes of a part's messages as JSON: with the judge, less than a case of a batch has."""

OVERLAP = 0.1
"""The share of a part, from its beginning, that the part before it ends with."""

KEPT_SHARE = 0.125
"""The most that the first request, and the last answer, may each take of a part in order to stand in every part."""

CITED_SHARE = 0.6
"""The most that the cited messages take of the last question."""

FINDINGS_CHARACTERS = 150_000
"""The most characters of all findings together; longer ones are cut in their middle."""

EXPECTED_FINDING = 2_000
"""The characters of a finding that nobody has made yet, with which its cost is estimated."""

SHOWN_OUTPUT = 4_000
"""The most characters of a part's output that the result keeps."""

_PART, _FINDINGS = read_prompt_text("judge_part"), read_prompt_text("judge_findings")

_Placed = tuple[MessagePlace, RunTranscript, RunMessage]
_Record = tuple[MessagePlace, int]
"""A record that graders of criteria are shown: its message, and its number there."""


class RunPart(NamedTuple):
    """A part of a run."""

    run: AgentRun
    """The messages of the part, as a run."""
    first: MessagePlace
    """The first message of the stretch that it is about; a request or an answer that stands in every part may lie outside."""
    last: MessagePlace


def is_too_long(run: AgentRun) -> bool:
    """Return whether a judge would not be shown all of a run, and there are several messages to take apart."""
    return run.excerpt is None and sum(len(transcript.messages) for transcript in run.transcripts) > 1 and is_cut(run)


def parts_of(judge: JudgeConfig, run: AgentRun) -> list[RunPart]:
    """Return the overlapping parts of a run, in order; every message is in one of them at least.

    The first request and the last answer stand in every part, unless they are very long. A single message that is too long for a part is
    a part of its own, of which a judge is shown the beginning and the end.
    """
    placed = list(run.placed())
    costs = [_cost(message) for _, _, message in placed]
    kept = [at for at in _kept(placed) if costs[at] <= KEPT_SHARE]
    stretches = _stretches(costs, 1 - sum(costs[at] for at in kept))
    shown = [{*kept, *range(first, end)} for first, end in stretches]
    runs = [_excerpt(judge, run, placed, chosen, part=number, parts=len(shown)) for number, chosen in enumerate(shown, 1)]
    return [RunPart(part, placed[first][0], placed[end - 1][0]) for part, (first, end) in zip(runs, stretches, strict=True)]


def _cost(message: RunMessage) -> float:
    """Return the share of a part that a message takes."""
    texts = [len(str(part.record()["text"])) for part in message.records()]
    return max((sum(texts) + RECORD_CHARACTERS * len(texts)) / PART_CHARACTERS, len(to_json(message)) / PART_BYTES)


def _kept(placed: Sequence[_Placed]) -> list[int]:
    """Return the indexes of the request and of the answer that a judge of criteria judges."""
    owned = [(at, made) for at, (_, _, message) in enumerate(placed) for made in messages_of(message, {})]
    log = [made for _, made in owned]
    draft = draft_index(log)
    return sorted({owned[request_index(log, draft)][0], owned[draft][0]})


# Each stretch begins before the end of the one before it, so that what happens at a border is in one part as a
# whole. It is filled up to the room, but it always takes one message that no earlier stretch has (`covered`).
# Without that, a message larger than the room would stop the loop from moving on.
def _stretches(costs: Sequence[float], room: float) -> list[tuple[int, int]]:
    """Return the first index of each stretch of messages, and the one behind its last; each holds a message that none before it has."""
    found: list[tuple[int, int]] = []
    first = covered = 0
    while True:
        end, size = first, 0.0
        while end < len(costs) and (end <= covered or size + costs[end] <= room):
            size += costs[end]
            end += 1
        found.append((first, end))
        if end == len(costs):
            return found
        covered, overlap, back = end, 0.0, end
        most = min(OVERLAP * room, room - costs[end])
        while back - 1 > first and (overlap + costs[back - 1] <= most or (back == end and costs[back - 1] <= room / 2 - costs[end])):
            back -= 1
            overlap += costs[back]
        first = back


def _excerpt(judge: JudgeConfig, run: AgentRun, placed: Sequence[_Placed], chosen: Iterable[int], **about: Any) -> AgentRun:  # noqa: ANN401
    """Return some messages of a run as an excerpt, with the metadata that the judge may be shown."""
    shows_metadata = not isinstance(judge, CriteriaJudge) and judge.show_metadata
    transcripts, numbers = list[RunTranscript](), dict[int, tuple[int, ...]]()
    for number, group in groupby((placed[at] for at in sorted(set(chosen))), key=lambda item: item[0].transcript):
        places, owners, messages = zip(*group, strict=True)
        metadata = owners[0].metadata if shows_metadata else {}
        transcripts.append(owners[0].model_copy(update={"messages": messages, "metadata": metadata}))
        numbers[number] = tuple(place.message for place in places)
    excerpt = RunExcerpt(transcripts=tuple(numbers), messages=tuple(numbers.values()), **about)
    return AgentRun(id=run.id, transcripts=tuple(transcripts), metadata=run.metadata if shows_metadata else {}, excerpt=excerpt)


def judge_of_parts(judge: JudgeConfig) -> JudgeConfig:
    """Return the judge of a single part: the same question, asked of what the part shows."""
    return _with_guidance(judge, _PART)


def judge_of_findings(judge: JudgeConfig) -> JudgeConfig:
    """Return the judge of the findings: the same question, asked of the whole run."""
    return _with_guidance(judge, _FINDINGS)


def _with_guidance(judge: JudgeConfig, text: str) -> JudgeConfig:
    same = {"id": judge.rubric_id, "abstain": None, "escalate": None}
    if isinstance(judge, CriteriaJudge):
        instructions = "\n\n".join(filter(None, (judge.rubric.instructions, text)))
        return judge.model_copy(update=same | {"rubric": judge.rubric.model_copy(update={"instructions": instructions})})
    return judge.model_copy(update=same | {"rubric_text": f"{judge.rubric_text}\n\n{text}"})


def without_part_text(judge: JudgeConfig) -> JudgeConfig:
    """Return the judge that `judge_of_parts` was given, as far as pages show it: with only its own text."""
    if isinstance(judge, CriteriaJudge):
        own = (judge.rubric.instructions or "").removesuffix(_PART).rstrip()
        return judge.model_copy(update={"rubric": judge.rubric.model_copy(update={"instructions": own})})
    return judge.model_copy(update={"rubric_text": judge.rubric_text.removesuffix(_PART).rstrip()})


def chunked_id(judge: JudgeConfig, run_sha256: str, repeat: int = 0, *, priority: Priority | None = None) -> str:
    """Return the id of a judgement in parts, which is another one than that of the run cut to fit."""
    return hashed_id(f"{judging_id(judge, run_sha256, repeat)} in parts {CHUNKS_VERSION}", priority)


def findings_run(judge: JudgeConfig, run: AgentRun, parts: Sequence[RunPart], results: Sequence[JudgeResult]) -> AgentRun:
    """Return what the last call is shown: the findings on all parts, and the messages of the run that they cite.

    `parts`: its parts, as `parts_of` returns them.
    """
    texts = [json.dumps(_shown_output(part.run, result), ensure_ascii=False) for part, result in zip(parts, results, strict=True)]
    cap = FINDINGS_CHARACTERS // len(parts)
    findings = tuple(
        PartFinding(part=number, first=part.first.label, last=part.last.label, text=elide(text, cap))
        for number, (part, text) in enumerate(zip(parts, texts, strict=True), 1)
    )
    placed = list(run.placed())
    at_label = {place.label: at for at, (place, _, _) in enumerate(placed)}
    chosen = [at for at in _kept(placed) if _cost(placed[at][2]) <= KEPT_SHARE]
    left = CITED_SHARE
    # The parts' citations are taken by turns, so that none has all before another has one.
    cited = zip_longest(*(_cited(part.run, result) for part, result in zip(parts, results, strict=True)))
    for label in dict.fromkeys(filter(None, chain.from_iterable(cited))):
        at = at_label[label]
        if at not in chosen and (cost := _cost(placed[at][2])) <= left:
            chosen.append(at)
            left -= cost
    return _excerpt(judge, run, placed, chosen or [len(placed) - 1], parts=len(parts), findings=findings)


def requests_in_parts(judge: JudgeConfig, run: AgentRun) -> list[JudgingRequest]:
    """Return the requests of a judgement in parts, to count its calls; findings that nobody has made yet have a usual length."""
    parts, whole = parts_of(judge, run), judge_of_findings(judge)
    asked = [JudgingRequest.model_construct(judge=judge_of_parts(judge), run=part.run) for part in parts]
    blank = {"agent_run_id": run.id, "rubric_id": judge.rubric_id, "rubric_version": judge.version, "result_type": "DIRECT_RESULT"}
    findings = [JudgeResult.model_validate(blank | {"id": "unknown", "output": {"answer": " " * EXPECTED_FINDING}}) for _ in parts]
    return [*asked, JudgingRequest.model_construct(judge=whole, run=findings_run(judge, run, parts, findings))]


def _cited(part: AgentRun, result: JudgeResult) -> list[str]:
    """Return the blocks that the judgement of a part cites, or quotes, and that are there."""
    cited = objects_in(result.result_metadata.get("citations"))
    labels = [str(row["target"]) for row in cited if row.get("verified") and row.get("kind") == "block"]
    quotes = (pair for row in objects_in(result.output.get("criteria")) for pair in _placed_quotes(row, _record_places(part)))
    return list(dict.fromkeys([*labels, *(place.label for quote, (place, _) in quotes if quote.get("quote_verified"))]))


def _placed_quotes(row: Mapping[str, Any], records: Sequence[_Record]) -> list[tuple[dict[str, Any], _Record]]:
    """Return the quotes of a criterion's row, each with its record among those that were shown; others are left out."""
    quotes = objects_in(row.get("quotes"))
    return [(quote, records[at]) for quote in quotes if isinstance(at := quote.get("record"), int) and 0 <= at < len(records)]


def _shown_output(part: AgentRun, result: JudgeResult) -> dict[str, JsonValue]:
    """Return the output of a part's judgement, in which quotes name blocks of the run rather than records of the part."""
    given, records = objects_in(result.output.get("criteria")), _record_places(part)
    if not any(objects_in(row.get("quotes")) for row in given):
        return result.output
    quotes = ([{"block": place.label, "quote": quote.get("quote")} for quote, (place, _) in _placed_quotes(row, records)] for row in given)
    return result.output | {"criteria": [row | {"quotes": found} for row, found in zip(given, quotes, strict=True)]}


def _record_places(run: AgentRun) -> list[_Record]:
    """Return, for each record that graders of criteria are shown of a run, its message and its number there."""
    counted = ((place, record_starts(list(messages_of(message, {})))[-1]) for place, _, message in run.placed())
    return [(place, at) for place, count in counted for at in range(count)]


def judgement_of_whole(
    name: str, run: AgentRun, parts: Sequence[RunPart], results: Sequence[JudgeResult], last: tuple[AgentRun, JudgeResult]
) -> JudgeResult:
    """Return the judgement of a run that was judged in parts: what the last call says, with what all calls cost.

    `last`: what the last call was shown, and what it says.
    """
    shown, found = last
    usage = sum((result.usage for result in results), found.usage)
    metadata = dict(found.result_metadata)
    if metadata.pop("elided", False) or any(result.result_metadata.get("elided") for result in results):
        metadata["elided"] = True
    metadata |= {"parts": [_about(part, result) for part, result in zip(parts, results, strict=True)], "findings": found.id}
    about = {"id": name, "usage": usage, "attempts": usage.attempts, "prompt_sha256": None, "batch_id": None}
    if isinstance(metadata.get("draft"), int):
        metadata["draft"] = max(draft_index(run_as_messages(run)), 0)
        about["output"] = _in_whole_run(found, shown, run)
    return found.model_copy(update=about | {"result_metadata": metadata})


def _about(part: RunPart, result: JudgeResult) -> dict[str, JsonValue]:
    """Return what the result keeps of a part's judgement."""
    output = _shown_output(part.run, result)
    shown: JsonValue = output if len(text := json.dumps(output)) <= SHOWN_OUTPUT else elide(text, SHOWN_OUTPUT)
    batch: dict[str, JsonValue] = {"batch_id": result.batch_id} if result.batch_id else {}
    return {"id": result.id, **batch, "first": part.first.label, "last": part.last.label, "output": shown}


def _in_whole_run(result: JudgeResult, shown: AgentRun, run: AgentRun) -> dict[str, JsonValue]:
    """Return an output by criteria in which quotes name the records of the whole run."""
    places = _record_places(shown)
    numbers = {place: at for at, place in enumerate(_record_places(run))}
    rows: list[JsonValue] = []
    for row in objects_in(result.output.get("criteria")):
        quotes = [quote | {"record": numbers[record]} for quote, record in _placed_quotes(row, places)]
        rows.append(row | {"quotes": quotes} if "quotes" in row else row)
    return result.output | {"criteria": rows}


def failure_of_parts(results: Sequence[JudgeResult]) -> tuple[str, Usage, bool] | None:
    """Return why a run cannot be judged of which parts were not, what they cost, and whether it can be run again; None where all were."""
    lost = [(number, result) for number, result in enumerate(results, 1) if result.failed]
    if not lost:
        return None
    number, first = lost[0]
    more = f", and {len(lost) - 1} more of them" if len(lost) > 1 else ""
    reason = f"part {number} of {len(results)}{more}: {first.result_metadata.get('reason') or 'not judged'}"
    again = any(bool(result.result_metadata.get("again")) for _, result in lost)
    return reason, sum((result.usage for result in results), Usage()), again


def whole_run(parts: Sequence[AgentRun]) -> AgentRun | None:
    """Return the run whose parts these are, put together again; None where parts are missing, or belong to different runs."""
    excerpts = [part.excerpt for part in parts]
    if not parts or any(excerpt is None or excerpt.parts != len(parts) for excerpt in excerpts):
        return None
    messages: dict[MessagePlace, RunMessage] = {}
    transcripts: dict[int, RunTranscript] = {}
    for part in parts:
        for place, transcript, message in part.placed():
            if messages.setdefault(place, message) != message:
                return None
            transcripts.setdefault(place.transcript, transcript)
    counts = Counter(place.transcript for place in messages)
    places = [[MessagePlace(number, at) for at in range(counts[number])] for number in range(len(transcripts))]
    if sorted(messages) != list(chain.from_iterable(places)):
        return None
    made = (transcripts[at].model_copy(update={"messages": tuple(map(messages.__getitem__, row))}) for at, row in enumerate(places))
    return AgentRun(id=parts[0].id, transcripts=tuple(made), metadata=parts[0].metadata)
