"""The files for containers as they lie in the repository: nothing is started."""

from __future__ import annotations

import json
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

from scripts.kubernetes_rules import prometheus_rule
from tests.compose.dashboards import DASHBOARDS, RULES, load, rules
from tidemill.config.load import load as load_settings
from tidemill.config.sections import ActorConfig, EvaluatorConfig, LearnerConfig, ParamServerConfig, ReplayConfig

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml", ROOT / "docker-compose.gpu.yml")
VARIABLE = re.compile(r"\$\{(TIDEMILL_[A-Z_]+):-((?:[^{}]|\$\{[^}]*\})*)\}")
KNOB = re.compile(r"^#((?:TIDEMILL|COMPOSE)_[A-Z_]+)=(.*)$", re.MULTILINE)
KUBERNETES = ROOT / "deploy/kubernetes"
HEALTH_PATH = "/healthz"
KUSTOMIZATIONS = ("base", "overlays/single-node", "overlays/multi-node")
CONFIGS: dict[str, type[Any]] = {
    "replay": ReplayConfig,
    "paramserver": ParamServerConfig,
    "learner": LearnerConfig,
    "actor": ActorConfig,
    "evaluator": EvaluatorConfig,
}
CUSTOM_KINDS = {
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}


def run(*command: str) -> str:
    """Run a command in the repository; return what it printed. The test is skipped where there is no such command."""
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]}")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def compose_command() -> list[str]:
    """Return the command that is Docker Compose. The test is skipped where there is none."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    has_docker = shutil.which("docker") is not None
    if not has_docker or subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is neither docker-compose nor the compose plugin of docker")
    return plugin


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
    run(*compose_command(), *(word for file in files for word in ("-f", str(file))), "config", "-q")


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
    assert yaml.safe_load(COMPOSE[0].read_text())["networks"]["cluster"] == {
        "internal": True,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }
    for name in ("replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator"):
        assert list(services()[name]["networks"]) == ["cluster"], name


def test_every_service_is_confined() -> None:
    """No root file system to write to, no capability, no new privilege, a memory limit, a way to come back."""
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        # `on-failure` forgets what ended well because the engine did, and starts what a person has stopped
        assert service["restart"] == "unless-stopped", name
        assert "container_name" not in service, name


@pytest.mark.parametrize("name", ["replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator"])
def test_compose_command_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each service accepts its command line, keeps the run in its volume and finds the others by their names."""
    service = services()[name]
    own = service.get("entrypoint", [])[3:]
    config = load_as(name.partition("-")[0], [*own, *shlex.split(with_defaults(service["command"]))], monkeypatch)
    assert config.run.root == "/runs"
    if name in ("learner", "evaluator"):
        assert config.run.supervisor == "engine"
    if name == "actor":
        assert config.actor.count == int(with_defaults(str(service["scale"])))
        assert config.actor.index_from_dns
    if name.startswith("replay"):
        assert f"replay-{config.replay.shard}" == name
        assert config.replay.shards == 2
    elif name != "paramserver":
        assert config.cluster.params == "paramserver:7402"
        assert name == "evaluator" or config.cluster.replay == ("replay-0:7401", "replay-1:7401")


def test_images_are_asked_for_their_health_cheaply_and_alike() -> None:
    """One script, run by Python without its packages, asks every process of ours for /healthz beside its metrics."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    probe = ["python", "-I", "-S", "/opt/health_probe.py"]
    checks = [json.loads(words) for words in re.findall(r"HEALTHCHECK [^\n]*\n  CMD (\[.*\])", dockerfile)]
    assert checks == [[*probe, f"127.0.0.1:9400{HEALTH_PATH}"]] * 5
    assert services()["tensorboard"]["healthcheck"]["test"][:5] == ["CMD", *probe]


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
        chapter = f"{{{{ $externalLabels.docs }}}}/operations.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == chapter
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
    assert {"StatefulSet", "Job", "PodDisruptionBudget", "NetworkPolicy"} <= kinds


COMPONENTS = [("podmonitor", "PodMonitor"), ("prometheusrule", "PrometheusRule"), ("keda", "Scaled"), ("hpa", "Horiz")]


@pytest.mark.parametrize("component, kind", COMPONENTS)
def test_kubernetes_component_adds_to_any_overlay(component: str, kind: str, tmp_path: Path) -> None:
    """A component is added by one line; what scales actors names their Deployment."""
    base, added = (os.path.relpath(KUBERNETES / part, tmp_path) for part in ("base", f"components/{component}"))
    overlay = {"namespace": "tidemill", "resources": [base], "components": [added]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = [item for item in objects(str(tmp_path)) if item["kind"].startswith(kind)]
    assert [item["metadata"]["namespace"] for item in found] == ["tidemill"]
    if target := found[0]["spec"].get("scaleTargetRef"):
        assert (target["kind"], target["name"]) == ("StatefulSet", "actor")
        told = next(item for item in objects("base") if item["kind"] == "ConfigMap")["data"]
        spec = found[0]["spec"]
        assert (spec.get("minReplicas") or spec.get("minReplicaCount")) == int(told["ACTORS"])


def test_kubernetes_has_the_rules_of_prometheus() -> None:
    """The operator's object holds every recording rule and alert as the files for Prometheus itself have them."""
    written = yaml.safe_load((KUBERNETES / "components/prometheusrule/prometheusrule.yaml").read_text())
    assert written == prometheus_rule(), "python -m scripts.kubernetes_rules rewrites it"


def test_adapter_serves_what_the_autoscaler_asks_for() -> None:
    """The adapter's rule has the autoscaler's name for a recording rule that exists, with the label it selects by."""
    (config_map,) = objects("adapter")
    kubernetes_validate.validate(config_map, "1.31", strict=True)
    (rule,) = yaml.safe_load(config_map["data"]["config.yaml"])["externalRules"]
    autoscaler = yaml.safe_load((KUBERNETES / "components/hpa/hpa.yaml").read_text())
    wanted = autoscaler["spec"]["metrics"][0]["external"]["metric"]
    assert rule["name"]["as"] == wanted["name"]
    recorded = {recording["record"]: recording["expr"] for recording in rules() if "record" in recording}
    assert "by (what)" in recorded[rule["seriesQuery"]]
    assert wanted["selector"]["matchLabels"].keys() == {"what"}
    query = (
        rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"]).replace("<<.LabelMatchers>>", 'what="data"')
    )
    assert query == 'max(what:tidemill_learner_wait:ratio_rate1m{what="data"})'
    keda = yaml.safe_load((KUBERNETES / "components/keda/scaledobject.yaml").read_text())
    assert keda["spec"]["triggers"][0]["metadata"]["query"] == query


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_pods_are_confined_and_probed(kustomization: str) -> None:
    """Every pod runs as a user, on a read-only root, with a memory limit; every process is asked as Docker asks it."""
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
                health = {"path": HEALTH_PATH, "port": "metrics"}
                assert container["startupProbe"]["httpGet"] == container["readinessProbe"]["httpGet"] == health
                assert {"name": "metrics", "containerPort": 9400} in container["ports"]


@pytest.mark.parametrize("kustomization, learners", list(zip(KUSTOMIZATIONS, (1, 4, 16), strict=True)))
def test_kubernetes_counts_agree(kustomization: str, learners: int) -> None:
    """The numbers of shards, nodes and GPUs in the settings are those started; each learner has 2 cores and 16 GiB."""
    found = {(item["kind"], item["metadata"]["name"].partition("run-")[0]): item for item in objects(kustomization)}
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
    values = next(item["data"] for item in found if item["kind"] == "ConfigMap") | {"SHARD": "0", "INDEX": "3"}
    pods = [item for item in found if "template" in item.get("spec", {})]
    for item in pods:
        container = item["spec"]["template"]["spec"]["containers"][0]
        words = [re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], "0"), word) for word in container["args"]]
        words = words[words.index("tidemill.services.learner") + 1 :] if "tidemill.services.learner" in words else words
        config = load_as(container["name"], words, monkeypatch)
        if container["name"] in ("learner", "evaluator"):
            assert config.run.supervisor == "job"
        if container["name"] == "actor":
            assert (config.actor.index, config.actor.count) == (3, int(values["ACTORS"]))
        if container["name"] in ("learner", "actor"):
            assert config.cluster.replay == ("dns:///replay:7401",)
            assert config.cluster.replay_shards == int(values["REPLAY_SHARDS"])
