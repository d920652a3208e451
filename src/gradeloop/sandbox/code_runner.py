"""Calls the functions of a suite's author, one after the other, inside a sandbox; run as a script, only with the standard library.

The calls are in `calls.json`; every result is a line on standard output that begins with the calls' own mark. What the code prints goes
to standard error.
"""

import ast
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

VALUE_BYTES = 1024 * 1024
ERROR_CHARACTERS = 2000


def _inline(code: str, parameters: list[str]) -> Callable[..., Any]:
    """Return the function of an inline text: an expression, or a body with `return`."""
    tree = ast.parse(code.strip("\n") if "\n" in code.strip() else code.strip())
    if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
        tree.body = [ast.copy_location(ast.Return(tree.body[0].value), tree.body[0])]
    head = ast.parse(f"def inline({', '.join(parameters)}): pass")
    head.body[0].body = tree.body or head.body[0].body  # type: ignore[attr-defined]  # it is a function
    names: dict[str, Any] = {"__name__": "inline"}
    exec(compile(ast.fix_missing_locations(head), "<inline>", "exec"), names)  # noqa: S102 - what it is for
    function: Callable[..., Any] = names["inline"]
    return function


def _of_file(call: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of a file's text, by its name; what lies beside the file can be imported."""
    names: dict[str, Any] = {"__name__": "code", "__file__": call["place"] or call["file"]}
    if call["place"] and (beside := os.path.dirname(call["place"])) not in sys.path:  # noqa: PTH120 - as below
        sys.path.insert(1, beside)
    exec(compile(call["code"], call["file"], "exec"), names)  # noqa: S102 - what it is for
    if not callable(names.get(call["function"])):
        raise LookupError(f"{call['file']} has no function {call['function']}")  # noqa: TRY004 - it is not there
    function: Callable[..., Any] = names[call["function"]]
    return function


async def _awaited(value: Awaitable[Any]) -> object:
    return await value


def _value(call: dict[str, Any]) -> dict[str, Any]:
    function = _of_file(call) if call["file"] else _inline(call["code"], call["parameters"])
    if call["loads"]:
        return {"value": True}
    value = function(*call["arguments"])
    if hasattr(value, "__await__"):
        import asyncio  # as long as all else takes

        value = asyncio.run(_awaited(value))
    return {"value": json.loads(json.dumps(value, allow_nan=False))}


def _javascript(runner: str, call: dict[str, Any]) -> dict[str, Any]:
    """Return what JavaScript's runner says of a call, by QuickJS."""
    import quickjs  # type: ignore[import-not-found,import-untyped,unused-ignore]  # it has no types, and is an extra

    context = quickjs.Context()
    context.set_memory_limit(64 * 1024 * 1024)
    context.set_max_stack_size(512 * 1024)
    context.eval(runner)
    context.get("begin")(json.dumps(call))
    while context.execute_pending_job():
        pass
    ended = context.get("takeEnded")()
    if ended is None:
        raise RuntimeError("its promise never ends")
    result: dict[str, Any] = json.loads(ended)
    return result


def _described(error: BaseException, file: str) -> str:
    """Return what an error says, and the line of the author's text in which it was raised."""
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in {"<inline>", file}:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the author's own class may do anything
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}"[:ERROR_CHARACTERS] + (f" (line {line})" if line else "")


def _result(request: dict[str, Any], call: dict[str, Any]) -> str:
    """Return how a call ended, as JSON."""
    try:
        written = json.dumps(_javascript(request["runner"], call) if call["language"] == "javascript" else _value(call))
    except BaseException as error:  # noqa: BLE001 - whatever the author's text raises
        return json.dumps({"error": _described(error, call["file"])})
    if len(written) > VALUE_BYTES:
        return json.dumps({"error": f"it returned {len(written)} bytes, {VALUE_BYTES} at most"})
    return written


def main() -> None:
    """Make the calls and write their results."""
    with open("calls.json", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs a third of this script's time
        request = json.load(file)
    os.unlink("calls.json")  # noqa: PTH108 - as above
    sys.path.extend(request["paths"])
    results = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    for at, call in enumerate(request["calls"]):
        results.write(f'{request["mark"]} {{"at": {at}, {_result(request, call)[1:]}\n')
        results.flush()


main()
