"""The Helm chart: with values that say so, it is what kustomize builds of the manifests that it is made from."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.helm_chart import generated
from tests.compose.helm import CHART, Helm, Refused
from tests.compose.manifests import Object, check_valid, objects, of_kind, pods, with_components
from tests.compose.shipped import ROOT
from tests.support.dashboards import DASHBOARDS

_MULTI_NODE = {
    "replay": {"shards": 4},
    "learner": {"nodes": 2, "gpus": 8, "storage": {"accessModes": ["ReadWriteMany"]}},
    "autoscaling": {"enabled": True},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
}
_HASH = re.compile(r"-[a-z0-9]{10}$")


def _plain(node: Any) -> Any:  # noqa: ANN401 - any part of an object
    """Return a part without what they differ in: order of ports, hashes in names, for which Helm has a checksum."""
    if isinstance(node, list):
        has_ports = bool(node) and isinstance(node[0], dict) and "containerPort" in node[0]
        return [_plain(child) for child in (sorted(node, key=lambda port: port["name"]) if has_ports else node)]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(child) for key, child in node.items() if key != "annotations"}
    if str(plain.get("name", "")).startswith(("tidemill-run", "tidemill-own")):
        plain["name"] = _HASH.sub("", plain["name"])
    return plain


def _by_name(found: Iterable[Object]) -> dict[tuple[str, str], Object]:
    plain = [_plain(item) for item in found if item["kind"] != "Secret"]
    for item in plain:
        item["metadata"].pop("namespace", None)
    return {(item["kind"], item["metadata"]["name"]): item for item in plain}


@pytest.mark.parametrize(
    "overlay, components, values",
    [
        ("base", [], {}),
        ("overlays/single-node", [], {"learner": {"gpus": 4}}),
        ("overlays/multi-node", [], _MULTI_NODE),
        ("base", ["inference"], {"inference": {"replicas": 1}}),
        (
            "overlays/single-node",
            ["inference", "inference-gpus"],
            {
                "learner": {"gpus": 4},
                "inference": {"replicas": 2, "gpu": True, "resources": {"limits": {"memory": "6Gi"}}},
            },
        ),
        ("base", ["dashboards"], {"dashboards": {"enabled": True}}),
        ("base", ["secrets", "cert-manager"], {"certManager": {"enabled": True}}),
    ],
)
def test_chart_is_what_kustomize_builds(
    overlay: str, components: list[str], values: Mapping[str, Any], helm: Helm, kubernetes: Path, tmp_path: Path
) -> None:
    """Object by object and field by field; and every object is valid."""
    rendered = helm.render(values)
    check_valid(rendered)
    built = with_components(kubernetes, overlay, components, tmp_path) if components else objects(kubernetes / overlay)
    chart, kustomize = _by_name(rendered), _by_name(built)
    assert chart.keys() == kustomize.keys()
    for name, item in kustomize.items():
        assert chart[name] == item, name


def test_values_reach_the_manifests(helm: Helm) -> None:
    """Registry, pull secrets, own files, places, storage classes: all that a cluster of one's own has otherwise."""
    values: dict[str, Any] = {
        "image": {"registry": "registry.example/team", "tag": "7", "pullSecrets": ["registry"], "pullPolicy": "Always"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "run": {"config": "/own/run.yaml", "own": {"run.yaml": "env: {id: a:B}\n", "a.py": "class B:\n    ...\n"}},
        "learner": {"gpus": 1, "nodeSelector": {"gpu": "l4"}, "tolerations": [{"key": "mine", "operator": "Exists"}]},
        "actor": {"tolerations": [{"key": "spot", "operator": "Exists"}], "replicas": 1000},
        "replay": {"storage": {"className": "fast", "size": "1Ti"}},
        "runs": {"className": "shared"},
        "inference": {"replicas": 1},
        "page": {"enabled": False},
        "networkPolicies": {"enabled": False},
    }
    found = helm.render(values)
    check_valid(found)
    assert not [item for item in found if item["kind"] in ("NetworkPolicy", "Deployment")]
    assert not [item for item in found if "namespace" in item["metadata"]]
    assert of_kind(found, "ServiceAccount")["imagePullSecrets"] == [{"name": "registry"}]
    assert of_kind(found, "ConfigMap", "tidemill-own")["data"] == values["run"]["own"]
    told = of_kind(found, "ConfigMap", "tidemill-run")["data"]
    assert (told["TIDEMILL_CONFIG"], told["ACTORS"], told["LEARNERS_PER_NODE"]) == ("/own/run.yaml", "1000", "1")
    learner, actor = pods(found)["learner"], of_kind(found, "StatefulSet", "actor")["spec"]
    assert learner["containers"][0]["image"] == "registry.example/team/tidemill-learner:7-cuda"
    for pod in pods(found).values():
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert container["imagePullPolicy"] == "Always"
            assert container["env"][-1] == values["env"][0]
    assert learner["nodeSelector"] == {"gpu": "l4"}
    assert [toleration["key"] for toleration in learner["tolerations"]] == ["nvidia.com/gpu", "mine"]
    assert actor["replicas"] == 1000
    assert [toleration["key"] for toleration in actor["template"]["spec"]["tolerations"]] == ["spot"]
    (claim,) = of_kind(found, "StatefulSet", "replay")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"
    assert of_kind(found, "PersistentVolumeClaim", "runs")["spec"]["storageClassName"] == "shared"


@pytest.mark.parametrize(
    "values, words",
    [
        ({"learner": {"gpu": 4}}, "gpu"),
        ({"replay": {"shards": "two"}}, "shards"),
        ({"hpa": {}}, "hpa"),
        ({"image": {"pullSecrets": [{"name": "registry"}]}}, "pullSecrets"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"tag": ""}}, "tag"),
        ({"replay": {"shards": 0}}, "shards"),
        ({"learner": {"gpus": -1}}, "gpus"),
        ({"learner": {"gpus": 17}}, "gpus"),
        ({"runs": {"size": "10GB"}}, "size"),
        ({"runs": {"accessModes": ["RWX"]}}, "accessModes"),
        ({"actor": {"resources": {"memory": "4Gi"}}}, "memory"),
        ({"actor": {"nodeSelector": {"gpu": True}}}, "nodeSelector/gpu"),
        ({"actor": {"tolerations": [{"key": "a", "effect": "NoScheduling"}]}}, "effect"),
        ({"actor": {"tolerations": ["spot"]}}, "tolerations"),
        ({"podMonitor": {"labels": {"release": 1}}}, "labels/release"),
        ({"networkPolicies": {"egress": [{"from": []}]}}, "from"),
        ({"run": {"own": {"thermostat": {"yaml": "env: {}"}}}}, "own/thermostat"),
        ({"learner": {"nodes": 2}}, r"learner\.nodes is 2: .* must be \[ReadWriteMany\]"),
        ({"actor": {"replicas": 0}}, r"actor\.replicas is 0"),
        ({"actor": {"replicas": 9}, "autoscaling": {"enabled": True, "maxReplicas": 8}}, r"maxReplicas is 8.* 9"),
        ({"run": {"config": "/own/b.yaml", "own": {"a.yaml": "{}"}}}, r"no file b\.yaml; it has a\.yaml"),
        ({"run": {"config": "/own/b.yaml"}}, r"no file b\.yaml; it has none.*--set-file"),
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "env has A, .* another entry"),
    ],
)
def test_value_that_there_is_not_is_refused(values: Mapping[str, Any], words: str, helm: Helm) -> None:
    """By its name, before anything is rendered: a name, what Kubernetes would refuse, what does not go together."""
    with pytest.raises(Refused, match=words):
        helm.render(values)


def test_variable_that_the_chart_sets_is_refused(helm: Helm) -> None:
    """Server-side apply takes no name twice, and a variable of a value would differ from the value."""
    found = helm.render({"inference": {"replicas": 1}})
    names = set(of_kind(found, "ConfigMap", "tidemill-run")["data"])
    for pod in pods(found).values():
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            names |= {variable["name"] for variable in container.get("env", [])}
    assert {"PYTHONPATH", "ACTORS", "SHARD"} <= names
    for name in sorted(names):
        with pytest.raises(Refused, match=rf"env has {name}, .*leave it out"):
            helm.render({"env": [{"name": name, "value": "x"}]})


def test_every_learner_of_a_pod_with_sixteen_gpus_is_scraped(helm: Helm) -> None:
    """More GPUs are refused: neither the monitor nor the network policy names the ports of their learners."""
    found = helm.render({"learner": {"gpus": 16}, "podMonitor": {"enabled": True}})
    ports = {port["name"] for port in pods(found)["learner"]["containers"][0]["ports"] if port["name"] != "grpc"}
    assert len(ports) == 16
    assert ports == {endpoint["port"] for endpoint in of_kind(found, "PodMonitor")["spec"]["podMetricsEndpoints"]}
    policy = of_kind(found, "NetworkPolicy", "metrics")
    assert ports == {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}


def test_claims_outlast_the_release(helm: Helm) -> None:
    """Helm keeps them when it uninstalls the chart: parameters, scores and checkpoints are in them."""
    claims = [item["metadata"] for item in helm.render({}) if item["kind"] == "PersistentVolumeClaim"]
    assert sorted(claim["name"] for claim in claims) == ["learner-runs", "runs"]
    assert all(claim["annotations"] == {"helm.sh/resource-policy": "keep"} for claim in claims)


@pytest.mark.parametrize("kind, value", [("PodMonitor", "podMonitor"), ("PrometheusRule", "prometheusRule")])
def test_prometheus_may_select_by_labels(kind: str, value: str, helm: Helm) -> None:
    """As that of kube-prometheus-stack does; nothing else of the object changes."""
    plain, labelled = (
        of_kind(helm.render({value: {"enabled": True, **more}}), kind) for more in ({}, {"labels": {"release": "prom"}})
    )
    assert labelled["metadata"].pop("labels") == {"release": "prom"}
    assert labelled == plain


def test_pods_may_connect_to_what_a_value_allows(helm: Helm) -> None:
    """A proxy, or a name server elsewhere, beside the name servers of `kube-system`."""
    proxy = {"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 3128}]}
    found = helm.render({"networkPolicies": {"egress": [proxy]}})
    check_valid(found)
    plain, opened = (of_kind(every, "NetworkPolicy", "names")["spec"] for every in (helm.render({}), found))
    assert opened["egress"] == [*plain["egress"], proxy]


def test_settings_that_change_restart_the_services(helm: Helm) -> None:
    """A checksum in the pods of services changes with them; a Job's pods cannot be changed."""

    def checksums(config: str) -> dict[str, str]:
        found = helm.render({"run": {"config": config}})
        templates = {
            item["metadata"]["name"]: item["spec"]["template"] for item in found if "template" in item.get("spec", {})
        }
        return {
            name: template["metadata"]["annotations"]["checksum/run"]
            for name, template in templates.items()
            if "annotations" in template["metadata"]
        }

    before, after = checksums("configs/a.yaml"), checksums("configs/b.yaml")
    assert before.keys() == {"replay", "paramserver", "actor", "page"}
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(
    "values, run",
    [
        ({"run": {"config": "configs/pong_dqn.yaml"}}, "pong_dqn"),
        ({"run": {"config": "/own/a.yaml", "own": {"a.yaml": "run: {name: b}"}}, "autoscaling": {"run": "b"}}, "b"),
    ],
)
def test_autoscaler_follows_the_run_of_the_chart(values: Mapping[str, Any], run: str, helm: Helm) -> None:
    """Its name is that of the file of settings, or a value."""
    enabled = {**values, "autoscaling": {"enabled": True, **values.get("autoscaling", {})}}
    scaler = of_kind(helm.render(enabled), "HorizontalPodAutoscaler")["spec"]
    assert scaler["metrics"][0]["external"]["metric"]["selector"]["matchLabels"] == {"what": "data", "run": run}


def test_chart_is_generated_from_the_manifests() -> None:
    """Its templates are what the script writes; beside them lie Grafana's dashboards and the rules themselves."""
    for path, text in generated().items():
        assert path.read_text(encoding="utf-8") == text, f"python -m scripts.helm_chart rewrites {path}"
    assert sorted(path.resolve() for path in (CHART / "dashboards").glob("*.json")) == DASHBOARDS
    assert (CHART / "prometheusrule.yaml").resolve() == (
        ROOT / "deploy/kubernetes/components/prometheusrule/prometheusrule.yaml"
    )
    assert (
        subprocess.run([sys.executable, "-m", "scripts.helm_chart", "--check"], cwd=ROOT, check=False).returncode == 0
    )


def test_chart_has_the_version_of_the_package() -> None:
    """Both of a release are found by one number."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
