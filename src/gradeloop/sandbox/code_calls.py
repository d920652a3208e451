"""Functions of a suite's author, called in a sandbox: Python, and JavaScript by Node or QuickJS; many calls in one start."""

import functools
import json
import re
import secrets
import shutil
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from gradeloop.sandbox.choice import SandboxChoice, choose_sandboxes
from gradeloop.sandbox.execution import ERROR_CHARACTERS, MIB, Execution, Limits, SandboxError
from gradeloop.sandbox.programs import MAIN, readable

Language = Literal["javascript", "python"]
Engine = Literal["python", "node", "quickjs", "monty"]

CALLS_A_START = 100
"""The most calls of one start, so that what is lost with a start that is stopped is little."""

CALL_SECONDS = 5.0
"""The time of a start: a call that takes longer is stopped."""

PROBE_SECONDS = 60.0
"""The seconds that an engine has to show that it works: a busy machine starts Node slowly, and that does not mean that it is missing."""

LIBRARY_BYTES = 1536 * MIB
"""The address space of Node, which reserves more than 1 GiB before it runs anything (version 24), and of Python with packages of others."""

NODE_OPTIONS = ("--openssl-config=/dev/null", "--max-old-space-size=192", "--disable-wasm-trap-handler")
"""The options of Node, from 20.15 on: no settings of the system's, which it may not read, a heap of so many MiB, with which an endless list
ends early, and WebAssembly that fits into the sandbox, by which Node takes the types out of TypeScript."""

OUTPUT_BYTES = 8 * MIB
"""All results of one start, and all that its calls print."""

_MISSING = re.compile(r"No module named '(?P<python>[^']+)'|Cannot find (?:module|package) '(?P<node>[^']+)'")
_MODULE = re.compile(r"^\s*(?:export|import)\s", re.MULTILINE)
_RUNNERS = Path(__file__).parent
_found_here = functools.cache(choose_sandboxes)


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
    loads: bool = False
    """Whether the file is only loaded, and true returned, without a call of its function."""
    keeps: int | None = None
    """The number of the argument that stands for nothing returned, as a function of JavaScript has changed it: the function is a hook."""


@dataclass(frozen=True)
class CodeResult:
    """The result of a call."""

    value: JsonValue = None
    """The value that the function returned."""
    error: str | None = None
    """The reason why it returned nothing; None if it returned."""


@dataclass(frozen=True)
class CodeSandbox:
    """The sandboxes of this machine, for calls of code."""

    choice: Callable[[], SandboxChoice] = _found_here
    """Returns the sandboxes, which are chosen at the first call."""
    seconds: float = CALL_SECONDS
    javascript: Engine | None = None
    """The engine for JavaScript; None for the first that works: Node, then QuickJS."""
    imports: tuple[Path, ...] = ()
    """The folders that code may import from: the suite's, virtual environments, and others with code or `node_modules`."""
    _found: dict[str, Engine] = field(default_factory=dict, repr=False)
    _loaded: set[int] = field(default_factory=set, repr=False)

    def refuse_unloadable(self, calls: Sequence[CodeCall]) -> None:
        """Load the files of calls, with what they import, once; raise SandboxError where one fails, or has no sandbox here."""
        files = [call for call in calls if call.file and self.engine(call.language) != "monty"]
        new = {key: replace(call, loads=True) for call in files if (key := hash((call.file, call.code, call.function))) not in self._loaded}
        for (key, call), result in zip(new.items(), self.call([*new.values()]), strict=True):
            if result.error is not None:
                raise SandboxError(f"{call.file} cannot be loaded: {result.error}")
            self._loaded.add(key)

    def call(self, calls: Sequence[CodeCall]) -> list[CodeResult]:
        """Make calls, those of one language in one start of a sandbox, and return their results in order; blocks until the last has ended.

        Raises:
            SandboxError: This machine has no sandbox for the language.
        """
        results: dict[int, CodeResult] = {}
        places = [(call.language, str(Path(call.file).parent)) for call in calls]  # two folders may have modules of one name
        for place in dict.fromkeys(places):
            numbered = [(at, call) for at, call in enumerate(calls) if places[at] == place]
            engine = self.engine(place[0])
            for start in range(0, len(numbered), CALLS_A_START):
                part = numbered[start : start + CALLS_A_START]
                ended = self._made([call for _, call in part], engine)
                results |= dict(zip((at for at, _ in part), ended, strict=True))
        return [results[at] for at in range(len(calls))]

    def engine(self, language: Language) -> Engine:
        """Return what runs a language here; raise SandboxError where nothing does."""
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
        raise SandboxError("JavaScript needs Node 20.15 or newer, or QuickJS; run: pip install 'gradeloop[javascript]'")

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
        """Make calls of one language; where a start is stopped, the rest get another, and the call that began it is to blame."""
        results: list[CodeResult] = []
        if engine == "monty":
            return [self._in_monty(call) for call in calls]
        # A start that is stopped says which calls it ended, not which one hung. The first without a result
        # begins the next start, with all of its time; only if it fails there, too, is it to blame. Each turn of
        # the loop adds a result, so it ends after as many starts as there are calls, at most.
        while len(results) < len(calls):
            left = calls[len(results) :]
            ended, came = self._start(left, engine)
            results += [replace(result, error=self._with_cure(result.error, call)) for result, call in zip(came, left, strict=False)]
            if not came:
                results.append(CodeResult(error=ended.error or "it ended its process, or never returned"))
        return results

    def _start(self, calls: Sequence[CodeCall], engine: Engine) -> tuple[Execution, list[CodeResult]]:
        box = self.choice().programs
        if box is None:
            raise SandboxError("there is no sandbox for programs on this machine")
        mark = secrets.token_hex(16)
        runner, program = ((_RUNNERS / name).read_text(encoding="utf-8") for name in ("code_runner.js", "code_runner.py"))
        imports = tuple(map(str, self.imports))
        request = {"mark": mark, "calls": [self._wire(call, engine) for call in calls], "paths": [*imports], "runner": ""}
        limits = Limits(seconds=self.seconds, output_bytes=OUTPUT_BYTES, imports=imports)
        python = self._environment() if engine == "python" else None
        if engine == "node":
            files = {"calls.json": json.dumps(request), "runner.cjs": runner}
            node = Path(shutil.which("node") or "node").resolve()
            beside = [] if any(map(node.is_relative_to, readable())) else [str(node.parent)]
            limits = replace(limits, memory_bytes=LIBRARY_BYTES, imports=(*imports, *beside))
            ended = box.run([str(node), *NODE_OPTIONS, "runner.cjs"], files, limits)
        elif python is not None:
            argv, files = [str(python), "-E", "-s", "-B", "-X", "utf8", MAIN], {"calls.json": json.dumps(request), MAIN: program}
            limits = replace(limits, memory_bytes=LIBRARY_BYTES, imports=(*imports, *_installation(python)))
            ended = box.run(argv, files, limits)
        else:
            if engine == "quickjs":
                request |= {"paths": [sysconfig.get_path("platlib")], "runner": runner}
            ended = box.run(program, {"calls.json": json.dumps(request)}, limits)
        return ended, list(_read(ended.stdout, mark, len(calls)))

    def _environment(self) -> Path | None:
        """Return the interpreter of the first virtual environment."""
        return next((folder / "bin" / "python" for folder in self.imports if (folder / "pyvenv.cfg").is_file()), None)

    def _wire(self, call: CodeCall, engine: Engine) -> dict[str, JsonValue]:
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
            "place": next((str(folder / call.file) for folder in self.imports if _is_copy(folder / call.file, folder, call)), ""),
            "function": call.function,
            "module": module,
            "loads": call.loads,
            "keeps": call.keeps,
            "typed": call.file.endswith((".ts", ".cts", ".mts")),
        }

    def _with_cure(self, error: str | None, call: CodeCall) -> str | None:
        """Return an error of a call; behind one of a module that is not there stands what to do."""
        missing = _MISSING.search(error or "")
        if error is None or missing is None:
            return error
        name, folder, python = missing["python"] or missing["node"], next(iter(self.imports), None), self._environment()
        if folder is None:
            cure = "code has no folder here to import from; name a copy of the suite's on the worker in [sandbox] imports"
        elif name.startswith((".", "/", "file:")):
            cure = f"put it beside {call.file or 'the suite'} in {folder}, or name the folder above both with --imports"
        elif call.language == "javascript":
            cure = f"run `npm install` for it in {folder}, or name the folder above its node_modules with --imports"
        elif python is not None:
            cure = f"install its package with `{python} -m pip install`, or put {name}.py into {folder}"
        else:
            cure = f"name a virtual environment that has it with --imports, or put {name}.py into {folder}"
        return f"{error.partition(chr(10) + 'Require stack')[0]}; {cure}"

    def _in_monty(self, call: CodeCall) -> CodeResult:
        box = self.choice().snippets
        if box is None:
            raise SandboxError("there is no sandbox for snippets on this machine")
        ended = box.run(_snippet(call), limits=Limits(seconds=self.seconds))
        if ended.status != "ok":
            return CodeResult(error=ended.error or ended.status)
        return CodeResult(value=ended.value)


def _installation(python: Path) -> list[str]:
    """Return the folders that a virtual environment's interpreter stands on, by their real paths and as the environment names them."""
    named = re.search(r"(?m)^home *= *(.+)$", (python.parents[1] / "pyvenv.cfg").read_text(encoding="utf-8"))
    homes = [python.resolve().parent, *([Path(named[1].strip())] if named else [])]
    folders = dict.fromkeys(folder for home in homes for folder in (home, home.parent / "lib"))
    return [str(folder) for folder in folders if folder.is_dir() and not any(map(folder.is_relative_to, readable()))]


def _is_copy(path: Path, folder: Path, call: CodeCall) -> bool:
    """Return whether a file of a folder has the text of a call's code: what it imports then stands beside it."""
    try:
        real = path.resolve()
        return bool(call.file) and real.is_relative_to(folder.resolve()) and real.read_text(encoding="utf-8-sig") == call.code
    except (OSError, ValueError):
        return False


# What a call prints goes elsewhere, but code may write to any descriptor of its process. A random mark,
# which it cannot read, tells results from it, and they count only in the order of the calls: reading ends
# at the first that is out of turn, so a result that was made up replaces none.
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
def local_code_sandbox(imports: tuple[Path, ...] = ()) -> CodeSandbox:
    """Return the sandboxes of this machine as they are found, for a command that reads suites; a process tests them once."""
    return CodeSandbox(imports=imports)
