"""Functions of a suite's author, called in a sandbox: Python, and JavaScript by Node or QuickJS; many calls in one start."""

import functools
import json
import re
import secrets
import shutil
import subprocess
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.execution import ERROR_CHARACTERS, MIB, Execution, Limits, SandboxError

Language = Literal["javascript", "python"]
Engine = Literal["python", "node", "quickjs", "monty"]

CALLS_A_START = 100
"""The most calls of one start, so that what is lost with a start that is stopped is little."""

CALL_SECONDS = 5.0
"""The time of a start: a call that takes longer is stopped."""

PROBE_SECONDS = 60.0
"""The seconds that an engine has to show that it works: a busy machine starts Node slowly, which is no reason to say that it is missing."""

NODE_BYTES = 1024 * MIB
"""The address space of Node, which reserves hundreds of MiB before it runs anything."""

TYPES_FROM = [22, 13]
"""The first Node that takes the types out of TypeScript."""

NODE_HEAP_MIB = 192
"""The heap of JavaScript in Node, with which an endless list ends early."""

OUTPUT_BYTES = 8 * MIB
"""All results of one start, and all that its calls print."""

_MODULE = re.compile(r"^\s*(?:export|import)\s", re.MULTILINE)
_RUNNERS = Path(__file__).parent


@dataclass(frozen=True)
class CodeCall:
    """One call of a function that a suite's author wrote."""

    language: Language
    code: str
    """The text: an expression or a function's body, or a whole file."""
    arguments: tuple[JsonValue, ...]
    parameters: tuple[str, ...] = ("output", "context")
    """The names of the arguments in an inline text."""
    file: str = ""
    """The file's name; empty for an inline text."""
    function: str = ""
    """The name of the file's function; empty for what a file of JavaScript exports."""

    @property
    def typed(self) -> bool:
        """Whether the file is TypeScript."""
        return self.file.endswith((".ts", ".cts", ".mts"))


@dataclass(frozen=True)
class CodeResult:
    """The result of a call."""

    value: JsonValue = None
    """The value that the function returned."""
    error: str | None = None
    """Why it returned nothing; None where it returned."""


@dataclass(frozen=True)
class CodeSandbox:
    """The sandboxes of this machine, for calls of code."""

    choice: Callable[[], SandboxChoice]
    """Returns the sandboxes, which are chosen at the first call."""
    seconds: float = CALL_SECONDS
    javascript: Engine | None = None
    """The engine for JavaScript; None for the first that works: Node, then QuickJS."""
    _found: dict[str, Engine] = field(default_factory=dict, repr=False)

    def call(self, calls: Sequence[CodeCall]) -> list[CodeResult]:
        """Make calls, those of one language in one start of a sandbox, and return their results in order; blocks until the last has ended.

        Raises:
            SandboxError: This machine has no sandbox for the language.
        """
        results: dict[int, CodeResult] = {}
        languages: dict[Language, None] = dict.fromkeys(call.language for call in calls)
        for language in languages:
            numbered = [(at, call) for at, call in enumerate(calls) if call.language == language]
            engine = self.engine(language)
            for start in range(0, len(numbered), CALLS_A_START):
                part = numbered[start : start + CALLS_A_START]
                ended = self._made([call for _, call in part], engine)
                results |= dict(zip((at for at, _ in part), ended, strict=True))
        return [results[at] for at in range(len(calls))]

    def engine(self, language: Language) -> Engine:
        """Return what runs a language here.

        Raises:
            SandboxError: Nothing does.
        """
        if language not in self._found:
            self._found[language] = self._find(language)
        return self._found[language]

    def _find(self, language: Language) -> Engine:
        choice = self.choice()
        if language == "python":
            if choice.programs is None and choice.snippets is None:
                raise SandboxError(f"Python runs in a sandbox, and none works here: {choice.why_not()}")
            return "python" if choice.programs is not None else "monty"
        if choice.programs is None:
            raise SandboxError(f"JavaScript runs in a sandbox for programs, and none works here: {choice.why_not()}")
        tried: tuple[Engine, ...] = (self.javascript,) if self.javascript else ("node", "quickjs")
        for engine in tried:
            if self._works(engine):
                return engine
        raise SandboxError("JavaScript needs Node or QuickJS; run: pip install 'gradeloop[javascript]'")

    def _works(self, engine: Engine) -> bool:
        if (engine == "node" and not shutil.which("node")) or (engine == "quickjs" and find_spec("quickjs") is None):
            return False
        try:
            patient = replace(self, seconds=PROBE_SECONDS, _found={"javascript": engine})
            (ended,) = patient.call([CodeCall("javascript", "1 + 1", (None, None))])
        except SandboxError:
            return False
        return ended.value == 2  # noqa: PLR2004 - 1 + 1

    def _made(self, calls: Sequence[CodeCall], engine: Engine) -> list[CodeResult]:
        """Make calls of one language; where a start is stopped, what is left has another, and a call that began it is to blame."""
        results: list[CodeResult] = []
        if engine == "monty":
            return [self._in_monty(call) for call in calls]
        while len(results) < len(calls):
            left = calls[len(results) :]
            ended, came = self._start(left, engine)
            results += came
            if not came:
                results.append(CodeResult(error=ended.error or "it ended its process, or never returned"))
        return results

    def _start(self, calls: Sequence[CodeCall], engine: Engine) -> tuple[Execution, list[CodeResult]]:
        box = self.choice().programs
        if box is None:
            raise SandboxError("there is no sandbox for programs on this machine")
        mark = secrets.token_hex(16)
        runner = (_RUNNERS / "code_runner.js").read_text(encoding="utf-8")
        request = {"mark": mark, "calls": [_wire(call, engine) for call in calls], "paths": [], "runner": ""}
        limits = Limits(seconds=self.seconds, output_bytes=OUTPUT_BYTES)
        if engine == "node":
            files = {"calls.json": json.dumps(request), "runner.cjs": runner}
            node = shutil.which("node") or "node"
            own = ("--openssl-config=/dev/null", f"--max-old-space-size={NODE_HEAP_MIB}")  # the system's may not be readable in here
            typed = ("--disable-wasm-trap-handler",) if any(call.typed for call in calls) and _takes_types_out(node) else ()
            argv = [node, *own, *typed]
            ended = box.run([*argv, "runner.cjs"], files, replace(limits, memory_bytes=NODE_BYTES))
        else:
            if engine == "quickjs":
                request |= {"paths": [sysconfig.get_path("platlib")], "runner": runner}
            program = (_RUNNERS / "code_runner.py").read_text(encoding="utf-8")
            ended = box.run(program, {"calls.json": json.dumps(request)}, limits)
        return ended, list(_read(ended.stdout, mark, len(calls)))

    def _in_monty(self, call: CodeCall) -> CodeResult:
        box = self.choice().snippets
        if box is None:
            raise SandboxError("there is no sandbox for snippets on this machine")
        ended = box.run(_snippet(call), limits=Limits(seconds=self.seconds))
        if ended.status != "ok":
            return CodeResult(error=ended.error or ended.status)
        return CodeResult(value=ended.value)


@functools.cache
def _takes_types_out(node: str) -> bool:
    """Return whether a Node takes the types out of TypeScript, by WebAssembly that fits into the sandbox without its trap handler."""
    ended = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - the machine's own
    numbers = [int(part) for part in re.findall(r"\d+", ended.stdout)[:2]]
    return numbers >= TYPES_FROM


def _wire(call: CodeCall, engine: Engine) -> dict[str, JsonValue]:
    module = bool(call.file) and (call.file.endswith((".mjs", ".mts")) or _MODULE.search(call.code) is not None)
    code = call.code
    if engine == "quickjs" and module:
        code = re.sub(r"^(\s*)export\s+default\s", r"\1module.exports = ", code, flags=re.MULTILINE)
    return {
        "language": call.language,
        "code": code,
        "arguments": list(call.arguments),
        "parameters": list(call.parameters),
        "file": call.file,
        "function": call.function,
        "module": module,
        "typed": call.typed,
    }


def _read(stdout: str, mark: str, count: int) -> Iterator[CodeResult]:
    """Yield the results in the order of the calls, up to the first that has none."""
    due = 0
    for line in stdout.splitlines():
        if not line.startswith(f"{mark} "):
            continue
        try:
            raw = json.loads(line.removeprefix(f"{mark} "))
        except (ValueError, RecursionError):
            return
        if not isinstance(raw, dict) or raw.get("at") != due or due == count:
            return
        due += 1
        error = raw.get("error")
        yield CodeResult(value=raw.get("value"), error=None if error is None else str(error)[:ERROR_CHARACTERS])


def _snippet(call: CodeCall) -> str:
    """Return a call as a snippet whose last expression is what it returns."""
    given = "".join(f"{name} = {value!r}\n" for name, value in zip(call.parameters, call.arguments, strict=True))
    if call.file:
        names = [f"argument_{at}" for at in range(len(call.arguments))]
        given = "".join(f"{name} = {value!r}\n" for name, value in zip(names, call.arguments, strict=True))
        return f"{given}{call.code}\n{call.function}({', '.join(names)})"
    if "return" not in call.code:
        return given + call.code.strip()
    body = textwrap.indent(textwrap.dedent(call.code), "    ")
    return f"{given}def inline({', '.join(call.parameters)}):\n{body}\ninline({', '.join(call.parameters)})"


@functools.cache
def local_code_sandbox() -> CodeSandbox:
    """Return the sandboxes of this machine as they are found, for a command that reads a suite."""
    from gradeloop.sandbox.choice import choose_sandboxes

    return CodeSandbox(functools.cache(choose_sandboxes))
