"""What a schema judge is sent: its own templates with rubric, run and schema in their places, and what is trusted."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.blocks import rendered
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.judges.schema_shape import wants_citations
from gradeloop.judges.template import filled
from gradeloop.prompts import prompt
from gradeloop.records import TRANSCRIPT_BUDGET, line
from gradeloop.transcript import Message

REFLECTED_CHARACTERS = 60_000
"""Of all answers that a reflection is shown; longer ones are shown without their long texts."""

LONG_TEXT = 400

_TEXTS = {
    name: prompt(f"judge_{name}") for name in ("boundary", "citations", "citations_metadata", "form_json", "form_yaml", "repair", "reflect")
}


@dataclass(frozen=True)
class JudgePrompt:
    """A system prompt, and the messages after it."""

    system: str
    messages: tuple[Message, ...]


def judge_prompt(judge: SchemaJudge, run: AgentRun, nonce: str, *, budget: int = TRANSCRIPT_BUDGET) -> JudgePrompt:
    """Return what a judge is sent about a run; equal input gives equal bytes.

    Args:
        judge: Its rubric, schema and templates.
        run: What is judged.
        nonce: The judgement's random code.
        budget: Characters of the run shown in all.
    """
    values = {
        "rubric": judge.rubric_text,
        "agent_run": rendered(run, nonce, metadata=judge.show_metadata, budget=budget),
        "output_schema": json.dumps(judge.output_schema, indent=2, ensure_ascii=False),
        "output_format_instructions": _TEXTS[f"form_{judge.output_format}"],
    }
    told = [(each.role, filled(each.content, values)) for each in judge.templates]
    if wants_citations(judge.output_schema):
        role, text = told[-1]
        told[-1] = (role, f"{text}\n\n{_citing(judge)}")
    system = [text for role, text in told if role == "system"]
    said = [Message(role="user" if role == "user" else "assistant", content=text) for role, text in told if role != "system"]
    if not said:  # a provider is asked by a user: where there is only a system prompt, it is the question
        said, system = [Message(role="user", content="\n\n".join(system))], []
    return JudgePrompt("\n\n".join([*system, _TEXTS["boundary"]]), tuple(said))


def _citing(judge: SchemaJudge) -> str:
    more = f"{_TEXTS['citations_metadata']}\n- " if judge.show_metadata else ""
    return _TEXTS["citations"].format(metadata=more)


def _tags(judge: SchemaJudge) -> str:
    key = judge.response_xml_key
    return "" if judge.constrained else f": once, between <{key}> and </{key}>"


def repair(judge: SchemaJudge, problems: Sequence[str]) -> Message:
    """Return the request for a valid answer, with what was wrong in the validator's own words."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), tags=_tags(judge)))


def reflection(judge: SchemaJudge, answers: Sequence[dict[str, JsonValue]], nonce: str) -> Message:
    """Return the request to weigh several answers to the same question."""
    whole = sum(len(json.dumps(each)) for each in answers) <= REFLECTED_CHARACTERS
    shown = [line({"answer": at + 1, "output": each if whole else _brief(each)}, nonce) for at, each in enumerate(answers)]
    fenced = "\n".join([f"=== answers {nonce} ===", *shown, f"=== end of answers {nonce} ==="])
    return Message(role="user", content=_TEXTS["reflect"].format(count=len(answers), answers=fenced, tags=_tags(judge)))


def _brief(value: JsonValue) -> JsonValue:
    """Return a value with its long texts cut."""
    if isinstance(value, dict):
        return {key: _brief(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_brief(each) for each in value[:50]]
    return f"{value[:LONG_TEXT]}…" if isinstance(value, str) and len(value) > LONG_TEXT else value
