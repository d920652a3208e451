"""Failing runs of a monitor as the tests of a suite."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from gradeloop.batches.contract import Case, CaseId
from gradeloop.batches.judged import records_of
from gradeloop.errors import InvalidRequest
from gradeloop.files.output import refuse_foreign, replacing
from gradeloop.judges.contract import CriteriaJudge
from gradeloop.monitors.contract import MonitorDefinition
from gradeloop.monitors.overview import MonitoredRun
from gradeloop.suites.convert import as_yaml
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite

_ACTIVE = re.compile("\\{[{%#]|\ue010")
"""Beginnings that a suite's text would not show as they are: those of templates and images."""

_CASE_ID: TypeAdapter[str] = TypeAdapter(CaseId)

FailedRun = tuple[MonitoredRun, Case]


def write_suite(
    path: Path, definition: MonitorDefinition, failed: Sequence[FailedRun], generator: str | None, *, overwrite: bool = False
) -> int:
    """Write failing runs as a suite that `gradeloop validate` takes, and return how many tests it has.

    Without a generator each test has the output that failed; with one it has the conversation that the generator is to answer.

    `generator`: the model that is to answer; None to keep the outputs.

    Raises:
        InvalidRequest: The judge has no rubric of criteria, the file cannot be written, or there is no run to write.
    """
    judge = definition.judge
    if not isinstance(judge, CriteriaJudge):
        raise InvalidRequest("the judge has a schema of its own, and a suite judges by a rubric of criteria; leave --to-suite out")
    if path.suffix not in {".yaml", ".yml"}:
        raise InvalidRequest(f"--to-suite is {str(path)!r}; name a file that ends in .yaml")
    if not failed:
        raise InvalidRequest(f"no failed run of the monitor {definition.name!r} is left in the store; there is nothing to write")
    refuse_foreign(path, overwrite=overwrite)
    from ruamel.yaml import YAML

    suite: dict[str, JsonValue] = {"name": f"failures of {definition.name}"}
    suite |= {"generators": [generator]} if generator else {}
    if judge.grader is not None:
        suite["grader"] = json.loads(judge.grader.model_dump_json(exclude_none=True, exclude_defaults=True))
    suite["rubric"] = _literal(YAML(typ="safe").load(as_yaml(judge.rubric)))
    suite["tests"] = _tests(definition.name, failed, answered=generator is None)
    text = io.StringIO()
    YAML().dump(suite, text)
    with replacing(path) as file:
        file.write(text.getvalue())
    try:
        return sum(1 for _ in read_suite(path, SuiteFlags(check=True)).cases())
    except InvalidRequest:
        path.unlink()
        raise


def _tests(monitor: str, failed: Sequence[FailedRun], *, answered: bool) -> list[JsonValue]:
    """Return the tests of runs, each under a name of its own."""
    tests, names = list[JsonValue](), set[str]()
    for run, case in failed:
        records = records_of(case, "")
        end = records.draft if answered else records.request + 1
        said: list[JsonValue] = [
            {"role": message.role, "content": message.content}
            for message in records.messages[:end]
            if message.kind is None and message.role != "tool" and message.content.strip()  # a new answer makes its tool calls anew
        ]
        name = run.run_id if _is_case_id(run.run_id) and run.run_id not in names else run.run_sha256[:16]
        names.add(name)
        test: dict[str, JsonValue] = {"id": name, "messages": _literal(said)}
        test |= {"output": records.messages[records.draft].content} if answered else {}
        tests.append(test | {"metadata": {"monitor": monitor, "run": run.run_id, "judgement": run.judgement or ""}})
    return tests


def _is_case_id(name: str) -> bool:
    try:
        _CASE_ID.validate_python(name)
    except ValidationError:
        return False
    return True


def _literal(value: JsonValue) -> JsonValue:
    """Return a value whose texts a suite shows as they are, whatever stands in them."""
    if isinstance(value, dict):
        return {key: item if key == "prompt" else _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if not isinstance(value, str):
        return value
    return _ACTIVE.sub(lambda found: "{{ '" + found[0] + "' }}", value)
