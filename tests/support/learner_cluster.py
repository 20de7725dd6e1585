"""A real replay service and parameter server, each a process, a learner, and an actor of random streams.

The learner is a thread of the test unless a test is about its process: importing torch takes seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.feeder import TABLE, Feeder
from tests.support.forked_service import fork_service
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.load import load
from tidemill.config.sections import LearnerConfig
from tidemill.errors import Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerStatus
from tidemill.params.client import ParamsClient
from tidemill.programs.fork_client import ForkedPopen
from tidemill.programs.fork_server import Order
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import open_channel
from tidemill.services.learner.learner import Learner


class _Closable(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)


class Process:
    """One service of the cluster."""

    def __init__(
        self, module: str, arguments: list[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start it; its log goes to a file. With further environment variables it is a separate program."""
        self.log = log
        self.module, self._is_awaited = module, False
        self._file: IO[bytes] = log.open("ab")
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | dict(variables or {})
        self._child: ForkedPopen | subprocess.Popen[bytes]
        if not variables:
            forks = module.endswith(".torchrun")
            self._child = fork_service(Order(module, arguments, environment, with_server=forks), self._file)
        else:
            command = [sys.executable, "-m", module, *arguments]
            self._child = subprocess.Popen(command, stdout=self._file, stderr=self._file, env=environment)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def failure(self) -> str:
        """Return its log if it has failed and no test has waited for that; empty otherwise."""
        code = self._child.poll()
        return f"{self.module} ended with {code}:\n{self.text()}" if code and code > 0 and not self._is_awaited else ""

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Return the exit code."""
        self._is_awaited = True
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text()}") from None

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        """Kill it if it still runs."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.kill()
            self._child.wait(WAIT_S)
        self._file.close()


class LearnerThread:
    """A learner with its control server, as `tidemill.services.learner.__main__` puts it together."""

    def __init__(self, arguments: list[str]) -> None:
        """Start it with a command line's settings."""
        self._config = load(LearnerConfig, arguments, prog="learner", description="")
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def terminate(self) -> None:
        """Do what SIGTERM does."""
        self._stop.set()

    def wait(self, timeout_s: float = WAIT_S) -> BaseException | None:
        """Return the error that ended it; None for a proper end."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still running after {timeout_s:g} s"
        return self._error

    def failure(self) -> str:
        """Return the cause of its end; empty while it runs and after a proper end."""
        return "".join(traceback.format_exception(self._error)) if self._error else ""

    def close(self) -> None:
        """Stop it."""
        self.terminate()
        self.wait()

    def _run(self) -> None:
        try:
            learner = Learner(self._config, self._stop)
            with BackgroundServer("learner", self._config.learner.server) as server:
                learner.add_to(server.server)
                server.start()
                learner.run(server.set_serving)
        except BaseException as error:  # returned by `wait`
            self._error = error


class LearnerCluster:
    """The processes around a learner, on Unix sockets in a separate folder."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        """Take the folders; nothing is started yet."""
        self.folder = folder
        self.replay, self.params, self.learner = (
            f"unix://{sockets / name}.sock" for name in ("replay", "params", "learner")
        )
        self._run = ["--run.root", str(folder), "--run.name", "test"]
        self._opened: list[_Closable] = []
        self._count = 0

    @property
    def checkpoints(self) -> Path:
        """Where the learner keeps its checkpoints."""
        return self.folder / "test" / "checkpoints"

    def start_replay(self) -> Process:
        """Start the replay service and wait until it serves."""
        return self._serving("tidemill.services.replay", "replay", self.replay, [])

    def start_params(self, *overrides: str) -> Process:
        """Start the parameter server and wait until it serves."""
        return self._serving("tidemill.services.paramserver", "paramserver", self.params, [*self._run, *overrides])

    def start_learner(self, *overrides: str) -> LearnerThread:
        """Start a learner in a thread; it is not waited for."""
        return self.keep(LearnerThread([*self._learner_arguments(), *overrides]))

    def start_learner_process(
        self, *overrides: str, module: str = "tidemill.services.learner", before: Sequence[str] = ()
    ) -> Process:
        """Start a learner process, of another module and with words before its settings if given; not waited for."""
        return self.start(module, [*before, *self._learner_arguments(), *overrides])

    def start_actor(self, *overrides: str) -> Process:
        """Start an actor process for the learner of these settings; not waited for."""
        return self.start("tidemill.services.actor", [*self._common_arguments(), *overrides])

    def _learner_arguments(self) -> list[str]:
        settings = {
            "--learner.server.address": self.learner,
            "--learner.publish-every": "10",
            "--learner.updates-per-env-step": "1",
            "--learner.log-every-s": "1",
        }
        return [*self._common_arguments(), *(word for pair in settings.items() for word in pair)]

    def _common_arguments(self) -> list[str]:
        """Return the settings that learner and actor share."""
        settings = {
            "--agent.algorithm": "dqn",
            "--agent.network": "mlp",
            "--agent.hidden-sizes": "16",
            "--agent.n-step": "1",
            "--env.id": "CartPole-v1",
            "--cluster.replay": self.replay,
            "--cluster.params": self.params,
            "--cluster.connect-timeout-s": "20",
            "--table.sampler": "prioritized",
            "--table.min-size": "64",
        }
        return [*self._run, *(word for pair in settings.items() for word in pair)]

    def feed(self, *, chunks_per_s: float = 15.0) -> Feeder:
        """Append random steps from now on."""
        return self.keep(Feeder(self.replay, chunks_per_s=chunks_per_s))

    def rested(self, batch_size: int, spare: int = 0) -> tuple[LearnerStatus, TableDescription]:
        """End the feeding, and have the learner train on all that the limiter still gives it.

        Args:
            batch_size: Of an update, over all ranks.
            spare: Items that some ranks may hold at most while others wait for theirs: the limiter does not share out
                evenly what it gives last.

        Returns:
            What the learner says then, and what the table does: neither changes any more.
        """
        for feeder in (each for each in self._opened if isinstance(each, Feeder)):
            feeder.close()
        client, replay = self.learner_client(), self.replay_client()

        def is_done() -> bool:
            table = replay.describe_table(TABLE)
            held = table.samples - client.get_status().learner_steps * batch_size
            return table.sample_blocked and 0 <= held <= spare

        wait_until(is_done, "everything that was sampled is trained on", failure=self._failure)
        return client.get_status(), replay.describe_table(TABLE)

    def learner_client(self) -> LearnerClient:
        """Return a client of the learner's controls."""
        return self.keep(LearnerClient(self.learner, deadline_s=60.0))

    def replay_client(self) -> ReplayClient:
        """Return a client of the replay service."""
        return self.keep(ReplayClient(self.replay, deadline_s=60.0))

    def params_client(self) -> ParamsClient:
        """Return a client of the parameter server."""
        return self.keep(ParamsClient(self.params, deadline_s=60.0))

    def wait_for_status(
        self, condition: Callable[[LearnerStatus], bool], what: str, timeout_s: float | None = None
    ) -> LearnerStatus:
        """Return the first status that meets a condition; the learner may not be there yet."""
        client, found = self.learner_client(), LearnerStatus()

        def holds() -> bool:
            nonlocal found
            try:
                found = client.get_status()
            except Unavailable:
                return False
            return condition(found)

        wait_until(holds, what, timeout_s, failure=self._failure)
        return found

    def _failure(self) -> str:
        """Return why the newest learner or another process has failed; empty if none has."""
        learners = [each for each in self._opened if isinstance(each, LearnerThread)]
        processes = {each.module: each for each in self._opened if isinstance(each, Process)}  # the newest of each
        failures = [each.failure() for each in learners[-1:]] + [each.failure() for each in processes.values()]
        return "".join(failures)

    def close(self) -> None:
        """End everything, the newest first, also after one that fails to end."""
        with ExitStack() as stack:
            for each in self._opened:
                stack.callback(each.close)

    def start(self, module: str, arguments: list[str]) -> Process:
        """Start a process of any service; it is not waited for."""
        self._count += 1
        log = self.folder / f"{module}-{self._count}.log"
        return self.keep(Process(module, arguments, log))

    def _serving(self, module: str, section: str, address: str, arguments: list[str]) -> Process:
        process = self.start(module, [f"--{section}.server.address", address, *arguments])
        wait_until(lambda: is_serving(address), f"{module} serves", failure=process.failure)
        return process

    def keep(self, opened: _T) -> _T:
        """End something with the cluster."""
        self._opened.append(opened)
        return opened


def is_serving(address: str) -> bool:
    """True if the process at an address reports that it serves."""
    with open_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def learner_cluster(folder: Path) -> Iterator[LearnerCluster]:
    """Make a cluster with nothing started; end what was."""
    with tempfile.TemporaryDirectory(prefix="tm-") as sockets:  # a socket's path must be short
        cluster = LearnerCluster(folder, Path(sockets))
        try:
            yield cluster
        finally:
            cluster.close()
