"""The Helm chart of `deploy/helm/`: with its own values it renders what `deploy/kubernetes/` has, and every value does what it says.

Helm itself renders here, from the package `helm-python-sdk`; what needs it is skipped where it is not installed.
"""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from gradeloop.settings.worker import load_settings

ROOT = Path(__file__).parent.parent
CHART, PLAIN = ROOT / "deploy/helm/gradeloop", ROOT / "deploy/kubernetes"
VERSION = "1.34"

Values = dict[str, Any]
Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return [found for found in YAML(typ="safe").load_all(path) if found]


def values() -> Values:
    loaded: Values = copy.deepcopy(YAML(typ="safe").load(CHART / "values.yaml"))
    return loaded


def render(given: Values | None = None, name: str = "gradeloop") -> dict[tuple[str, str], Manifest]:
    """Return what Helm renders, by kind and name, its hooks' annotations aside."""
    helm = pytest.importorskip("helm_python", reason="needs Helm's engine: pip install helm-python-sdk")
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(given or {}, name=name, namespace="default", is_install=True)
    documents = [found for text in files.values() for found in YAML(typ="safe").load_all(text) if found]
    for document in documents:
        document["metadata"].pop("annotations", None)
    return by_name(documents)


def by_name(documents: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def plain(*left_out: str) -> dict[tuple[str, str], Manifest]:
    """Return the manifests of `deploy/kubernetes/`, with the image that its kustomization names."""
    (kustomization,) = read(PLAIN / "kustomization.yaml")
    (image,) = kustomization["images"]
    documents = [found for path in PLAIN.glob("*.yaml") if path.name not in {"kustomization.yaml", *left_out} for found in read(path)]
    for document in documents:
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            assert container["image"] == image["name"]
            container["image"] = f"{image['name']}:{image['newTag']}"
    return by_name(documents)


def same_providers(manifests: dict[tuple[str, str], Manifest]) -> dict[tuple[str, str], Manifest]:
    """Return the manifests with the table of providers read: its text may be laid out in two ways."""
    data = manifests["ConfigMap", "gradeloop-providers"]["data"]
    data["GRADELOOP_PROVIDERS"] = json.loads(data["GRADELOOP_PROVIDERS"])
    return manifests


def test_the_chart_has_the_projects_version() -> None:
    (chart,) = read(CHART / "Chart.yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_the_charts_own_values_hold_against_its_schema() -> None:
    jsonschema.validate(values(), json.loads((CHART / "values.schema.json").read_text()))


def test_a_value_that_cannot_be_meant_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, object]] = [
        ("image", "digest", "latest"),
        ("temporal", "address", "temporal"),
        ("scaling", "by", "cpu"),
        ("roles", "judges", {}),
        ("versioning", "deployment", "a.b"),
        ("versioning", "deployment", "grader"),
        ("network", "typo", True),
        ("telemetry", "endpoint", "collector:4318"),
        ("telemetry", "traces", 10),
    ]
    for section, key, value in rows:
        with subtests.test(section=section):
            given = values()
            given[section][key] = value

            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(given, json.loads((CHART / "values.schema.json").read_text()))


def test_the_chart_renders_the_plain_manifests() -> None:
    rendered, written = render(), plain("scaling-keda.yaml", "receiver.yaml")

    assert same_providers(rendered) == same_providers(written)


def test_with_keda_it_scales_as_the_plain_file_for_keda() -> None:
    rendered = render({"scaling": {"by": "keda"}})

    assert {key: found for key, found in rendered.items() if key[0] == "ScaledObject"} == by_name(read(PLAIN / "scaling-keda.yaml"))
    assert not [key for key in rendered if key[0] == "HorizontalPodAutoscaler"]


@pytest.mark.parametrize("by", ["hpa", "keda"])
def test_the_receiver_is_the_plain_one_where_it_is_wanted(by: str) -> None:
    rendered, written = render({"receiver": {"enabled": True}, "scaling": {"by": by}}), plain("scaling-keda.yaml")

    assert {key: found for key, found in rendered.items() if key[1] == "gradeloop-receiver"} == {
        key: found for key, found in written.items() if key[1] == "gradeloop-receiver"
    }


def test_the_receiver_gets_nothing_of_temporals_nor_a_key_that_decrypts() -> None:
    rendered = render(EVERYTHING | {"receiver": {"enabled": True, "tokenSecret": "otlp"}}, "build-7")
    for manifest in rendered.values():
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    spec = rendered["Deployment", "build-7-receiver"]["spec"]["template"]["spec"]
    named = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in spec["containers"][0]["env"] if "valueFrom" in entry}

    assert named == {"gradeloop-store", "otlp"}
    assert [volume for volume in spec["volumes"] if "secret" in volume] == []
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == {"scratch", "home"}
    assert "build-7-receiver" in {name for kind, name in rendered if kind == "Service"}


def test_with_a_prometheus_keda_scales_by_used_slots_too() -> None:
    rendered = render({"scaling": {"by": "keda", "prometheus": "http://prometheus.monitoring:9090"}})
    triggers = rendered["ScaledObject", "gradeloop-models"]["spec"]["triggers"]

    assert [trigger["type"] for trigger in triggers] == ["temporal", "prometheus"]
    assert 'pod=~"gradeloop-models-.*", worker_type="ActivityWorker"' in triggers[1]["metadata"]["query"]


EVERYTHING: Values = {
    "image": {"repository": "registry.example/gradeloop-worker", "digest": "sha256:" + "0a" * 32},
    "temporal": {"tlsSecret": "temporal-tls", "apiKeySecret": "temporal-key"},
    "secrets": {"encryption": "gradeloop-encryption"},
    "versioning": {"deployment": "gradeloop", "buildId": "sha256:" + "0a" * 32},
    "settings": {"GRADELOOP_TUNER__MEMORY": 0.8, "GRADELOOP_MAX_CONCURRENT_ACTIVITIES": 50},
}


def test_every_manifest_of_every_value_holds_against_the_published_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = render(EVERYTHING, "build-7")
    for manifest in rendered.values():
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    for name, value in rendered["ConfigMap", "build-7-settings"]["data"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings([])

    assert (settings.deployment, settings.build_id) == ("gradeloop", "sha256:" + "0a" * 32)
    assert settings.max_concurrent_activities == 50
    assert settings.tuner is not None
    assert settings.tuner.memory == 0.8


@pytest.mark.parametrize(("share", "written"), [({}, "0.1"), ({"traces": 1}, "1")])
def test_a_collector_gets_one_trace_in_ten_and_a_way_to_it(share: Values, written: str) -> None:
    rendered = render(EVERYTHING | {"telemetry": {"endpoint": "http://collector.monitoring:4318"} | share})
    data = rendered["ConfigMap", "gradeloop-settings"]["data"]
    egress = rendered["NetworkPolicy", "gradeloop-to-temporal-alone"]["spec"]["egress"]

    assert data["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.monitoring:4318"
    assert (data["OTEL_TRACES_SAMPLER"], data["OTEL_TRACES_SAMPLER_ARG"]) == ("parentbased_traceidratio", written)
    assert egress[-1] == {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "ports": [{"port": 4318, "protocol": "TCP"}],
    }
    kubernetes_validate.validate(rendered["NetworkPolicy", "gradeloop-to-temporal-alone"], VERSION, strict=True)


def test_secrets_reach_the_workers_as_files_and_evidence_has_no_providers_key() -> None:
    rendered = render(EVERYTHING, "build-7")
    spec = {role: rendered["Deployment", f"build-7-{role}"]["spec"]["template"]["spec"] for role in ("loop", "models", "evidence")}
    mounted = {role: {volume["secret"]["secretName"] for volume in spec[role]["volumes"] if "secret" in volume} for role in spec}

    assert mounted["loop"] == mounted["evidence"] == {"temporal-tls", "gradeloop-encryption"}
    assert mounted["models"] == mounted["loop"] | {"gradeloop-keys"}
    assert spec["loop"]["containers"][0]["image"] == "registry.example/gradeloop-worker@sha256:" + "0a" * 32


def test_helm_finds_nothing_to_complain_of() -> None:
    helm = pytest.importorskip("helm_python", reason="needs Helm's engine: pip install helm-python-sdk")
    found = helm.lint(str(CHART), {}, strict=True)

    assert [message for message in found["messages"] if "icon" not in str(message)] == []
