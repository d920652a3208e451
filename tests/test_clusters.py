"""Ordinary clusters: the chart with the values of `tests/clusters/`, and with any others, renders valid manifests that fit each other."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from hypothesis import given
from hypothesis import strategies as st

from rig.helm import Manifest
from tests.rig.kubernetes import Values, reaches, rendered, selects, templates

FOLDER = Path(__file__).parent / "clusters"
SHOWN: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "shown.yaml").read_text())
CLUSTERS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "shown")
SECRET = re.compile(r"(API_KEY|ACCESS_KEY|PASSWORD|TOKEN|HEADERS|_STORE|_KEY)$")


def contains(found: Any, wanted: Any) -> bool:
    """Return whether a manifest has what is wanted: maps and lists may have more; null is what must not be there."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(contains(one, part) for one in found) for part in wanted)
    return bool(found == wanted)


def named(which: str) -> tuple[str, str]:
    """Return the kind and the name that `kind/name` says."""
    kind, _, name = which.partition("/")
    return kind, name


def check_fit(manifests: dict[tuple[str, str], Manifest]) -> None:
    """Raise AssertionError where manifests, each of which is valid, do not fit each other."""
    found, pods = manifests.values(), templates(manifests.values())
    maps = {name for kind, name in manifests if kind == "ConfigMap"}
    accounts = {name for kind, name in manifests if kind == "ServiceAccount"}
    for component, template in pods.items():
        spec, labels = template["spec"], template["metadata"]["labels"]
        containers = spec.get("initContainers", []) + spec["containers"]
        names = [volume["name"] for volume in spec["volumes"]]
        mounts = {mount["name"] for container in containers for mount in container.get("volumeMounts", ())}
        paths = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
        variables = [entry["name"] for entry in spec["containers"][0].get("env", ())]
        assert mounts == set(names), component
        for unique in (names, paths, variables, [container["name"] for container in containers]):
            assert len(set(unique)) == len(unique), component
        ours = [source["configMapRef"]["name"] for source in spec["containers"][0].get("envFrom", ()) if "configMapRef" in source]
        ours += [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume and volume["name"] == "tools"]
        assert set(ours) <= maps
        assert not accounts or spec["serviceAccountName"] in accounts | {"own"}
        policies = [one for one in found if one["kind"] == "NetworkPolicy" and selects(one["spec"]["podSelector"], labels)]
        directions = [direction for policy in policies for direction in policy["spec"]["policyTypes"]]
        assert not policies or directions.count("Egress") == 1
    for policy in (one["spec"] for one in found if one["kind"] == "NetworkPolicy"):
        rules = [json.dumps(rule, sort_keys=True) for rule in policy.get("egress", ())]
        assert len(set(rules)) == len(rules)
    scaled = [one["spec"]["scaleTargetRef"]["name"] for one in found if one["kind"] in {"HorizontalPodAutoscaler", "ScaledObject"}]
    assert len(set(scaled)) == len(scaled)
    for kind, name in manifests:
        if kind in {"Deployment", "PodDisruptionBudget"}:
            selector = manifests[kind, name]["spec"]["selector"]
            assert [component for component, pod in pods.items() if selects(selector, pod["metadata"]["labels"])] == [
                manifests[kind, name]["metadata"]["labels"]["app.kubernetes.io/component"]
            ]
        if kind == "ConfigMap":
            assert not [key for key in manifests[kind, name]["data"] if SECRET.search(key)]


def test_there_are_twenty_clusters_and_each_shows_something() -> None:
    assert len(CLUSTERS) >= 20
    assert sorted(SHOWN) == CLUSTERS


def test_the_manifests_of_a_cluster_fit_and_show_what_its_values_ask_for(subtests: pytest.Subtests) -> None:
    for name in CLUSTERS:
        with subtests.test(name=name):
            manifests = rendered(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
            check_fit(manifests)
            for which, wanted in SHOWN[name].items():
                assert contains(manifests.get(named(which)), wanted), which


def test_of_what_is_to_be_shown_nothing_is_in_the_chart_without_its_values(subtests: pytest.Subtests) -> None:
    plain = rendered()
    for name in CLUSTERS:
        with subtests.test(name=name):
            assert not all(contains(plain.get(named(which)), wanted) for which, wanted in SHOWN[name].items())


def merged(one: Any, other: Any) -> Any:
    """Return two values as one file would have both: maps by key, lists joined, anything else replaced."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {key: merged(one[key], value) if key in one else copy.deepcopy(value) for key, value in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return one + [value for value in other if value not in one]
    return copy.deepcopy(other)


CA = {"extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}], "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}]}
SIDECAR = {
    "extraContainers": [{"name": "proxy", "image": "proxy:1", "volumeMounts": [{"name": "proxy", "mountPath": "/etc/proxy"}]}],
    "extraVolumes": [{"name": "proxy", "secret": {"secretName": "proxy"}}],
}
OF_A_POD: list[Values] = [
    {"podAnnotations": {"a.example.com/b": "c"}},
    {"podLabels": {"team": "grading"}},
    {"podSecurityContext": {"fsGroup": 7}},
    {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
    {"tolerations": [{"key": "spot", "operator": "Exists"}]},
    {"affinity": {"podAntiAffinity": {}}},
    {"priorityClassName": "high", "runtimeClassName": "gvisor"},
    {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]},
    {"extraEnvFrom": [{"secretRef": {"name": "more"}}, {"configMapRef": {"name": "gradeloop-settings"}}]},
    CA,
    SIDECAR,
]
OF_A_ROLE: list[Values] = [
    *OF_A_POD,
    {"extraArgs": ["--probe", "off"]},
    {"podDisruptionBudget": {"enabled": False}},
    {"podDisruptionBudget": {"minAvailable": "50%"}},
    {"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
]
OF_ONE: list[Values] = [
    {"serviceAccountName": "own"},
    {"extraEgress": [{"to": [{"podSelector": {}}]}, {"ports": [{"port": 80, "endPort": 90}]}]},
    {"scratch": {"sizeLimit": "1Gi", "medium": "Memory"}},
]
OF_THE_CHART: list[Values] = [
    {"image": {"digest": "sha256:" + "0a" * 32, "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "registry"}]},
    {"serviceAccount": {"create": False}},
    {"serviceAccount": {"name": "7", "annotations": {"a": "b"}, "automount": True}},
    {"podSecurityContext": {"runAsUser": None, "fsGroup": None}},
    {"temporal": {"apiKeySecret": "key"}},
    {"temporal": {"tlsSecret": "tls", "tlsServerName": "a.example.com"}},
    {"temporal": {"address": "temporal.example.com:7233", "tlsSecret": "tls", "tlsCa": ""}},
    {"secrets": {"keys": "", "encryption": "encryption"}},
    {"providers": {"openai": None, "anthropic": None}},
    {"providers": {"openai": None, "vllm": {"base_url": "http://vllm.models:8000/v1"}}},
    {"tools": {"a.py": "x = 'a: b # c'\n", "b.py": '"""\n---\n"""\n'}},
    {"fetch": {"hosts": ["a.example.com:8443"], "networks": ["fd00::/64"]}},
    {"mcp": {"a": {"url": "https://mcp.example.com/mcp", "tools": ["b"]}, "c": {"command": ["c"], "tools": ["d"]}}},
    {"storage": {"url": "s3://bucket", "endpoint": "http://minio.minio:9000"}},
    {"storage": {"url": "gs://bucket", "endpoint": ""}},
    {"settings": {"GRADELOOP_BASE_URLS": "http://10.0.0.1:8000/v1,https://*", "GRADELOOP_MAX_CACHED_WORKFLOWS": 2_000_000}},
    {"versioning": {"deployment": "gradeloop", "buildId": "sha256:7"}},
    {"receiver": {"enabled": True}},
    {"drainSeconds": 600},
    {"telemetry": {"endpoint": "http://collector:4318", "traces": 0}},
    {"network": {"enabled": False}},
    {
        "network": {
            "dns": {"to": [], "ports": [53, 5353]},
            "to": {"store": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
        }
    },
    {"upgradeStore": {"enabled": False}},
]
PLACES = ("roles/loop", "roles/models", "roles/evidence", "receiver", "upgradeStore")


def at(place: str, values: Values) -> Values:
    """Return values below a path of keys."""
    for key in reversed(place.split("/")):
        values = {key: values}
    return values


SCALING: list[Values] = [
    {"scaling": {"by": "hpa"}},
    {"scaling": {"by": "none"}},
    {"scaling": {"by": "keda"}},
    {"scaling": {"by": "keda", "prometheus": "http://prometheus:9090", "authenticationRef": {"name": "mine"}}},
]


@st.composite
def any_values(draw: st.DrawFn) -> Values:
    """Draw values of the chart, of all its Pods, and of some of them; what is joined by name is in one place."""
    of_all = draw(st.lists(st.sampled_from(OF_A_ROLE), max_size=4))
    chosen = [*draw(st.lists(st.sampled_from(OF_THE_CHART), max_size=8)), draw(st.sampled_from(SCALING)), *of_all]
    for place in PLACES:
        fitting = OF_A_POD if place == "upgradeStore" else OF_A_ROLE
        own = draw(st.lists(st.sampled_from([*fitting, *OF_ONE]), max_size=2))
        chosen += [at(place, one) for one in own if one not in of_all]
    values: Values = {}
    for one in chosen:
        values = merged(values, one)
    return values


@given(values=any_values())
def test_any_values_render_to_valid_manifests_that_fit(values: Values) -> None:
    manifests = rendered(values)

    check_fit(manifests)
    if values.get("network", {}).get("enabled", True):
        for component in templates(manifests.values()):
            assert reaches(manifests.values(), component, "kube-system", 53, "UDP")
            assert not reaches(manifests.values(), component, "169.254.169.254", 443)
