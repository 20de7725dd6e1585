"""What docs/kubernetes.md shows: a run of one's own, and the arithmetic of a thousand actors."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest
import yaml

from tests.compose.helm import CHART, Helm
from tests.compose.manifests import (
    CUSTOM_KINDS,
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
from tests.compose.shipped import ROOT
from tidemill.config.services import InferenceSettings
from tidemill.services.launcher.commands.check import check

_PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
_TUTORIAL = (ROOT / "docs/tutorials/own-environment.md").read_text(encoding="utf-8")
_GIBIBYTES = {"Gi": 1.0, "Mi": 1 / 1024}


def _block(text: str, language: str, beginning: str) -> str:
    """Return the fenced block of a page that begins so."""
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (block,) = (str(block) for block in blocks if block.startswith(beginning))
    return block


@pytest.fixture(scope="module")
def own_run(kubernetes: Path) -> list[Object]:
    """What the page's own kustomization builds, with the environment of the tutorial."""
    folder = kubernetes.parents[1] / "my-run"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(_block(_PAGE, "yaml", "# my-run/kustomization.yaml"))
    (folder / "thermostat.py").write_text(_block(_TUTORIAL, "python", '"""A room'))
    (folder / "thermostat.yaml").write_text(_block(_TUTORIAL, "yaml", "run:\n  name: thermostat"))
    return list(objects(folder))


def test_first_commands_need_no_operator_and_no_gpu(kubernetes: Path) -> None:
    """What they apply is of kinds that every cluster has, and brings each Secret that a pod mounts.

    Images come from the registry by a layer above the base, which overlays take as it is: they match its names.
    """
    root = kubernetes.parents[1]
    (root / "first-run").mkdir()
    (root / "first-run/kustomization.yaml").write_text(_block(_PAGE, "yaml", "# first-run/kustomization.yaml"))
    folders = re.findall(r"^kubectl apply -k (\S+)$", _PAGE.partition("\n## ")[0], re.MULTILINE)
    assert "first-run" in folders
    found = [item for folder in folders for item in objects(root / folder)]
    check_valid(found)
    images = [container["image"] for pod in pods(found).values() for container in pod["containers"]]
    assert all(re.fullmatch(r"registry\.example/tidemill-[a-z]+:latest", image) for image in images)
    assert "`deploy/kubernetes/base/kustomization.yaml`" not in _PAGE
    assert {item["kind"] for item in found} & {*CUSTOM_KINDS, "HorizontalPodAutoscaler"} == set()
    assert not any("nvidia.com/gpu" in str(pod) for pod in pods(found).values())
    secrets = {item["metadata"]["name"] for item in found if item["kind"] == "Secret"}
    volumes = [volume for pod in pods(found).values() for volume in pod["volumes"] if "projected" in volume]
    mounted = {source["secret"]["name"] for volume in volumes for source in volume["projected"]["sources"]}
    assert {"tokens", "tidemill-ca"} <= mounted <= secrets


def test_own_config_and_environment_reach_every_pod(own_run: list[Object]) -> None:
    """They are mounted from one ConfigMap, whose name changes with them, and modules are found where they lie."""
    check_valid(own_run)
    own = of_kind(own_run, "ConfigMap", "tidemill-own")
    assert set(own["data"]) == {"thermostat.yaml", "thermostat.py"}
    assert told_values(own_run)["TIDEMILL_CONFIG"] == "/own/thermostat.yaml"
    for name, pod in pods(own_run).items():
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "own")
        assert volume["configMap"] == {"name": own["metadata"]["name"], "optional": True}
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert {"name": "own", "mountPath": "/own", "readOnly": True} in container["volumeMounts"]
            environment = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
            has_torch = name not in ("replay", "paramserver")
            assert environment.get("PYTHONPATH") == ("/app/configs:/own" if has_torch else None)


def test_own_run_is_what_the_page_says(own_run: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images come from the registry, the learner goes to its kind of GPU, and `tidemill check` accepts the settings."""
    learner = pods(own_run)["learner"]
    assert learner["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    images = [container["image"] for pod in pods(own_run).values() for container in pod["containers"]]
    assert {image.split("/")[0] for image in images} == {"registry.example"}
    assert learner["containers"][0]["image"] == "registry.example/tidemill-learner:1-cuda"
    for name, text in of_kind(own_run, "ConfigMap", "tidemill-own")["data"].items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # as in the pod: the environment is tried in a separate process
    monkeypatch.chdir(ROOT)
    words = words_of(learner["initContainers"][0], told_values(own_run))
    assert check([word.replace("/own/", f"{tmp_path}/") for word in words] + ["--run.root", str(tmp_path)]) == 0
    assert (tmp_path / "thermostat/config.yaml").exists()


def _patched(kubernetes: Path, overlay: str, kind: str) -> list[Object]:
    """Return the objects of an overlay with the page's patch of a kind."""
    (here := kubernetes.parents[1] / kind).mkdir()
    patches = _block(_PAGE, "yaml", f"patches:\n  - target: {{kind: {kind}")
    text = f"resources: [../deploy/kubernetes/{overlay}]\n{patches}"
    (here / "kustomization.yaml").write_text(text)
    return list(objects(here))


def test_autoscaler_follows_the_run_that_the_page_names(kubernetes: Path) -> None:
    """By the page's patch of an overlay that has one."""
    found = _patched(kubernetes, "overlays/multi-node", "HorizontalPodAutoscaler")
    (metric,) = of_kind(found, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"what": "data", "run": "thermostat"}


def test_prometheus_finds_what_the_page_labels(kubernetes: Path) -> None:
    """Both objects of the operator have the label that kube-prometheus-stack selects by."""
    found = _patched(kubernetes, "overlays/multi-node", "PodMonitor")
    for kind in ("PodMonitor", "PrometheusRule"):
        assert of_kind(found, kind)["metadata"]["labels"] == {"release": "kube-prometheus-stack"}


def test_pods_may_connect_to_what_the_page_allows(kubernetes: Path) -> None:
    """The page's rules are added to that for DNS in `kube-system`."""
    found = _patched(kubernetes, "base", "NetworkPolicy")
    check_valid(found)
    rules = of_kind(found, "NetworkPolicy", "names")["spec"]["egress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in rules]
    assert ports == [[53, 53], [3128], [5353, 5353], [53, 53]]


def test_taking_down_ends_every_pod_and_keeps_the_claims(own_run: list[Object]) -> None:
    """The page's command deletes by kind and label: all that have pods, and no claim."""
    block = _block(_PAGE, "bash", "kubectl delete job,")
    kinds, key, value = re.fullmatch(r"kubectl delete (\S+) --selector (\S+)=(\S+)\n", block).groups()  # type: ignore[union-attr]
    deleted = [
        item
        for item in own_run
        if item["kind"].lower() in kinds.split(",") and item["metadata"]["labels"].get(key) == value
    ]
    assert deleted == [item for item in own_run if "template" in item.get("spec", {})]


def test_upgrade_replaces_servers_before_clients(own_run: list[Object]) -> None:
    """The page's commands name images of containers that are there, of the servers that actors and learner call."""
    block = _block(_PAGE, "bash", "kubectl set image")
    pattern = r"set image statefulset/(\S+) (\S+)=(\S+):2\nkubectl rollout status statefulset/\1\n"
    replaced = re.findall(pattern, block)
    assert [name for name, _, _ in replaced] == ["paramserver", "replay"]
    for name, container, image in replaced:
        (known,) = of_kind(own_run, "StatefulSet", name)["spec"]["template"]["spec"]["containers"]
        assert (container, image) == (known["name"], known["image"].partition(":")[0])


def test_node_of_the_run_s_folder_needs_what_the_page_says(own_run: list[Object]) -> None:
    """The sum of what the pods request that share a claim of one node."""
    sharing = [pods(own_run)[name] for name in ("paramserver", "evaluator", "page")]
    asked = [pod["containers"][0]["resources"]["requests"]["cpu"] for pod in sharing]
    cores = sum(float(amount.removesuffix("m")) / (1000 if amount.endswith("m") else 1) for amount in asked)
    assert f"{cores:g} processors and {sum(map(_gibibytes, sharing)):g} GiB" in _PAGE
    (term,) = pods(own_run)["actor"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    avoided = term["podAffinityTerm"]["labelSelector"]["matchExpressions"][0]["values"]
    assert sorted(avoided) == ["evaluator", "page", "paramserver"]


def test_thousand_actors_need_the_inference_services_of_the_page() -> None:
    """By the default of how many actors one takes."""
    taken = InferenceSettings().max_streams
    assert f"takes {taken} actors (`inference.max_streams`)" in _PAGE
    assert f"{math.ceil(1000 / taken)} replicas" in _PAGE


def test_chart_with_the_page_s_values_is_the_same_run(own_run: list[Object], helm: Helm) -> None:
    """Helm and kustomize give a run of one's own the same pods."""
    files = of_kind(own_run, "ConfigMap", "tidemill-own")["data"]
    values = yaml.safe_load(_block(_PAGE, "yaml", "# my-values.yaml"))
    values["run"]["own"] = files
    rendered = helm.render(values)
    assert of_kind(rendered, "ConfigMap", "tidemill-own")["data"] == files
    assert told_values(rendered) == told_values(own_run)
    for name, pod in pods(own_run).items():
        there = pods(rendered)[name]
        for part in ("nodeSelector", "tolerations"):
            assert there.get(part) == pod.get(part), name
        for mine, other in zip(there["containers"], pod["containers"], strict=True):
            assert (mine["image"], mine["args"]) == (other["image"], other["args"])


def _gibibytes(pod: Object) -> float:
    asked = [container["resources"]["requests"]["memory"] for container in pod["containers"]]
    return sum(float(size[:-2]) * _GIBIBYTES[size[-2:]] for size in asked)


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_memory_of_a_thousand_actors_is_as_documented(kustomization: str, kubernetes: Path, tmp_path: Path) -> None:
    """The page's table is the sum of what pods ask for, with a thousand actors in an overlay that still builds."""
    overlay = {
        "resources": [os.path.relpath(kubernetes / kustomization, tmp_path)],
        "replicas": [{"name": "actor", "count": 1000}],
        "configMapGenerator": [{"name": "tidemill-run", "behavior": "merge", "literals": ["ACTORS=1000"]}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    asked = {"actor": 0.0, "replay": 0.0, "learner": 0.0, "others": 0.0}
    for item in objects(tmp_path):
        if "template" in item.get("spec", {}):
            name, spec = item["metadata"]["name"], item["spec"]
            count = spec.get("replicas") or spec.get("parallelism") or 1
            asked[name if name in asked else "others"] += count * _gibibytes(spec["template"]["spec"])
    numbers = [*asked.values(), sum(asked.values())]
    (row,) = re.findall(rf"^\| `{kustomization}` \| (2,000 .*) \|$", _PAGE, re.MULTILINE)
    assert [float(word.replace(",", "")) for word in row.split(" | ")] == numbers


def test_page_says_what_nobody_has_run() -> None:
    """It is the first thing that a reader learns after what the page is for."""
    assert "**Validated, never run on a real cluster.**" in _PAGE.split("## ")[0]


def test_own_storage_class_is_that_of_every_claim(own_run: list[Object]) -> None:
    """Of the shards' as well, which a StatefulSet makes."""
    claims = [item["spec"] for item in own_run if item["kind"] == "PersistentVolumeClaim"]
    claims += [claim["spec"] for item in own_run for claim in item.get("spec", {}).get("volumeClaimTemplates", [])]
    assert [claim["storageClassName"] for claim in claims] == ["fast"] * 3


def test_actors_restart_at_once_by_the_page_s_command(own_run: list[Object]) -> None:
    """It deletes their pods alone, of which the StatefulSet makes as many again without waiting for one another."""
    upgrade = _block(_PAGE, "bash", "kubectl set image").splitlines()
    (command,) = {found[0] for found in re.finditer(r"kubectl delete pod --selector [^`\n]+", _PAGE)}
    assert upgrade[-2:] == ["kubectl apply -k my-run # or helm upgrade", command]
    key, _, value = command.split()[-1].partition("=")
    sets = [item for item in own_run if "template" in item.get("spec", {})]
    (actors,) = [item for item in sets if item["spec"]["template"]["metadata"]["labels"][key] == value]
    assert (actors["kind"], actors["spec"]["podManagementPolicy"]) == ("StatefulSet", "Parallel")


@pytest.mark.parametrize("autoscaler", ["hpa", "keda"])
def test_page_says_that_an_autoscaler_starts_with_one_actor(autoscaler: str, kubernetes: Path, tmp_path: Path) -> None:
    """Kubernetes takes a count for 1 that was in the manifest and is there no longer."""
    scaled = with_components(kubernetes, "base", [autoscaler], tmp_path)
    assert "replicas" in of_kind(objects(kubernetes / "base"), "StatefulSet", "actor")["spec"]
    assert "replicas" not in of_kind(scaled, "StatefulSet", "actor")["spec"]
    assert re.search(
        r"with an autoscaler ends all actors but one.*`kubectl scale statefulset actor --replicas \d+`", _PAGE
    )


def test_page_lists_every_component_and_those_that_the_chart_lacks() -> None:
    """A value switches on each of the others, or it is made beside the chart."""
    _, _, after = _PAGE.partition("| To | Add the component |")
    table = after.partition("\n\n")[0]
    listed = {name for row in table.splitlines() for name in re.findall(r"`([a-z-]+)`", row.rpartition(" | ")[2])}
    components = {path.name for path in (ROOT / "deploy/kubernetes/components").iterdir()}
    assert components <= listed
    assert "The chart does not have the components `keda` and `simulators`." in _PAGE
    chart = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    assert "ScaledObject" not in chart
    assert "--inference.simulators" not in chart
