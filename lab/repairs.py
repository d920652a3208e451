"""Repairs of verdicts: 1,000 gradings by a server whose first answer has a fault, as large models make them, and whose second has none.

The faults take turns, one grading in sixteen has none. The server answers in the form that it is asked for, the list of rows of earlier
versions or an object with a key for each criterion. Where a JSON Schema comes with the question it keeps it, as a constrained decoder
does: a faulty answer that the schema forbids is not given. `--checkout` measures another checkout of gradeloop.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
from aiohttp import web
from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from lab.checkout import HERE, Checkout
from lab.served_app import served

IDS = ("changes", "affected", "plain")
CRITERIA = ("every change is named", "each entry says who is affected", "the text has no marketing words")
REASON, GAP = "Read against the list of changes.", "the third entry does not say who is affected"
GRADINGS = 1000

Row = dict[str, Any]
_TAG = re.compile(r"<(verdict-[0-9a-f]+)>")
_FAULT = re.compile(r"\[fault ([a-z ]+)\]")


def rows() -> dict[str, Row]:
    """Return the rows of a verdict: the second criterion fails."""
    return {name: {"reason": REASON, "passed": name != "affected", "gap": GAP if name == "affected" else None} for name in IDS}


@dataclass(frozen=True)
class Form:
    """How the question wants its answer."""

    keyed: bool
    tag: str | None
    full: bool
    """Whether a keyed answer has a summary."""

    def written(self, verdict: dict[str, Row], doubled: Row | None = None, **more: Any) -> str:  # noqa: ANN401 - JSON of any shape
        """Return rows as the object that was asked for.

        Args:
            verdict: The rows; a criterion that is none of the rubric's is an invented one.
            doubled: A further row about the first criterion.
            more: Further keys of the object.
        """
        if not self.keyed:
            listed = [{"id": name, **row} for name, row in verdict.items()]
            listed += [{"id": IDS[0], **doubled}] if doubled else []
            return json.dumps({"criteria": listed, "explanation": REASON, "result": "needs_revision"} | more)
        keys = {name: f"k{at}" for at, name in enumerate((*IDS, "invented"), 1)}
        parts = [f"{json.dumps(keys[name])}: {json.dumps(row | {'gap': _empty(row)})}" for name, row in verdict.items()]
        parts += [f'"k1": {json.dumps(doubled | {"gap": _empty(doubled)})}'] if doubled else []
        rest: dict[str, Any] = {"unjudgeable": ""} | ({"summary": REASON} if self.full else {}) | more
        return "{" + ", ".join([*parts, *(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items())]) + "}"

    def framed(self, text: str) -> str:
        """Return an answer between the tags, where the question has some."""
        return text if self.tag is None else f"<{self.tag}>\n{text}\n</{self.tag}>"


def _empty(row: Row) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a row's gap as the keyed form has it; a fault in it stays."""
    return "" if row.get("gap") is None and row["passed"] is True else row.get("gap")


def _changed(name: str, **more: Any) -> dict[str, Row]:  # noqa: ANN401 - JSON of any shape
    """Return the rows, one of them changed."""
    return {key: row | more if key == name else row for key, row in rows().items()}


def _without_gap(form: Form) -> str:
    text = form.written(rows())
    return form.framed(re.sub(r', "gap": (null|"")', "", text, count=1))


FAULTS: dict[str, Callable[[Form], str]] = {
    "none": lambda form: form.framed(form.written(rows())),
    "fence around it": lambda form: form.framed(f"```json\n{form.written(rows())}\n```"),
    "fence outside": lambda form: f"```\n{form.framed(form.written(rows()))}\n```",
    "prose before it": lambda form: "Here is my verdict.\n\n" + form.framed(form.written(rows())),
    "prose after it": lambda form: form.framed(form.written(rows())) + "\n\nI hope that this helps.",
    "thinking before it": lambda form: "<think>The third entry says nothing.</think>\n" + form.framed(form.written(rows())),
    "no tags": lambda form: form.written(rows()),
    "missing row": lambda form: form.framed(form.written({name: row for name, row in rows().items() if name != "plain"})),
    "doubled row": lambda form: form.framed(form.written(rows(), {"reason": REASON, "passed": False, "gap": GAP})),
    "invented row": lambda form: form.framed(form.written(rows() | {"invented": {"reason": REASON, "passed": True, "gap": None}})),
    "result that disagrees": lambda form: form.framed(form.written(rows(), result="satisfied")),
    "null gap of a fail": lambda form: form.framed(form.written(_changed("affected", gap=None))),
    "no gap of a pass": _without_gap,
    "passed as a word": lambda form: form.framed(form.written(_changed("plain", passed="true"))),
    "two objects": lambda form: form.framed(form.written(_changed("affected", passed=True, gap=None)) + "\n" + form.written(rows())),
    "cut short": lambda form: form.framed(form.written(rows()))[:-60],
}
"""What a first answer is, by its fault."""


class Grader:
    """The server; it counts nothing, since the caller does."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a question, with its fault where it is the first."""
        body = await request.json()
        text = _said(body)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        base = {"id": "c", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            return web.json_response(base | {"object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        chunk = base | {"object": "chat.completion.chunk", "choices": [delta], "usage": usage}
        await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return response


def _said(body: dict[str, Any]) -> str:
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    shown = "\n".join(str(message["content"]) for message in body["messages"])
    tag, fault = _TAG.search(shown), _FAULT.search(shown)
    keyed = "k1" in schema["properties"] if schema else '"k1"' in shown
    full = "summary" in schema["properties"] if schema else '"summary"' in shown
    form = Form(keyed, tag[1] if tag and not schema else None, full)
    repaired = any(message["role"] == "assistant" for message in body["messages"])
    text = FAULTS[fault[1] if fault and not repaired else "none"](form)
    return text if schema is None or _keeps(text, schema) else FAULTS["none"](form)


def _keeps(text: str, schema: dict[str, Any]) -> bool:
    """Return whether a text is one that a server may give which keeps a schema: one object, no key of it twice."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except ValueError:
        return False
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def application() -> web.Application:
    """Return the server."""
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", Grader().answer)
    return app


@dataclass(frozen=True)
class Told:
    """What gradings with one fault came to."""

    gradings: int
    repairs: int
    """Calls beside the first ones."""
    without: int
    """Gradings that ended without a verdict."""


def measure(checkout: Checkout, gradings: int, *, by_schema: bool) -> dict[str, Told]:
    """Run one batch, and return what its gradings came to by fault."""
    faults = [list(FAULTS)[at % len(FAULTS)] for at in range(gradings)]
    config = {"base_url": checkout.url, "structured_output": by_schema}
    suite = {
        "grader": {"model": {"id": "openai_compatible:large", "config": config}},
        "rubric": {"criteria": [{"id": name, "description": text} for name, text in zip(IDS, CRITERIA, strict=True)]},
        "tests": [{"id": f"case-{at}", "output": f"Draft {at}. [fault {fault}]"} for at, fault in enumerate(faults)],
        "concurrency": 20,
        "cache": False,
        "max_error_rate": 1,
    }
    counted: dict[str, Counter[str]] = {fault: Counter() for fault in FAULTS}
    for case in checkout.judged(suite):
        counted[faults[case["index"]]] += Counter(
            gradings=1, repairs=case["usage"]["calls"] - 1, without=int(case["status"] not in {"passed", "failed"})
        )
    return {fault: Told(found["gradings"], found["repairs"], found["without"]) for fault, found in counted.items()}


def table(found: dict[str, dict[str, Told]]) -> Table:
    """Return the repairs by fault, a column for each form of the question."""
    shown = Table(title="repairs (gradings without a verdict), of all gradings with a fault")
    for at, head in enumerate(("first answer", "gradings", *found)):
        shown.add_column(head, justify="right" if at else "left")
    for line in lines(found):
        shown.add_row(*line)
    return shown


def lines(found: dict[str, dict[str, Told]]) -> Iterable[list[str]]:
    """Yield the rows of the table, the sums last."""
    for fault in FAULTS:
        told = [column[fault] for column in found.values()]
        yield [fault, f"{told[0].gradings}", *(f"{each.repairs} ({each.without})" for each in told)]
    sums = [(sum(each.repairs for each in column.values()), sum(each.without for each in column.values())) for column in found.values()]
    total = sum(each.gradings for each in next(iter(found.values())).values())
    yield ["all", f"{total}", *(f"{repairs} ({without})" for repairs, without in sums)]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.repairs", description=__doc__)
    parser.add_argument("--checkout", type=Path, default=HERE, help="the checkout that is measured")
    parser.add_argument("--gradings", type=int, default=GRADINGS, metavar=f"{GRADINGS}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradeloop-repairs-") as folder, served(application) as url:
        checkout = Checkout(given.checkout, Path(folder), f"{url}/v1")
        try:
            found = {
                "by tags": measure(checkout, given.gradings, by_schema=False),
                "by schema": measure(checkout, given.gradings, by_schema=True),
            }
        finally:
            checkout.stop()
    Console(width=120).print(table(found))
    for line in lines(found):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
    leave(0)
