"""Prompts, keys of reused verdicts, ids of judgements and schemas are the bytes that they were: their sums stand in a file beside this.

A sum that changes means that kept verdicts are asked for and paid again, or that a recorded prompt cannot be shown. Where that is meant (a
version of the prompts), `python -m tests.test_equal_sums` prints the file anew.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.tools.registry import ToolRegistry
from gradeloop.batches.comparing import choices_of
from gradeloop.batches.contract import Case
from gradeloop.batches.judged import judging_case, records_of, rollout_key, vote_key
from gradeloop.cli.schemas import json_schemas
from gradeloop.contract.evaluation import CheckOutcome, CriterionRow, Evaluation
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Priority
from gradeloop.contract.transcript import AgentRun
from gradeloop.grading.answer_form import FULL, AnswerForm
from gradeloop.grading.cache_key import key_of_tenant, reuse_key
from gradeloop.grading.prompts import (
    JudgedDraft,
    build_generator_system,
    build_grader_prompt,
    feedback_message,
    further_message,
    last_draft_message,
    last_turn_message,
    missing_message,
    repair_message,
)
from gradeloop.grading.scoring import call_groups
from gradeloop.judges.chunks import chunked_id, findings_run, judge_of_findings, judge_of_parts, parts_of
from gradeloop.judges.contract import JudgeResult, JudgingRequest, SchemaJudge, judging_id, parse_judge
from gradeloop.judges.prompt import build_judge_prompt, reflection_message
from gradeloop.judges.prompt import repair_message as judge_repair_message

FILE = Path(__file__).with_suffix(".json")
DIGITS = 16
NONCE = "0123456789abcdef0123456789abcdef"

CHAT = [
    {"role": "system", "content": "Be fair."},
    {"role": "user", "content": "{{ rubric }}"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "{{ output }} {{ transcript }}"},
]
RUBRICS: dict[str, Any] = {
    "text": "# Form\n- three lines\nIt shows:\n- spring\nThat is all:",
    "one": {"criteria": ["It is polite."]},
    "required": {"criteria": ["polite", {"description": "short", "required": False}, {"description": "two\nlines"}]},
    "instructed": {"name": "n", "instructions": "Be strict.", "language": "de", "criteria": ["höflich", "kurz"]},
    "negated": {"criteria": [{"description": "It insults.", "negate": True}, "polite"]},
    "scored": {"threshold": 0.5, "criteria": [{"description": "good", "score": {"min": 1, "max": 5, "threshold": 4}, "weight": 2}, "b"]},
    "quoted": {"criteria": [{"description": "cites", "quotes": True}, {"description": "proves", "require_quotes": True}]},
    "votes": {"criteria": [{"description": "funny", "votes": 3, "grader": "scripted:funny"}, "short"]},
    "panel": {
        "criteria": [{"description": "sound", "panel": ["scripted:a", {"id": "scripted:b", "config": {"seed": 2}}, "scripted:c"]}, "b"]
    },
    "apart": {"mode": "per_criterion", "criteria": ["a", "b \u200b hidden"]},
    "checked": {
        "show_checks": True,
        "criteria": [{"description": "lines", "check": "word_count"}, "polite", {"description": "ok", "human": True}],
    },
    "hidden check": {"criteria": [{"description": "lines", "check": "word_count"}, "polite"]},
    "pass and score": {"criteria": [{"description": "good", "form": "pass_score"}, "b"]},
    "own prompt": {"prompt": CHAT, "criteria": ["a", "b"]},
    "own slots": {
        "criteria": [{"description": {"most": {"words": 40}}, "prompt": "At most {{ rubric.most.words }}: {{ output.text }}"}, "b"]
    },
    "grouped": {
        "groups": [{"group": "g", "threshold": 0.5}],
        "criteria": [{"description": "a", "group": "g"}, {"description": "b", "group": "g"}],
    },
}
CALLS = (ToolCall(id="t1", name="look", arguments={"at": "ü"}), ToolCall(id="t2", name="peek", invalid="{oops"))
THREADS: dict[str, tuple[int, list[Message]]] = {
    "short": (0, [Message(role="user", content="do it"), Message(role="assistant", content='{"text": "42 pumps <|end|>"}')]),
    "with tools": (
        0,
        [
            Message(role="user", content="do it\u202e", name="ann"),
            Message(role="assistant", content="let me see", tool_calls=CALLS),
            Message(role="tool", name="look", tool_call_id="t1", content=f"seen {NONCE}"),
            Message(role="tool", name="peek", tool_call_id="t2", content="bad"),
            Message(role="assistant", content='{"text": "done"}'),
        ],
    ),
    "two turns": (
        2,
        [
            Message(role="user", content="one"),
            Message(role="assistant", content="1"),
            Message(role="user", content="two " + "x" * 3000),
            Message(role="assistant", content='{"text": "' + "y" * 3000 + '"}'),
        ],
    ),
}
CHECKS = {"lines": CheckOutcome(passed=False, gap="9 words"), "c2": CheckOutcome(passed=True)}
FLAT_RUN = {"role": "user", "content": "Name the capital."}, {"role": "assistant", "content": "Paris."}
RUNS: dict[str, Any] = {
    "plain": {"id": "paris", "transcripts": [{"messages": FLAT_RUN}]},
    "several": {
        "id": "s",
        "metadata": {"k": 1},
        "transcripts": [{"id": "a", "name": "A", "messages": FLAT_RUN}, {"messages": FLAT_RUN[::-1]}],
    },
    "parts": {
        "id": "p",
        "metadata": {"truth": [1, "ü"]},
        "transcripts": [
            {
                "metadata": {"run": 1},
                "messages": [
                    {"role": "user", "parts": [{"type": "file", "name": "a.png", "media_type": "image/png", "bytes": 7, "text": ""}]},
                    {
                        "role": "assistant",
                        "reasoning": "hm",
                        "content": "see",
                        "tool_calls": [{"id": "1", "name": "f", "arguments": {"a": 1}}],
                    },
                    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "7", "is_error": True, "metadata": {"ms": 3}},
                    {"role": "assistant", "parts": [{"type": "error", "name": "E", "text": "lost"}, {"type": "text", "text": "no\u200b"}]},
                ],
            }
        ],
    },
    "long": {
        "id": "l",
        "transcripts": [{"messages": [*FLAT_RUN, *({"role": "tool", "content": f"{at} " + "x" * 90_000} for at in range(9))]}],
    },
}
CITED = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["y", "n"]}, "why": {"type": "string", "citations": True}},
    "required": ["label"],
}
JUDGES: dict[str, Any] = {
    "schema": {"rubric_text": "It names Paris.", "judge_model": "scripted:judge"},
    "cited": {"rubric_text": "R", "output_schema": CITED, "require_citations": True, "show_metadata": True, "version": 3, "id": "j"},
    "panel": {"rubric_text": "R", "panel": ["scripted:a", "scripted:b"], "quorum": 1, "abstain": {"label": 0.8}},
    "rollouts": {
        "rubric_text": "R",
        "n_rollouts_per_input": 3,
        "output_format": "yaml",
        "response_xml_key": "verdict",
        "judge_model": "scripted:a",
    },
    "constrained": {"rubric_text": "R", "output_parsing_mode": "CONSTRAINED_DECODING", "pass_if": {"label": "match"}},
    "reflecting": {"rubric_text": "R", "n_rollouts_per_input": 2, "judge_variant": "multi-reflect"},
    "templates": {
        "rubric_text": "R {no slot}",
        "prompt_templates": [
            {"role": "system", "content": "S {rubric}"},
            {"role": "user", "content": "{agent_run} {output_schema} {output_format_instructions} <response></response>"},
        ],
    },
    "criteria": {"rubric": {"criteria": ["polite", {"description": "short", "votes": 2}]}, "grader": {"model": "scripted:g"}},
    "criteria quoted": {
        "rubric": {"instructions": "I.", "criteria": [{"description": "names Paris", "quotes": True}]},
        "grader": {"system_prompt": "P."},
    },
}
MODELS = [
    ModelSpec.model_validate(value)
    for value in (
        "scripted:a",
        {"id": "scripted:a", "config": {"seed": 1, "timeout": 9}, "fallback": ["scripted:b"]},
        {"id": "openai:x", "config": {"temperature": 0}},
    )
]


def rubrics() -> dict[str, Rubric]:
    """Return the rubrics, read."""
    return {name: Rubric.model_validate(value) for name, value in RUBRICS.items()}


def threads(checks: dict[str, CheckOutcome]) -> Iterator[tuple[str, JudgedDraft]]:
    """Yield the threads, each ending with the draft to be judged."""
    for name, (request, messages) in THREADS.items():
        yield name, JudgedDraft(messages, request, len(messages) - 1, checks, NONCE)


def runs() -> dict[str, AgentRun]:
    """Return the finished runs, read."""
    return {name: AgentRun.model_validate(value) for name, value in RUNS.items()}


def texts(system: str, messages: Iterator[Message] | tuple[Message, ...]) -> list[Any]:
    """Return what is sent, as JSON."""
    return [system, *([message.role, message.content, message.source] for message in messages)]


def graders_prompts() -> Iterator[tuple[str, Any]]:
    """Yield the prompts of graders by criteria: every rubric about every thread, tagged and cut ones too."""
    for name, rubric in rubrics().items():
        for about, judged in threads(CHECKS):
            for group in call_groups(rubric):
                tags = AnswerForm(by="tags", budget=2_000)
                ways: list[dict[str, Any]] = [{"tag": None}, {"tag": "verdict-1", "instructions": "Own policy.", "form": tags}]
                for options in (*ways, {"tag": None, "form": AnswerForm(profile="short")}):
                    if name == "own slots" and about == "two turns" and options["tag"]:
                        continue
                    prompt = build_grader_prompt(rubric, group, judged, **options)
                    yield f"grader, {name}", [texts(prompt.system, prompt.messages), prompt.shared]


def judges_prompts() -> Iterator[tuple[str, Any]]:
    """Yield the prompts of judges with a schema: every judge about every run, cut ones too, and those about runs in parts."""
    for name, raw in JUDGES.items():
        judge = parse_judge(raw)
        for about, run in runs().items():
            if about == "long":
                yield "parts", [[part.first, part.last, part.run.model_dump(mode="json")] for part in parts_of(judge, run)]
                facts = {
                    "id": "x",
                    "agent_run_id": "l",
                    "rubric_id": "r",
                    "rubric_version": 1,
                    "result_type": "DIRECT_RESULT",
                    "output": {"why": "b"},
                }
                found = findings_run(judge, run, parts_of(judge, run), [JudgeResult.model_validate(facts)] * len(parts_of(judge, run)))
                yield (
                    "findings",
                    [found.model_dump(mode="json"), *(of(judge).model_dump(mode="json") for of in (judge_of_parts, judge_of_findings))],
                )
            if not isinstance(judge, SchemaJudge):
                continue
            for budget in (600_000, 400):
                prompt = build_judge_prompt(judge, run, NONCE, budget=budget)
                yield f"judge, {name}", texts(prompt.system, prompt.messages)
        if isinstance(judge, SchemaJudge):
            answers: list[dict[str, Any]] = [{"label": "y", "why": "z" * size} for size in (10, 40_000, 40_000)]
            yield (
                "judge, repair and reflection",
                [
                    judge_repair_message(judge, ["no tag", "no label"]).content,
                    *(reflection_message(judge, answers[:count], NONCE).content for count in (1, 3)),
                ],
            )


def other_prompts() -> Iterator[tuple[str, Any]]:
    """Yield the systems of generators, the messages of the loop, and comparisons of outputs."""
    for rubric in rubrics().values():
        yield "generator", [build_generator_system(system, shown) for system in (None, "S.") for shown in (None, rubric)]
        rows = [
            {
                "id": one.id,
                "name": one.text,
                "passed": at == 1,
                "reason": "r",
                "gap": "g" if at == 0 else None,
                "unverified": at == 2,
            }  # three kinds
            for at, one in enumerate(rubric.criteria)
        ]
        given = {"grading_run_id": "r", "iteration": 0, "result": "needs_revision", "status": "running", "explanation": "e", "draft": 1}
        found = Evaluation.model_validate(given | {"criteria": [CriterionRow.model_validate(row) for row in rows]})
        yield "feedback", [feedback_message(rubric, found, remarks).content for remarks in ((), ("It is new. It is long.", "g"))]
    yield (
        "loop",
        texts(
            "",
            (
                repair_message(["no id"], ["k1"]),
                missing_message(["k1", "k2"]),
                further_message(["k3"]),
                last_turn_message(),
                last_draft_message(),
            ),
        ),
    )
    check = {"tool": "comparison_check", "arguments": {"kind": "select-best", "value": "the kindest"}}
    compared = Case.model_validate(
        {"id": "a", "output": "x", "rubric": {"criteria": [{"description": "best", "check": check}]}, "compared_with": ["a", "b"]}
    )
    for choice in choices_of(compared):
        prompt = build_judge_prompt(choice.judge(3), choice.run(["one", "two", "three"]), NONCE)
        yield "comparison", texts(prompt.system, prompt.messages)


def keys() -> Iterator[tuple[str, Any]]:
    """Yield the keys under which verdicts are reused: of threads, of cases, of judgements, and by tenant."""
    varied: list[dict[str, Any]] = [{"instructions": "I"}, {"tools": "u"}, {"records": "s"}, {"request": 2}, {"checks": {}}]
    varied += [{"form": AnswerForm(by="tags")}, {"form": AnswerForm(profile="short")}, {"form": AnswerForm(bounds="all")}]
    for name, rubric in rubrics().items():
        for model in MODELS:
            for group in call_groups(rubric):
                given: dict[str, Any] = {"judge": model, "instructions": None, "tools": "t", "records": "r", "request": 0, "checks": CHECKS}
                given |= {"form": FULL}
                for sample in range(len(group.judges)):
                    yield f"reuse, {name}", reuse_key(rubric, group, sample=sample, **given)
                for more in varied:
                    yield "reuse, varied", reuse_key(rubric, group, sample=0, **(given | more))
                case = Case.model_validate(
                    {
                        "id": "a",
                        "messages": [{"role": "user", "content": "q"}],
                        "generator": {"model": "scripted:g"},
                        "loop": True,
                        "rubric": RUBRICS[name],
                    }
                )
                yield "vote", vote_key(case, group, 0, model, records_of(case, "o"), CHECKS, FULL)
    yield "tenants", [key_of_tenant("k" * 64, tenant) for tenant in (None, "acme")]
    registry = ToolRegistry()
    yield (
        "tools",
        [[name, registry.sha256([name])] for name in ("regex_check", "word_count", "text_check", "json_schema_check", "read_transcript")],
    )


def keys_of_judgements() -> Iterator[tuple[str, Any]]:
    """Yield the keys of the questions about finished runs."""
    for name, raw in JUDGES.items():
        judge = parse_judge(raw)
        for run in runs().values():
            for model in MODELS:
                if isinstance(judge, SchemaJudge):
                    yield f"rollout, {name}", [rollout_key(judge, run, model, sample, repeat) for sample in (0, 2) for repeat in (0, 1)]
                elif (judged := judging_case(JudgingRequest(judge=judge, run=run, repeat=1))) is not None:
                    records = records_of(judged, "")
                    yield f"vote, {name}", [vote_key(judged, group, 0, model, records, {}, FULL) for group in call_groups(judge.rubric)]


def ids() -> Iterator[tuple[str, Any]]:
    """Yield the ids of judgements: every judge about every run, repeated, of a tenant, in parts, and as cases of a batch."""
    for name, raw in JUDGES.items():
        judge = parse_judge(raw)
        for about, run in runs().items():
            for priority in (None, Priority(tenant="acme"), Priority(level=1)):
                for repeat in (0, 1):
                    named = [made(judge, run.sha256(), repeat, priority=priority) for made in (judging_id, chunked_id)]
                    yield f"{name}, {about}", named
                    case = judging_case(JudgingRequest(judge=judge, run=run, repeat=repeat, priority=priority))
                    yield "as a case", case and case.model_dump(mode="json")


def schemas() -> Iterator[tuple[str, Any]]:
    """Yield what `gradeloop schema` prints."""
    yield from json_schemas().items()


KINDS = {
    "graders": graders_prompts,
    "judges": judges_prompts,
    "others": other_prompts,
    "keys": keys,
    "keys of judgements": keys_of_judgements,
    "judging_ids": ids,
    "schemas": schemas,
}


def sums(kind: str) -> dict[str, str]:
    """Return one sum for each name of a kind, over all that it yields under the name."""
    found: dict[str, Any] = {}
    for name, value in KINDS[kind]():
        found.setdefault(name, hashlib.sha256()).update(json.dumps(value).encode())
    return {name: sha256.hexdigest()[:DIGITS] for name, sha256 in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_and_kept_is_what_it_was(kind: str) -> None:
    assert sums(kind) == json.loads(FILE.read_text())[kind]


if __name__ == "__main__":
    print(json.dumps({kind: sums(kind) for kind in KINDS}, indent=1))
