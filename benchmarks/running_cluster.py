"""A whole cluster for a benchmark, started as `tidemill train` does, and what its processes have done so far."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import processor_s
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.learner.client import LearnerClient
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription

_START_S = 120.0
_POLL_S = 0.2
_WARM_UP_S = 3.0
_STOP_S = 60.0
_FIXED = {
    "--run.name": "benchmark",
    "--launcher.view": "plain",
    "--table.error-buffer-updates": "1000",
    "--table.min-size": "1000",
    "--evaluator.start-env-steps": "1000000000",
}


@dataclass(frozen=True)
class Work:
    """Work that a cluster has done in some time."""

    seconds: float
    """Length of that time."""
    env_steps: int
    """Agent decisions that the replay service has stored for the run's table."""
    learner_steps: int
    """Updates."""
    processor_s: Mapping[str, float]
    """Processor time by service, e.g. `actor`, all its processes together."""

    @property
    def env_steps_per_s(self) -> float:
        """Agent decisions per second."""
        return self.env_steps / self.seconds


class RunningCluster:
    """The processes of one `tidemill train`."""

    def __init__(self, launcher_pid: int, folder: Path) -> None:
        """Look at the cluster of a launcher whose run is in `folder`."""
        self._launcher_pid = launcher_pid
        self._config = from_document(RunConfig, read_document(folder / "cluster.yaml"))

    def is_under_way(self, streams: int) -> bool:
        """True if this number of environments have stored steps and the learner has made an update."""
        return sum(described.streams for described in self._tables()) >= streams and self._learner_steps() > 0

    def work_in(self, seconds: float) -> Work:
        """Wait so long; return what has been done meanwhile."""
        first = self._so_far()
        time.sleep(seconds)
        last = self._so_far()
        processor_s = {name: spent - first.processor_s.get(name, 0.0) for name, spent in last.processor_s.items()}
        return Work(
            last.seconds - first.seconds,
            last.env_steps - first.env_steps,
            last.learner_steps - first.learner_steps,
            processor_s,
        )

    def _so_far(self) -> Work:
        """The work done until now; seconds are those of a monotonic clock."""
        env_steps = sum(described.env_steps for described in self._tables())
        return Work(time.monotonic(), env_steps, self._learner_steps(), _processor_s(self._launcher_pid))

    def _learner_steps(self) -> int:
        with LearnerClient(self._config.cluster.learner) as learner:
            return learner.get_status().learner_steps

    def _tables(self) -> Iterator[TableDescription]:
        for address in self._config.cluster.replay:
            with ReplayClient(address) as client:
                yield client.describe_table(self._config.table.name)


@contextmanager
def running_cluster(config: str, actors: int, options: Mapping[str, str]) -> Iterator[RunningCluster]:
    """Yield a cluster that has acted and learned for a few seconds; end it afterwards.

    Args:
        config: File of the run.
        actors: Number of its actors.
        options: Further options of `tidemill train`.

    Raises:
        SystemExit: It did not get so far within two minutes.
    """
    streams = actors * from_document(RunConfig, read_document(Path(config))).env.num_envs
    with tempfile.TemporaryDirectory(prefix="tm-") as root:
        given = {"--config": config, "--run.root": root, "--launcher.actors": str(actors), **_FIXED, **options}
        words = [word for pair in given.items() for word in pair]
        command = [sys.executable, "-m", "tidemill.services.launcher", "train", *words]
        launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield _started(launcher.pid, Path(root) / "benchmark", streams)
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(_STOP_S)


def _started(launcher_pid: int, folder: Path, streams: int) -> RunningCluster:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(Exception):  # neither folder nor table are there from the beginning
            cluster = RunningCluster(launcher_pid, folder)
            if cluster.is_under_way(streams):
                time.sleep(_WARM_UP_S)
                return cluster
        time.sleep(_POLL_S)
    raise SystemExit(f"{streams} environments and the learner were not under way within {_START_S:g} s")


def _processor_s(launcher_pid: int) -> defaultdict[str, float]:
    """Return the processor time of each service a launcher has started, in seconds."""
    found: defaultdict[str, float] = defaultdict(float)
    children = Path(f"/proc/{launcher_pid}/task/{launcher_pid}/children").read_text(encoding="ascii").split()
    for child in children:
        words = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
        if "-m" not in words:  # a helper of the launcher, not a service
            continue
        module = next(word for word in words[words.index("-m") + 1 :] if word != "tidemill.programs.child")
        service = module.removeprefix("tidemill.services.")
        found[service] += processor_s(int(child))
    return found
