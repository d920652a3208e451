"""The manifests of `deploy/kubernetes/`: they hold against Kubernetes' published schemas, and say of a role what the README says."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from gradeloop.settings.endpoints import EndpointTable
from gradeloop.settings.worker import WorkerSettings, load_settings
from tests.rig.kubernetes import VERSION, validator

FOLDER = Path(__file__).parent.parent / "deploy/kubernetes"
ROLES = ("loop", "models", "evidence")
NOT_KUBERNETES = {"kustomization.yaml"}
BESIDE = {"receiver.yaml", "scaling-keda.yaml"}
"""Manifests that are not applied with the others."""


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in YAML(typ="safe").load_all(FOLDER / name) if found]


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(name) if document["kind"] == kind]
    return found


def pod(role: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(f"{role}.yaml", "Deployment")["spec"]["template"]["spec"]
    return spec


def sources(role: str) -> set[str]:
    """Return the names of the config maps and secrets that a role's container gets."""
    spec = pod(role)
    (container,) = spec["containers"]
    maps = {source["configMapRef"]["name"] for source in container["envFrom"]}
    secrets = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container.get("env", ()) if "valueFrom" in entry}
    return maps | secrets | {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}


def test_every_manifest_holds_against_the_published_schema(subtests: pytest.Subtests) -> None:
    for name in sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in NOT_KUBERNETES):
        with subtests.test(name=name):
            for document in documents(name):
                validator(document["kind"], document["apiVersion"]).validate(document)


def test_the_schema_refuses_a_field_that_kubernetes_does_not_know() -> None:
    broken = one("loop.yaml", "Deployment")
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 40

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_kustomize_lists_every_manifest_but_those_for_keda_and_the_receiver() -> None:
    (found,) = documents("kustomization.yaml")

    assert sorted(found["resources"]) == sorted({path.name for path in FOLDER.glob("*.yaml")} - NOT_KUBERNETES - BESIDE)


def test_keys_and_the_store_are_the_models_workers_alone() -> None:
    assert sources("loop") == sources("evidence") == {"gradeloop-settings"}
    assert sources("models") == {"gradeloop-settings", "gradeloop-providers", "gradeloop-store", "gradeloop-keys"}
    assert sources("receiver") == {"gradeloop-settings", "gradeloop-store", "gradeloop-otlp"}


def test_no_secret_stands_in_a_manifest() -> None:
    assert [found["kind"] for path in FOLDER.glob("*.yaml") for found in documents(path.name) if found.get("kind") == "Secret"] == []


@pytest.mark.parametrize("role", [*ROLES, "receiver"])
def test_a_container_has_no_rights_that_it_does_not_need(role: str) -> None:
    spec = pod(role)
    (container,) = spec["containers"]

    least = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

    assert container["securityContext"] == least
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (10001, True)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/home/gradeloop"}


@pytest.mark.parametrize("role", [*ROLES, "receiver"])
def test_the_settings_are_ones_that_the_worker_takes(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod(role)["containers"]
    settings, providers = (document["data"] for document in documents("settings.yaml"))
    for name, value in (settings | (providers if role == "models" else {})).items():
        monkeypatch.setenv(name, value)
    loaded = load_settings(container["command"][2:])

    assert container["command"][:2] == ["gradeloop", "worker"]
    assert (loaded.role, loaded.log, loaded.task_queue) == (role, "json", "gradeloop")
    assert {probe for probe in container if probe.endswith("Probe")} == {"startupProbe", "livenessProbe", "readinessProbe"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert loaded.health_address == f"0.0.0.0:{ports['health']}"
    assert loaded.metrics_address == f"0.0.0.0:{ports['metrics']}"


def test_the_files_of_the_endpoints_are_where_the_secret_is_mounted() -> None:
    table = TypeAdapter(EndpointTable).validate_python(json.loads(documents("settings.yaml")[1]["data"]["GRADELOOP_PROVIDERS"]))
    (container,) = pod("models")["containers"]
    (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "keys"]

    assert {str(Path(str(endpoint.key)).parent) for endpoint in table.values()} == {mounted}


def test_the_receiver_listens_where_its_service_sends_and_wants_the_token_of_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod("receiver")["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(container["command"][2:]).receiver
    (port,) = one("receiver.yaml", "Service")["spec"]["ports"]
    (policy,) = [
        document
        for document in documents("receiver.yaml")
        if document["metadata"]["name"] == "gradeloop-receiver" and "ingress" in document["spec"]
    ]
    (rule,) = policy["spec"]["ingress"]
    (otlp,) = [found["containerPort"] for found in container["ports"] if found["name"] == port["targetPort"]]

    assert settings.address == f"0.0.0.0:{otlp}"
    assert settings.token in {entry["name"] for entry in container["env"] if "valueFrom" in entry}
    assert [allowed["port"] for allowed in rule["ports"]] == [otlp]


def test_evidence_and_workflows_reach_temporal_alone() -> None:
    policies = {document["metadata"]["name"]: document["spec"] for document in documents("network.yaml")}
    ports = {name: {port["port"] for rule in spec.get("egress", ()) for port in rule["ports"]} for name, spec in policies.items()}

    assert ports["gradeloop-loop-egress"] == ports["gradeloop-evidence-egress"] == {53, 7233}
    assert ports["gradeloop-models-egress"] == {53, 7233, 5432, 443}
    assert ports["gradeloop-upgrade-store-egress"] == {53, 5432}


@pytest.mark.parametrize("name", ["scaling.yaml", "scaling-keda.yaml"])
def test_every_role_is_scaled_by_either_file(name: str) -> None:
    assert {document["spec"]["scaleTargetRef"]["name"] for document in documents(name)} == {f"gradeloop-{role}" for role in ROLES}


def test_every_place_gives_a_worker_ten_seconds_more_than_it_gives_its_calls() -> None:
    drain = WorkerSettings().drain_seconds
    compose = YAML(typ="safe").load(FOLDER.parent / "compose.yaml")["services"]
    chart = YAML(typ="safe").load(FOLDER.parent / "helm/gradeloop/values.yaml")
    workers = [service for service in compose.values() if "gradeloop-worker" in service["image"]]

    assert (chart["drainSeconds"], documents("settings.yaml")[0]["data"]["GRADELOOP_DRAIN_SECONDS"]) == (drain, f"{drain:.0f}")
    assert {pod(role)["terminationGracePeriodSeconds"] for role in (*ROLES, "receiver")} == {drain + 10}
    assert len(workers) == 5
    assert {service["stop_grace_period"] for service in workers} == {f"{drain + 10:.0f}s"}
    assert not [service for service in workers if "GRADELOOP_DRAIN_SECONDS" in str(service["environment"])]
