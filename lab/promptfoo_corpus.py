"""How many of a folder's promptfoo configurations are taken whole, in part or not at all, and what is in the way.

    python -m lab.promptfoo_corpus FOLDER [--list] [--json]

No call is made and no server is needed. The folder is copied, and files of code, images and texts that are named and not there are
replaced by stubs, which are counted apart.
"""

import argparse
import json
import re
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import read_yaml
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import CheckedSuite, check_suite
from gradeloop.suites.unsupported import Unsupported
from rig.pdf import pdf

_CODE = re.compile(r"(?:file://)?(?P<path>[\w./-]+\.(?:js|cjs|mjs|ts|py|rb|sh))(?::(?P<function>\w+))?")
_DATA = re.compile(r"file://(?P<path>[\w./-]+\.(?:png|jpe?g|gif|webp|md|txt|sql|csv|json|html|pdf))\b")
_IMAGE = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")
"""A picture of one pixel."""
_TEXT = b"A stub.\n"
_PROMPTS = {".yaml", ".yml", ".json", ".txt"}
_NAMED = re.compile(r"\{\{\s*(\w+)")
_PYTHON_FUNCTION = "def {0}(*given, **_):\n    return _returned(given)\n"
_PYTHON_STUB = (
    "def _returned(given):\n    first = given[0] if given else None\n    if first in ('beforeAll', 'beforeEach'):\n        return None\n"
    "    if len(given) == 3:\n        return {{'output': 'a stub'}}\n"
    "    if isinstance(first, dict) and 'vars' in first:\n        return 'a stub'\n"
    "    return [{{'vars': {{}}}}] if len(given) < 2 else True\n\n\n{}"
)
_NODE_STUB = (
    "const returned = (...given) => (/^before(All|Each)$/.test(given[0]) ? null : "
    "given.length === 3 ? {output: 'a stub'} : given[0] && given[0].vars ? 'a stub' : "
    "given.length < 2 ? [{vars: {}}] : true);\nmodule.exports = new Proxy(returned, {get: (_, name) => (name === 'callApi' || name === "
    "'prototype' ? undefined : returned)});\n"
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass
class Corpus:
    """What became of the configurations of a folder."""

    checked: dict[str, CheckedSuite] = field(default_factory=dict)
    """The reports by the configuration's path in the folder."""
    stubbed: set[str] = field(default_factory=set)
    """Those with a file that was not there."""
    tracebacks: dict[str, str] = field(default_factory=dict)
    """What was raised that is not a refusal."""

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        verdicts = Counter(report.verdict for report in self.checked.values())
        stubbed = Counter(report.verdict for name, report in self.checked.items() if name in self.stubbed)
        return {
            "configurations": len(self.checked) + len(self.tracebacks),
            "taken": verdicts["whole"] + verdicts["in part"],
            "whole": verdicts["whole"],
            "in part": verdicts["in part"],
            "refused": verdicts["refused"],
            "tracebacks": len(self.tracebacks),
            "whole, with stubs": stubbed["whole"],
            "in part, with stubs": stubbed["in part"],
        }

    def in_the_way(self) -> list[tuple[int, str]]:
        """Return what keeps configurations from being taken whole, by how many it stops, the most first."""
        stops: Counter[str] = Counter()
        for report in self.checked.values():
            problems = {_kind(group.problem) for group in report.findings if group.effect != "no effect"}
            if report.refusal is not None:
                problems.add(f"refused: {_kind(Unsupported(report.refusal, 'refused').problem.partition('; ')[0])}")
            stops.update(problems)
        return [(count, problem) for problem, count in stops.most_common()]


def _kind(problem: str) -> str:
    """Return a problem without the values in it, but for the name of what is not supported."""
    named = re.search(r"^(?:the type |config\.)?'?[\w.-]+'? is not supported", problem)
    return named[0] if named else _QUOTED.sub("…", problem)[:120]


def find_configurations(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are promptfoo's configurations, by their keys."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in {".yaml", ".yml", ".json"} or "node_modules" in path.parts:
            continue
        if path.stem.startswith("promptfooconfig"):
            yield path
            continue
        try:
            value = read_yaml(path, "the file")
        except InvalidRequest:
            continue
        if isinstance(value, dict) and "results" not in value and "prompts" in value and {"providers", "targets", "tests"} & set(value):
            yield path


def check_corpus(folder: Path) -> Corpus:
    """Check all configurations of a folder."""
    corpus = Corpus()
    for path in find_configurations(folder):
        name = str(path.relative_to(folder))
        if _add_stubs(path):
            corpus.stubbed.add(name)
        try:
            corpus.checked[name] = check_suite(path, SuiteFlags(skip_unsupported=True, allow_code=True))
        except Exception:  # noqa: BLE001 - counted as a fault of ours
            corpus.tracebacks[name] = traceback.format_exc()
    return corpus


def _add_stubs(path: Path) -> bool:
    """Write a stub for each file that a configuration names and that is not there; return whether one was needed."""
    added, text = False, path.read_text(encoding="utf-8", errors="replace")
    for match in _DATA.finditer(text):
        named = (path.parent / match["path"]).resolve()
        if not named.exists() and named.is_relative_to(path.parent.resolve()):
            named.parent.mkdir(parents=True, exist_ok=True)
            named.write_bytes(_data_stub(named.suffix, _variables(path.parent)))
            added = True
    for match in _CODE.finditer(text):
        named = (path.parent / match["path"]).resolve()
        if "://" in match["path"] or named.exists() or not named.is_relative_to(path.parent.resolve()):
            continue
        named.parent.mkdir(parents=True, exist_ok=True)
        functions = dict.fromkeys(["get_assert", "get_transform", "call_api", *filter(None, [match["function"]])])
        node = _NODE_STUB if named.suffix != ".mjs" else _NODE_STUB.replace("module.exports =", "export default")
        named.write_text(_PYTHON_STUB.format("\n".join(map(_PYTHON_FUNCTION.format, functions))) if named.suffix == ".py" else node)
        added = True
    return added


def _variables(folder: Path) -> dict[str, str]:
    """Return a value for each variable that the prompts of a folder name."""
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.iterdir()) if file.suffix in _PROMPTS)
    return dict.fromkeys((name for text in texts for name in _NAMED.findall(text)), "a stub") or {"a": "a stub"}


def _data_stub(suffix: str, variables: dict[str, str]) -> bytes:
    """Return what a file of data holds, with the variables that the configuration's texts name."""
    if suffix == ".csv":
        return f"{','.join(variables)}\n{','.join(variables.values())}\n".encode()
    if suffix == ".json":
        return json.dumps([{"vars": variables}]).encode()
    return pdf("A stub.") if suffix == ".pdf" else _TEXT if suffix in {".md", ".txt", ".sql", ".html"} else _IMAGE


def main() -> None:
    """Print the counts, and what is in the way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help="print the report of every configuration")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "corpus"
        shutil.copytree(given.folder, copy)
        corpus = check_corpus(copy)
        if given.json:
            print(json.dumps({"counts": corpus.counts(), "in_the_way": corpus.in_the_way(), "tracebacks": corpus.tracebacks}, indent=1))
            return
        for report in corpus.checked.values() if given.list else ():
            print("\n".join(line.replace(f"{copy}/", "") for line in report.lines()))
        for name, raised in corpus.tracebacks.items():
            print(f"{name}: {raised}")
        print(", ".join(f"{name}: {count}" for name, count in corpus.counts().items()))
        for count, problem in corpus.in_the_way():
            print(f"{count:4}  {problem}")


if __name__ == "__main__":
    main()
