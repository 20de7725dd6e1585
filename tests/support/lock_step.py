"""A run in lock-step as processes that a test starts, kills and starts again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.forked_service import fork_service
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.params.blob import unpack
from tidemill.params.digest import params_digest
from tidemill.params.stored import read_params
from tidemill.programs.fork_client import ForkClient, ForkedPopen
from tidemill.programs.fork_server import Order
from tidemill.services.launcher.run.paths import make_socket_folder, remove_socket_folder

ACTORS = 2


class LockStepCluster:
    """Replay service, parameter server, learner and two actors."""

    def __init__(
        self, folder: Path, sockets: Path, settings: Mapping[str, Any], seed: int, server: ForkClient | None
    ) -> None:
        """Write the run's settings; nothing is started."""
        self._server, self._folder, self._sockets = server, folder, sockets
        self._processes: dict[str, ForkedPopen] = {}
        folder.mkdir()
        given = {"seed": seed, "deterministic": True, **settings.get("run", {})}
        document = {
            **settings,
            "run": {**given, "name": "run", "root": str(folder)},
            "cluster": {"replay": [self._at("replay")], "params": self._at("params"), "learner": self._at("learner")},
            "replay": {
                "server": {"address": self._at("replay")},
                "storage": {"folder": str(folder / "replay"), "snapshot_every_s": 0},
            },
            "paramserver": {"server": {"address": self._at("params")}},
            "learner": {"server": {"address": self._at("learner")}, **settings.get("learner", {})},
            "actor": {"count": ACTORS, **settings.get("actor", {})},
        }
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(document))

    def start(self, name: str, *options: str) -> None:
        """Start a process: `replay`, `paramserver`, `learner`, `actor-0` or `actor-1`; with other settings if given."""
        service, _, index = name.partition("-")
        arguments = ["--config", str(self._config), *(("--actor.index", index) if index else ()), *options]
        order = Order(f"tidemill.services.{service}", arguments, os.environ | {"OMP_NUM_THREADS": "1"})
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = fork_service(order, log, self._server)

    def start_all(self) -> None:
        """Start every process."""
        for name in ("replay", "paramserver", "learner", "actor-0", "actor-1"):
            self.start(name)

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self._processes.pop(name)
        assert process.poll() is None, f"{name} had ended before it was killed:\n{self._log(name)}"
        process.kill()
        process.wait(WAIT_S)

    def stop(self, name: str) -> None:
        """End a process with SIGTERM; it must end well."""
        process = self._processes.pop(name)
        process.terminate()
        assert process.wait(WAIT_S) == 0, self._log(name)

    def reach(self, learner_steps: int, timeout_s: float = WAIT_S) -> None:
        """Wait until the learner has made so many updates."""

        def reached() -> bool:
            self._check_running()
            assert self._processes["learner"].poll() is None, "the learner ended before it was asked"
            try:
                with LearnerClient(self._at("learner"), deadline_s=WAIT_S) as learner:
                    return learner.get_status().learner_steps >= learner_steps
            except TidemillError:
                return False  # it starts

        wait_until(reached, f"{learner_steps} updates", timeout_s, longest_pause_s=0.02, describe=self._logs)

    def digest(self) -> tuple[int, str]:
        """Wait until the learner has ended; return the newest parameters' updates and digest."""

        def ended() -> bool:
            self._check_running()
            return self._processes["learner"].poll() is not None

        wait_until(ended, "the end of the learner", describe=lambda: self._log("learner"))
        newest = read_params(self._folder / "run" / "params")
        return newest.version.metadata.learner_steps, params_digest(unpack(newest.blob))

    def refusal(self, name: str, *options: str) -> str:
        """Start a process that has ended once more, with other settings; return the line in which it refuses them."""
        self.start(name, *options)
        assert self._processes.pop(name).wait(WAIT_S) == 2
        return self._log(name).splitlines()[-1]

    def close(self) -> None:
        """End what runs."""
        for process in self._processes.values():
            process.kill()
            process.wait(WAIT_S)

    def _check_running(self) -> None:
        for name, process in self._processes.items():
            failed = process.poll() not in (None, 0)
            assert not failed, f"{name} ended with {process.poll()}:\n{self._log(name)}"

    def _logs(self) -> str:
        return "\n".join(f"{name}:\n{self._log(name)}" for name in self._processes)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _at(self, name: str) -> str:
        return f"unix://{self._sockets / name}.sock"


@contextmanager
def lock_step_cluster(
    folder: Path, settings: Mapping[str, Any], seed: int = 1, server: ForkClient | None = None
) -> Iterator[LockStepCluster]:
    """Yield a cluster with a run in a new folder; its processes, forked as by `fork_service`, end with the block."""
    sockets = make_socket_folder()
    cluster = LockStepCluster(folder, sockets, settings, seed, server)
    try:
        yield cluster
    finally:
        cluster.close()
        remove_socket_folder(sockets)
