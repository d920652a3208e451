"""Facts of Docent's judges, printed as JSON by Docent itself: fields, defaults, enums, what it refuses, citations, and an example's output.

Started in Docent's venv with the provider's address and a program of ours, which is run with Docent's own imports.
"""

# mypy: ignore-errors
# ruff: noqa: E402 - imports of Docent's venv, after its settings
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

URL, PROGRAM, CASES = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
os.environ |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{URL}/v1"}

from docent._llm_util.llm_svc import BaseLLMService
from docent._llm_util.providers.preference_types import ModelOption
from docent.data_models.agent_run import AgentRun
from docent.data_models.chat import ToolCall
from docent.data_models.chat.message import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from docent.data_models.transcript import Transcript
from docent.judges.impl import build_judge
from docent.judges.types import (
    JudgeResult,
    JudgeResultWithCitations,
    JudgeVariant,
    OutputParsingMode,
    PromptTemplateMessage,
    ResultType,
    Rubric,
)

MODELS = (
    Rubric,
    PromptTemplateMessage,
    ModelOption,
    JudgeResult,
    AgentRun,
    Transcript,
    SystemMessage,
    UserMessage,
    AssistantMessage,
    ToolMessage,
)


def fields(model: type) -> dict[str, object]:
    """Return the default of each field as JSON, or that it is required or made anew each time."""
    found = {}
    for name, field in model.model_fields.items():
        made = None if field.default_factory is None else "made"
        default = "required" if field.is_required() else made or field.default
        found[name] = default.model_dump() if hasattr(default, "model_dump") else getattr(default, "value", default)
    return found


def refusal(case: dict[str, object]) -> str | None:
    """Return the class of the error with which a rubric is refused; None where it is taken."""
    try:
        Rubric.model_validate({"rubric_text": "It is good."} | case)
    except Exception as error:  # noqa: BLE001 - jsonschema's are of no common class
        return type(error).__name__
    return None


def example() -> str:
    """Return what our example prints with Docent's imports."""
    text = re.sub(r"from gradeloop\.docent import \(.*?\)\n", "", Path(PROGRAM).read_text(), flags=re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, PROGRAM, "exec"), {**globals(), "__name__": "__main__"})
    return out.getvalue()


def citations(text: str) -> list[dict[str, object]]:
    """Return the citations that Docent reads in a text, as their place and target."""
    run = AgentRun(
        transcripts=[Transcript(messages=[UserMessage(content="Where?"), AssistantMessage(content="In Paris.")])], metadata={"k": 1}
    )
    schema = {"type": "object", "properties": {"why": {"type": "string", "citations": True}}}
    about = {"agent_run_id": run.id, "rubric_id": "r", "rubric_version": 1, "output": {"why": text}, "result_type": "DIRECT_RESULT"}
    found = JudgeResultWithCitations.from_judge_result(JudgeResult(**about), schema, run).model_dump(mode="json")["output"]["why"]
    for one in found["citations"]:
        for name in ("agent_run_id", "transcript_id"):
            one["target"]["item"].pop(name, None)
    return found["citations"]


def main() -> None:
    """Print the facts."""
    told = {"fields": {model.__name__: fields(model) for model in MODELS}, "refused": [refusal(case) for case in CASES["rubrics"]]}
    told["enums"] = {enum.__name__: {one.name: one.value for one in enum} for enum in (JudgeVariant, OutputParsingMode, ResultType)}
    told |= {"citations": [citations(text) for text in CASES["texts"]], "example": example(), "tool_call": list(ToolCall.__annotations__)}
    print(json.dumps(told | {"service": BaseLLMService().max_concurrency, "judge": build_judge.__code__.co_varnames[:3]}))


if __name__ == "__main__":
    main()
