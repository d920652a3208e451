"""Trajectories of mini-swe-agent, written by its agents on a scripted provider, and what they hold; it runs in their environment."""

# mypy: ignore-errors
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}
os.environ |= {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "MSWEA_COST_TRACKING": "ignore_errors"}

from minisweagent.agents import interactive  # after its settings
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.models import get_model
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"<MSWEA_MULTIMODAL_CONTENT><CONTENT_TYPE>image_url</CONTENT_TYPE>data:image/png;base64,{PIXEL}</MSWEA_MULTIMODAL_CONTENT>"
PICTURES = r"(?s)<MSWEA_MULTIMODAL_CONTENT><CONTENT_TYPE>(.+?)</CONTENT_TYPE>(.+?)</MSWEA_MULTIMODAL_CONTENT>"

END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 'diff of Zürich'"
LONG = "seq 1 30000"
"""Its output is more than a model is shown."""


@dataclass(frozen=True)
class ScriptedReply:
    """What the provider answers once: a text, its reasoning, and commands, each a call of `bash` unless it is one already."""

    text: str = ""
    commands: tuple[str | tuple[str, str], ...] = ()
    reasoning: str = ""
    fails: bool = False
    """Whether the provider refuses the request."""

    def calls(self, turn: int) -> list[tuple[str, str, str]]:
        """Return the calls: id, name, arguments as text."""
        named = [("bash", json.dumps({"command": one})) if isinstance(one, str) else one for one in self.commands]
        return [(f"call_{turn}_{at}", name, arguments) for at, (name, arguments) in enumerate(named)]


@dataclass
class Provider:
    """A server of this process that answers a script in the protocols of OpenAI and Anthropic."""

    script: Sequence[ScriptedReply] = ()
    said: list[ScriptedReply] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        """Return the next reply, in the protocol of a path."""
        turn, at = self.script[len(self.said)], len(self.said) + 1
        self.said.append(turn)
        if turn.fails:
            return 400, {"error": {"message": "the prompt is too strange", "type": "invalid_request_error", "code": "strange"}}
        protocol = _messages if "messages" in path else _responses if "responses" in path else _chat
        return 200, protocol(turn, at)


def _chat(turn: ScriptedReply, at: int) -> dict[str, object]:
    calls = [{"id": one, "type": "function", "function": {"name": name, "arguments": given}} for one, name, given in turn.calls(at)]
    message = {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}
    message |= {"reasoning_content": turn.reasoning} if turn.reasoning else {}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": f"c{at}", "object": "chat.completion", "created": 1, "model": "gpt-5-mini", "choices": [choice], "usage": usage}


def _responses(turn: ScriptedReply, at: int) -> dict[str, object]:
    said = [{"type": "output_text", "text": turn.text, "annotations": []}]
    summary = [{"type": "summary_text", "text": turn.reasoning}]
    output = [{"type": "reasoning", "id": f"rs{at}", "summary": summary, "encrypted_content": "Z2hlaW0="}] if turn.reasoning else []
    output += [{"type": "message", "id": f"m{at}", "role": "assistant", "status": "completed", "content": said}] if turn.text else []
    output += [
        {"type": "function_call", "id": f"f{one}", "call_id": one, "name": name, "arguments": given, "status": "completed"}
        for one, name, given in turn.calls(at)
    ]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    told = {"id": f"r{at}", "object": "response", "created_at": 1, "status": "completed", "model": "gpt-5-mini", "output": output}
    told |= {"usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15} | details}
    return told | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None}


def _messages(turn: ScriptedReply, at: int) -> dict[str, object]:
    content = [{"type": "thinking", "thinking": turn.reasoning, "signature": "c2lnbmVk"}] if turn.reasoning else []
    content += [{"type": "text", "text": turn.text}] if turn.text else []
    content += [{"type": "tool_use", "id": one, "name": name, "input": json.loads(given)} for one, name, given in turn.calls(at)]
    ended = "tool_use" if turn.commands else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {"id": f"a{at}", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": ended, "usage": usage}


@contextmanager
def serving() -> Iterator[Provider]:
    """Run the provider on a free port."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, told = provider.answer(self.path)
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    provider.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield provider
    finally:
        server.shutdown()


def fenced(command: str) -> str:
    """Return a command as agents without tools write it."""
    return f"I do this. <tool call>bash</tool call>\n\n```mswea_bash_command\n{command}\n```"


FIRST = ScriptedReply("I look.", ("echo found", "ls /nowhere"), reasoning="Two things at once.")
LAST = ScriptedReply("Done.", (END,))
WRONG = (
    ScriptedReply("No call here."),
    ScriptedReply("", (("bash", "{broken"),)),
    ScriptedReply("Another tool.", (("python", '{"code": "1"}'),)),
)

STORIES: dict[str, tuple[str, str, tuple[ScriptedReply, ...]]] = {
    "tools": ("openai/gpt-5-mini", "litellm", (FIRST, ScriptedReply("", (LONG, "sleep 9")), LAST)),
    "thinking": ("anthropic/claude-sonnet-4-5-20250929", "litellm", (FIRST, ScriptedReply("", ("true",)), LAST)),
    "responses": ("openai/gpt-5-mini", "litellm_response", (FIRST, ScriptedReply("", ("true",)), LAST)),
    "wrong answers": ("openai/gpt-5-mini", "litellm", (*WRONG[:2], FIRST, WRONG[2], LAST)),
    "wrong answers of responses": ("openai/gpt-5-mini", "litellm_response", (WRONG[0], ScriptedReply(), FIRST, WRONG[1], LAST)),
    "given up": ("openai/gpt-5-mini", "litellm", WRONG),
    "text": (
        "openai/gpt-5-mini",
        "litellm_textbased",
        (ScriptedReply(fenced("echo found")), ScriptedReply("None."), ScriptedReply(fenced("exit 3")), ScriptedReply(fenced(END))),
    ),
    "pictures": ("openai/gpt-5-mini", "litellm", (ScriptedReply("I look.", (f"echo 'see {PICTURE} there'",)), LAST)),
    "limit": ("openai/gpt-5-mini", "litellm", (FIRST, FIRST)),
    "provider fails": ("openai/gpt-5-mini", "litellm", (FIRST, ScriptedReply(fails=True))),
}
"""Runs of the default agent: the model, its class, and what it answers."""


def setup(provider: Provider, story: tuple[str, str, tuple[ScriptedReply, ...]]) -> tuple[object, object, dict[str, object]]:
    """Return a model and an environment as the command `mini` makes them, and the agent's settings."""
    name, kind, script = story
    provider.script, provider.said = script, []
    config = get_config_from_spec("mini_textbased.yaml" if kind.endswith("textbased") else "mini.yaml")
    base = provider.url if name.startswith("anthropic") else f"{provider.url}/v1"
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if name.startswith("anthropic") else {}
    options = {"model_class": kind, "model_name": name, "model_kwargs": {"api_base": base, **thinking}}
    if any(PICTURE in str(turn.commands) for turn in script):  # written as JSON, what is observed would hold it escaped
        options |= {"multimodal_regex": PICTURES, "observation_template": "<code>{{output.returncode}}</code> {{output.output}}"}
    model = get_model(config=config["model"] | options)
    return model, get_environment({"timeout": 1, "cwd": "/", "env": {"PAGER": "cat"}}, default_type="local"), config["agent"]


def by_default(provider: Provider, name: str, path: Path) -> list[dict[str, object]]:
    """Run the default agent, and return its messages."""
    model, env, config = setup(provider, STORIES[name])
    templates = {key: config[key] for key in ("system_template", "instance_template")}
    agent = DefaultAgent(model, env, **templates, output_path=path, step_limit=1 if name == "limit" else 0)
    with suppress(Exception):  # what the provider refuses is raised, and written
        agent.run("Find Zürich.")
    return agent.messages


class Person:
    """Somebody at the terminal, who types what is on a list."""

    def __init__(self, typed: Sequence[str]) -> None:
        self._typed = iter(typed)

    def prompt(self, _: str) -> str:
        """Return the next line."""
        return next(self._typed)


def with_a_person(provider: Provider, path: Path) -> list[dict[str, object]]:
    """Run the interactive agent: a command is rejected, one is typed, and another task is given."""
    script = (FIRST, ScriptedReply("Then this.", ("true",)), LAST, LAST)
    model, env, config = setup(provider, ("openai/gpt-5-mini", "litellm", script))
    interactive.prompt_session = Person(["no, not there", "/u", "echo mine", "/c", "", "Find Bern, too.", "", ""])
    agent = interactive.InteractiveAgent(model, env, **config | {"output_path": path, "mode": "confirm"})
    agent.run("Find Zürich.")
    return agent.messages


def as_benchmark(provider: Provider, path: Path) -> list[dict[str, object]]:
    """Run one instance as the command for SWE-bench does, on this machine in place of a container."""
    model, _, config = setup(provider, ("openai/gpt-5-mini", "litellm", (FIRST, LAST)))
    templates = {key: config[key] for key in ("system_template", "instance_template")}
    settings = {"environment": {"environment_class": "local", "cwd": "/", "timeout": 1}, "agent": templates}
    settings["model"] = {"model_class": "litellm", "model_name": "openai/gpt-5-mini"} | {
        key: getattr(model.config, key) for key in ("model_kwargs", "observation_template", "format_error_template")
    }
    instance = {"instance_id": "django__django-1", "problem_statement": "Find Zürich."}
    swebench.process_instance(instance, path.parent, settings, RunBatchProgressManager(1))
    written = path.parent / "django__django-1" / "django__django-1.traj.json"
    written.rename(path)
    return json.loads(path.read_text())["messages"]


def facts(messages: Sequence[Mapping[str, object]], provider: Provider) -> dict[str, object]:
    """Return what an agent itself holds, and what its provider really answered."""
    extras = [message.get("extra") or {} for message in messages]
    answered = [turn for turn in provider.said if not turn.fails]
    numbered = [(at, turn) for at, turn in enumerate(provider.said, 1) if not turn.fails]
    last = extras[-1]
    observed = [(message, extra) for message, extra in zip(messages, extras, strict=True) if "returncode" in extra]
    return {
        "messages": len(messages),
        "refused answers": sum(extra.get("interrupt_type") == "FormatError" for extra in extras),
        "answers": [turn.text for turn in answered],
        "reasoning": [turn.reasoning for turn in answered if turn.reasoning],
        "calls": [[one, name, given] for at, turn in numbered for one, name, given in turn.calls(at)],
        "commands without a call": [
            action["command"] for extra in extras for action in extra.get("actions") or () if "tool_call_id" not in action
        ],
        "results": [
            [message.get("tool_call_id") or message.get("call_id"), texts(message), bool(extra["returncode"] or extra["exception_info"])]
            for message, extra in observed
        ],
        "files": sum(part.get("type") == "image_url" for message in messages for part in parts(message)),
        "people": [texts(message) for message, extra in zip(messages, extras, strict=True) if said_by_a_person(message, extra)],
        "exit": [last.get("exit_status"), last.get("submission"), last.get("exception_str")],
    }


def said_by_a_person(message: Mapping[str, object], extra: Mapping[str, object]) -> bool:
    """Return whether a message of the user is the task, a person's words, or what an agent is told of a wrong answer."""
    return message.get("role") == "user" and "returncode" not in extra


def parts(message: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the parts of a message."""
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def texts(message: Mapping[str, object]) -> str:
    """Return what a message says."""
    content = message.get("output") if message.get("type") == "function_call_output" else message.get("content")
    return content if isinstance(content, str) else "\n".join(part["text"] for part in parts(message) if part.get("text"))


def main() -> None:
    """Write every trajectory, and what is in it."""
    folder, held = Path(sys.argv[1]), {}
    with serving() as provider:
        for name in STORIES:
            path = folder / f"{name}.traj.json"
            held[path.name] = facts(by_default(provider, name, path), provider)
        for name, run in (("a person", with_a_person), ("benchmark", as_benchmark)):
            path = folder / f"{name}.traj.json"
            held[path.name] = facts(run(provider, path), provider)
    (folder / "counts.json").write_text(json.dumps(held))


if __name__ == "__main__":
    main()
