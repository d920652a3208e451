"""Trajectories written by Harbor's own models, with what these hold: `harbor_writer.py FOLDER`; it runs in Harbor's environment."""

# mypy: ignore-errors
import json
import sys
from pathlib import Path

from harbor.models.trajectories import (
    Agent,
    ContentPart,
    FinalMetrics,
    ImageSource,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    SubagentTrajectoryRef,
    ToolCall,
    Trajectory,
)
from harbor.models.trajectories.content import AudioSource

FOLDER = Path(sys.argv[1])
PICTURE = ContentPart(type="image", source=ImageSource(media_type="image/png", path="images/step-1.png"))
SOUND = ContentPart(type="audio", source=AudioSource(media_type="audio/mp3", path="https://x.example/a.mp3", duration_sec=1.5))
AGENT = Agent(name="terminus-2", version="1.0", model_name="gpt-5", tool_definitions=[{"type": "function", "function": {"name": "shell"}}])


def text(words):
    return ContentPart(type="text", text=words)


def call(identifier, name="shell", extra=None, **arguments):
    return ToolCall(tool_call_id=identifier, function_name=name, arguments=arguments, extra=extra)


def result(identifier=None, content=None, **more):
    return ObservationResult(source_call_id=identifier, content=content, **more)


def steps(*rows):
    return [Step(step_id=at, **row) for at, row in enumerate(rows, 1)]


def conversation():
    """Return steps with all that a step may hold."""
    return steps(
        {"source": "system", "message": "Be brief.", "timestamp": "2026-03-01T12:00:00Z"},
        {"source": "user", "message": [text("Where is Zürich?"), PICTURE, SOUND]},
        {
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "I look first.",
            "tool_calls": [call("c1", query="Zürich", deep={"pages": [1, 2]}, extra={"timeout": 9}), call("c2", "read")],
            "observation": Observation(
                results=[result("c1", "in Switzerland", extra={"score": 0.5}), result("c2", [text("a map"), PICTURE])]
            ),
            "metrics": Metrics(prompt_tokens=1, completion_tokens=2, cost_usd=0.1),
            "llm_call_count": 1,
            "reasoning_effort": "high",
            "model_name": "gpt-5",
            "extra": {"episode": 1},
        },
        {
            "source": "agent",
            "message": "",
            "tool_calls": [call("c3", command="<tool call>ls</tool call>")],
            "observation": Observation(results=[result("c3", "bin")]),
        },
        {"source": "agent", "message": "ls\n", "observation": Observation(results=[result(None, "bin etc")]), "is_copied_context": True},
        {"source": "system", "message": "Context was shortened.", "observation": Observation(results=[result(None, "3 turns left")])},
        {
            "source": "agent",
            "message": "dispatch",
            "llm_call_count": 0,
            "tool_calls": [call("d1", "delegate", task="maps")],
            "observation": Observation(
                results=[result("d1", None, subagent_trajectory_ref=[SubagentTrajectoryRef(trajectory_id="sub-1")])]
            ),
        },
        {"source": "agent", "message": [text("In Switzerland."), PICTURE]},
    )


def helper():
    return steps(
        {"source": "user", "message": "maps"},
        {
            "source": "agent",
            "message": "found",
            "tool_calls": [call("c1", query="x")],
            "observation": Observation(results=[result("c1", "a map of Zürich")]),
        },
    )


def held(*trajectories):
    """Return what trajectories hold, step by step."""
    every = [step for one in trajectories for step in one.steps]
    parts = [
        part
        for step in every
        for part in (step.message if isinstance(step.message, list) else [text(step.message)] if step.message else [])
    ]
    calls = [call_ for step in every for call_ in step.tool_calls or ()]
    results = [(step, one) for step in every if step.observation for one in step.observation.results]
    answers = [(step, one) for step, one in results if step.tool_calls]
    files = [part for part in parts if part.type != "text"]
    files += [part for _, one in results if isinstance(one.content, list) for part in one.content if part.type != "text"]
    ordered = []
    for step in every:
        said = step.message if isinstance(step.message, list) else [text(step.message)] if step.message else []
        ordered.append(
            "\n".join(part.text for part in said if part.type == "text")
            if all(part.type == "text" for part in said)
            else [part.text for part in said if part.type == "text"]
        )
        ordered += [one.content for one in step.observation.results] if step.observation and not step.tool_calls else []
    flat = [one for entry in ordered for one in (entry if isinstance(entry, list) else [entry]) if one]
    return {
        "texts": flat,
        "reasoning": [step.reasoning_content for step in every if step.reasoning_content],
        "calls": [[one.tool_call_id, one.function_name, one.arguments] for one in calls],
        "results": [[one.source_call_id, shown(one), False] for _, one in answers],
        "files": len(files),
        "messages": len(every) + len(results),
    }


def shown(one):
    if one.content is None:
        return [ref.model_dump(exclude_none=True) for ref in one.subagent_trajectory_ref]
    return one.content if isinstance(one.content, str) else "\n".join(part.text for part in one.content if part.type == "text")


def main() -> None:
    """Write the trajectories."""
    counts = {}
    below = Trajectory(session_id="s", trajectory_id="sub-1", agent=AGENT, steps=helper())
    main_ = Trajectory(
        session_id="s",
        trajectory_id="t",
        agent=AGENT,
        steps=conversation(),
        subagent_trajectories=[below],
        notes="a note",
        final_metrics=FinalMetrics(total_steps=8, total_cost_usd=0.1),
        extra={"task": "maps"},
    )
    alone = Trajectory(agent=AGENT, steps=helper())
    one, other = held(main_, below), held(alone)
    files = {
        "whole.json": ([main_.to_json_dict()], one),
        "with_nulls.json": ([main_.to_json_dict(exclude_none=False)], one),
        "alone.json": ([alone.to_json_dict()], other),
        "several.jsonl": ([main_.to_json_dict(), alone.to_json_dict()], {key: one[key] + other[key] for key in one} | {"runs": 2}),
    }
    for name, (values, own) in files.items():
        (FOLDER / name).write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
        counts[name] = own
    (FOLDER / "counts.json").write_text(json.dumps(counts, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
