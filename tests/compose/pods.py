"""Pods of the manifests as processes of this machine, each in a separate network with the names that services have.

What a pod's container would run is run with the same words and variables; its volumes are folders. There is no image,
no separate user, no limit of memory and no controller that restarts anything.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.compose.manifests import Object, of_kind, told_values
from tests.compose.shipped import ROOT
from tests.support.waiting import crowd

_NETWORK = "10.88.0"
_SCRIPTS = Path(sys.executable).parent
_MOUNTED = re.compile(r"(?<![\w/.])/(runs|certs|own|tmp|app/configs)(?=[/:]|$)")
_STARTING = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
_PROBES = """
import http.client, json, sys
for address, port, path, headers in json.load(sys.stdin):
    connection = http.client.HTTPConnection(address, port, timeout=5)
    connection.request("GET", path, headers=headers)
    if connection.getresponse().status != 200:
        sys.exit(1)
"""


def why_not() -> str:
    """Return why pods cannot be had here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may give processes networks"
    missing = [name for name in ("ip", "unshare", "hostname", "mount") if not shutil.which(name)]
    if missing:
        return f"there is no {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


@dataclass
class Pod:
    """One pod: its first container, and the ones that come before."""

    name: str
    spec: Object
    place: int
    folder: Path
    network: str
    values: dict[str, str]
    mounts: dict[str, Path] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its address in the network of all pods."""
        return f"{_NETWORK}.{self.place}"

    @property
    def log(self) -> str:
        """What its containers have printed."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("*.log")))

    def prepare(self) -> int:
        """Run the init containers to their end; return the exit code of the first that failed, or else 0."""
        ended = (
            self._popen(container).wait(timeout=300 * crowd()) for container in self.spec.get("initContainers", [])
        )
        return next((code for code in ended if code), 0)

    def start(self) -> None:
        """Start the container, after those that come before."""
        assert self.prepare() == 0, self.log
        self.process = self._popen(self.spec["containers"][0])

    def execute(self, *command: str) -> bytes:
        """Run a command in the pod as `kubectl exec` does; return what it printed."""
        container = self.spec["containers"][0]
        words = [self._local(word) for word in command]
        done = subprocess.run(
            [*self._before(), str(_SCRIPTS / words[0]), *words[1:]],
            env=self._environment(container), cwd=self.folder, capture_output=True, check=False, timeout=300 * crowd(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def readiness_probe(self) -> tuple[str, int, str, dict[str, str]]:
        """Return the address, port, path and headers that its readiness probe asks for."""
        container = self.spec["containers"][0]
        probe = container["readinessProbe"]["httpGet"]
        (port,) = (port["containerPort"] for port in container["ports"] if port["name"] == probe["port"])
        headers = {header["name"]: header["value"] for header in probe.get("httpHeaders", [])}
        return self.address, port, probe["path"], headers

    def end(self) -> int:
        """Ask it to end; return the exit code, of one that has ended before as well."""
        assert self.process
        self.process.terminate()
        return self.process.wait(timeout=self.spec["terminationGracePeriodSeconds"] * 3)

    def _popen(self, container: Object) -> subprocess.Popen[bytes]:
        words = [*self._command(container), *container["args"]]
        told = [re.sub(r"\$\((\w+)\)", lambda match: self.values.get(match[1], "0"), word) for word in words]
        program, *arguments = told  # of this checkout, which may lie below /tmp
        with (self.folder / f"{container['name']}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._before(), program, *(self._local(word) for word in arguments)],
                env=self._environment(container), cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip

    def _before(self) -> list[str]:
        inside = ["ip", "netns", "exec", self.network, "unshare", "--mount", "--uts"]
        return [*inside, "sh", "-c", _STARTING, "sh", str(self.folder.parent / "hosts"), self.name]

    def _command(self, container: Object) -> list[str]:
        """Return the command of a container, or the entry point of its image."""
        words = container.get("command") or ["python", "-m", f"tidemill.services.{container['name']}"]
        return [str(_SCRIPTS / words[0]), *words[1:]]

    def _environment(self, container: Object) -> dict[str, str]:
        set_here = {each["name"]: self._local(each["value"]) for each in container.get("env", []) if "value" in each}
        path = os.pathsep.join([set_here.pop("PYTHONPATH", ""), str(ROOT)]).lstrip(os.pathsep)
        return os.environ | self.values | set_here | {"PYTHONPATH": path, "TMPDIR": str(self.mounts["tmp"])}

    def _local(self, word: str) -> str:
        return _MOUNTED.sub(lambda match: str(self.mounts[match[1]]), word)


@dataclass(frozen=True)
class Pods:
    """The pods of a run, in a network where they find each other."""

    hub: str
    pods: dict[str, Pod]

    def start(self) -> None:
        """Start all at the same time, as nothing in Kubernetes orders them."""
        with ThreadPoolExecutor(len(self.pods)) as threads:
            list(threads.map(Pod.start, self.pods.values()))  # raises what a start has raised

    def ready(self) -> bool:
        """True if every pod that has not ended answers its readiness probe, asked from another place as a kubelet's is.

        One process asks them all: one for each would take the processor from the pods while they start.
        """
        running = [pod for pod in self.pods.values() if pod.process and pod.process.poll() is None]
        probes = json.dumps([pod.readiness_probe() for pod in running]).encode()
        words = ["ip", "netns", "exec", self.hub, sys.executable, "-IS", "-c", _PROBES]
        return subprocess.run(words, input=probes, capture_output=True, check=False).returncode == 0

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]


@contextmanager
def pods_of(found: Sequence[Object], folder: Path) -> Iterator[Pods]:
    """Give the pods of some manifests, which are not started, networks and volumes; kill what is left at the end."""
    hub = f"hub-{os.getpid()}"
    made: dict[str, Pod] = {}
    with ExitStack() as stack:
        _namespace(hub, stack)
        _ip("-n", hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{_NETWORK}.1/24", "dev", "br0")
        _ip("-n", hub, "link", "set", "br0", "up")
        for name, number, item in _planned(found):
            pod = _pod(found, name, number, item, len(made) + 2, folder)
            made[name] = pod
            _namespace(pod.network, stack)
            wire = f"pod{pod.place}"
            _ip("-n", hub, "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", pod.network)
            _ip("-n", hub, "link", "set", wire, "master", "br0", "up")
            _ip("-n", pod.network, "addr", "add", f"{pod.address}/24", "dev", "eth0")
            _ip("-n", pod.network, "link", "set", "eth0", "up")
            stack.callback(_kill, pod)
        (folder / "hosts").write_text("".join(_hosts(made)))
        yield Pods(hub, made)


def _planned(found: Sequence[Object]) -> Iterator[tuple[str, int, Object]]:
    for item in found:
        if "template" in item.get("spec", {}):
            name = item["metadata"]["name"]
            numbered = item["kind"] == "StatefulSet" or item["spec"].get("completionMode") == "Indexed"
            for number in range(item["spec"].get("replicas") or item["spec"].get("completions") or 1):
                yield (f"{name}-{number}" if numbered else name), number, item


def _pod(found: Sequence[Object], name: str, number: int, item: Object, place: int, folder: Path) -> Pod:
    spec, own = item["spec"]["template"]["spec"], folder / name
    own.mkdir()
    numbers = {"SHARD": str(number), "INDEX": str(number), "JOB_COMPLETION_INDEX": str(number)}
    pod = Pod(name, spec, place, own, f"pod-{os.getpid()}-{place}", told_values(found) | numbers)
    for volume in spec["volumes"]:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        path = folder / "claims" / claim if claim else own / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        pod.mounts[volume["name"]] = path
        _fill(path, volume, found)
    for claim in item["spec"].get("volumeClaimTemplates", []):
        pod.mounts[claim["metadata"]["name"]] = folder / "claims" / f"{claim['metadata']['name']}-{name}"
        pod.mounts[claim["metadata"]["name"]].mkdir(parents=True)
    pod.mounts["app/configs"] = ROOT / "configs"
    return pod


def _fill(path: Path, volume: Object, found: Sequence[Object]) -> None:
    """Write what a volume has from ConfigMaps and Secrets."""
    if config_map := volume.get("configMap"):
        for item in found:
            if item["kind"] == "ConfigMap" and item["metadata"]["name"] == config_map["name"]:
                for name, text in item["data"].items():
                    (path / name).write_text(text)
    for source in volume.get("projected", {}).get("sources", []):
        data = of_kind(found, "Secret", source["secret"]["name"])["data"]
        for entry in source["secret"]["items"]:
            (path / entry["path"]).write_bytes(base64.b64decode(data[entry["key"]]))
            (path / entry["path"]).chmod(0o440)


def _hosts(made: dict[str, Pod]) -> Iterator[str]:
    """Yield what DNS has: the name of a service for each of its pods, and those of pods that have names."""
    yield "127.0.0.1 localhost\n"
    for name, pod in made.items():
        service = pod.spec["containers"][0]["name"]
        names = f"{name}.{service} {name} {service}" if name != service else name
        yield f"{pod.address} {names}\n"


def _namespace(name: str, stack: ExitStack) -> None:
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "del", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _kill(pod: Pod) -> None:
    if pod.process and pod.process.poll() is None:
        pod.process.kill()
        pod.process.wait()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
