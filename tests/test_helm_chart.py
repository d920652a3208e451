"""The Helm chart of `deploy/helm/`: every value does what it says, and one that cannot be meant is refused.

Helm itself renders here (`rig/helm.py`); what needs its engine is skipped where it is not installed.
"""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from pydantic import TypeAdapter

from activities.providers.environment import NOT_GLOBAL, NOT_GLOBAL_EITHER
from gradeloop.settings.worker import load_settings
from rig.helm import CHART, PLAIN, engine, plain_files
from tests.rig.kubernetes import TEMPORAL_PARAMETERS, TEMPORAL_TRIGGER, Values, reaches, rendered, templates, validator

ROOT = Path(__file__).parent.parent
ROLES = ("loop", "models", "evidence")
EVERYTHING: Values = {
    "image": {"repository": "registry.example/gradeloop-worker", "digest": "sha256:" + "0a" * 32},
    "temporal": {"tlsSecret": "temporal-tls", "apiKeySecret": "temporal-key", "tlsServerName": "temporal.example.com"},
    "secrets": {"encryption": "gradeloop-encryption"},
    "versioning": {"deployment": "gradeloop", "buildId": "sha256:" + "0a" * 32},
    "settings": {"GRADELOOP_TUNER__MEMORY": 0.8, "GRADELOOP_MAX_CONCURRENT_ACTIVITIES": 1_000_000},
    "tools": {"tools.py": "def size(text: str) -> int:\n    return len(text)\n"},
    "fetch": {"hosts": ["docs.example.com", "wiki.example.com:8443"], "networks": ["10.30.0.0/16"]},
    "mcp": {"search": {"url": "http://search.tools:9000/mcp", "tools": ["find"]}},
    "storage": {"url": "s3://payloads", "endpoint": "http://minio.minio:9000"},
    "telemetry": {"endpoint": "http://collector.monitoring:4318"},
    "receiver": {"enabled": True, "tokenSecret": "otlp"},
}


def schema() -> Values:
    loaded: Values = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def with_value(path: str, value: object) -> Values:
    """Return the chart's own values with another one at a path of keys."""
    given = copy.deepcopy(yaml.safe_load((CHART / "values.yaml").read_text()))
    *parents, last = path.split("/")
    place = given
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return {**given}


def settings_of(monkeypatch: pytest.MonkeyPatch, manifests: dict[tuple[str, str], Values], release: str = "gradeloop") -> Any:
    """Return the settings that a worker reads from the rendered variables."""
    for name, value in manifests["ConfigMap", f"{release}-settings"]["data"].items():
        monkeypatch.setenv(name, value)
    return load_settings([])


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_the_charts_own_values_hold_against_its_schema() -> None:
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema())


REFUSED: list[tuple[str, object]] = [
    ("typo", True),
    ("image/digest", "latest"),
    ("image/pullPolicy", "Sometimes"),
    ("imagePullSecrets", ["registry"]),
    ("serviceAccount/annotations", {"a": 1}),
    ("podLabels", {"app.kubernetes.io/name": "other"}),
    ("nodeSelector", {"gpu": True}),
    ("tolerations", [{"key": "spot", "effect": "Never"}]),
    ("affinity", {"nodeAfinity": {}}),
    ("topologySpreadConstraints", [{"topologyKey": "zone"}]),
    ("priorityClassName", 7),
    ("extraArgs", "--log text"),
    ("extraEnv", [{"name": "A", "value": 1}]),
    ("extraEnv", [{"name": "A", "value": "1", "valueFrom": {}}]),
    ("extraEnvFrom", [{"secretRef": {}}]),
    ("extraVolumes", [{"name": "scratch", "emptyDir": {}}]),
    ("extraVolumes", [{"name": "empty"}]),
    ("extraVolumeMounts", [{"name": "a", "mountPath": "/tmp"}]),
    ("extraVolumeMounts", [{"name": "a", "mountPath": "relative"}]),
    ("extraContainers", [{"name": "worker", "image": "other"}]),
    ("podDisruptionBudget/maxUnavailable", "some"),
    ("podDisruptionBudget", {"minAvailable": 1, "maxUnavailable": 1}),
    ("extraArgs", ["--drain-seconds", "60"]),
    ("extraEnv", [{"name": "GRADELOOP_DRAIN_SECONDS", "value": "60"}]),
    ("extraEnv", [{"name": "GRADELOOP_STORE", "value": "postgresql://user:password@host/db"}]),
    ("secrets/storeKey", ""),
    ("temporal/address", "temporal"),
    ("temporal/tlsServerName", "a.example.com"),  # without a secret nothing is encrypted
    ("secrets/store", ""),
    ("tools", {"tools": "x = 1"}),
    ("tools", {"tools.py": ""}),
    ("fetch/networks", ["10.0.0.0/8"]),  # without a host
    ("mcp", {"a": {"tools": ["b"]}}),
    ("mcp", {"a": {"url": "http://a:1", "command": ["b"], "tools": ["c"]}}),
    ("storage/url", "bucket"),
    ("storage/endpoint", "http://minio:9000"),  # without a bucket
    ("settings", {"OPENAI_API_KEY": "sk-..."}),
    ("settings", {"GRADELOOP_DRAIN_SECONDS": 60}),
    ("settings", {"GRADELOOP_STORE": "postgresql://user:password@host/db"}),
    ("settings", {"lower": "case"}),
    ("versioning/deployment", "a.b"),
    ("versioning/deployment", "grader"),
    ("versioning/buildId", "1"),
    ("roles/judges", {}),
    ("roles/models/replicas", 0),
    ("roles/models/nodeselector", {}),
    ("roles/models/imagePullSecrets", []),
    ("upgradeStore/extraArgs", ["--log"]),
    ("receiver/tokenSecret", ""),
    ("scaling/by", "cpu"),
    ("scaling/authenticationRef", {"name": "mine"}),  # without KEDA
    ("scaling/prometheus", "http://prometheus:9090"),
    ("scaling", {"by": "keda", "prometheus": "", "authenticationRef": {"kind": "TriggerAuthentication"}}),
    ("scaling", {"by": "keda", "prometheus": "prometheus:9090", "authenticationRef": {}}),
    ("drainSeconds", -1),
    ("drainSeconds", "30"),
    ("telemetry/endpoint", "collector:4318"),
    ("telemetry/traces", 10),
    ("network/typo", True),
    ("network/to", {"models": []}),
    ("network/to", {"store": [{"cidr": "10.0.0.0/8"}]}),
    ("network/to", {"store": [{"ipBlock": {"cidr": "10.0.0.1"}}]}),
    ("network/dns/ports", []),
    ("network/extraEgress", [{"from": []}]),
]


def test_a_value_that_cannot_be_meant_is_refused(subtests: pytest.Subtests) -> None:
    judge = jsonschema.Draft7Validator(schema())
    for path, value in REFUSED:
        with subtests.test(path=path, value=value):
            assert not judge.is_valid(with_value(path, value))


def test_helm_itself_refuses_by_the_same_schema_and_says_where() -> None:
    rendered()
    with pytest.raises(Exception, match=r"at '/scaling/by'"):
        rendered({"scaling": {"by": "cpu"}})


SHARED = {
    "extraVolumes": [{"name": "p", "persistentVolumeClaim": {"claimName": "p"}}],
    "extraVolumeMounts": [{"name": "p", "mountPath": "/p"}],
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"roles": {"models": {"extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}]}}},
            'extraVolumeMounts of models: there is no volume "ca"; add it to extraVolumes',
        ),
        ({"storage": {"url": "file:///p"}}, "storage.url is file:///p, and evidence has no volume there"),
        ({"storage": {"url": "file:///pa"}} | SHARED, "storage.url is file:///pa, and evidence has no volume there"),
        ({"storage": {"url": "file:///p"}, "roles": {"models": SHARED, "evidence": SHARED}}, "and loop has no volume there"),
        ({"roles": {"models": {"replicas": 30}}}, "maxReplicas of models is 20, below its replicas, 30; raise it"),
    ],
)
def test_what_only_several_values_together_show_is_refused_with_its_cure(values: Values, message: str) -> None:
    rendered()
    with pytest.raises(Exception, match=message):
        rendered(values)


def test_a_folder_of_a_shared_volume_holds_payloads_and_replicas_alone_need_no_maximum() -> None:
    rendered({"storage": {"url": "file:///p/payloads"}} | SHARED)
    rendered({"scaling": {"by": "none"}, "roles": {"models": {"replicas": 30}}})


def test_the_plain_manifests_are_what_the_chart_renders(subtests: pytest.Subtests) -> None:
    rendered()
    for name, text in plain_files().items():
        with subtests.test(name=name):
            assert (PLAIN / name).read_text() == text, "run make kubernetes"


def test_the_oldest_kubernetes_that_the_chart_names_takes_every_manifest() -> None:
    for manifest in rendered(EVERYTHING | {"extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}]}).values():
        validator(manifest["kind"], manifest["apiVersion"], "1.27").validate(manifest)


def test_every_value_is_one_that_the_worker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, rendered(EVERYTHING, "build-7"), "build-7")

    assert (settings.deployment, settings.build_id) == ("gradeloop", "sha256:" + "0a" * 32)
    assert (settings.max_concurrent_activities, settings.tuner.memory) == (1_000_000, 0.8)
    assert [str(path) for path in settings.tools] == ["/etc/gradeloop/tools/tools.py"]
    assert settings.fetch.hosts == ("docs.example.com", "wiki.example.com:8443")
    assert settings.mcp["search"].url == "http://search.tools:9000/mcp"


@pytest.mark.parametrize(
    ("temporal", "paths"),
    [
        ({"tlsSecret": "tls"}, {"CLIENT_CERT_PATH": "tls.crt", "CLIENT_KEY_PATH": "tls.key", "SERVER_CA_CERT_PATH": "ca.crt"}),
        ({"tlsSecret": "tls", "tlsCa": ""}, {"CLIENT_CERT_PATH": "tls.crt", "CLIENT_KEY_PATH": "tls.key"}),
        ({"apiKeySecret": "key"}, {}),
    ],
)
def test_tls_is_what_the_secret_has(temporal: Values, paths: dict[str, str]) -> None:
    data = rendered({"temporal": temporal})["ConfigMap", "gradeloop-settings"]["data"]

    assert {name: value for name, value in data.items() if "TLS" in name} == {
        f"TEMPORAL_TLS_{name}": f"/run/secrets/temporal/{file}" for name, file in paths.items()
    }


def test_secrets_reach_the_workers_as_files_and_evidence_has_no_providers_key() -> None:
    spec = {role: found["spec"] for role, found in templates(rendered(EVERYTHING).values()).items()}
    mounted = {role: {volume["secret"]["secretName"] for volume in spec[role]["volumes"] if "secret" in volume} for role in spec}

    assert mounted["loop"] == mounted["evidence"] == {"temporal-tls", "gradeloop-encryption"}
    assert mounted["models"] == mounted["loop"] | {"gradeloop-keys"}
    assert spec["loop"]["containers"][0]["image"] == "registry.example/gradeloop-worker@sha256:" + "0a" * 32


def test_the_receiver_gets_nothing_of_temporals_nor_a_key_that_decrypts() -> None:
    found = rendered(EVERYTHING, "build-7")
    spec = found["Deployment", "build-7-receiver"]["spec"]["template"]["spec"]
    named = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in spec["containers"][0]["env"] if "valueFrom" in entry}

    assert named == {"gradeloop-store", "otlp"}
    assert [volume for volume in spec["volumes"] if "secret" in volume] == []
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == {"scratch", "home"}
    assert "build-7-receiver" in {name for kind, name in found if kind == "Service"}


def test_tools_are_files_of_the_roles_that_load_them_and_a_change_restarts_these() -> None:
    one, other = (rendered({"tools": {"tools.py": text}}) for text in ("x = 1\n", "x = 2\n"))
    specs = {role: found["spec"] for role, found in templates(one.values()).items()}
    mounts = {role: [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] for role, spec in specs.items()}
    sums = [found["metadata"]["annotations"]["checksum/settings"] for found in (templates(m.values())["evidence"] for m in (one, other))]

    assert {role for role, paths in mounts.items() if "/etc/gradeloop/tools" in paths} == {"models", "evidence"}
    assert one["ConfigMap", "gradeloop-tools"]["data"] == {"tools.py": "x = 1\n"}
    assert sums[0] != sums[1]


def test_what_all_pods_have_and_what_one_has_are_joined() -> None:
    found = templates(
        rendered(
            {
                "nodeSelector": {"pool": "a"},
                "tolerations": [{"key": "all", "operator": "Exists"}],
                "priorityClassName": "low",
                "extraArgs": ["--log", "text"],
                "receiver": {"enabled": True},
                "upgradeStore": {"priorityClassName": "high"},
                "roles": {
                    "models": {
                        "nodeSelector": {"pool": "b", "disk": "ssd"},
                        "tolerations": [{"key": "one", "operator": "Exists"}],
                        "extraArgs": ["--probe", "off"],
                        "serviceAccountName": "models",
                    }
                },
            }
        ).values()
    )
    spec = {component: template["spec"] for component, template in found.items()}

    assert set(spec) == {*ROLES, "receiver", "upgrade-store"}
    assert spec["models"]["nodeSelector"] == {"pool": "b", "disk": "ssd"}
    assert spec["loop"]["nodeSelector"] == spec["upgrade-store"]["nodeSelector"] == {"pool": "a"}
    assert [row["key"] for row in spec["models"]["tolerations"]] == ["all", "one"]
    assert spec["models"]["containers"][0]["command"][4:] == ["--log", "text", "--probe", "off"]
    assert spec["upgrade-store"]["containers"][0]["command"] == ["gradeloop", "store", "upgrade"]
    assert (spec["models"]["priorityClassName"], spec["upgrade-store"]["priorityClassName"]) == ("low", "high")
    assert (spec["models"]["serviceAccountName"], spec["loop"]["serviceAccountName"]) == ("models", "gradeloop")


@pytest.mark.parametrize(
    ("of_all", "of_one", "budget"),
    [
        ({}, {}, {"maxUnavailable": 1}),
        ({"maxUnavailable": "25%"}, {}, {"maxUnavailable": "25%"}),
        ({"maxUnavailable": 2}, {"minAvailable": 0}, {"minAvailable": 0}),
        ({"enabled": False}, {}, None),
        ({"enabled": False}, {"enabled": True}, {"maxUnavailable": 1}),
    ],
)
def test_a_disruption_budget_is_one_bound_or_none(of_all: Values, of_one: Values, budget: Values | None) -> None:
    found = rendered({"podDisruptionBudget": of_all, "roles": {"loop": {"podDisruptionBudget": of_one}}})
    spec = found.get(("PodDisruptionBudget", "gradeloop-loop"), {}).get("spec")

    assert spec == (
        budget and budget | {"selector": {"matchLabels": found["Deployment", "gradeloop-loop"]["spec"]["selector"]["matchLabels"]}}
    )


def test_only_without_scaling_does_an_upgrade_set_the_number_of_pods() -> None:
    for by in ("hpa", "keda", "none"):
        found = rendered({"scaling": {"by": by}, "receiver": {"enabled": True}})
        assert {manifest["spec"].get("replicas") for key, manifest in found.items() if key[0] == "Deployment"} == {
            2 if by == "none" else None
        }


@pytest.mark.parametrize(
    ("values", "parameters", "names"),
    [
        ({}, None, set()),
        ({"temporal": {"apiKeySecret": "key"}}, {"apiKey": ("key", "key")}, set()),
        (
            {"temporal": {"tlsSecret": "tls", "tlsServerName": "a.example.com"}},
            {"ca": ("tls", "ca.crt"), "cert": ("tls", "tls.crt"), "key": ("tls", "tls.key")},
            {"tlsServerName"},
        ),
        ({"temporal": {"tlsSecret": "tls", "tlsCa": ""}}, {"cert": ("tls", "tls.crt"), "key": ("tls", "tls.key")}, set()),
        ({"versioning": {"deployment": "g", "buildId": "7"}}, None, {"workerDeploymentName", "workerDeploymentBuildId"}),
    ],
)
def test_keda_asks_temporal_with_the_workers_own_secrets(values: Values, parameters: Values | None, names: set[str]) -> None:
    found = rendered(values | {"scaling": {"by": "keda"}})
    authentication = found.get(("TriggerAuthentication", "gradeloop-temporal"))
    given = authentication and {row["parameter"]: (row["name"], row["key"]) for row in authentication["spec"]["secretTargetRef"]}

    assert given == parameters
    assert set(parameters or ()) <= TEMPORAL_PARAMETERS
    for role in ROLES:
        (trigger,) = found["ScaledObject", f"gradeloop-{role}"]["spec"]["triggers"]
        assert trigger.get("authenticationRef") == (parameters and {"name": "gradeloop-temporal"})
        assert set(trigger["metadata"]) == {"endpoint", "namespace", "taskQueue", "queueTypes", "targetQueueSize", *names}
        assert set(trigger["metadata"]) <= set(TEMPORAL_TRIGGER)
        newer = {name for name in trigger["metadata"] if TEMPORAL_TRIGGER[name] != "2.17"}
        assert newer == names, "without TLS's name and versions KEDA 2.17 is enough"
    assert not [key for key in found if key[0] == "HorizontalPodAutoscaler"]


def test_with_a_prometheus_keda_scales_by_used_slots_too() -> None:
    found = rendered({"scaling": {"by": "keda", "prometheus": "http://prometheus.monitoring:9090"}})
    triggers = found["ScaledObject", "gradeloop-models"]["spec"]["triggers"]

    assert [trigger["type"] for trigger in triggers] == ["temporal", "prometheus"]
    assert 'pod=~"gradeloop-models-.*", worker_type="ActivityWorker"' in triggers[1]["metadata"]["query"]
    assert 'gradeloop_worker_slots{type="activity"}' in triggers[1]["metadata"]["query"]


@pytest.mark.parametrize("seconds", [0, 300, 86_400])
def test_drain_seconds_are_one_value(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    found = rendered({"drainSeconds": seconds, "storePool": {"size": 2}, "receiver": {"enabled": True}})
    settings = settings_of(monkeypatch, found)
    given = {component: template["spec"].get("terminationGracePeriodSeconds") for component, template in templates(found.values()).items()}

    assert given == dict.fromkeys((*ROLES, "receiver"), seconds + 10) | {"upgrade-store": None}
    assert (settings.drain_seconds, settings.store_pool.size, settings.store_pool.overflow) == (seconds, 2, 10)


@pytest.mark.parametrize(("share", "written"), [({}, "0.1"), ({"traces": 1}, "1")])
def test_a_collector_gets_one_trace_in_ten(share: Values, written: str) -> None:
    data = rendered({"telemetry": {"endpoint": "http://collector.monitoring:4318"} | share})["ConfigMap", "gradeloop-settings"]["data"]

    assert data["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.monitoring:4318"
    assert (data["OTEL_TRACES_SAMPLER"], data["OTEL_TRACES_SAMPLER_ARG"]) == ("parentbased_traceidratio", written)


PUBLIC, PRIVATE, METADATA = "93.184.215.14", "10.1.2.3", "169.254.169.254"
WORKERS, STORED = set(ROLES), {"models", "receiver", "upgrade-store"}
OTHERS = {"openai": None, "anthropic": None}

# Values; an address, or a namespace's Pods; a port; who gets there with these values, and who without them.
WAYS: list[tuple[Values, str, int, set[str], set[str]]] = [
    ({}, "kube-system", 53, WORKERS | STORED, WORKERS | STORED),
    ({"network": {"dns": {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}]}}}, "169.254.20.10", 53, WORKERS | STORED, set()),
    ({"network": {"dns": {"ports": [5353]}}}, "kube-system", 5353, WORKERS | STORED, set()),
    ({}, "temporal", 7233, WORKERS, WORKERS),
    ({"temporal": {"address": "front.prod.svc.cluster.local:7000"}}, "prod", 7000, WORKERS, set()),
    ({"temporal": {"address": "front:7000"}}, "default", 7000, WORKERS, set()),
    ({"temporal": {"address": "10.1.2.3:7000"}}, PRIVATE, 7000, WORKERS, set()),
    ({"temporal": {"address": "a.b.tmprl.cloud:7000"}}, PUBLIC, 7000, WORKERS, set()),
    ({"temporal": {"address": "a.b.tmprl.cloud:7000"}}, METADATA, 7000, set(), set()),
    ({"network": {"to": {"temporal": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}}}, PRIVATE, 7233, WORKERS, set()),
    ({"network": {"to": {"temporal": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}}}, "temporal", 7233, set(), WORKERS),
    ({}, PRIVATE, 5432, STORED, STORED),
    ({}, "postgres", 5432, STORED, STORED),
    ({"network": {"storePort": 6432}}, PRIVATE, 6432, STORED, set()),
    ({"network": {"to": {"store": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}}}, PRIVATE, 5432, set(), STORED),
    ({}, PUBLIC, 443, {"models"}, {"models"}),
    ({}, METADATA, 443, set(), set()),
    ({"providers": OTHERS}, PUBLIC, 443, {"models"}, {"models"}),
    ({"providers": OTHERS | {"vllm": {"base_url": "http://vllm.models:8000/v1"}}}, PUBLIC, 443, set(), {"models"}),
    ({"providers": OTHERS | {"vllm": {"base_url": "http://vllm.models:8000/v1"}}}, "models", 8000, {"models"}, set()),
    ({"providers": {"house": {"base_url": "https://${HOST}:8443/v1"}}}, PUBLIC, 8443, {"models"}, set()),
    ({"settings": {"GRADELOOP_BASE_URLS": "https://*,http://10.1.2.3:8080/v1"}}, PRIVATE, 8080, {"models"}, set()),
    ({"settings": {"GRADELOOP_NOTIFY": '{"ops":{"url":"https://hooks.example.com:8443/a"}}'}}, PUBLIC, 8443, {"models"}, set()),
    ({"storage": {"url": "s3://bucket"}}, PUBLIC, 443, WORKERS, {"models"}),
    ({"storage": {"url": "gs://bucket"}}, PUBLIC, 443, WORKERS, {"models"}),
    ({"storage": {"url": "s3://bucket"}}, METADATA, 443, set(), set()),
    ({"storage": {"url": "file:///p"}} | SHARED, PUBLIC, 443, {"models"}, {"models"}),
    ({"storage": {"url": "s3://bucket", "endpoint": "http://minio.minio:9000"}}, "minio", 9000, WORKERS, set()),
    ({"storage": {"url": "s3://bucket", "endpoint": "http://minio.minio:9000"}}, PUBLIC, 443, {"models"}, {"models"}),
    ({"telemetry": {"endpoint": "http://collector.observability:4318"}}, "observability", 4318, WORKERS | {"receiver"}, set()),
    ({"telemetry": {"endpoint": "https://otlp.example.com:443"}}, PUBLIC, 443, WORKERS | {"receiver"}, {"models"}),
    ({"fetch": {"hosts": ["a.example.com:8443"]}}, PUBLIC, 443, {"models", "evidence"}, {"models"}),
    ({"fetch": {"hosts": ["a.example.com:8443"]}}, PUBLIC, 8443, {"evidence"}, set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, PUBLIC, 22, set(), set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, PRIVATE, 80, set(), set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, METADATA, 80, set(), set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, "fd00:ec2::254", 80, set(), set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, "2606:2800:21f::1", 80, {"evidence"}, set()),
    ({"fetch": {"hosts": ["a.example.com"]}}, "default", 80, set(), set()),
    ({"fetch": {"hosts": ["a.example.com"], "networks": ["10.1.0.0/16"]}}, PRIVATE, 80, {"evidence"}, set()),
    ({"mcp": {"m": {"url": "http://m.tools:9000/mcp", "tools": ["a"]}}}, "tools", 9000, {"models", "evidence"}, set()),
    ({"mcp": {"m": {"url": "http://127.0.0.1:9000/mcp", "tools": ["a"]}}}, "default", 9000, set(), set()),
    ({"network": {"extraEgress": [{"to": [{"podSelector": {}}], "ports": [{"port": 9}]}]}}, "default", 9, WORKERS | STORED, set()),
    (
        {"roles": {"models": {"extraEgress": [{"to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}], "ports": [{"port": 80}]}]}}},
        *("169.254.170.23", 80, {"models"}, set()),
    ),
    ({"network": {"enabled": False}}, METADATA, 80, WORKERS | STORED, set()),
]


def test_policies_open_what_is_enabled_and_nothing_else(subtests: pytest.Subtests) -> None:
    receiving: Values = {"receiver": {"enabled": True}}
    plain = rendered(receiving).values()
    for values, host, port, with_them, without in WAYS:
        with subtests.test(values=values, host=host, port=port):
            found = rendered(receiving | values).values()
            assert {part for part in WORKERS | STORED if reaches(found, part, host, port)} == with_them
            assert {part for part in WORKERS | STORED if reaches(plain, part, host, port)} == without


def test_the_policy_for_pages_refuses_the_networks_that_the_tool_refuses() -> None:
    egress = rendered({"fetch": {"hosts": ["a.example.com"]}})["NetworkPolicy", "gradeloop-evidence-egress"]["spec"]["egress"]
    left_out = {network for peer in egress[-1]["to"] for network in peer["ipBlock"]["except"]}

    assert left_out == {*NOT_GLOBAL, *NOT_GLOBAL_EITHER} - {"::/128", "::1/128"}  # these two are within ::/96


def test_metrics_are_for_the_namespace_that_is_named_and_the_receiver_for_its_senders() -> None:
    senders = {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}
    found = rendered({"receiver": {"enabled": True, "namespaceSelector": senders}, "network": {"metricsFrom": []}})

    assert "ingress" not in found["NetworkPolicy", "gradeloop-workers"]["spec"]
    assert found["NetworkPolicy", "gradeloop-receiver"]["spec"]["ingress"][0]["from"] == [{"namespaceSelector": senders}]
    assert rendered()["NetworkPolicy", "gradeloop-workers"]["spec"]["ingress"][0]["ports"] == [{"port": 9464, "protocol": "TCP"}]


@pytest.mark.parametrize("name", ["7", "7e3", "a" * 53, "a" * 48 + "-bcde"])
def test_a_release_may_have_any_name_that_helm_takes(name: str) -> None:
    found = rendered({"receiver": {"enabled": True}, "scaling": {"by": "keda"}, "temporal": {"apiKeySecret": "1"}}, name)
    (job,) = [key[1] for key in found if key[0] == "Job"]

    assert len(job) <= 63
    assert "--" not in job.replace(name, "")
    TypeAdapter(dict[str, str]).validate_python(found["ConfigMap", f"{name}-settings"]["data"])


def test_helm_finds_nothing_to_complain_of() -> None:
    rendered()
    found = engine().lint(str(CHART), {}, strict=True)

    assert [message for message in found["messages"] if "icon" not in str(message)] == []
