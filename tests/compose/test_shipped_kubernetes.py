"""The manifests for Kubernetes as they lie in the repository, with Secrets that are made here: nothing is started."""

from __future__ import annotations

import base64
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from scripts.kubernetes_rules import prometheus_rule
from tests.compose.manifests import (
    KUBERNETES,
    KUSTOMIZATIONS,
    Object,
    check_valid,
    objects,
    of_kind,
    pods,
    told_values,
    with_components,
    words_of,
)
from tests.compose.shipped import HEALTH_PATH, ROOT, check_secured, load_as
from tests.support.dashboards import DASHBOARDS, rules
from tests.support.naming import naming
from tidemill.config.services import LearnerSettings
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.process import HELD_UP
from tidemill.process import run as run_process
from tidemill.rl.exploration import ActorSlot, epsilon_ladder
from tidemill.rpc.access import ROLES
from tidemill.services.launcher.commands.check import check
from tidemill.services.tools.certs import COMMON_HOST, SERVICES

_ROLES_OF_PODS = SERVICES | {"page": SERVICES["evaluator"]}
"""The page looks, and steers nothing: it has the evaluator's token."""


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_objects_are_valid(kustomization: str, kubernetes: Path) -> None:
    """Each object has exactly the fields its kind has, and sets neither a namespace nor a storage class."""
    found = list(objects(kubernetes / kustomization))
    check_valid(found)
    assert {"StatefulSet", "Deployment", "Job", "PodDisruptionBudget", "NetworkPolicy"} <= {
        item["kind"] for item in found
    }
    assert not [item for item in found if item["kind"] == "Namespace" or "namespace" in item["metadata"]]
    claims = [item["spec"] for item in found if item["kind"] == "PersistentVolumeClaim"]
    claims += [claim["spec"] for item in found for claim in item.get("spec", {}).get("volumeClaimTemplates", [])]
    assert len(claims) == 3
    assert not [claim for claim in claims if "storageClassName" in claim]


COMPONENTS = [("podmonitor", "PodMonitor"), ("prometheusrule", "PrometheusRule"), ("keda", "Scaled"), ("hpa", "Horiz")]


@pytest.mark.parametrize("component, kind", COMPONENTS)
def test_kubernetes_component_adds_to_any_overlay(component: str, kind: str, kubernetes: Path, tmp_path: Path) -> None:
    """A component is added by one line; what scales actors names their StatefulSet, and counts them alone."""
    built = with_components(kubernetes, "base", [component], tmp_path)
    found = [item for item in built if item["kind"].startswith(kind)]
    assert [item["metadata"]["namespace"] for item in found] == ["tidemill"]
    if target := found[0]["spec"].get("scaleTargetRef"):
        assert (target["kind"], target["name"]) == ("StatefulSet", "actor")
        spec = found[0]["spec"]
        assert (spec.get("minReplicas") or spec.get("minReplicaCount")) == int(told_values(built)["ACTORS"])
        actor = of_kind(built, "StatefulSet", "actor")["spec"]
        assert "replicas" not in actor, "applying again would undo the scaling"


def test_scaled_actors_explore_evenly(kubernetes: Path) -> None:
    """However many the autoscaler runs, the whole ladder is explored and no rung by two actors more than another."""
    found = list(objects(kubernetes / "overlays/multi-node"))
    count, scaler = int(told_values(found)["ACTORS"]), of_kind(found, "HorizontalPodAutoscaler")["spec"]
    rungs = [epsilon_ladder(ActorSlot(index, 2, count), 0.4, 7.0).tolist() for index in range(scaler["maxReplicas"])]
    for actors in range(scaler["minReplicas"], scaler["maxReplicas"] + 1):
        played = [rungs[:actors].count(rung) for rung in rungs[:count]]
        assert sum(played) == actors
        assert min(played) >= 1
        assert max(played) - min(played) <= 1


@pytest.mark.parametrize("components", [[], ["inference"], ["inference", "simulators"]])
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_network_policies_are_for_tidemill_alone(
    kustomization: str, components: list[str], kubernetes: Path, tmp_path: Path
) -> None:
    """They leave other pods of the namespace as they are, which may be any, and let none of them in."""
    found = with_components(kubernetes, kustomization, components, tmp_path)
    for policy in (item for item in found if item["kind"] == "NetworkPolicy"):
        spec = policy["spec"]
        rules = [rule for way in ("ingress", "egress") for rule in spec.get(way, [])]
        peers = [peer for rule in rules for peer in (*rule.get("from", []), *rule.get("to", []))]
        for selector in (spec["podSelector"], *(peer["podSelector"] for peer in peers if "podSelector" in peer)):
            assert selector["matchLabels"]["app.kubernetes.io/name"] == "tidemill", policy["metadata"]["name"]


def test_secrets_can_be_made_alone(kubernetes: Path) -> None:
    """For the Helm chart: the same Secrets as an overlay's, and nothing else."""
    alone = list(objects(kubernetes / "secrets"))
    check_valid(alone)
    overlay = [item for item in objects(kubernetes / "overlays/single-node") if item["kind"] == "Secret"]
    assert sorted(item["metadata"]["name"] for item in alone) == sorted(item["metadata"]["name"] for item in overlay)
    assert {item["kind"] for item in alone} == {"Secret"}


def test_tokens_can_be_made_without_certificates(kubernetes: Path) -> None:
    """For the Helm chart with cert-manager, whose CA and certificates they must not replace."""
    tokens = list(objects(kubernetes / "secrets/tokens"))
    check_valid(tokens)
    certificates = yaml.safe_load_all((KUBERNETES / "components/cert-manager/certificates.yaml").read_text())
    made = {item["spec"]["secretName"] for item in certificates if item["kind"] == "Certificate"}
    every = {item["metadata"]["name"] for item in objects(kubernetes / "secrets")}
    assert {item["metadata"]["name"] for item in tokens} == every - made


def test_dashboards_are_those_of_grafana(kubernetes: Path, tmp_path: Path) -> None:
    """Each is a ConfigMap that Grafana's sidecar finds, small enough for `kubectl apply`, which notes it twice."""
    found = with_components(kubernetes, "base", ["dashboards"], tmp_path)
    maps = [item for item in found if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    check_valid(maps)
    built = {name: text for item in maps for name, text in item["data"].items()}
    assert built == {file.name: file.read_text(encoding="utf-8") for file in DASHBOARDS}
    assert max(map(len, built.values())) < 200_000


def test_images_may_come_from_a_closed_registry(kubernetes: Path, tmp_path: Path) -> None:
    """Every pod runs under the account that a component gives a secret for pulling."""
    found = with_components(kubernetes, "overlays/multi-node", ["pull-secret"], tmp_path)
    assert of_kind(found, "ServiceAccount")["imagePullSecrets"] == [{"name": "registry"}]
    assert {pod["serviceAccountName"] for pod in pods(found).values()} == {"tidemill"}


def test_kubernetes_has_the_rules_of_prometheus() -> None:
    """The operator's object holds every recording rule and alert as the files for Prometheus itself have them."""
    written = yaml.safe_load((KUBERNETES / "components/prometheusrule/prometheusrule.yaml").read_text())
    assert written == prometheus_rule(), "python -m scripts.kubernetes_rules rewrites it"


def test_adapter_serves_what_the_autoscaler_asks_for(kubernetes: Path) -> None:
    """The adapter's rule has the autoscaler's name for a recording rule that exists, with the labels it selects by."""
    (config_map,) = objects(kubernetes / "adapter")
    kubernetes_validate.validate(config_map, "1.31", strict=True)
    (rule,) = yaml.safe_load(config_map["data"]["config.yaml"])["externalRules"]
    autoscaler = yaml.safe_load((KUBERNETES / "components/hpa/hpa.yaml").read_text())
    wanted = autoscaler["spec"]["metrics"][0]["external"]["metric"]
    assert rule["name"]["as"] == wanted["name"]
    recorded = {recording["record"]: recording["expr"] for recording in rules() if "record" in recording}
    assert "by (run, what)" in recorded[rule["seriesQuery"]]
    settings = told_values(objects(kubernetes / "base"))["TIDEMILL_CONFIG"]
    name = yaml.safe_load((ROOT / settings).read_text())["run"]["name"]
    assert wanted["selector"]["matchLabels"] == {"what": "data", "run": name}
    matchers = ",".join(f'{label}="{value}"' for label, value in wanted["selector"]["matchLabels"].items())
    query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"]).replace("<<.LabelMatchers>>", matchers)
    assert query == f'max(what:tidemill_learner_wait:ratio_rate1m{{what="data",run="{name}"}})'
    keda = yaml.safe_load((KUBERNETES / "components/keda/scaledobject.yaml").read_text())
    assert keda["spec"]["triggers"][0]["metadata"]["query"] == query


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_pods_are_confined_and_probed(kustomization: str, kubernetes: Path) -> None:
    """Every pod runs as a user, on a read-only root, with a memory limit; every process is asked as Docker asks it."""
    found = [item for item in objects(kubernetes / kustomization) if "template" in item.get("spec", {})]
    assert len(found) == 6
    for item in found:
        pod = item["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], item["metadata"]["name"]
        assert pod["automountServiceAccountToken"] is False
        assert [container["name"] for container in pod.get("initContainers", [])] == (
            ["check"] if item["kind"] == "Job" else []
        )
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"]
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        for container in pod["containers"]:
            health: Object = {"path": HEALTH_PATH, "port": "metrics"}
            if container["name"] == "page":  # which refuses foreign names
                health = {"path": "/", "port": "http", "httpHeaders": [{"name": "Host", "value": "localhost"}]}
            probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
            assert [probe["httpGet"] for probe in probes] == [health] * 3
            assert {
                "name": health["port"],
                "containerPort": 8100 if container["name"] == "page" else 9400,
            } in container["ports"]
            alive = probes[2]
            patience_s = alive["periodSeconds"] * alive["failureThreshold"]
            # torchrun starts the learners of a pod again itself, after a wait for those of others. A process whose
            # environment hangs is unwell after half of a time, and ends after all of it, with the reason
            if container["name"] == "learner":  # the last checkpoint
                assert pod["terminationGracePeriodSeconds"] > 2 / 3 * LearnerSettings().ranks_timeout_s
            least_s = {
                "learner": 2 * LearnerSettings().ranks_timeout_s,
                "actor": EnvSettings("any").step_timeout_s,
                "evaluator": EnvSettings("any").step_timeout_s,
            }
            assert patience_s > least_s.get(container["name"], 30)
            if container["name"] in ("replay", "paramserver"):  # they answer once they have restored what they keep
                assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 3600


@pytest.mark.parametrize("kustomization, learners", list(zip(KUSTOMIZATIONS, (1, 4, 16), strict=True)))
def test_kubernetes_counts_agree(kustomization: str, learners: int, kubernetes: Path) -> None:
    """The numbers of shards, nodes and GPUs in the settings are those started; each learner has 2 cores and 16 GiB."""
    found = {
        (item["kind"], item["metadata"]["name"].partition("run-")[0]): item
        for item in objects(kubernetes / kustomization)
    }
    told = {name: int(value) for name, value in told_values(found.values()).items() if value.isdigit()}
    assert found["StatefulSet", "replay"]["spec"]["replicas"] == told["REPLAY_SHARDS"]
    assert found["StatefulSet", "actor"]["spec"].get("replicas", told["ACTORS"]) == told["ACTORS"]
    job = found["Job", "learner"]["spec"]
    assert job["completions"] == job["parallelism"] == told["LEARNER_NODES"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    here = told["LEARNERS_PER_NODE"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert int(limits.get("nvidia.com/gpu", 1)) == here
    assert (int(requests["cpu"]), requests["memory"], limits["memory"]) == (
        2 * here,
        f"{16 * here}Gi",
        f"{16 * here}Gi",
    )
    assert told["LEARNER_NODES"] * here == learners
    tolerated = [toleration["key"] for toleration in pod.get("tolerations", [])]
    assert tolerated == (["nvidia.com/gpu"] if "nvidia.com/gpu" in limits else [])


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_learner_of_a_pod_is_scraped(kustomization: str, kubernetes: Path) -> None:
    """Each has the port after the one before it, which the monitor asks and the network lets through."""
    found = list(objects(kubernetes / kustomization))
    told, job = told_values(found), of_kind(found, "Job", "learner")
    named = {port["name"]: port["containerPort"] for port in job["spec"]["template"]["spec"]["containers"][0]["ports"]}
    names = ["metrics", *(f"metrics-{place}" for place in range(1, int(told["LEARNERS_PER_NODE"])))]
    assert [named.pop(name) for name in names] == list(range(9400, 9400 + len(names)))
    assert not any(name.startswith("metrics") for name in named)
    (monitor,) = yaml.safe_load_all((KUBERNETES / "components/podmonitor/podmonitor.yaml").read_text())
    assert set(names) <= {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    policy = of_kind(found, "NetworkPolicy", "metrics")
    assert set(names) <= {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubernetes_command_is_understood(
    kustomization: str, kubernetes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each service accepts its command line, with the values of the ConfigMap in their places."""
    found = list(objects(kubernetes / kustomization))
    values = told_values(found)
    for pod in pods(found).values():
        container = pod["containers"][0]
        words = [word for word in words_of(container, values) if word != "--insecure"]  # of `tidemill page` itself
        config = load_as(container["name"], words, monkeypatch)
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
def test_every_service_has_the_same_agent(
    kustomization: str, kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default batch has an item of each environment of all actors, so each service knows how many there are."""
    found = list(with_components(kubernetes, kustomization, ["inference"], tmp_path))
    values = told_values(found) | {"TIDEMILL_CONFIG": "configs/pendulum_ppo.yaml"}
    named = {name: pods(found)[name]["containers"][0] for name in ("learner", "actor", "evaluator", "inference")}
    named["page"] = pods(found)["learner"]["initContainers"][0]  # `check` reads all sections, as a page does
    agents = {}
    for name, container in named.items():
        words = words_of(container, values)
        if "--cluster.inference" in words:  # which no algorithm has that waits for each version
            del words[words.index("--cluster.inference") :]
        agents[name] = load_as(name, words, monkeypatch).agent
    assert agents["page"].batch_size == int(values["ACTORS"]) * 4
    assert agents == dict.fromkeys(agents, agents["page"])


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_settings_are_checked_before_a_job_runs(
    kustomization: str, kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidemill check` accepts what the manifests say, writes the run's config.yaml, and refuses what is wrong."""
    found = list(objects(kubernetes / kustomization))
    values = told_values(found)
    checks = [pods(found)[name]["initContainers"][0] for name in ("learner", "evaluator")]
    assert checks[0]["args"] == checks[1]["args"]
    for container, name in zip(checks, ("learner", "evaluator"), strict=True):
        assert container["command"] == ["tidemill", "check"]
        assert container["image"].split(":")[0] == f"tidemill-{name}"
        assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]
    monkeypatch.chdir(ROOT)
    words = [*words_of(checks[0], values), "--run.root", str(tmp_path)]
    assert check(words) == 0
    assert list(tmp_path.glob("*/config.yaml"))
    with pytest.raises(ConfigError, match=naming("cluster.replay_shards")):
        check([*words, "--replay.shards", "7"])


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_folder_of_the_run_is_whole_in_one_pod(kustomization: str, kubernetes: Path) -> None:
    """Settings, parameters and scores lie in one claim, whose pods share a node; one of them outlasts the run."""
    found = list(objects(kubernetes / kustomization))
    sharing = ["evaluator", "page", "paramserver"]
    claimed = {
        name: volume["persistentVolumeClaim"]["claimName"]
        for name, pod in pods(found).items()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claimed == dict.fromkeys(sharing, "runs") | {"learner": "learner-runs"}
    for name in sharing:
        (term,) = pods(found)[name]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert sorted(term["labelSelector"]["matchExpressions"][0]["values"]) == sharing
    page = of_kind(found, "Deployment", "page")["spec"]["template"]["spec"]["containers"][0]
    assert page["image"].startswith("tidemill-evaluator:"), "tidemill export makes an environment"


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_pod_is_secured(kustomization: str, kubernetes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others reach has TLS and tokens, who calls others has a CA, a token and a name that every server's has."""
    found = list(objects(kubernetes / kustomization))
    values = told_values(found)
    for name, pod in pods(found).items():
        container = pod["containers"][0]
        environment = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
        if name == "page":
            assert environment["TIDEMILL_TOKEN_FILE"] == "/certs/token"
        else:
            config = load_as(name, words_of(container, values), monkeypatch)
            check_secured(name, getattr(config, name).server, environment)
        if name in ("learner", "actor", "page"):  # they reach the shards by addresses
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
        share = _ROLES_OF_PODS[name]
        server = {("replay-tls", "tls.crt"): "server.pem", ("replay-tls", "tls.key"): "server.key"}
        expected = {(f"{name}-tls", key): path for (_, key), path in server.items()} if share.serves else {}
        expected |= {("tokens", "tokens.txt"): "tokens.txt"} if share.serves else {}
        expected |= (
            {("tidemill-ca", "ca.crt"): "ca.pem", (f"{share.role}-token", "token"): "token"} if share.role else {}
        )
        taken = [(source["secret"]["name"], item) for source in volume["sources"] for item in source["secret"]["items"]]
        assert {(secret, item["key"]): item["path"] for secret, item in taken} == expected


def test_inference_is_added_by_one_line(kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are valid, its pod is secured and found by the actors, and the network lets them talk."""
    found = with_components(kubernetes, "overlays/single-node", ["inference"], tmp_path)
    check_valid(found)
    values = told_values(found)
    specs = pods(found)
    container = specs["inference"]["containers"][0]
    config = load_as("inference", words_of(container, values), monkeypatch)
    environment = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    check_secured("inference", config.inference.server, environment)
    actor = load_as("actor", words_of(specs["actor"]["containers"][0], values), monkeypatch)
    assert actor.cluster.inference == ("inference-0.inference:7406",)
    words = [word for word in words_of(specs["page"]["containers"][0], values) if word != "--insecure"]
    assert load_as("page", words, monkeypatch).launcher.endpoints[-1] == "inference:9400"
    policies = {item["metadata"]["name"]: item["spec"] for item in found if item["kind"] == "NetworkPolicy"}
    assert policies["inference"]["ingress"][0]["ports"] == policies["to-inference"]["egress"][0]["ports"]
    assert policies["inference"]["egress"][0]["ports"] == policies["paramserver-from-inference"]["ingress"][0]["ports"]


@pytest.mark.parametrize("components", [["inference"], ["inference", "inference-gpus"]])
def test_actors_that_cannot_connect_are_refused_by_the_check(
    components: list[str], kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the services that the actors do, so that none waits for ever for one of the 64 places of each."""
    found = with_components(kubernetes, "base", components, tmp_path)
    values, specs = told_values(found), pods(found)
    actor = load_as("actor", words_of(specs["actor"]["containers"][0], values), monkeypatch)
    several = len(actor.cluster.inference)
    monkeypatch.chdir(ROOT)
    for name in ("learner", "evaluator"):
        words = [*words_of(specs[name]["initContainers"][0], values), "--run.root", str(tmp_path), "--actor.count"]
        with pytest.raises(ConfigError, match=naming(f"actor.count {64 * several + 1} cluster.inference {several}")):
            check([*words, str(64 * several + 1)])
        assert check([*words, str(64 * several)]) == 0


def test_simulators_reach_the_inference_service_alone(
    kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets them in, and the evaluator; it stores their steps, and the replay service lets it."""
    found = with_components(kubernetes, "overlays/single-node", ["inference", "simulators"], tmp_path)
    check_valid(found)
    values, specs = told_values(found), pods(found)
    config = load_as("inference", words_of(specs["inference"]["containers"][0], values), monkeypatch)
    actor = load_as("actor", words_of(specs["actor"]["containers"][0], values), monkeypatch)
    assert config.inference.simulators == 64
    assert (config.cluster.replay, config.cluster.shard_count) == (actor.cluster.replay, actor.cluster.shard_count)
    evaluator = load_as("evaluator", words_of(specs["evaluator"]["containers"][0], values), monkeypatch)
    assert evaluator.cluster.inference == ("inference-0.inference:7406",)
    for name in ("inference", "evaluator"):  # they reach others by addresses, or by a name that no certificate has
        variables = {each["name"]: each.get("value", "") for each in specs[name]["containers"][0]["env"]}
        assert variables["TIDEMILL_TLS_NAME"] == COMMON_HOST
    policies = {item["metadata"]["name"]: item["spec"] for item in found if item["kind"] == "NetworkPolicy"}
    served, stored = policies["inference-of-simulators"], policies["replay-from-simulators"]
    assert served["ingress"][0]["ports"] == policies["simulators-to-inference"]["egress"][0]["ports"]
    assert served["egress"][0]["ports"] == stored["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 7401}]
    allowed = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in served["ingress"][0]["from"]
    ]
    assert allowed == ["simulator", "evaluator"]


def test_check_of_simulators_alone_asks_nothing_for_actors(
    kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their initial priorities come from the service; the refusal names the setting by which the check knows that."""
    found = with_components(kubernetes, "base", ["inference", "simulators"], tmp_path)
    values, specs = told_values(found), pods(found)
    monkeypatch.chdir(ROOT)
    for name in ("learner", "evaluator"):
        words = [*words_of(specs[name]["initContainers"][0], values), "--run.root", str(tmp_path)]
        words += ["--env.id", "Pendulum-v1", "--agent.algorithm", "sac", "--table.sampler", "prioritized"]
        with pytest.raises(ConfigError, match=naming("actor.inference_fallback 'local' launcher.actors 0")):
            check(words)
        assert check([*words, "--launcher.actors", "0"]) == 0


def test_each_gpu_has_an_inference_service(kubernetes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pods as the actors know of, each with a GPU to itself, on nodes that are kept for those."""
    found = with_components(kubernetes, "overlays/single-node", ["inference", "inference-gpus"], tmp_path)
    check_valid(found)
    values, service = told_values(found), of_kind(found, "StatefulSet", "inference")["spec"]
    pod = service["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "tidemill-inference:latest-cuda"
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu"]
    config = load_as("inference", words_of(container, values), monkeypatch)
    assert (config.inference.device, config.inference.index) == ("cuda", 0)
    actor = load_as("actor", words_of(pods(found)["actor"]["containers"][0], values), monkeypatch)
    assert actor.cluster.inference == tuple(
        f"inference-{number}.inference:7406" for number in range(service["replicas"])
    )


def test_secrets_hold_what_pods_take_and_no_more(kubernetes: Path, tmp_path: Path) -> None:
    """Each secret that a pod names has the keys that it takes; servers have digests of tokens only."""
    found = with_components(kubernetes, "overlays/single-node", ["inference"], tmp_path)
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
    found = with_components(kubernetes, overlay, ["cert-manager"], tmp_path)
    before = {item["metadata"]["name"] for item in objects(kubernetes / overlay) if item["kind"] == "Secret"}
    left = {item["metadata"]["name"] for item in found if item["kind"] == "Secret"}
    made = {item["spec"]["secretName"]: item["spec"] for item in found if item["kind"] == "Certificate"}
    assert left | made.keys() == before
    assert not left & made.keys()
    issuers = {item["metadata"]["name"] for item in found if item["kind"] == "Issuer"}
    assert {spec["issuerRef"]["name"] for spec in made.values()} == issuers
    for name in ("replay", "paramserver", "learner", "inference"):
        assert made[f"{name}-tls"]["dnsNames"] == [name, COMMON_HOST, "localhost"]


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_retries_of_a_job_share_a_host_name(kustomization: str, kubernetes: Path) -> None:
    """TidemillRestartLoop counts the starts of a host: the pods of an Indexed Job are named by number."""
    for job in (item["spec"] for item in objects(kubernetes / kustomization) if item["kind"] == "Job"):
        assert job["completionMode"] == "Indexed"
        assert job["completions"] == job.get("parallelism", 1)


def _after_exit(job: Object, code: int) -> str:
    """Return the action of a Job when a container of its pod has ended with an exit code."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", ()):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_job_that_refuses_its_settings_is_not_tried_again(kustomization: str, kubernetes: Path) -> None:
    """Nor counts a pod whose node went away; whatever else ends one is tried again."""
    found = list(objects(kubernetes / kustomization))
    for name in ("learner", "evaluator"):
        job = of_kind(found, "Job", name)
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", "the policy is refused otherwise"
        codes = (run_process(name, _refused), 1, HELD_UP, 137, 143)
        assert [_after_exit(job, code) for code in codes] == ["FailJob", *["Count"] * 4]
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert ignored in job["spec"]["podFailurePolicy"]["rules"]


def _refused() -> int:
    raise ConfigError("run.name is ''")
