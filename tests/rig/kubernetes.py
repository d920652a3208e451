"""Kubernetes as far as a manifest can be judged without a cluster: its schemas, KEDA's, and which packets network policies let through."""

from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from kubernetes_validate.utils import schema_contents  # type: ignore[import-untyped]
from referencing import Registry, Resource

from rig.helm import Manifest, engine, render
from rig.wheels import NoWheelsError

VERSION = "1.34"
NAMESPACE = "default"
"""The namespace of the manifests themselves."""

Values = dict[str, Any]


def closed(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object that has no other keys."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties), "required": list(required)}


TEXT, NUMBER, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
KEDA = {
    # KEDA 2.20: config/crd/bases/keda.sh_scaledobjects.yaml, keda.sh_triggerauthentications.yaml
    "ScaledObject": closed(
        {
            "scaleTargetRef": closed(dict.fromkeys(("name", "apiVersion", "kind", "envSourceContainerName"), TEXT), "name"),
            **dict.fromkeys(("pollingInterval", "initialCooldownPeriod", "cooldownPeriod"), NUMBER),
            **dict.fromkeys(("idleReplicaCount", "minReplicaCount", "maxReplicaCount"), NUMBER),
            **dict.fromkeys(("advanced", "fallback"), OBJECT),
            "triggers": {
                "type": "array",
                "items": closed(
                    {
                        **dict.fromkeys(("type", "name", "metricType"), TEXT),
                        "useCachedMetrics": {"type": "boolean"},
                        "metadata": {"type": "object", "additionalProperties": TEXT},
                        "authenticationRef": closed(
                            {"name": TEXT, "kind": {"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}}, "name"
                        ),
                    },
                    *("type", "metadata"),
                ),
            },
        },
        *("scaleTargetRef", "triggers"),
    ),
    "TriggerAuthentication": closed(
        {
            "secretTargetRef": {
                "type": "array",
                "items": closed(dict.fromkeys(("parameter", "name", "key"), TEXT), "parameter", "name", "key"),
            }
        }
    ),
}
TEMPORAL_TRIGGER = {
    # What the trigger `temporal` takes, and since when: https://keda.sh/docs/2.17/scalers/temporal/, 2.18 and 2.20
    **dict.fromkeys(("endpoint", "namespace", "taskQueue", "queueTypes", "targetQueueSize", "activationTargetQueueSize"), "2.17"),
    **dict.fromkeys(("buildId", "selectAllActive", "selectUnversioned", "minConnectTimeout", "unsafeSsl"), "2.17"),
    "tlsServerName": "2.18",
    **dict.fromkeys(("workerDeploymentName", "workerDeploymentBuildId"), "2.20"),
}
TEMPORAL_PARAMETERS = {"apiKey", "ca", "cert", "key", "keyPassword"}


@cache
def validator(kind: str, api_version: str, release: str = VERSION) -> Any:
    """Return the validator of a kind; Kubernetes' own are read once, since each stands beside all the others' definitions."""
    if api_version.startswith("keda.sh/"):
        metadata = closed({"name": TEXT, "labels": {"type": "object"}}, "name")
        schema = closed({"apiVersion": {"const": "keda.sh/v1alpha1"}, "kind": TEXT, "metadata": metadata, "spec": KEDA[kind]}, "spec")
        return jsonschema.Draft202012Validator(schema)
    group, _, version = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}-{version}".replace("--", "-")
    folder = f"kubernetes-json-schema/v{release}.0-local-strict"
    schema, definitions = (schema_contents(f"{folder}/{file}.json", release) for file in (name, "_definitions"))
    registry: Any = Resource.from_contents(definitions) @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def rendered(values: Values | None = None, name: str = "gradeloop") -> dict[tuple[str, str], Manifest]:
    """Return the valid manifests that Helm renders, by kind and name; without its engine the test is skipped."""
    try:
        engine()
    except NoWheelsError:
        pytest.skip("needs Helm's engine: make kubernetes")
    found = render(values, name)
    by_name = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in found}
    assert len(by_name) == len(found)
    for manifest in found:
        validator(manifest["kind"], manifest["apiVersion"]).validate(manifest)
    return by_name


def templates(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return the templates of Pods by component."""
    found = [manifest["spec"]["template"] for manifest in manifests if manifest["kind"] in {"Deployment", "Job"}]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in found}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector, which has no expressions, chooses an object by its labels."""
    assert set(selector) <= {"matchLabels"}
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def reaches(manifests: Iterable[Manifest], component: str, host: str, port: int, protocol: str = "TCP") -> bool:
    """Return whether policies let a component's Pods through to an address, or to the Pods of a namespace (`namespace/label=value`)."""
    labels = {"app.kubernetes.io/name": "gradeloop", "app.kubernetes.io/component": component}
    policies = [
        manifest["spec"]
        for manifest in manifests
        if manifest["kind"] == "NetworkPolicy"
        and "Egress" in manifest["spec"]["policyTypes"]
        and selects(manifest["spec"]["podSelector"], labels)
    ]
    if not policies:
        return True
    rules = [rule for policy in policies for rule in policy["egress"]]
    return any(
        ("ports" not in rule or {"port": port, "protocol": protocol} in [{"protocol": "TCP"} | one for one in rule["ports"]])
        and ("to" not in rule or any(is_peer(peer, host) for peer in rule["to"]))
        for rule in rules
    )


def is_peer(peer: Mapping[str, Any], host: str) -> bool:
    """Return whether a peer of a policy is an address, or has the Pods of a namespace."""
    if not host[0].isdigit() and ":" not in host:
        namespace, _, label = host.partition("/")
        pod = dict([label.split("=", 1)]) if label else {}
        anywhere = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}})
        named = {"kubernetes.io/metadata.name": namespace}
        return "ipBlock" not in peer and selects(anywhere, named) and selects(peer.get("podSelector", {}), pod)
    if "ipBlock" not in peer:
        return False
    block, address = ip_network(peer["ipBlock"]["cidr"]), ip_address(host)
    excepted = [ip_network(text) for text in peer["ipBlock"].get("except", ())]
    assert all(part.version == block.version and part.subnet_of(block) and part != block for part in excepted)  # type: ignore[arg-type]
    return address in block and not any(address in part for part in excepted)
