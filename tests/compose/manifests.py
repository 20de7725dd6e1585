"""The manifests for Kubernetes: what a kustomization builds, and parts of the objects that come out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.compose.shipped import ROOT, run
from tidemill.services.tools.certs import make_services

KUBERNETES = ROOT / "deploy/kubernetes"
KUSTOMIZATIONS = ("base", "overlays/single-node", "overlays/multi-node")
CUSTOM_KINDS = {
    "Certificate": "cert-manager.io/v1",
    "Issuer": "cert-manager.io/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}
"""Kinds of operators, known by name alone."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; not in every build of PyYAML

kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
"""It would read 1.3 MB for each object."""

Object = dict[str, Any]


def copy_manifests(folder: Path) -> Path:
    """Copy the manifests, with the files that components/secrets says to make; return where they are."""
    for part in ("grafana", "kubernetes"):
        shutil.copytree(ROOT / "deploy" / part, folder / "deploy" / part, ignore=shutil.ignore_patterns("certs"))
    make_services(folder / "deploy/kubernetes/components/secrets/certs")
    return folder / "deploy/kubernetes"


def objects(folder: Path) -> Iterator[Object]:
    """Yield what a kustomization builds; it is built once, so its files must stay as they are."""
    return parsed(_built(folder))


@cache
def _built(folder: Path) -> str:
    return run("kubectl", "kustomize", str(folder))


def parsed(text: str) -> Iterator[Object]:
    """Yield the objects of manifests."""
    yield from (item for item in yaml.load_all(text, _Loader) if item)


def with_components(kubernetes: Path, overlay: str, components: Sequence[str], folder: Path) -> list[Object]:
    """Return the objects of an overlay with components on top, by a kustomization that is written into a folder."""
    parts = [os.path.relpath(kubernetes / part, folder) for part in (overlay, *(f"components/{c}" for c in components))]
    text = yaml.safe_dump({"namespace": "tidemill", "resources": parts[:1], "components": parts[1:]})
    (folder / "kustomization.yaml").write_text(text)
    return list(objects(folder))


def check_valid(found: Iterable[Object]) -> None:
    """Check that each object has exactly the fields its kind has; those of an operator's kinds are known by name."""
    for item in found:
        if item["kind"] in CUSTOM_KINDS:
            assert item["apiVersion"] == CUSTOM_KINDS[item["kind"]]
        else:
            kubernetes_validate.validate(item, "1.31", strict=True)


def of_kind(found: Iterable[Object], kind: str, name: str = "") -> Object:
    """Return the one object of a kind; with a name, which a hash may follow, the one of that name."""
    (item,) = (
        item
        for item in found
        if item["kind"] == kind
        and re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?" if name else ".*", item["metadata"]["name"])
    )
    return item


def told_values(found: Iterable[Object]) -> dict[str, str]:
    """Return the variables of all pods, with those that a pod has from its number."""
    values: dict[str, str] = of_kind(found, "ConfigMap", "tidemill-run")["data"]
    return values | {"SHARD": "0", "INDEX": "3"}


def pods(found: Iterable[Object]) -> dict[str, Object]:
    """Return the specification of each kind of pod, by the name of its container."""
    specs = [item["spec"]["template"]["spec"] for item in found if "template" in item.get("spec", {})]
    return {spec["containers"][0]["name"]: spec for spec in specs}


def words_of(container: Object, values: dict[str, str]) -> list[str]:
    """Return the command line of a service, after torchrun's options, with the values of variables in their places."""
    words = [re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], "0"), word) for word in container["args"]]
    return words[words.index("tidemill.services.learner") + 1 :] if "tidemill.services.learner" in words else words
