"""The files for containers as they lie in the repository: nothing is started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.compose.dashboards import DASHBOARDS, RULES, load, rules
from tidemill.config.load import load as load_settings
from tidemill.config.sections import ActorConfig, EvaluatorConfig, LearnerConfig, ParamServerConfig, ReplayConfig

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml", ROOT / "docker-compose.gpu.yml")
VARIABLE = re.compile(r"\$\{(TIDEMILL_[A-Z_]+):-((?:[^{}]|\$\{[^}]*\})*)\}")
KNOB = re.compile(r"^#((?:TIDEMILL|COMPOSE)_[A-Z_]+)=(.*)$", re.MULTILINE)
KUBERNETES = ROOT / "deploy/kubernetes"
KUSTOMIZATIONS = ("base", "overlays/single-node", "overlays/multi-node")
CONFIGS: dict[str, type[Any]] = {
    "replay": ReplayConfig,
    "paramserver": ParamServerConfig,
    "learner": LearnerConfig,
    "actor": ActorConfig,
    "evaluator": EvaluatorConfig,
}
CUSTOM_KINDS = {"PodMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1"}


def run(*command: str) -> str:
    """Run a command in the repository; return what it printed. The test is skipped where there is no such command."""
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]}")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def services() -> dict[str, Any]:
    """Return the services of docker-compose.yml, its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE[0].read_text())["services"]
    return found


def with_defaults(text: str) -> str:
    """Return a value of a compose file as it is when no variable is set."""
    return VARIABLE.sub(lambda match: match.group(2), text)


def load_as(service: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - each has a class of its own
    """Return the settings a service would read from its command line, in the image's working folder."""
    monkeypatch.chdir(ROOT)
    return load_settings(CONFIGS[service], arguments, prog=service, description="")


def objects(kustomization: str) -> Iterator[dict[str, Any]]:
    """Yield what a kustomization builds."""
    built = run("kubectl", "kustomize", str(KUBERNETES / kustomization))
    yield from (item for item in yaml.safe_load_all(built) if item)


@pytest.mark.parametrize("files", [COMPOSE[:1], COMPOSE], ids=["cpu", "gpu"])
def test_compose_file_is_valid(files: tuple[Path, ...]) -> None:
    """Compose accepts the file alone and with the one for GPUs on top."""
    command = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    run(*command, *(word for file in files for word in ("-f", str(file))), "config", "-q")


def test_every_knob_is_documented_with_its_default() -> None:
    """.env.example names each variable of the compose files once, with the value it has when it is not set."""
    text = "".join(file.read_text() for file in COMPOSE)
    used = {name: default for name, default in VARIABLE.findall(text)}
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) == used.keys(), "a variable without a default"
    documented = dict(KNOB.findall((ROOT / ".env.example").read_text()))
    documented.pop("COMPOSE_FILE")
    assert documented == used


def test_only_what_a_person_opens_is_published() -> None:
    """Three ports, on loopback; Tidemill's own services are on a network without a way in or out."""
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert published.keys() == {"tensorboard", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert yaml.safe_load(COMPOSE[0].read_text())["networks"]["cluster"] == {"internal": True}
    for name in ("replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator"):
        assert list(services()[name]["networks"]) == ["cluster"], name


def test_every_service_is_confined() -> None:
    """No root file system to write to, no capability, no new privilege, a memory limit, a way to come back."""
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["restart"] in ("unless-stopped", "on-failure"), name
        assert "container_name" not in service, name


@pytest.mark.parametrize("name", ["replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator"])
def test_compose_command_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each service accepts its command line, keeps the run in its volume and finds the others by their names."""
    service = services()[name]
    own = service.get("entrypoint", [])[3:]
    config = load_as(name.partition("-")[0], [*own, *shlex.split(with_defaults(service["command"]))], monkeypatch)
    assert config.run.root == "/runs"
    if name.startswith("replay"):
        assert f"replay-{config.replay.shard}" == name
        assert config.replay.shards == 2
    elif name != "paramserver":
        assert config.cluster.params == "paramserver:7402"
        assert name == "evaluator" or config.cluster.replay == ("replay-0:7401", "replay-1:7401")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panel_says_what_it_shows(path: Path) -> None:
    """Each panel has a title, a description, a unit, and queries to the provisioned data source; none overlap."""
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    uid = source["datasources"][0]["uid"]
    dashboard = load(path)
    assert dashboard["uid"] == f"tidemill-{path.stem}"
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {uid}
        place = panel["gridPos"]
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own


def test_prometheus_takes_its_files() -> None:
    """Promtool finds nothing wrong with configuration and rules, and the tests of the rules pass."""
    run("promtool", "check", "config", "--syntax-only", "deploy/prometheus/prometheus.yml")
    run("promtool", "check", "rules", *map(str, RULES))
    run("promtool", "test", "rules", *map(str, sorted((ROOT / "deploy/prometheus/tests").glob("*.yml"))))


def test_every_alert_is_explained_and_tested() -> None:
    """An alert has a severity, a chapter in the operations guide and a promtool test that lets it fire."""
    guide = (ROOT / "docs/operations.md").read_text()
    tested = yaml.safe_load((ROOT / "deploy/prometheus/tests/alerts.yml").read_text())["tests"]
    fired = {check["alertname"] for case in tested for check in case["alert_rule_test"] if check["exp_alerts"]}
    alerts = [rule for rule in rules() if "alert" in rule]
    for rule in alerts:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert f"### {rule['alert']}\n" in guide
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert fired == {rule["alert"] for rule in alerts}


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_objects_are_valid(kustomization: str) -> None:
    """Each object has exactly the fields its kind has; those of an operator's kinds are known by name."""
    kinds = set()
    for item in objects(kustomization):
        kinds.add(item["kind"])
        if item["kind"] in CUSTOM_KINDS:
            assert item["apiVersion"] == CUSTOM_KINDS[item["kind"]]
        else:
            kubernetes_validate.validate(item, "1.31", strict=True)
    assert {"StatefulSet", "Deployment", "Job", "PodDisruptionBudget", "NetworkPolicy"} <= kinds


@pytest.mark.parametrize("component, kind", [("podmonitor", "PodMonitor"), ("keda", "ScaledObject"), ("hpa", "Horiz")])
def test_kubernetes_component_adds_to_any_overlay(component: str, kind: str, tmp_path: Path) -> None:
    """A component is added by one line; what scales actors names their Deployment."""
    base, added = (os.path.relpath(KUBERNETES / part, tmp_path) for part in ("base", f"components/{component}"))
    overlay = {"namespace": "tidemill", "resources": [base], "components": [added]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = [item for item in objects(str(tmp_path)) if item["kind"].startswith(kind)]
    assert [item["metadata"]["namespace"] for item in found] == ["tidemill"]
    if target := found[0]["spec"].get("scaleTargetRef"):
        assert target["name"] == "actor"


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_pods_are_confined_and_probed(kustomization: str) -> None:
    """Every pod runs as a user, on a read-only root, with a memory limit; every server is probed over gRPC."""
    found = [item for item in objects(kustomization) if "template" in item.get("spec", {})]
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
            if container["name"] != "learner":  # torchrun starts it again itself, and a pod has several
                assert "grpc" in container["readinessProbe"]


@pytest.mark.parametrize("kustomization, learners", list(zip(KUSTOMIZATIONS, (1, 4, 16), strict=True)))
def test_kubernetes_counts_agree(kustomization: str, learners: int) -> None:
    """What the services are told of shards, nodes and GPUs is what is started; each learner has 2 cores and 16 GiB."""
    found = {(item["kind"], item["metadata"]["name"].partition("run-")[0]): item for item in objects(kustomization)}
    told = {name: int(value) for name, value in found["ConfigMap", "tidemill-"]["data"].items() if value.isdigit()}
    assert found["StatefulSet", "replay"]["spec"]["replicas"] == told["REPLAY_SHARDS"]
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
def test_every_learner_of_a_pod_is_scraped(kustomization: str) -> None:
    """Each has the port after the one before it, which the monitor asks and the network lets through."""
    found = list(objects(kustomization))
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
def test_kubernetes_command_is_understood(kustomization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each service accepts its command line, with the values of the ConfigMap in their places."""
    found = list(objects(kustomization))
    values = next(item["data"] for item in found if item["kind"] == "ConfigMap") | {"SHARD": "0"}
    pods = [item for item in found if "template" in item.get("spec", {})]
    for item in pods:
        container = item["spec"]["template"]["spec"]["containers"][0]
        words = [re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], "0"), word) for word in container["args"]]
        words = words[words.index("services.learner") + 1 :] if "services.learner" in words else words
        config = load_as(container["name"], words, monkeypatch)
        if container["name"] in ("learner", "actor"):
            assert config.cluster.replay == ("dns:///replay:7401",)
            assert config.cluster.replay_shards == int(values["REPLAY_SHARDS"])
