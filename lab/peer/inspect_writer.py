"""Logs of Inspect, written by its mock model, with what Inspect itself reads in them; it runs in Inspect's own environment."""

# mypy: ignore-errors
import base64
import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

from inspect_ai import Epochs, Task
from inspect_ai import eval as evaluate
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample, read_eval_log
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentDocument,
    ContentImage,
    ContentReasoning,
    ContentText,
    ContentToolUse,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, choice, includes, match, mean, scorer
from inspect_ai.solver import (
    Generate,
    Solver,
    TaskState,
    basic_agent,
    chain_of_thought,
    generate,
    multiple_choice,
    self_critique,
    solver,
    system_message,
    use_tools,
    user_message,
)
from inspect_ai.tool import Tool, ToolCall, ToolError, tool

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = f"data:image/png;base64,{PIXEL}"
DOCUMENT = "data:text/plain;base64,QSBkb2N1bWVudCBhYm91dCBQYXJpcy4="
LONG = "A long report about Zürich and its weather. " * 200
"""More than Inspect keeps within an event: it becomes an attachment."""

USAGE = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
"""Without it Inspect counts tokens, for which it loads a file from the internet."""


@tool
def weather() -> Tool:
    """Return the tool that knows the weather."""

    async def execute(city: str) -> str:
        """Look up the weather.

        Args:
            city: The city.
        """
        if city == "Atlantis":
            raise ToolError("there is no city of this name")
        return LONG if city == "Zürich" else f"sunny in {city}"

    return execute


@tool
def picture() -> Tool:
    """Return the tool that shows a picture."""

    async def execute(of: str) -> list[ContentText | ContentImage]:
        """Show a picture.

        Args:
            of: What it shows.
        """
        return [ContentText(text=f"a picture of {of}"), ContentImage(image=IMAGE)]

    return execute


@solver
def failing_at(word: str) -> Solver:
    """Return the solver that fails where the input has a word."""

    async def solve(state: TaskState, _: Generate) -> TaskState:
        if word in state.input_text:
            raise RuntimeError(f"the solver cannot do {word}")
        return state

    return solve


@scorer(metrics=[accuracy()])
def unscored_on(word: str) -> Scorer:
    """Return the scorer that gives no score where the input has a word."""

    async def score(state: TaskState, target: Target) -> Score:
        if word in state.input_text:
            return Score.unscored(reason="no_response", explanation="nothing to score")
        return Score(value="C" if target.text in state.output.completion else "I", answer=state.output.completion)

    return score


@scorer(metrics={"clear": [mean()], "brief": [mean()]})
def marks() -> Scorer:
    """Return the scorer of several values, one of which is no number."""

    async def score(state: TaskState, _: Target) -> Score:
        return Score(value={"clear": 0.5, "brief": math.nan if "Oslo" in state.input_text else 1})

    return score


@scorer(metrics=[mean()])
def length() -> Scorer:
    """Return the scorer whose value is a number."""

    async def score(state: TaskState, _: Target) -> Score:
        return Score(value=len(state.output.completion) / 10)

    return score


def said(content: object, calls: Iterable[tuple[str, dict[str, object]]] = ()) -> ModelOutput:
    """Return an answer of the model, with calls of tools."""
    said.calls += 1
    made = [ToolCall(id=f"call_{said.calls}_{at}", function=name, arguments=values) for at, (name, values) in enumerate(calls)]
    message = ChatMessageAssistant(content=content, tool_calls=made or None, source="generate")
    choices = [{"message": message, "stop_reason": "tool_calls" if made else "stop"}]
    return ModelOutput(model="mockllm/model", choices=choices, usage=USAGE)


said.calls = 0


def repeated(*answers: tuple) -> Iterator[ModelOutput]:
    """Yield answers again and again, each with new ids."""
    for answer in cycle(answers):
        yield said(*answer)


def capitals(*cities: str) -> list[Sample]:
    """Return a question a city."""
    return [Sample(input=f"Which country has the capital {city}?", target=city, id=at) for at, city in enumerate(cities, 1)]


PLAIN = [("Paris is in France.",), ("Oslo, I think.",), ("",)]
TOOLS = [
    ("Let me look.", [("weather", {"city": "Zürich"}), ("weather", {"city": "Atlantis"})]),
    ("", [("nothing_of_this_name", {"x": 1})]),
    ("Once more.", [("weather", {"nowhere": "Bern"})]),
    ("Sunny, <tool call>weather</tool call>.",),
]
HOSTED = [
    (
        [
            ContentReasoning(reasoning="First I search.", signature="c2lnbmVk"),
            ContentToolUse(tool_type="web_search", id="hosted_1", name="web_search", arguments='{"query": "Paris"}', result="3 pages"),
            ContentText(text="Paris is in France."),
        ],
    ),
    (
        [
            ContentReasoning(reasoning="Z2hlaW0=", redacted=True, summary="It thought of Oslo."),
            ContentToolUse(tool_type="mcp_call", id="hosted_2", name="atlas", arguments="{}", result="", error="the server is away"),
            ContentText(text="I will not say.", refusal=True),
        ],
    ),
]


def images() -> list[Sample]:
    """Return samples whose inputs are conversations with files."""
    asked = [ContentText(text="What is this?"), ContentImage(image=IMAGE, detail="low")]
    papers = [ContentText(text="And this?"), ContentDocument(document=DOCUMENT, filename="paris.txt")]
    earlier: list[ChatMessage] = [ChatMessageSystem(content="See."), ChatMessageUser(content=asked), ChatMessageAssistant(content="A dot.")]
    conversation = [*earlier, ChatMessageUser(content=papers)]
    return [Sample(input=[ChatMessageUser(content=asked)], target="dot"), Sample(input=conversation, target="x")]


def tasks() -> Iterator[tuple[str, Task, Iterator[ModelOutput], dict[str, object]]]:
    """Yield ten evaluations: a name, the task, the answers of its model, and the options of `eval`."""
    three = capitals("Paris", "Oslo", "Bern")
    tools = use_tools(weather(), picture())
    pictured = repeated(("", [("picture", {"of": "a dot"})]), ("It is a dot.",))
    finished = repeated(("", [("weather", {"city": "Bern"})]), ("Still thinking.",), ("", [("submit", {"answer": "Bern"})]))
    options = [Sample(input="Which is a city?", choices=["Bern", "blue"], target="A", id=name) for name in ("first", "second")]
    yield "plain", Task(three, solver=[system_message("Be brief."), generate()], scorer=match(), name="capitals"), repeated(*PLAIN), {}
    critique = [chain_of_thought(), generate(), self_critique()]
    yield "critique", Task(capitals("Paris", "Rome"), solver=critique, scorer=[includes(), length()]), repeated(*PLAIN[:2]), {}
    yield "tools", Task(capitals("Paris", "Oslo"), solver=[tools, generate()], scorer=includes()), repeated(*TOOLS), {}
    agent = react(prompt="You are an agent.", tools=[weather()])
    yield "agent", Task(three, solver=agent, scorer=includes()), finished, {"log_model_api": True}
    yield "choices", Task(options, solver=multiple_choice(), scorer=choice()), repeated(("ANSWER: A",), ("ANSWER: B",)), {}
    yield "images", Task(images(), solver=[tools, generate()], scorer=includes()), pictured, {"log_images": True}
    hosted = [generate(), user_message("Are you sure?"), generate()]
    yield "hosted", Task(capitals("Paris", "Oslo"), solver=hosted, scorer=includes()), repeated(*HOSTED), {}
    broken = [generate(), failing_at("Oslo")]
    yield "errors", Task(three, solver=broken, scorer=includes()), repeated(*PLAIN), {"fail_on_error": False, "score_on_error": False}
    limited = basic_agent(tools=[weather()], max_attempts=3)
    yield "limits", Task(capitals("Paris"), solver=limited, scorer=includes()), repeated(TOOLS[0]), {"message_limit": 8}
    scorers = [unscored_on("Oslo"), marks(), length()]
    twice = Task(three, solver=generate(), scorer=scorers, name="capitals")
    yield "epochs", twice, repeated(*PLAIN[:2]), {"epochs": Epochs(3, "mean")}


def plain(value: object) -> object:
    """Return a value of a score with None in the place of NaN."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def texts(message: ChatMessage) -> list[str]:
    """Return the texts of a message, those of its parts in their order."""
    parts = [message.content] if isinstance(message.content, str) else message.content
    found = [part if isinstance(part, str) else getattr(part, "text", "") for part in parts if isinstance(part, str) or part.type == "text"]
    failed = getattr(message, "error", None)
    return [text for text in (*found, failed.message if failed else "") if text.strip()]


def media_and_bytes(url: str) -> list[object]:
    """Return the media type of a data URL in base64, and how many bytes it holds."""
    head, _, content = url.partition(",")
    return [head.removeprefix("data:").removesuffix(";base64"), len(base64.b64decode(content))]


def counted(sample: EvalSample) -> dict[str, object]:
    """Return what Inspect itself says of a sample."""
    calls, results, hosted, files = [], [], [], []
    for message in sample.messages:
        parts = () if isinstance(message.content, str) else message.content
        files += [media_and_bytes(getattr(part, part.type)) for part in parts if part.type in {"image", "document"}]
        if message.role == "assistant":
            calls += [[call.id, call.function, call.arguments] for call in message.tool_calls or ()]
            hosted += [[part.id, part.name, bool(part.error)] for part in parts if part.type == "tool_use"]
        if message.role == "tool":
            results.append([message.tool_call_id, message.function, message.error is not None])
    return {
        "id": str(sample.id),
        "epoch": sample.epoch,
        "roles": [message.role for message in sample.messages],
        "texts": [texts(message) for message in sample.messages],
        "calls": calls,
        "results": results,
        "hosted": hosted,
        "files": files,
        "scores": {name: plain(score.value) for name, score in (sample.scores or {}).items()},
        "error": sample.error.message if sample.error else None,
        "limit": sample.limit.type if sample.limit else None,
    }


def main() -> None:
    """Write every evaluation in both formats, and what is in them."""
    folder = Path(sys.argv[1])
    counts = {}
    for form in ("eval", "json"):
        for name, task, answers, options in tasks():
            model = get_model("mockllm/model", custom_outputs=answers)
            (log,) = evaluate(task, model=model, log_dir=str(folder / name), log_format=form, display="none", max_samples=1, **options)
            if log.status != "success":
                raise SystemExit(f"Inspect ended {name} with {log.status}: {log.error and log.error.message}")
            whole = read_eval_log(log.location, resolve_attachments=True)
            path = Path(log.location.removeprefix("file://"))
            samples = [counted(sample) for sample in whole.samples or ()]
            counts[str(path.relative_to(folder))] = {"task": whole.eval.task, "samples": samples}
    (folder / "counts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
