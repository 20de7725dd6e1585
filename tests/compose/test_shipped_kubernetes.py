"""The manifests for Kubernetes as they lie in the repository, with Secrets that are made here: nothing is started."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from scripts.kubernetes_rules import prometheus_rule
from tests.compose.dashboards import rules
from tests.compose.shipped import HEALTH_PATH, ROOT, check_secured, load_as, run
from tidemill.config.services import LearnerSettings
from tidemill.rpc.access import ROLES
from tidemill.services.launcher.commands.certs import COMMON_HOST, SERVICES, make_services

KUBERNETES = ROOT / "deploy/kubernetes"
KUSTOMIZATIONS = ("base", "overlays/single-node", "overlays/multi-node")
CUSTOM_KINDS = {
    "Certificate": "cert-manager.io/v1",
    "Issuer": "cert-manager.io/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the manifests, with the files that components/secrets says to make."""
    copied = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(KUBERNETES, copied, ignore=shutil.ignore_patterns("certs"))
    make_services(copied / "components/secrets/certs")
    return copied


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what a kustomization builds."""
    built = run("kubectl", "kustomize", str(folder))
    yield from (item for item in yaml.safe_load_all(built) if item)


def words_of(container: dict[str, Any], values: dict[str, str]) -> list[str]:
    """Return the command line of a service, after torchrun's options, with the values of variables in their places."""
    words = [re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], "0"), word) for word in container["args"]]
    return words[words.index("tidemill.services.learner") + 1 :] if "tidemill.services.learner" in words else words


def pods(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the specification of each kind of pod, by the name of its container."""
    specs = [item["spec"]["template"]["spec"] for item in found if "template" in item.get("spec", {})]
    return {spec["containers"][0]["name"]: spec for spec in specs}


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_objects_are_valid(kustomization: str, kubernetes: Path) -> None:
    """Each object has exactly the fields its kind has; those of an operator's kinds are known by name."""
    kinds = set()
    for item in objects(kubernetes / kustomization):
        kinds.add(item["kind"])
        if item["kind"] in CUSTOM_KINDS:
            assert item["apiVersion"] == CUSTOM_KINDS[item["kind"]]
        else:
            kubernetes_validate.validate(item, "1.31", strict=True)
    assert {"StatefulSet", "Job", "PodDisruptionBudget", "NetworkPolicy"} <= kinds


COMPONENTS = [("podmonitor", "PodMonitor"), ("prometheusrule", "PrometheusRule"), ("keda", "Scaled"), ("hpa", "Horiz")]


@pytest.mark.parametrize("component, kind", COMPONENTS)
def test_kubernetes_component_adds_to_any_overlay(component: str, kind: str, kubernetes: Path, tmp_path: Path) -> None:
    """A component is added by one line; what scales actors names their Deployment."""
    base, added = (os.path.relpath(kubernetes / part, tmp_path) for part in ("base", f"components/{component}"))
    overlay = {"namespace": "tidemill", "resources": [base], "components": [added]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = [item for item in objects(tmp_path) if item["kind"].startswith(kind)]
    assert [item["metadata"]["namespace"] for item in found] == ["tidemill"]
    if target := found[0]["spec"].get("scaleTargetRef"):
        assert (target["kind"], target["name"]) == ("StatefulSet", "actor")
        told = next(item for item in objects(kubernetes / "base") if item["kind"] == "ConfigMap")["data"]
        spec = found[0]["spec"]
        assert (spec.get("minReplicas") or spec.get("minReplicaCount")) == int(told["ACTORS"])


def test_kubernetes_has_the_rules_of_prometheus() -> None:
    """The operator's object holds every recording rule and alert as the files for Prometheus itself have them."""
    written = yaml.safe_load((KUBERNETES / "components/prometheusrule/prometheusrule.yaml").read_text())
    assert written == prometheus_rule(), "python -m scripts.kubernetes_rules rewrites it"


def test_adapter_serves_what_the_autoscaler_asks_for(kubernetes: Path) -> None:
    """The adapter's rule has the autoscaler's name for a recording rule that exists, with the label it selects by."""
    (config_map,) = objects(kubernetes / "adapter")
    kubernetes_validate.validate(config_map, "1.31", strict=True)
    (rule,) = yaml.safe_load(config_map["data"]["config.yaml"])["externalRules"]
    autoscaler = yaml.safe_load((KUBERNETES / "components/hpa/hpa.yaml").read_text())
    wanted = autoscaler["spec"]["metrics"][0]["external"]["metric"]
    assert rule["name"]["as"] == wanted["name"]
    recorded = {recording["record"]: recording["expr"] for recording in rules() if "record" in recording}
    assert "by (run, what)" in recorded[rule["seriesQuery"]]
    assert wanted["selector"]["matchLabels"].keys() == {"what"}
    query = (
        rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"]).replace("<<.LabelMatchers>>", 'what="data"')
    )
    assert query == 'max(what:tidemill_learner_wait:ratio_rate1m{what="data"})'
    keda = yaml.safe_load((KUBERNETES / "components/keda/scaledobject.yaml").read_text())
    assert keda["spec"]["triggers"][0]["metadata"]["query"] == query


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_pods_are_confined_and_probed(kustomization: str, kubernetes: Path) -> None:
    """Every pod runs as a user, on a read-only root, with a memory limit; every process is asked as Docker asks it."""
    found = [item for item in objects(kubernetes / kustomization) if "template" in item.get("spec", {})]
    assert len(found) == 5
    for item in found:
        pod = item["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], item["metadata"]["name"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"]
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            health = {"path": HEALTH_PATH, "port": "metrics"}
            probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
            assert [probe["httpGet"] for probe in probes] == [health] * 3
            assert {"name": "metrics", "containerPort": 9400} in container["ports"]
            alive = probes[2]
            patience_s = alive["periodSeconds"] * alive["failureThreshold"]
            # torchrun starts the learners of a pod again itself, after a wait for those of others
            assert patience_s > (2 * LearnerSettings().ranks_timeout_s if container["name"] == "learner" else 30)


@pytest.mark.parametrize("kustomization, learners", list(zip(KUSTOMIZATIONS, (1, 4, 16), strict=True)))
def test_kubernetes_counts_agree(kustomization: str, learners: int, kubernetes: Path) -> None:
    """The numbers of shards, nodes and GPUs in the settings are those started; each learner has 2 cores and 16 GiB."""
    found = {
        (item["kind"], item["metadata"]["name"].partition("run-")[0]): item
        for item in objects(kubernetes / kustomization)
    }
    told = {name: int(value) for name, value in found["ConfigMap", "tidemill-"]["data"].items() if value.isdigit()}
    assert found["StatefulSet", "replay"]["spec"]["replicas"] == told["REPLAY_SHARDS"]
    assert found["StatefulSet", "actor"]["spec"].get("replicas", told["ACTORS"]) == told["ACTORS"]
    job = found["Job", "learner"]["spec"]
    assert job["completions"] == job["parallelism"] == told["LEARNER_NODES"]
    container = job["template"]["spec"]["containers"][0]
    here = told["LEARNERS_PER_NODE"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert int(limits.get("nvidia.com/gpu", 1)) == here
    assert (int(requests["cpu"]), requests["memory"], limits["memory"]) == (
        2 * here,
        f"{16 * here}Gi",
        f"{16 * here}Gi",
    )
    assert told["LEARNER_NODES"] * here == learners


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_learner_of_a_pod_is_scraped(kustomization: str, kubernetes: Path) -> None:
    """Each has the port after the one before it, which the monitor asks and the network lets through."""
    found = list(objects(kubernetes / kustomization))
    told = next(item["data"] for item in found if item["kind"] == "ConfigMap")
    (job,) = (item for item in found if (item["kind"], item["metadata"]["name"]) == ("Job", "learner"))
    named = {port["name"]: port["containerPort"] for port in job["spec"]["template"]["spec"]["containers"][0]["ports"]}
    names = ["metrics", *(f"metrics-{place}" for place in range(1, int(told["LEARNERS_PER_NODE"])))]
    assert [named.pop(name) for name in names] == list(range(9400, 9400 + len(names)))
    assert not any(name.startswith("metrics") for name in named)
    (monitor,) = yaml.safe_load_all((KUBERNETES / "components/podmonitor/podmonitor.yaml").read_text())
    assert set(names) <= {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    policy = next(item for item in found if (item["kind"], item["metadata"]["name"]) == ("NetworkPolicy", "metrics"))
    assert set(names) <= {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_command_is_understood(
    kustomization: str, kubernetes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each service accepts its command line, with the values of the ConfigMap in their places."""
    found = list(objects(kubernetes / kustomization))
    values = next(item["data"] for item in found if item["kind"] == "ConfigMap") | {"SHARD": "0", "INDEX": "3"}
    for pod in pods(found).values():
        container = pod["containers"][0]
        config = load_as(container["name"], words_of(container, values), monkeypatch)
        if container["name"] in ("learner", "evaluator"):
            assert config.run.supervisor == "job"
        if container["name"] == "learner":  # with GPUs it ends with a reason where `auto` would train on the CPU
            has_gpus = "nvidia.com/gpu" in container["resources"]["limits"]
            assert config.learner.device == ("cuda" if has_gpus else "auto")
        if container["name"] == "actor":
            assert (config.actor.index, config.actor.count) == (3, int(values["ACTORS"]))
        if container["name"] in ("learner", "actor"):
            assert config.cluster.replay == ("dns:///replay:7401",)
            assert config.cluster.replay_shards == int(values["REPLAY_SHARDS"])


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_pod_is_secured(kustomization: str, kubernetes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others reach has TLS and tokens, who calls others has a CA, a token and a name that every server's has."""
    found = list(objects(kubernetes / kustomization))
    values = next(item["data"] for item in found if item["kind"] == "ConfigMap") | {"SHARD": "0", "INDEX": "3"}
    for name, pod in pods(found).items():
        container = pod["containers"][0]
        environment = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
        config = load_as(name, words_of(container, values), monkeypatch)
        check_secured(name, getattr(config, name).server, environment)
        if name in ("learner", "actor"):  # they reach the shards by addresses
            assert environment["TIDEMILL_TLS_NAME"] == COMMON_HOST


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_pod_has_its_own_secrets_alone(kustomization: str, kubernetes: Path) -> None:
    """To read, as files that only the pod's user and group read; never the key of the CA nor another's token."""
    for name, pod in pods(list(objects(kubernetes / kustomization))).items():
        mounted = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "certs"]
        assert mounted == [{"name": "certs", "mountPath": "/certs", "readOnly": True}]
        (volume,) = (volume["projected"] for volume in pod["volumes"] if volume["name"] == "certs")
        assert volume["defaultMode"] == 0o440
        assert not [volume for volume in pod["volumes"] if "secret" in volume]
        share = SERVICES[name]
        server = {("replay-tls", "tls.crt"): "server.pem", ("replay-tls", "tls.key"): "server.key"}
        expected = {(f"{name}-tls", key): path for (_, key), path in server.items()} if share.serves else {}
        expected |= {("tokens", "tokens.txt"): "tokens.txt"} if share.serves else {}
        expected |= (
            {("tidemill-ca", "ca.crt"): "ca.pem", (f"{share.role}-token", "token"): "token"} if share.role else {}
        )
        taken = [(source["secret"]["name"], item) for source in volume["sources"] for item in source["secret"]["items"]]
        assert {(secret, item["key"]): item["path"] for secret, item in taken} == expected


def with_inference(kubernetes: Path, folder: Path) -> list[dict[str, Any]]:
    """Return what the overlay of one node builds with an inference service on top."""
    parts = [os.path.relpath(kubernetes / part, folder) for part in ("overlays/single-node", "components/inference")]
    text = yaml.safe_dump({"namespace": "tidemill", "resources": parts[:1], "components": parts[1:]})
    (folder / "kustomization.yaml").write_text(text)
    return list(objects(folder))


def test_inference_is_added_by_one_line(kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are valid, its pod is secured and found by the actors, and the network lets them talk."""
    found = with_inference(kubernetes, tmp_path)
    for item in found:
        kubernetes_validate.validate(item, "1.31", strict=True)
    values = next(item["data"] for item in found if item["kind"] == "ConfigMap") | {"INDEX": "3"}
    specs = pods(found)
    container = specs["inference"]["containers"][0]
    config = load_as("inference", words_of(container, values), monkeypatch)
    environment = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    check_secured("inference", config.inference.server, environment)
    actor = load_as("actor", words_of(specs["actor"]["containers"][0], values), monkeypatch)
    assert actor.cluster.inference == ("inference-0.inference:7406",)
    policies = {item["metadata"]["name"]: item["spec"] for item in found if item["kind"] == "NetworkPolicy"}
    assert policies["inference"]["ingress"][0]["ports"] == policies["to-inference"]["egress"][0]["ports"]
    assert policies["inference"]["egress"][0]["ports"] == policies["paramserver-from-inference"]["ingress"][0]["ports"]


def test_secrets_hold_what_pods_take_and_no_more(kubernetes: Path, tmp_path: Path) -> None:
    """Each secret that a pod names has the keys that it takes; servers have digests of tokens only."""
    found = with_inference(kubernetes, tmp_path)
    secrets = {item["metadata"]["name"]: item["data"] for item in found if item["kind"] == "Secret"}
    taken: dict[str, set[str]] = {}
    for pod in pods(found).values():
        for source in next(volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "certs"):
            taken.setdefault(source["secret"]["name"], set()).update(item["key"] for item in source["secret"]["items"])
    assert {name: set(data) for name, data in secrets.items()} == taken
    digests = base64.b64decode(secrets["tokens"]["tokens.txt"]).decode().split()
    assert all(word.startswith("sha256:") for word in digests[1::2])
    assert digests[::2] == list(ROLES)


@pytest.mark.parametrize("overlay", KUSTOMIZATIONS[1:])
def test_cert_manager_makes_the_same_secrets(overlay: str, kubernetes: Path, tmp_path: Path) -> None:
    """Its component replaces the CA and the servers' certificates, with the names that clients look for."""
    parts = [os.path.relpath(kubernetes / part, tmp_path) for part in (overlay, "components/cert-manager")]
    text = yaml.safe_dump({"namespace": "tidemill", "resources": parts[:1], "components": parts[1:]})
    (tmp_path / "kustomization.yaml").write_text(text)
    found = list(objects(tmp_path))
    before = {item["metadata"]["name"] for item in objects(kubernetes / overlay) if item["kind"] == "Secret"}
    left = {item["metadata"]["name"] for item in found if item["kind"] == "Secret"}
    made = {item["spec"]["secretName"]: item["spec"] for item in found if item["kind"] == "Certificate"}
    assert left | made.keys() == before
    assert not left & made.keys()
    issuers = {item["metadata"]["name"] for item in found if item["kind"] == "Issuer"}
    assert {spec["issuerRef"]["name"] for spec in made.values()} == issuers
    for name in ("replay", "paramserver", "learner", "inference"):
        assert made[f"{name}-tls"]["dnsNames"] == [name, COMMON_HOST, "localhost"]
