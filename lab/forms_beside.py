"""promptfoo's `llm-rubric`, deepagents' rubric middleware and Docent's judge on the labelled replies, before the same real small model.

Each is asked as its own documentation asks: promptfoo in a call for each criterion, the middleware and Docent in one. Each answer is held
to the tokens to which `lab.forms --held` holds it. A verdict is one that the peer itself takes for one; the middleware names its criteria
itself, and its rows count where there are as many as criteria.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradeloop.exit_codes import leave
from lab.forms import FOR_REST, FOR_ROW, Took, cell_of, markdown, table
from lab.labelled_replies import ASKED, FACTS, replies
from lab.peer.promptfoo_suite import promptfoo
from lab.peer.venv import DOCENT, MIDDLEWARE, peer_python
from rig.real_model import NAME, NoModelError, Tap, real_model

GRADINGS, CRITERIA, CONCURRENCY = 30, 3, 2

Told = list[dict[str, bool] | None]
_NO_VERDICT = ("Could not extract JSON", "API error", "API call error", "llm-rubric produced malformed")
"""How promptfoo begins the reason of an assertion whose grader gave no verdict, which it counts as one that failed."""


@dataclass(frozen=True)
class Question:
    """What is judged, and by which model."""

    url: str
    folder: Path
    texts: list[str]
    criteria: dict[str, str]
    cap: int


def by_promptfoo(question: Question) -> Told:
    """Return the verdicts of promptfoo: an assertion for each criterion."""
    config = {"apiBaseUrl": question.url, "apiKey": "none", "temperature": 0, "max_tokens": question.cap}
    suite = {
        "prompts": ["{{reply}}"],
        "providers": ["echo"],
        "defaultTest": {
            "options": {"provider": {"id": f"openai:chat:{NAME}", "config": config}},
            "assert": [{"type": "llm-rubric", "value": text} for text in question.criteria.values()],
        },
        "tests": [{"vars": {"reply": text}} for text in question.texts],
    }
    path = question.folder / "suite.json"
    path.write_text(json.dumps(suite))
    results = promptfoo(question.url.removesuffix("/v1"), question.folder).evaluate(path, "--max-concurrency", str(CONCURRENCY)).results
    told: Told = []
    for result in sorted(results, key=lambda each: int(each["testIdx"])):
        parts = (result.get("gradingResult") or {}).get("componentResults") or []
        rows = {
            name: bool(part["pass"])
            for name, part in zip(question.criteria, parts, strict=False)
            if not str(part.get("reason")).startswith(_NO_VERDICT)
        }
        told.append(rows)
    return told


def by_script(pins: tuple[str, ...], script: str) -> Callable[[Question], Told]:
    """Return the verdicts that a script in a peer's venv prints."""

    def ask(question: Question) -> Told:
        given = {"url": question.url, "model": NAME, "asked": ASKED, "at_once": CONCURRENCY, "cap": question.cap}
        given |= {"texts": question.texts, "criteria": question.criteria}
        command = [str(peer_python(pins)), str(Path(__file__).parent / "peer" / script)]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        told: Told = json.loads(done.stdout.strip().splitlines()[-1])
        return told

    return ask


PEERS: dict[str, tuple[str, Callable[[Question], Told]]] = {
    "promptfoo": ("llm-rubric", by_promptfoo),
    "deepagents": ("middleware", by_script(MIDDLEWARE, "middleware_replies.py")),
    "Docent": ("judge", by_script(DOCENT, "docent_replies.py")),
}


def question_of(tap: Tap, folder: Path, gradings: int, criteria: int) -> Question:
    """Return the question to all peers."""
    facts = {fact: FACTS[fact][0] for fact in list(FACTS)[:criteria]}
    return Question(tap.url, folder, [reply.text for reply in replies(gradings)], facts, FOR_REST + FOR_ROW * criteria)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.forms_beside", description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between them")
    parser.add_argument("--gradings", type=int, default=GRADINGS, metavar=f"{GRADINGS}")
    parser.add_argument("--criteria", type=int, default=CRITERIA, metavar=f"{CRITERIA}")
    parser.add_argument("--output", "-o", type=Path, help="a JSON file for the cells")
    given: Any = parser.parse_args()
    found = []
    try:
        for name in given.peers.split(","):
            with tempfile.TemporaryDirectory(prefix="gradeloop-forms-") as folder, real_model() as (model, tap):
                question = question_of(tap, Path(folder), given.gradings, given.criteria)
                own, ask = PEERS[name]
                ask(Question(tap.url, Path(folder), question.texts[:1], question.criteria, 16))  # installed, and loaded once
                tap.forget()
                tap.most = question.cap
                began, before = time.monotonic(), model.cpu()
                told = ask(question)
                took = Took(time.monotonic() - began, model.cpu() - before)
                missing = sum(rows is None or len(rows) < given.criteria for rows in told)
                found.append(cell_of((name, own), list(question.criteria), told, tap.calls, took, {"no verdict": missing}))
                print(json.dumps(asdict(found[-1])), flush=True)
    except NoModelError as error:
        raise SystemExit(str(error)) from None
    if given.output:
        given.output.write_text(json.dumps([asdict(cell) for cell in found], indent=1))
    Console(width=140).print(table(found))
    print(markdown(found))


if __name__ == "__main__":
    main()
    leave(0)
