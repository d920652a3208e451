"""Rewards by a rubric: rows beside them, batched and cached, and None instead of 0 where there is no verdict."""

import asyncio
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gradeloop
from gradeloop.errors import InvalidRequest
from gradeloop.integrations.reward import RewardFunction, completion_run
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, Reply, ScriptedModels, WorkerProcess

MONTH = "- names the month\n- is short"


@pytest.fixture
def reward(
    served: WorkerProcess, models: ScriptedModels, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> RewardFunction:
    """Return a reward function whose judge wants the month to be named."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    models.script(verdicts=names_the_month)
    return gradeloop.reward(MONTH, MODEL)


def names_the_month(call: ModelCall) -> Reply:
    if "nonsense" in (call.draft or ""):
        return "no verdict at all"
    return {} if "May" in (call.draft or "") else {"k1": "name the month"}


@pytest.mark.slow
async def test_a_reward_is_the_score_with_its_rows(reward: RewardFunction) -> None:
    good, bad = await asyncio.gather(reward("Write.", "Frogs in May."), reward.graded("Write.", "Frogs."))

    assert good == 1.0
    assert bad.reward == 0.5
    assert [(row["id"], row["passed"], row.get("gap")) for row in bad.rows] == [("c1", False, "name the month"), ("c2", True, None)]


async def test_without_a_verdict_there_is_no_reward_and_never_0(reward: RewardFunction) -> None:
    malformed, empty, unreadable = await asyncio.gather(
        reward.graded("Write.", "nonsense"), reward.graded("Write.", ""), reward.graded("Write.", [{"role": "assistant", "content": 5}])
    )

    assert [graded.reward for graded in (malformed, empty, unreadable)] == [None, None, None]
    assert empty.no_verdict == "the completion is empty; there is nothing to judge"
    assert malformed.no_verdict


async def test_the_same_completion_is_judged_once_and_completions_that_come_together_are_one_batch(
    reward: RewardFunction, models: ScriptedModels
) -> None:
    completions = [f"Newts {number} in May." for number in range(8)]

    first = await asyncio.gather(*(reward("Write.", text) for text in completions * 2))
    again = await asyncio.gather(*(reward("Write.", text) for text in completions))

    assert first == [1.0] * 16
    assert again == [1.0] * 8
    assert len(models.calls) == 8


def as_trl_does(function: Any, inputs: list[dict[str, Any]], completions: list[Any]) -> list[float]:
    """Call a reward function as `GRPOTrainer._calculate_rewards` of TRL 1.x does: columns by name, and None becomes NaN."""
    keys = [key for key in inputs[0] if key not in ("prompt", "completion", "completion_ids")]
    columns: dict[str, Any] = {key: [example[key] for example in inputs] for key in keys}
    columns |= {"trainer_state": object(), "log_extra": print, "log_metric": print}
    assert function.__name__
    assert not inspect.iscoroutinefunction(function)
    prompts = [example["prompt"] for example in inputs]
    rewards = function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(prompts), **columns)
    return [math.nan if reward is None else reward for reward in rewards]


def test_trl_calls_it_with_texts_and_with_conversations(reward: RewardFunction) -> None:
    texts = as_trl_does(reward.trl_reward, [{"prompt": "Write.", "level": 1}] * 3, ["Toads in May.", "Toads.", "nonsense, toads"])
    chat = [[{"role": "assistant", "content": "Toads in May."}], [{"role": "assistant", "content": ""}]]
    prompts = [{"prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Write."}]}] * 2
    conversations = as_trl_does(reward.trl_reward, prompts, chat)

    assert texts[:2] == [1.0, 0.5]
    assert math.isnan(texts[2])
    assert conversations[0] == 1.0
    assert math.isnan(conversations[1])


async def as_verifiers_does(function: Any, state: dict[str, Any]) -> float:
    """Call a reward function as `Rubric._call_individual_reward_func` of verifiers does: by parameter names, and an exception is 0."""
    signature = inspect.signature(function)
    offered = {"prompt": state["prompt"], "completion": state["completion"], "answer": "", "state": state, "info": {}, "parser": None}
    assert signature.return_annotation is float, "else it would be taken for a group's"
    assert not {"prompts", "completions", "states"} & set(signature.parameters)
    try:
        return float(await function(**{name: value for name, value in offered.items() if name in signature.parameters}))
    except Exception:  # noqa: BLE001 - as verifiers does
        return 0.0


async def test_verifiers_gets_nan_where_it_would_make_0_of_none(reward: RewardFunction) -> None:
    def rollout(text: str) -> dict[str, Any]:
        return {"prompt": [{"role": "user", "content": "Write."}], "completion": [{"role": "assistant", "content": text}]}

    good, none = rollout("Geckos in May."), rollout("nonsense, geckos")
    rewards = [await as_verifiers_does(reward.verifiers_reward, state) for state in (good, none)]

    assert rewards[0] == 1.0
    assert math.isnan(rewards[1])
    assert [row["id"] for row in good["gradeloop"]["rows"]] == ["c1", "c2"]
    assert none["gradeloop"]["no_verdict"]


async def test_a_task_of_verifiers_scores_its_trace_by_it_and_has_no_reward_where_there_is_no_verdict(reward: RewardFunction) -> None:
    vf = pytest.importorskip("verifiers.v1", reason="needs verifiers: pip install verifiers")

    class Writing(vf.Task):  # type: ignore[misc, name-defined]
        @vf.reward  # type: ignore[untyped-decorator]
        async def rubric(self, trace: vf.Trace) -> float:  # type: ignore[name-defined]
            return await reward.verifiers_task_reward(trace)

    def traced(*texts: str) -> Any:
        data = vf.TaskData(prompt="Write.")
        call = {"id": "c1", "name": "look", "arguments": "{}"}
        said = [vf.UserMessage(content="Write."), vf.AssistantMessage(content=None, tool_calls=[call])]
        said.append(vf.ToolMessage(tool_call_id="c1", content="May."))
        said += [vf.AssistantMessage(content=text) for text in texts]
        nodes = [{"message": one, "parent": at - 1 if at else None, "sampled": one.role == "assistant"} for at, one in enumerate(said)]
        return vf.Trace.model_validate({"task": {"type": "Writing", "data": data}, "agent": {"config": {}}, "nodes": nodes})

    good, none = traced("Skinks in May."), traced("nonsense, skinks")
    await Writing(good.task.data).score(good)
    with pytest.raises(vf.TaskError, match="no verdict"):
        await Writing(none.task.data).score(none)

    assert good.rewards["rubric"].value == 1.0
    assert [row["id"] for row in good.info["gradeloop"]["rows"]] == ["c1", "c2"]
    assert none.rewards == {"rubric": None}


async def test_a_server_that_is_away_is_no_grade(monkeypatch: pytest.MonkeyPatch, reward: RewardFunction) -> None:
    monkeypatch.setattr("gradeloop.judges.client.find", gone)

    graded = await reward.graded("Write.", "Eels in May.")

    assert (graded.reward, graded.no_verdict) == (None, "no server answers")


async def gone() -> Connection:
    raise gradeloop.ServerUnreachable("no server answers")


def test_a_judge_without_a_score_and_a_bad_rubric_are_refused_at_once(reward: RewardFunction) -> None:
    plain: Mapping[str, Any] = {"rubric_text": "It is good."}
    with pytest.raises(InvalidRequest, match="has no number 'score' in its output_schema"):
        gradeloop.reward(plain, MODEL)
    with pytest.raises(InvalidRequest, match="criteria"):
        gradeloop.reward("", MODEL)


@pytest.mark.slow
def test_tool_calls_of_a_completion_are_judged_too() -> None:
    call: dict[str, Any] = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    completion: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "Seen."},
    ]
    run = completion_run("Look.", completion)

    assert [message.role for message in run.transcripts[0].messages] == ["user", "assistant", "tool"]
