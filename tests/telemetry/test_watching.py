"""Dashboards, alerts and docs/operating.md: every metric that they name exists, every alert fires in promtool and has its runbook."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import temporalio.bridge
from ruamel.yaml import YAML
from temporalio import workflow
from temporalio.client import Client
from temporalio.runtime import BufferedMetricUpdate, MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from deploy.site.describe_contract import seen_name
from gradeloop.telemetry.metrics import METRICS
from gradeloop.temporal.server import ServerInfo

ROOT = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = ROOT / "deploy/prometheus", ROOT / "deploy/grafana"
PAGE, REFERENCE = ((ROOT / f"docs/{name}.md").read_text() for name in ("operating", "reference"))
RULES: list[dict[str, Any]] = [rule for group in YAML(typ="safe").load(PROMETHEUS / "rules.yaml")["groups"] for rule in group["rules"]]
BOARDS = sorted(GRAFANA.glob("*.json"))

NAME = r"\b(?:gradeloop|temporal)_[a-z_]+\b|\bup\b"


def exposed() -> dict[str, tuple[str, ...]]:
    """Return the labels of our series by their names."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {f"{seen_name(metric)}{end}": (*metric.labels, *(("le",) if end == "_bucket" else ())) for end in ends}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression of rules and dashboards with its place."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{board.name}: {panel['title']}", target["expr"]


EXPRESSIONS = list(expressions())


@pytest.fixture(scope="module")
def core() -> bytes:
    """Return the SDK's own library, which holds the names of its metrics."""
    (library,) = Path(temporalio.bridge.__file__).parent.glob("temporal_sdk_bridge*.so")
    return library.read_bytes()


def test_every_metric_of_a_rule_or_dashboard_exists(core: bytes, subtests: pytest.Subtests) -> None:
    for place, expression in EXPRESSIONS:
        with subtests.test(place=place):
            names = {name for name in re.findall(NAME, re.sub(r'"[^"]*"', '""', expression)) if not name.endswith("_type")}

            assert names, place
            for name in names - exposed().keys() - {"up"}:
                assert name.startswith("temporal_"), f"{place}: {name}"
                assert re.sub(r"_(?:total|bucket|sum|count)$", "", name.removeprefix("temporal_")).encode() in core, f"{place}: {name}"


def test_every_label_of_our_metrics_exists(subtests: pytest.Subtests) -> None:
    for place, expression in EXPRESSIONS:
        with subtests.test(place=place):
            for name, selectors in re.findall(r"\b(gradeloop_[a-z_]+)\{([^}]*)\}", expression):
                assert set(re.findall(r"(\w+)[!=~]+\"", selectors)) <= set(exposed()[name]), place
            for labels, name in re.findall(r"by \(([a-z_, ]+)\) \((?:rate|increase)?\(?(gradeloop_[a-z_]+)", expression):
                assert set(labels.split(", ")) <= set(exposed()[name]), place


def test_every_metric_is_on_a_dashboard_and_in_the_table_of_the_reference() -> None:
    shown = " ".join(expression for _, expression in EXPRESSIONS)

    assert not [metric.name for metric in METRICS if metric.name not in shown]
    assert not [metric.name for metric in METRICS if f"| `{seen_name(metric)}` |" not in REFERENCE]


@pytest.mark.slow
def test_every_alert_has_a_runbook_and_is_fired_in_a_test(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule=rule):
            tests = YAML(typ="safe").load(PROMETHEUS / "rules_test.yaml")["tests"]
            fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}

            assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"
            assert f"\n### {rule['alert']}\n" in PAGE
            assert rule["alert"] in fired


@pytest.mark.slow
def test_the_rules_pass_promtool() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt install prometheus)")
    for command in (["check", "config", "prometheus.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_expression_of_the_dashboards_is_one_of_prometheus(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt install prometheus)")
    rules = [{"record": f"x:{at}", "expr": expression} for at, (_, expression) in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", str(tmp_path / "rules.yaml")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.name)
def test_a_dashboard_has_an_id_a_data_source_to_choose_and_no_panel_over_another(board: Path) -> None:
    document = json.loads(board.read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in document["panels"]]

    assert document["uid"].startswith("gradeloop-")
    assert document["templating"]["list"][0]["type"] == "datasource"
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"]) == len(set(places))


@workflow.defn(name="Changed")
class AsDeployed:
    """Waits a second."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(1)


@workflow.defn(name="Changed")
class AsChanged:
    """Calls an activity where a second was waited for."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("nothing", start_to_close_timeout=timedelta(seconds=5))


async def test_a_workflow_that_does_not_replay_is_counted_as_the_alert_reads_it(temporal_server: ServerInfo) -> None:
    buffer, queue = MetricBuffer(100_000), f"changed-{uuid4()}"
    runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer))
    client = await Client.connect(temporal_server.address, runtime=runtime)
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=queue, workflows=[AsDeployed], workflow_runner=runner, max_cached_workflows=0):
        handle = await client.start_workflow("Changed", id=queue, task_queue=queue)
        while (await handle.describe()).history_length < 5:  # its first task is done
            await asyncio.sleep(0.02)
    failed: list[BufferedMetricUpdate] = []
    async with (
        Worker(client, task_queue=queue, workflows=[AsChanged], workflow_runner=runner, max_cached_workflows=0),
        asyncio.timeout(240),
    ):
        while not failed:
            updates = buffer.retrieve_updates()
            failed = [update for update in updates if update.metric.name == "temporal_workflow_task_execution_failed"]
            await asyncio.sleep(0.05)
    await handle.terminate()

    assert {update.attributes["failure_reason"] for update in failed} == {"NonDeterminismError"}
    assert {update.attributes["workflow_type"] for update in failed} == {"Changed"}
