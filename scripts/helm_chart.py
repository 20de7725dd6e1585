"""`python -m scripts.helm_chart`: write the templates of the Helm chart from the manifests for Kubernetes.

deploy/kubernetes is the source. Each of its files becomes a template, with values of deploy/helm/tidemill/values.yaml
in place of what differs between clusters. A schema made of these has Helm refuse values that there are not. `--check`
writes nothing and ends with 1 if a file is not what it would be.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).resolve().parents[1]
_KUBERNETES = _ROOT / "deploy/kubernetes"
CHART = _ROOT / "deploy/helm/tidemill"
_TEMPLATES = CHART / "templates"
_BY_HAND = {"NOTES.txt", "checks.yaml"}
_HEADER = "{{- /* Written by scripts/helm_chart.py from deploy/kubernetes: change that and run it. */ -}}\n"

_BASE = (
    "service-account", "runs", "replay", "paramserver", "learner", "actor", "evaluator", "page", "network-policies"
)  # fmt: skip
_LABEL = {"app.kubernetes.io/name": "tidemill"}
_PULLED = ("replay", "paramserver", "learner", "actor", "evaluator", "inference")

_GPUS = "(int .Values.learner.gpus)"
_LEARNERS = f"(max 1 {_GPUS})"
_INFERENCE = "(int .Values.inference.replicas)"

Object = dict[str, Any]


class _Marks:
    """Words that stand in YAML for what Helm fills in, and become that once the YAML is written."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def value(self, expression: str) -> str:
        """Return a word for `{{ expression }}`, to stand alone or in a string."""
        return self._word("V", f"{{{{ {expression} }}}}")

    def line(self, directive: str) -> str:
        """Return a word for a line `{{- directive }}`: an item of a list, or a key whose value is nothing.

        INDENT in it becomes the line's own, for `nindent`.
        """
        return self._word("L", f"{{{{- {directive} }}}}")

    def block(self, expression: str) -> Object:
        """The placeholder of a mapping or a list that a value holds."""
        return {self.line(f"toYaml {expression} | nindent INDENT"): None}

    def fill(self, written: str) -> str:
        """Return written YAML with every word replaced."""
        lines = (self._line(line) for line in written.splitlines())
        return "".join(f"{line}\n" for line in lines)

    def _word(self, kind: str, text: str) -> str:
        self._texts.append(text)
        return f"{kind}{len(self._texts) - 1:04}{kind}"

    def _line(self, line: str) -> str:
        if found := re.fullmatch(r"( *)(?:- )?L(\d{4})L(?:: null)?", line):
            return found[1] + self._texts[int(found[2])].replace("INDENT", str(len(found[1])))
        return re.sub(r"V(\d{4})V", lambda word: self._texts[int(word[1])], line)


def templates() -> dict[str, str]:
    """Return the text of each template, by its file's name."""
    found = {f"{name}.yaml": _template(f"base/{name}.yaml", label=True) for name in _BASE}
    found["run.yaml"] = _run_settings()
    parts = _KUBERNETES / "components"
    for name, condition in (
        ("inference/inference", f"gt {_INFERENCE} 0"),
        ("hpa/hpa", ".Values.autoscaling.enabled"),
        ("podmonitor/podmonitor", ".Values.podMonitor.enabled"),
        ("cert-manager/certificates", ".Values.certManager.enabled"),
    ):
        assert (parts / f"{name}.yaml").exists()
        found[f"{name.split('/')[1]}.yaml"] = _template(f"components/{name}.yaml", condition)
    found["page.yaml"] = _wrapped(found["page.yaml"], ".Values.page.enabled")
    found["prometheusrule.yaml"] = _HEADER + _wrapped(_RULES, ".Values.prometheusRule.enabled")
    found["dashboards.yaml"] = _HEADER + _wrapped(_DASHBOARDS, ".Values.dashboards.enabled")
    return found


_RULES = """\
{{- $rule := .Files.Get "prometheusrule.yaml" | fromYaml }}
{{- with .Values.prometheusRule.labels }}
{{- $_ := set $rule.metadata "labels" . }}
{{- end }}
{{ toYaml $rule }}
"""

_DASHBOARDS = """\
{{- range $path, $_ := .Files.Glob "dashboards/*.json" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: tidemill-{{ trimSuffix ".json" (base $path) }}
  labels:
    grafana_dashboard: "1"
data:
  {{ base $path }}: |
    {{- $.Files.Get $path | nindent 4 }}
{{- end }}
"""


def _run_settings() -> str:
    """Return the template of the variables that all pods have, and of the user's own files."""
    kustomization = yaml.safe_load((_KUBERNETES / "base/kustomization.yaml").read_text(encoding="utf-8"))
    (generator,) = kustomization["configMapGenerator"]
    marks = _Marks()
    values = {
        "TIDEMILL_CONFIG": ".Values.run.config",
        "ACTORS": "int .Values.actor.replicas",
        "REPLAY_SHARDS": "int .Values.replay.shards",
        "LEARNER_NODES": "int .Values.learner.nodes",
        "LEARNERS_PER_NODE": f"max 1 {_GPUS}",
    }
    names = [literal.partition("=")[0] for literal in generator["literals"]]
    data = {name: marks.value(f"{values[name]} | quote") for name in names}
    run = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _labelled(generator["name"]), "data": data}
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _labelled("tidemill-own")}
    own["data"] = marks.block(".Values.run.own")
    return _HEADER + marks.fill(_dump([run])) + _wrapped(f"---\n{marks.fill(_dump([own]))}", ".Values.run.own")


def _labelled(name: str) -> Object:
    return {"labels": dict(_LABEL), "name": name}


def _template(file: str, condition: str = "", *, label: bool = False) -> str:
    """Return a file of manifests as a template."""
    documents = [item for item in yaml.safe_load_all((_KUBERNETES / file).read_text(encoding="utf-8")) if item]
    marks = _Marks()
    for item in documents:
        if label:
            _add_label(item)
        _edit_metadata(item["kind"], item["metadata"], marks)
        if edit := _EDITS.get((item["kind"], item["metadata"]["name"])):
            edit(item.get("spec", item), marks)
        if "template" in item.get("spec", {}):
            _edit_pod(item, marks)
    policies = [item for item in documents if item["kind"] == "NetworkPolicy"]
    others = [item for item in documents if item not in policies]
    text = _HEADER + (marks.fill(_dump(others)) if others else "")
    if policies:
        text += _wrapped(f"---\n{marks.fill(_dump(policies))}", ".Values.networkPolicies.enabled")
    return _wrapped(text, condition) if condition else text


def _dump(documents: list[Object]) -> str:
    return str(yaml.safe_dump_all(documents, sort_keys=False, width=1_000))


def _wrapped(text: str, condition: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _add_label(item: Object) -> None:
    """Add the name of the application where kustomize adds it: to objects, to pods, and to what selects them."""
    item["metadata"].setdefault("labels", {}).update(_LABEL)
    spec = item.get("spec", {})
    if item["kind"] == "Service":
        spec["selector"].update(_LABEL)
    elif "selector" in spec and item["kind"] != "PersistentVolumeClaim":
        spec["selector"].setdefault("matchLabels", {}).update(_LABEL)
    if "template" in spec:
        spec["template"]["metadata"]["labels"].update(_LABEL)
    for claim in spec.get("volumeClaimTemplates", []):
        claim["metadata"].setdefault("labels", {}).update(_LABEL)
    for selector in _pod_selectors(spec):
        selector["matchLabels"].update(_LABEL)


def _pod_selectors(node: Any) -> Iterator[Object]:  # noqa: ANN401 - any part of a manifest
    """Yield what selects pods by labels in network policies, and in rules that place pods."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        if key in ("podSelector", "labelSelector") and "matchLabels" in child:
            yield child
        else:
            yield from _pod_selectors(child)


def _edit_pod(item: Object, marks: _Marks) -> None:
    """Put values in place of a pod's images and of where it may run; have it restarted when its settings change."""
    template = item["spec"]["template"]
    pod, name = template["spec"], template["spec"]["containers"][0]["name"]
    if item["kind"] != "Job":  # whose pods cannot be changed
        include = marks.value('include (print $.Template.BasePath "/run.yaml") . | sha256sum')
        template["metadata"]["annotations"] = {"checksum/run": include}
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        image = container["image"].removeprefix("tidemill-")
        assert image in _PULLED, image
        gpus = {"learner": f"gt {_GPUS} 0", "inference": ".Values.inference.gpu"}.get(image)
        suffix = marks.value(f'ternary "-cuda" "" ({gpus})') if gpus else ""
        registry = marks.value("with .Values.image.registry }}{{ . }}/{{ end")
        container["image"] = f"{registry}tidemill-{image}:{marks.value('.Values.image.tag')}{suffix}"
        _add(container, "imagePullPolicy", marks, ".Values.image.pullPolicy", marks.value("."))
        if "env" in container:
            container["env"] += [
                marks.line("with .Values.env"),
                marks.line("toYaml . | nindent INDENT"),
                marks.line("end"),
            ]
        else:
            _add(container, "env", marks, ".Values.env", marks.block("."))
    values = f".Values.{name}"
    tolerations = f"{values}.tolerations"
    if name in ("learner", "inference"):
        has_gpus = f"(gt {_GPUS} 0)" if name == "learner" else ".Values.inference.gpu"
        tolerations = f"(concat (ternary .Values.gpuTolerations (list) {has_gpus}) {tolerations})"
    _add(pod, "tolerations", marks, tolerations, marks.block("."))
    _add(pod, "nodeSelector", marks, f"{values}.nodeSelector", marks.block("."))
    if name not in ("learner", "inference"):
        pod["containers"][0]["resources"] = marks.block(f"{values}.resources")


def _add(node: Object, key: str, marks: _Marks, expression: str, value: object) -> None:
    """Add a key for when an expression has a value, which is `.` in the key's."""
    node[marks.line(f"with {expression}")] = None
    node[key] = value
    node[marks.line("end")] = None


def _edit_metadata(kind: str, metadata: Object, marks: _Marks) -> None:
    """Have Helm keep a claim when it uninstalls; give a monitor the labels that a Prometheus selects by."""
    if kind == "PersistentVolumeClaim":
        metadata["annotations"] = {"helm.sh/resource-policy": "keep"}
    if kind == "PodMonitor":
        _add(metadata, "labels", marks, ".Values.podMonitor.labels", marks.block("."))


def _edit_claim(claim: Object, marks: _Marks, values: str) -> None:
    claim["resources"]["requests"]["storage"] = marks.value(f"{values}.size")
    claim["accessModes"] = marks.block(f"{values}.accessModes")
    _add(claim, "storageClassName", marks, f"{values}.className", marks.value("."))


def _edit_account(account: Object, marks: _Marks) -> None:
    names = [marks.line("range ."), {"name": marks.value(".")}, marks.line("end")]
    _add(account, "imagePullSecrets", marks, ".Values.image.pullSecrets", names)


def _edit_runs(spec: Object, marks: _Marks) -> None:
    _edit_claim(spec, marks, ".Values.runs")


def _edit_replay(spec: Object, marks: _Marks) -> None:
    spec["replicas"] = marks.value("int .Values.replay.shards")
    _edit_claim(spec["volumeClaimTemplates"][0]["spec"], marks, ".Values.replay.storage")


def _edit_learner(spec: Object, marks: _Marks) -> None:
    spec["completions"] = spec["parallelism"] = marks.value("int .Values.learner.nodes")
    _add_inference(spec["template"]["spec"]["initContainers"][0], marks)
    container = spec["template"]["spec"]["containers"][0]
    container["args"] += [marks.line(f"if gt {_GPUS} 0"), "--learner.device=cuda", marks.line("end")]
    container["ports"] += [
        marks.line(f"range $place := untilStep 1 (int {_LEARNERS}) 1"),
        {"name": f"metrics-{marks.value('$place')}", "containerPort": marks.value("add 9400 $place")},
        marks.line("end"),
    ]
    memory = f"{marks.value(f'mul .Values.learner.memoryGi {_LEARNERS}')}Gi"
    cpu = marks.value(f"mul .Values.learner.cpu {_LEARNERS} | quote")
    gpus = {marks.line(f"if gt {_GPUS} 0"): None, "nvidia.com/gpu": marks.value("int .Values.learner.gpus | quote")}
    container["resources"] = {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"memory": memory, **gpus, marks.line("end"): None},
    }


def _edit_learner_runs(spec: Object, marks: _Marks) -> None:
    _edit_claim(spec, marks, ".Values.learner.storage")


def _edit_evaluator(spec: Object, marks: _Marks) -> None:
    _add_inference(spec["template"]["spec"]["initContainers"][0], marks)


def _add_inference(container: Object, marks: _Marks) -> None:
    """Add the addresses of the inference services to the arguments of a container."""
    container["args"] += [
        marks.line(f"if gt {_INFERENCE} 0"),
        "--cluster.inference",
        marks.line(f"range $number := until {_INFERENCE}"),
        f"inference-{marks.value('$number')}.inference:7406",
        marks.line("end"),
        marks.line("end"),
    ]


def _edit_actor(spec: Object, marks: _Marks) -> None:
    del spec["replicas"]
    spec[marks.line("if not .Values.autoscaling.enabled")] = None
    spec["replicas"] = marks.value("int .Values.actor.replicas")
    spec[marks.line("end")] = None
    _add_inference(spec["template"]["spec"]["containers"][0], marks)


def _edit_inference(spec: Object, marks: _Marks) -> None:
    spec["replicas"] = marks.value(f"int {_INFERENCE}")
    container = spec["template"]["spec"]["containers"][0]
    container["args"] += [marks.line("if .Values.inference.gpu"), "--inference.device=cuda", marks.line("end")]
    container["resources"] = {
        "requests": marks.block(".Values.inference.resources.requests"),
        "limits": {
            marks.line("if .Values.inference.gpu"): None,
            "nvidia.com/gpu": "1",
            marks.line("end"): None,
            marks.line("toYaml .Values.inference.resources.limits | nindent INDENT"): None,
        },
    }


def _edit_autoscaler(spec: Object, marks: _Marks) -> None:
    spec["minReplicas"] = marks.value("int .Values.actor.replicas")
    spec["maxReplicas"] = marks.value("int .Values.autoscaling.maxReplicas")
    (metric,) = spec["metrics"]
    run = '.Values.autoscaling.run | default (base .Values.run.config | trimSuffix ".yaml") | quote'
    metric["external"]["metric"]["selector"]["matchLabels"]["run"] = marks.value(run)


def _edit_page(spec: Object, marks: _Marks) -> None:
    args = spec["template"]["spec"]["containers"][0]["args"]
    assert args[-6] == "--launcher.endpoints", args
    args += [marks.line(f"if gt {_INFERENCE} 0"), "inference:9400", marks.line("end")]


def _edit_egress(spec: Object, marks: _Marks) -> None:
    spec["egress"] += [
        marks.line("with .Values.networkPolicies.egress"),
        marks.line("toYaml . | nindent INDENT"),
        marks.line("end"),
    ]


_EDITS: dict[tuple[str, str], Callable[[Object, _Marks], None]] = {
    ("ServiceAccount", "tidemill"): _edit_account,
    ("PersistentVolumeClaim", "runs"): _edit_runs,
    ("PersistentVolumeClaim", "learner-runs"): _edit_learner_runs,
    ("StatefulSet", "replay"): _edit_replay,
    ("Job", "learner"): _edit_learner,
    ("Job", "evaluator"): _edit_evaluator,
    ("StatefulSet", "actor"): _edit_actor,
    ("StatefulSet", "inference"): _edit_inference,
    ("Deployment", "page"): _edit_page,
    ("HorizontalPodAutoscaler", "actor"): _edit_autoscaler,
    ("NetworkPolicy", "names"): _edit_egress,
}
"""What a kind of object has besides, by kind and name."""


_TYPES = {bool: "boolean", int: "integer", str: "string"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_TOLERATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "key": {"type": "string"},
        "operator": {"enum": ["Exists", "Equal"]},
        "value": {"type": "string"},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        "tolerationSeconds": {"type": "integer"},
    },
}
_EGRESS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: {"type": "array", "items": {"type": "object"}} for name in ("to", "ports")},
}
_KNOWN: dict[str, dict[str, Any]] = {
    **{name: {"type": "integer", "minimum": 1} for name in ("shards", "nodes", "cpu", "memoryGi", "maxReplicas")},
    "replicas": {"type": "integer", "minimum": 0},
    "gpus": {"type": "integer", "minimum": 0, "maximum": 16},  # whose metrics ports policy and monitor name
    **{name: {"type": "string", "minLength": 1} for name in ("config", "tag")},
    **{name: {"type": "array", "items": _TOLERATION} for name in ("tolerations", "gpuTolerations")},
    **{name: _TEXTS for name in ("own", "nodeSelector", "labels")},
    **{name: _AMOUNTS for name in ("requests", "limits")},
    "size": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([EPTGMK]i|[EPTGMk])?$"},
    "accessModes": {
        "type": "array",
        "minItems": 1,
        "items": {"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]},
    },
    "pullSecrets": {"type": "array", "items": {"type": "string"}},
    "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
    "env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "egress": {"type": "array", "items": _EGRESS},
}
"""What the values of a name must be, so that Kubernetes neither refuses nor misreads them."""


def schema() -> dict[str, Any]:
    """Return the schema of the values: those of values.yaml and no others, each of the kind of its default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    described = _described(values)
    described["properties"]["global"] = {"type": "object"}  # Helm's own
    return {"$schema": "http://json-schema.org/draft-07/schema#", **described}


def _described(value: Any, name: str = "") -> dict[str, Any]:  # noqa: ANN401 - any value
    if name in _KNOWN:
        return _KNOWN[name]
    if not isinstance(value, dict):
        return {"type": _TYPES[type(value)]}
    properties = {key: _described(child, key) for key, child in value.items()}
    if name == "resources":
        properties |= {key: _AMOUNTS for key in ("requests", "limits")}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def generated() -> dict[Path, str]:
    """Return the text of each generated file."""
    texts = {_TEMPLATES / name: text for name, text in templates().items()}
    return texts | {CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n"}


def main() -> int:
    """Write the files, or with `--check` compare them; return the exit code."""
    wanted = generated()
    paths = {path for path in _TEMPLATES.iterdir() if path.name not in _BY_HAND} | wanted.keys()
    there = {path: path.read_text(encoding="utf-8") if path.exists() else None for path in paths}
    differ = sorted(path for path in paths if wanted.get(path) != there[path])
    if "--check" in sys.argv[1:] and differ:
        names = ", ".join(str(path.relative_to(CHART)) for path in differ)
        print(f"not what deploy/kubernetes and values.yaml say: {names}; python -m scripts.helm_chart", file=sys.stderr)
        return 1
    for path in differ:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
