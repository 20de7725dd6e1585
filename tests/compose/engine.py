"""A Docker engine for the tests: the one that is running, or one that is started here and stopped again."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import crowd

_START_S = 60.0
_STOP_S = 120.0
_POLL_S = 0.2
_USUAL_HOST = "unix:///var/run/docker.sock"


class NoEngine(Exception):
    """There is no engine and none can be started; the message says why."""


class Engine:
    """Commands to a running engine."""

    def __init__(self, environment: Mapping[str, str], daemon: Daemon | None = None) -> None:
        """Talk to the engine that an environment's DOCKER_HOST names.

        Args:
            environment: Of every command.
            daemon: The engine's process, if the tests have started it.
        """
        self.environment = dict(environment)
        self.daemon = daemon

    def run(self, *command: str, bound_s: float = 120.0, variables: Mapping[str, str] | None = None) -> str:
        """Run a command; return what it printed. On a busy machine it may take longer than the bound (`crowd`).

        Raises:
            AssertionError: it failed; the message holds all it said.
        """
        environment = self.environment | dict(variables or {})
        ended = subprocess.run(
            command, env=environment, timeout=bound_s * crowd(), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def pipe(self, *command: str, data: bytes = b"", variables: Mapping[str, str] | None = None) -> bytes:
        """Run a command with bytes on its standard input; return the bytes of its standard output."""
        environment = self.environment | dict(variables or {})
        ended = subprocess.run(
            command, env=environment, timeout=120.0 * crowd(), input=data, capture_output=True, check=False
        )
        assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}\n{ended.stderr.decode()}"
        return ended.stdout

    def docker(self, *arguments: str, bound_s: float = 120.0) -> str:
        """Run `docker ARGUMENTS`; return what it printed."""
        return self.run("docker", *arguments, bound_s=bound_s)

    def ask(self, path: str, **filters: list[str]) -> Any:  # noqa: ANN401 - JSON
        """Return the answer of the engine's API; starting a `docker` for each question costs more than the answer.

        Args:
            path: Of a GET, such as `/containers/json?all=1`.
            filters: What the answer is about, where the API takes filters.
        """
        where = path + (f"&filters={urllib.parse.quote(json.dumps(filters))}" if filters else "")
        host = self.environment.get("DOCKER_HOST", _USUAL_HOST)
        with closing(_EngineConnection(host.removeprefix("unix://"))) as connection:
            connection.request("GET", where)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == http.HTTPStatus.OK, f"{path}: {text.decode()}"
            return json.loads(text)

    def succeeds(self, *command: str, bound_s: float = 120.0) -> bool:
        """True if a command succeeds."""
        try:
            self.run(*command, bound_s=bound_s)
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True


class _EngineConnection(http.client.HTTPConnection):
    """HTTP over the engine's Unix socket."""

    def __init__(self, path: str) -> None:
        """Connect with the first request."""
        super().__init__("docker", timeout=60.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Yield an engine.

    Raises:
        NoEngine: none runs, and none can be started.
    """
    environment = _environment()
    if not shutil.which("docker", path=environment["PATH"]):
        raise NoEngine("there is no docker command")
    engine = Engine(environment)
    if engine.succeeds("docker", "info"):
        yield engine
        return
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise NoEngine("no Docker engine answers, and none can be started: that takes root and dockerd")
    scratch = tempfile.TemporaryDirectory(prefix="tidemill-engine-", dir="/var/tmp", ignore_cleanup_errors=True)
    with scratch as folder:
        _remove_stale_rules(engine)
        daemon = Daemon(Path(folder), environment)
        try:
            yield daemon.engine
        finally:
            daemon.stop()


def _remove_stale_rules(engine: Engine) -> None:
    """Remove the address translation that an engine which was killed has left for networks that are gone.

    Another engine gives their addresses out again, and packets within its own network would be translated, too: no
    container reaches another, and their ports time out.
    """
    if not engine.succeeds("iptables", "-t", "nat", "-S", "POSTROUTING"):
        return
    for rule in stale_rules(engine.run("iptables", "-t", "nat", "-S", "POSTROUTING"), Path("/sys/class/net")):
        engine.succeeds("iptables", "-t", "nat", "-D", *rule.split()[1:])


def stale_rules(rules: str, interfaces: Path) -> list[str]:
    """Return the lines of `iptables -S` that translate what leaves a bridge of Docker's that is not an interface."""
    found = re.finditer(r"^-A POSTROUTING -s \S+ ! -o (br-[0-9a-f]+) -j MASQUERADE$", rules, re.MULTILINE)
    return [rule[0] for rule in found if not (interfaces / rule[1]).exists()]


def _environment() -> dict[str, str]:
    # Debian's client has BuildKit built in; a newer one elsewhere on the path would want a plugin for it.
    path = f"/usr/bin:{os.environ['PATH']}" if Path("/usr/bin/docker").exists() else os.environ["PATH"]
    return os.environ | {"PATH": path, "DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}


class Daemon:
    """A `dockerd` of the tests' own, with all that it keeps in one folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            NoEngine: It does not come up.
        """
        self._host = f"unix://{folder}/docker.sock"
        # it ends with the tests, with its containers, even if they are killed
        self._command = ["setpriv", "--pdeathsig", "TERM", "dockerd"]
        self._command += ["--host", self._host, "--data-root", f"{folder}/data"]
        self._command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/docker.pid"]
        self._log, self._environment = folder / "dockerd.log", dict(environment)
        self.engine = Engine(self._environment | {"DOCKER_HOST": self._host}, self)
        self._process = self._start()

    def restart(self) -> None:
        """End it as a reboot or an upgrade does, and start it again."""
        self.stop()
        self._process = self._start()

    def stop(self) -> None:
        """End it; it ends its containers first."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_S)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as output:
            process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
        deadline_s = time.monotonic() + _START_S * crowd()
        while not self.engine.succeeds("docker", "info"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                last: Sequence[str] = self._log.read_text().splitlines()[-5:]
                raise NoEngine("dockerd does not start: " + " / ".join(last))
            threading.Event().wait(_POLL_S)
        return process
