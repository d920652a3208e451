"""Failing runs of a monitor become a suite: what `validate` takes, with every text as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.errors import InvalidRequest
from gradeloop.monitors.cli.monitor_suite import write_suite
from gradeloop.monitors.contract import MonitorDefinition
from gradeloop.suites.cli.validate import check_file
from gradeloop.suites.load import read_suite
from tests.monitors.test_monitoring import watched
from tests.rig.batches import fails
from tests.rig.judging import FRANCE
from tests.rig.page_payloads import PAYLOADS

ODD = (
    "{{ vars.x }} {{{ y }}} {% if z %} {# c #}",
    "file:///etc/passwd",
    "\ue010low\ue011http://attack.example/x.png\ue012",
    "- a: 'b'\n#",
    "~",
)
JUDGE: dict[str, Any] = {"rubric": "- it has no {{ placeholder }}", "grader": {"model": "scripted:judge"}}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Q {text}"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("generator", [None, "scripted:writer"])
async def test_a_suite_of_failures_has_what_was_said_word_by_word(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generator: str | None
) -> None:
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", "a worker with the models' keys")
    texts = [*ODD, *PAYLOADS[:5]]
    async with watched(client, tmp_path, fails(), judge=JUDGE) as monitor:
        names = ["same" if at < 2 else f"run {at}" for at in range(len(texts))]
        runs = [{"id": name, "messages": said(text)} for name, text in zip(names, texts, strict=True)]
        (monitor.folder / "a.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
        await monitor.tick()
        definition = (await monitor.reader.require(monitor.name)).definition
        failed = await monitor.reader.failed_cases(monitor.name)
        path = tmp_path / "failures.yaml"
        total = write_suite(path, definition, failed, generator)
        cases = list(read_suite(path).cases())

    checked = check_file(path)
    assert (total, checked.kind, checked.cases) == (len(texts), "suite", len(texts))
    assert sorted(case.messages[0].content for case in cases) == sorted(f"Q {text}" for text in texts)
    assert sorted(str(case.output) for case in cases) == sorted(texts if generator is None else ["None"] * len(texts))
    assert {case.rubric.criteria[0].description for case in cases} == {"it has no {{ placeholder }}"}
    assert len({case.id for case in cases}) == len(texts)


def test_what_cannot_be_a_suite_is_refused_in_a_sentence(tmp_path: Path) -> None:
    about = {"name": "m", "source": {"kind": "folder", "path": "/runs"}}
    plain = MonitorDefinition.model_validate(about | {"judge": JUDGE})
    by_schema = MonitorDefinition.model_validate(about | {"judge": FRANCE, "passes": ["label=match"]})

    with pytest.raises(InvalidRequest, match="a suite judges by a rubric of criteria; leave --to-suite out"):
        write_suite(tmp_path / "a.yaml", by_schema, [], None)
    with pytest.raises(InvalidRequest, match=r"name a file that ends in \.yaml"):
        write_suite(tmp_path / "a.csv", plain, [], None)
    with pytest.raises(InvalidRequest, match="no failed run of the monitor 'm' is left in the store"):
        write_suite(tmp_path / "a.yaml", plain, [], None)
