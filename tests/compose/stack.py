"""The shipped cluster in an engine: compose commands, container states, and questions to its Prometheus."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.compose.engine import Engine, NoEngine
from tests.support.free_ports import free_port
from tests.support.waiting import crowd, wait_until

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 180.0
ALERT_BOUND_S = 400.0
"""Here alerts wait a tenth as long as the shipped ones before they fire, which is up to twenty seconds."""

SERVICES = ("replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator", "tensorboard", "prometheus", "page")
"""The services that are started: all except Grafana, whose image only a registry has."""

OURS = SERVICES[:6]
"""Those that are Tidemill's own."""

_POLL_S, _ANSWER_S = 0.5, 10.0
_PATIENCE = re.compile(r"^( +for: )(\d+)m$", re.MULTILINE)
_INTERVALS = re.compile(r"^( +(?:scrape|evaluation)_(?:interval|timeout):).*$", re.MULTILINE)
_SHORTER = {"[1m]": "[15s]", "[15m:5s]": "[15m:3s]", "_stalled_seconds > 120": "_stalled_seconds > 20"}
_HEALTH = re.compile(r"\((?:health: )?(healthy|unhealthy|starting)\)")
_WAITED_FOR = ("replay-0", "replay-1", "paramserver")
"""Services that must be healthy before others are started."""


class Stack:
    """One cluster of docker-compose.yml under a separate project name."""

    def __init__(self, engine: Engine, settings: dict[str, str]) -> None:
        """Prepare; nothing is started.

        Args:
            engine: Where it runs.
            settings: Variables of .env.example beside those that every test stack has.

        Raises:
            NoEngine: There is no Compose.
        """
        self.engine = engine
        self.project = f"tidemill-test-{os.getpid()}"
        self.version = self.project
        self._prometheus_port, tensorboard_port, page_port = (free_port() for _ in range(3))
        self._variables = settings | {
            "COMPOSE_PROJECT_NAME": self.project,
            "TIDEMILL_VERSION": self.version,
            "TIDEMILL_CONFIG_FOLDER": str(Path(__file__).parent / "configs"),
            "TIDEMILL_CONFIG": "configs/short.yaml",
            "TIDEMILL_REQUIREMENTS": "tests/compose/configs/own-requirements.txt",
            "TIDEMILL_PROMETHEUS_PORT": str(self._prometheus_port),
            "TIDEMILL_TENSORBOARD_PORT": str(tensorboard_port),
            "TIDEMILL_PAGE_PORT": str(page_port),
        }
        has_v1 = shutil.which("docker-compose", path=engine.environment["PATH"])
        if not has_v1 and not engine.succeeds("docker", "compose", "version"):
            raise NoEngine("there is neither docker-compose nor the compose plugin of docker")
        compose = ("docker-compose",) if has_v1 else ("docker", "compose")
        self._folder = tempfile.TemporaryDirectory(prefix="tidemill-stack-")
        self._compose = (*compose, "-f", str(ROOT / "docker-compose.yml"), "-f", str(self._with_less_patience()))

    def add_file(self, name: str) -> None:
        """Put another compose file of the repository on top, for the commands to come."""
        self._compose += ("-f", str(ROOT / name))

    def _with_less_patience(self) -> Path:
        """Write a compose file that asks services less often how they are, and gives Prometheus quicker rules.

        Each question is a process or two, and the other tests want the machine, too. Those for which others wait are
        asked every eight seconds, the rest as often as the shipped files say of most, every fifteen.

        These are the shipped rules with a tenth of their `for`, evaluated every three seconds; windows of a minute are
        a quarter as long, and a learner has stalled after a sixth of the time. The shipped durations are tested with
        promtool, in no time. Return the file's path.
        """
        folder, file = Path(self._folder.name) / "prometheus", Path(self._folder.name) / "compose.yml"
        shutil.copytree(ROOT / "deploy" / "prometheus", folder)
        for rules in folder.glob("rules/*.yml"):
            text = _PATIENCE.sub(lambda found: f"{found[1]}{6 * int(found[2])}s", rules.read_text())
            for shipped, shorter in _SHORTER.items():
                text = text.replace(shipped, shorter)
            rules.write_text(text)
        scraped = folder / "prometheus.yml"
        scraped.write_text(_INTERVALS.sub(r"\1 3s", scraped.read_text()))
        folder.parent.chmod(0o755)  # Prometheus runs as another user
        services: dict[str, Any] = {
            service: {"healthcheck": {"interval": "8s" if service in _WAITED_FOR else "15s"}} for service in SERVICES
        }
        services["prometheus"]["volumes"] = [f"{folder}:/etc/prometheus:ro"]
        file.write_text(json.dumps({"services": services}))
        return file

    def configure(self, **variables: str) -> None:
        """Set variables of .env.example for the commands to come."""
        self._variables |= variables

    def reset(self, variables: dict[str, str]) -> None:
        """Set the variables back to what `variables` was."""
        self._variables = dict(variables)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of every compose command."""
        return dict(self._variables)

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Return a compose command on the shipped file."""
        return (*self._compose, *arguments)

    def compose(self, *arguments: str, bound_s: float = BOUND_S) -> str:
        """Run a compose command on the shipped file; return what it printed."""
        return self.engine.run(*self._compose, *arguments, bound_s=bound_s, variables=self._variables)

    def archive(self, service: str) -> bytes:
        """Return the content of a service's volume, by the command of the operations guide."""
        return self._tar(service, "-cf")

    def restore(self, service: str, archive: bytes) -> None:
        """Write an archive into a service's volume, by the command of the operations guide."""
        self._tar(service, "-xf", archive)

    def policy(self, run: str) -> bytes:
        """Return the tar archive of a run's best policy, by the command of the operations guide."""
        command = (
            "run",
            "--rm",
            "-T",
            "--no-deps",
            "--entrypoint",
            "tidemill",
            "evaluator",
            "export",
            f"/runs/{run}",
            "--out",
            "-",
        )
        return self.engine.pipe(*self._compose, *command, data=b"", variables=self._variables)

    def _tar(self, service: str, verb: str, data: bytes = b"") -> bytes:
        command = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "tar", service, "-C", "/runs", verb, "-"]
        command += ["."] if verb == "-cf" else []
        return self.engine.pipe(*self._compose, *command, data=data, variables=self._variables)

    def up(self, actors: int) -> None:
        """Start every service, or bring them to `actors` actors, which is also how many are expected."""
        self.configure(TIDEMILL_ACTORS=str(actors))
        self.compose("up", "-d", "--no-build", "--scale", f"actor={actors}", *SERVICES)

    def image(self, service: str) -> str:
        """Return the name of the image built for a service."""
        return f"tidemill-{service}:{self.version}"

    def remove(self) -> None:
        """Remove containers, networks, volumes and images of this stack."""
        now = ("--remove-orphans", "--timeout", "0")  # that services end well has its test
        if self.engine.daemon is not None:
            self.compose("down", *now)  # what else the engine has goes with it
        else:
            self.compose("down", "--volumes", *now)
            images = self.engine.docker("images", "--quiet", "--filter", f"reference=*:{self.version}").split()
            if images:
                self.engine.docker("rmi", "--force", *sorted(set(images)))
        self._folder.cleanup()

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """Return the engine's description of the containers of a service, or of all, stopped ones included.

        Those of `compose run` are not among them: they may be gone a moment later.
        """
        return [self._inspect(container["Id"]) for container in self._listed(service)]

    def _listed(self, service: str = "") -> list[dict[str, Any]]:
        """Return the engine's list of them, which says less of each and costs one question for all."""
        labels = {"project": self.project, "oneoff": "False"} | ({"service": service} if service else {})
        wanted = [f"com.docker.compose.{name}={value}" for name, value in labels.items()]
        listed: list[dict[str, Any]] = self.engine.ask("/containers/json?all=1", label=wanted)
        return listed

    def _inspect(self, name: str) -> dict[str, Any]:
        inspected: dict[str, Any] = self.engine.ask(f"/containers/{name}/json")
        return inspected

    def states(self) -> dict[str, str]:
        """Return the health of each container that is to stay, or its status if it has none, by name."""
        found = {}
        for container in self._listed():
            if container["Labels"]["com.docker.compose.service"] in ("certs", "check"):
                continue
            health = _HEALTH.search(container["Status"])
            found[container["Names"][0].strip("/")] = health[1] if health else container["State"]
        return found

    def crash(self, service: str, name: str = "") -> None:
        """Kill the process of a service's container as a fault would, not as an operator's `kill`.

        Args:
            service: The service.
            name: The container's name; the first one if not given.
        """
        name = name or self.containers(service)[0]["Name"].strip("/")
        killed: dict[str, Any] = {}

        def is_killed() -> bool:
            killed.update(self._inspect(name)["State"])
            if killed["Pid"]:  # 0 between two starts, which would be every process of this one's group
                os.kill(killed["Pid"], signal.SIGKILL)
            return bool(killed["Pid"])

        until(is_killed, f"{name} has a process to kill")

        def has_come_back() -> bool:
            state = self._inspect(name)["State"]
            return bool(state["StartedAt"] != killed["StartedAt"] and state["Status"] == "running")

        until(has_come_back, f"{name} is started again")

    def address(self, service: str) -> str:
        """Return the IP address of a service's first container on the network of the cluster."""
        networks = self.containers(service)[0]["NetworkSettings"]["Networks"]
        address: str = networks[f"{self.project}_cluster"]["IPAddress"]
        return address

    def operator(self, *arguments: str) -> str:
        """Run `tidemill ARGUMENTS` as an operator, by the command of the operations guide; return what it printed."""
        return self.compose("run", "--rm", "-T", "operator", *arguments)

    def inside(self, service: str, *command: str) -> str:
        """Run a command in a service's first container; return what it printed.

        Not by Compose, of which the older one takes a second of processor time before it asks the engine.
        """
        return self.engine.docker("exec", self.containers(service)[0]["Id"], *command)

    def logs(self, service: str) -> str:
        """Return the output of a service's first container."""
        return self.engine.run("sh", "-c", f"docker logs {self.containers(service)[0]['Id']} 2>&1")

    def once(self, service: str, entrypoint: str, *arguments: str) -> str:
        """Run a command in a new container, with a service's image and secrets; return its output."""
        return self.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", entrypoint, service, *arguments)

    def as_operator(self, code: str) -> str:
        """Run a program with the operator's token on the network of the cluster; return what it printed."""
        return self.compose("run", "--rm", "-T", "--entrypoint", "python", "operator", "-c", code)

    @contextmanager
    def reached_by_this_machine(self) -> Iterator[None]:
        """Give this machine an address on the network of the cluster, as engines do that do not know `inhibit_ipv4`."""
        network = self.engine.ask(f"/networks/{self.project}_cluster")
        (pool,) = network["IPAM"]["Config"]
        address = f"{pool['Gateway'].partition('/')[0]}/{pool['Subnet'].partition('/')[2]}"
        bridge = f"br-{network['Id'][:12]}"
        self.engine.run("ip", "address", "add", address, "dev", bridge)
        try:
            yield
        finally:
            self.engine.run("ip", "address", "del", address, "dev", bridge)

    @contextmanager
    def crash_loop(self, *names: str) -> Iterator[None]:
        """Let the processes of some containers die as soon as they are started, again and again."""
        ended = threading.Event()

        def crash() -> None:
            while not ended.wait(_POLL_S):
                for name in names:
                    if pid := self._inspect(name)["State"]["Pid"]:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=crash)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        # The engine waits twice as long before each start of what keeps dying, and may be in the midst of a minute.
        self.engine.docker("restart", "--time", "1", *names)

    @contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """Let every process of a service hang."""
        found = [self.engine.docker("top", c["Id"], "-o", "pid").split()[1:] for c in self.containers(service)]
        pids = [int(pid) for listed in found for pid in listed]

        def send(number: int) -> None:
            for pid in pids:
                with suppress(ProcessLookupError):  # a health check, which has ended
                    os.kill(pid, number)

        try:
            send(signal.SIGSTOP)
            yield
        finally:
            send(signal.SIGCONT)

    def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire, by their names and the jobs they are about."""
        labels = [alert["metric"] for alert in self.query('ALERTS{alertstate="firing"}')]
        return {(alert["alertname"], alert.get("job", "")) for alert in labels}

    def until_firing(self, *alerts: tuple[str, str]) -> None:
        """Wait until alerts fire, each by its name and its job."""

        def describe() -> str:
            return f"firing: {self.firing()}\n{self.describe()}"

        until(lambda: set(alerts) <= self.firing(), f"{alerts} fire", describe, ALERT_BOUND_S)

    def until_healthy(self) -> None:
        """Wait until every container says that it is healthy."""
        until(lambda: set(self.states().values()) == {"healthy"}, "all healthy", self.describe)

    def describe(self) -> str:
        """Return the state and the last lines of every container, for the message of a failed test."""
        return f"{self.states()}\n{self.compose('logs', '--tail', '8')}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples an instant query answers.

        Raises:
            AssertionError: the query is not valid.
        """
        answer = self._ask("query", query=expression)
        assert answer["status"] == "success", answer
        result = answer["data"]["result"]
        samples: list[dict[str, Any]] = result if answer["data"]["resultType"] == "vector" else [{"value": result}]
        return samples

    def value(self, expression: str) -> float:
        """Return the one number a query answers, once there is one: a busy process may miss a scrape."""
        return self.until_above(expression, -math.inf)

    def numbers(self, expression: str) -> list[float]:
        """Return the numbers a query answers, without those that are none, such as a quantile of nothing."""
        values = [float(sample["value"][1]) for sample in self.query(expression)]
        return [value for value in values if not math.isnan(value)]

    def until_above(self, expression: str, value: float) -> float:
        """Wait until a query answers more than a number; return what it answers."""
        answers: list[float] = []

        def is_above() -> bool:
            answers[:] = self.numbers(expression)
            return bool(answers) and answers[0] > value

        until(is_above, f"{expression} > {value}", self.describe)
        return answers[0]

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return the rule groups Prometheus has loaded, with the outcome of their last evaluation."""
        groups: list[dict[str, Any]] = self._ask("rules")["data"]["groups"]
        return groups

    def targets(self, job: str) -> int:
        """Return how many targets of a job answer Prometheus."""
        found = self._ask("targets", state="active")["data"]["activeTargets"]
        return sum(1 for target in found if target["labels"]["job"] == job and target["health"] == "up")

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self._prometheus_port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=_ANSWER_S * crowd()) as answer:
                document: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:  # a query that is not valid is explained in the body
            document = json.load(error)
        return document


def until(is_true: Callable[[], bool], what: str, describe: Callable[[], str] = str, bound_s: float = 0.0) -> None:
    """Wait until something outside of this process holds; there is no event to wait on."""
    wait_until(is_true, what, bound_s or min(crowd(), 2.0) * BOUND_S, longest_pause_s=_POLL_S, describe=describe)
