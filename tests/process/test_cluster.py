"""The launcher's cluster over stand-in processes: what it starts, restarts and ends, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.forked_service import children, held_client
from tests.support.free_ports import free_address
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings
from tidemill.process import StopRequests
from tidemill.programs.fork_client import ForkClient
from tidemill.rpc import client_security
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.run.paths import make_socket_folder, remove_socket_folder
from tidemill.services.launcher.supervise import health
from tidemill.services.launcher.supervise.child import Child
from tidemill.services.launcher.supervise.runner import ClusterRunner
from tidemill.services.launcher.supervise.service_spec import ServiceSpec
from tidemill.services.launcher.supervise.supervisor import Outcome, Supervisor, describe_exit

pytestmark = pytest.mark.process

_SETTINGS = LauncherSettings(restart_backoff_s=0.05, max_restarts=2, start_timeout_s=WAIT_S, stop_timeout_s=WAIT_S)
_IMPATIENT = replace(_SETTINGS, frozen_timeout_s=1.0)
_BOUND_S = 200.0


class Recorder:
    """Remembers every event, and can be waited on for one."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.events: list[tuple[str, Sequence[str]]] = []
        self._changed = asyncio.Condition()

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Remember."""
        self.events.append((message, details))
        asyncio.get_running_loop().create_task(self._notify())

    async def until(self, is_reached: Callable[[list[str]], bool]) -> None:
        """Wait until the messages so far satisfy a condition."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: is_reached(self.messages)), _BOUND_S)

    @property
    def messages(self) -> list[str]:
        """Every message so far."""
        return [message for message, _ in self.events]

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Scene:
    """A run folder, sockets and a journal for a cluster of stand-ins."""

    def __init__(self, path: Path, sockets: Path) -> None:
        """Make the run's folder below `path`."""
        self.folder = RunFolder.create(RunConfig(run=RunSettings(root=str(path), name="scene")), fresh=False)
        self.journal = path / "journal"
        self.journal.touch()
        self._sockets = sockets

    def spec(self, name: str, *options: str, kind: str = "", after: tuple[str, ...] = ()) -> ServiceSpec:
        """Return a stand-in for a service."""
        address = f"unix://{self._sockets}/{name}.sock"
        arguments = ("--address", address, "--journal", str(self.journal), "--name", name, *options)
        return ServiceSpec(name, kind or name, "tests.process.stand_in", arguments, address, after)

    def cluster_of(
        self, *specs: ServiceSpec, settings: LauncherSettings = _SETTINGS, forks: ForkClient | None = None
    ) -> tuple[ClusterRunner, Recorder]:
        """Return a cluster of these services that reports to a recorder."""
        recorder = Recorder()
        return ClusterRunner(Supervisor(specs, settings), self.folder, recorder, forks), recorder

    def journal_lines(self) -> list[str]:
        """Return the output of the stand-ins, in order."""
        return self.journal.read_text().splitlines()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A fresh scene; its folder is unlocked and its sockets removed afterwards."""
    sockets = make_socket_folder()
    made = Scene(tmp_path, sockets)
    yield made
    made.folder.close()
    remove_socket_folder(sockets)


async def _ready(recorder: Recorder, *names: str) -> None:
    await recorder.until(lambda messages: all(f"{name} is ready" in messages for name in names))


async def test_cluster_ends_writers_before_servers_on_sigterm(scene: Scene) -> None:
    """Actors end first, then learner and evaluator together, and last the servers they talk to; nothing is left."""
    cluster, recorder = scene.cluster_of(
        scene.spec("replay"),
        scene.spec("learner"),
        scene.spec("actor-0", kind="actor"),
        scene.spec("evaluator"),
    )
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay", "learner", "actor-0", "evaluator")
    pids = [pid for name in ("replay", "learner", "actor-0", "evaluator") if (pid := cluster.pid_of(name))]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")
    ends = [line.split()[0] for line in scene.journal_lines() if line.endswith(" end")]
    assert (ends[0], {*ends[1:3]}, ends[3:]) == ("actor-0", {"learner", "evaluator"}, ["replay"])
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_cluster_restarts_a_killed_service_and_shows_why(scene: Scene) -> None:
    """A service killed by a signal is started again after the backoff, and the reason is reported."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    first = cluster.pid_of("replay")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await recorder.until(lambda messages: messages.count("replay is ready") == 2)
    assert cluster.pid_of("replay") != first
    assert any("was killed by signal 9" in message for message in recorder.messages)
    os.kill(os.getpid(), signal.SIGINT)
    assert (await asyncio.wait_for(running, _BOUND_S)).exit_code == 0


async def test_cluster_raises_its_limit_of_open_files(scene: Scene) -> None:
    """It has a few open for each service, and the soft limit of a shell may be 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        cluster, recorder = scene.cluster_of(scene.spec("replay"))
        running = asyncio.create_task(cluster.run())
        await _ready(recorder, "replay")
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


async def test_cluster_outlives_the_removal_of_its_logs(scene: Scene) -> None:
    """A service that is killed afterwards is started again, with a log in a new folder."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    shutil.rmtree(scene.folder.path / "logs")
    first = cluster.pid_of("replay")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await recorder.until(lambda messages: messages.count("replay is ready") == 2)
    assert (scene.folder.path / "logs" / "replay.log").exists()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")


@pytest.mark.parametrize("failures", [1, 9])
async def test_service_that_cannot_be_started_is_started_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """An error of the system is a failed start: it is reported, and after max_restarts the run ends in order."""
    errors, start = [OSError(errno.EMFILE, "no file left")] * failures, Child.start

    async def failing(spec: ServiceSpec, *arguments: Any) -> Child:  # noqa: ANN401
        if spec.name == "learner" and errors:
            raise errors.pop()
        return await start(spec, *arguments)

    monkeypatch.setattr(Child, "start", failing)
    settings = replace(_SETTINGS, restart_backoff_s=0.1)
    cluster, recorder = scene.cluster_of(scene.spec("replay"), scene.spec("learner"), settings=settings)
    running = asyncio.create_task(cluster.run())
    await recorder.until(lambda messages: "learner could not be started: no file left; restarting in 0.1 s" in messages)
    if failures == 1:
        await _ready(recorder, "learner", "replay")
        os.kill(os.getpid(), signal.SIGTERM)
    outcome = await asyncio.wait_for(running, _BOUND_S)
    why = "learner could not be started: no file left, after 2 restarts within ten minutes"
    assert outcome == (Outcome(0, "stopped as asked") if failures == 1 else Outcome(1, why))
    assert cluster.pid_of("replay") is None


async def test_niceness_is_added_to_that_of_the_launcher(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `nice -n 10` no service is less nice than its launcher, which only root may ask for."""
    given: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda *_: 10)
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, nice: given.append(nice))
    specs = (replace(scene.spec(f"actor-{nice}", kind="actor"), nice=nice) for nice in (3, 15))
    cluster, recorder = scene.cluster_of(*specs)
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "actor-3", "actor-15")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, _BOUND_S)
    assert given == [13, 19]


async def test_cluster_restarts_a_service_that_freezes_while_it_serves(scene: Scene) -> None:
    """A process that is there but answers nothing is reported, killed at the bound, and started again."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"), settings=_IMPATIENT)
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    first = cluster.pid_of("replay")
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    await recorder.until(lambda messages: messages.count("replay is ready") == 2)
    assert "replay has not answered for 0.5 s" in recorder.messages
    assert any("replay did not answer for 1 s; restarting" in message for message in recorder.messages)
    assert not Path(f"/proc/{first}").exists()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, _BOUND_S)


async def test_cluster_leaves_a_service_alone_that_answers_again(scene: Scene) -> None:
    """A pause shorter than the bound is reported and costs nothing."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"), settings=replace(_IMPATIENT, frozen_timeout_s=3600.0))
    cluster.check_s = 0.5
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    first = cluster.pid_of("replay")
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    await recorder.until(lambda messages: "replay has not answered for 0.5 s" in messages)
    os.kill(first, signal.SIGCONT)
    await recorder.until(lambda messages: "replay answers again" in messages)
    assert cluster.pid_of("replay") == first
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, _BOUND_S)


async def test_cluster_that_cannot_ask_a_service_says_why(scene: Scene, tmp_path: Path) -> None:
    """A service that serves is left alone while no check of it can be made; one that never could be asked ends it."""
    address = free_address()
    spec = scene.spec("replay", "--address", address)
    cluster, recorder = scene.cluster_of(replace(spec, health_address=address), settings=_IMPATIENT)
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    first = cluster.pid_of("replay")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(client_security.CA, str(tmp_path / "absent.pem"))
        await recorder.until(lambda messages: any(m.startswith("cannot check the health of replay") for m in messages))
        assert cluster.pid_of("replay") == first
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(running, _BOUND_S)
        assert not any("not answered" in message for message in recorder.messages)
        cluster, _ = scene.cluster_of(replace(spec, health_address=address))
        outcome = await asyncio.wait_for(cluster.run(), _BOUND_S)
    assert outcome.exit_code == 2
    assert "replay is out of reach" in outcome.reason
    assert "absent.pem" in outcome.reason


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_services_are_forked_and_so_is_the_server_that_forks_them_replaced(scene: Scene) -> None:
    """A killed service is forked again, or started as a program if the server was killed, too; nothing is left."""
    cluster, recorder = scene.cluster_of(replace(scene.spec("learner"), needs_torch=True))
    running = asyncio.create_task(cluster.run())
    servers: list[int] = []
    for count in (1, 2, 3):
        await recorder.until(lambda messages, count=count: messages.count("learner is ready") == count)  # type: ignore[misc]
        pid = cluster.pid_of("learner")
        assert pid is not None
        (server,) = (each for each in children() - {pid} if b"group_guard" not in _command(each))
        assert b"tidemill.services" not in _command(pid)
        assert b"tests.process.stand_in" in _command(pid)
        servers.append(server)
        if count == 2:
            os.kill(server, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL if count < 3 else signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "the learner has finished")
    assert servers[0] == servers[1] != servers[2]
    assert scene.journal_lines().count("learner start") == 3
    assert children() == set()


async def test_service_that_needs_no_torch_does_not_wait_for_its_import(scene: Scene, tmp_path: Path) -> None:
    """It is forked and serves while the server is not ready for one that needs torch."""
    gate = tmp_path / "gate"
    specs = (scene.spec("replay"), replace(scene.spec("learner", after=("replay",)), needs_torch=True))
    cluster, recorder = scene.cluster_of(*specs, forks=held_client(gate))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    command = Path(f"/proc/{cluster.pid_of('replay')}/cmdline").read_bytes()
    assert b"tests.process.stand_in" in command
    assert b"tidemill.programs.child" not in command
    gate.write_bytes(b"")
    await _ready(recorder, "learner")
    os.kill(os.getpid(), signal.SIGINT)
    assert (await asyncio.wait_for(running, _BOUND_S)).exit_code == 0


async def test_cluster_that_is_stopped_does_not_wait_for_the_fork_server(scene: Scene) -> None:
    """Importing torch may take long: asked to stop meanwhile, the cluster ends without it."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"), replace(scene.spec("learner"), needs_torch=True))
    running = asyncio.create_task(cluster.run())
    while not (servers := children()):
        await asyncio.sleep(0.01)
    os.kill(min(servers), signal.SIGSTOP)  # the first process started: it will never be ready
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, _BOUND_S)
    assert recorder.messages[0].startswith("stopping")
    assert children() == set()


async def test_cluster_gives_up_on_a_service_that_always_fails_and_ends_the_others(scene: Scene) -> None:
    """After max_restarts the run ends with exit code 1, the reason and the last log lines."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"), scene.spec("learner", "--exit-code", "1"))
    outcome = await asyncio.wait_for(cluster.run(), _BOUND_S)
    assert outcome == Outcome(1, "learner ended with exit code 1, after 2 restarts within ten minutes")
    assert scene.journal_lines().count("learner start") == 3
    assert any("learner: the last words" in details for _, details in recorder.events)
    assert cluster.pid_of("replay") is None


async def test_cluster_ends_at_once_when_a_service_refuses_its_settings(scene: Scene) -> None:
    """Exit code 2 would come again at every restart: the run ends with 2 after one start."""
    cluster, _ = scene.cluster_of(scene.spec("learner", "--exit-code", "2"))
    assert (await asyncio.wait_for(cluster.run(), _BOUND_S)).exit_code == 2
    assert scene.journal_lines().count("learner start") == 1


async def test_cluster_starts_a_service_only_after_those_it_follows(scene: Scene) -> None:
    """`after` is a dependency on health, not on the order of the list."""
    cluster, recorder = scene.cluster_of(scene.spec("evaluator", after=("learner",)), scene.spec("learner"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "evaluator", "learner")
    assert recorder.messages.index("learner is ready") < recorder.messages.index("evaluator is ready")
    assert scene.journal_lines()[0] == "learner start"
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, _BOUND_S)


async def test_cluster_asks_for_the_final_evaluation_when_the_learner_has_finished(scene: Scene) -> None:
    """A learner that ends by itself ends the actors; the evaluator finishes, writes its result, and the run is over."""
    result = scene.folder.path / "result.json"
    cluster, recorder = scene.cluster_of(
        scene.spec("learner"),
        scene.spec("actor-0", kind="actor"),
        scene.spec("evaluator", "--result", str(result)),
    )
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "learner", "actor-0", "evaluator")
    learner = cluster.pid_of("learner")
    assert learner is not None
    os.kill(learner, signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "finished")
    assert result.exists()


async def test_cluster_says_that_the_end_waits_for_an_evaluator_that_is_not_ready(scene: Scene) -> None:
    """It would be silent until the evaluator is ready or is killed."""
    cluster, recorder = scene.cluster_of(scene.spec("learner"), scene.spec("evaluator", "--unready"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "learner")
    learner = cluster.pid_of("learner")
    assert learner is not None
    os.kill(learner, signal.SIGTERM)
    said = "training has ended; waiting for the evaluator, which is not ready"
    await recorder.until(lambda messages: messages[-1] == said)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")


async def test_cluster_does_not_hold_up_the_end_of_what_is_not_ready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call by which it waits for a service would last as long as the service lets calls in progress last."""
    watched = asyncio.Event()

    async def announces_serving(channel: grpc.aio.Channel) -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                watched.set()
        return False

    monkeypatch.setattr(health, "_announces_serving", announces_serving)
    cluster, _ = scene.cluster_of(scene.spec("actor", "--unready"))
    running = asyncio.create_task(cluster.run())
    await asyncio.wait_for(watched.wait(), _BOUND_S)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, _BOUND_S)
    assert scene.journal_lines() == ["actor start", "actor end"]


async def test_interrupt_that_comes_twice_at_once_stops_in_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GNU `timeout -s INT` sends it; the second kills nothing that is still saving."""
    monkeypatch.setattr(StopRequests, "_SAME_INTERRUPT_S", WAIT_S)  # a busy machine may be slow between the two
    cluster, recorder = scene.cluster_of(scene.spec("replay"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)  # or the system delivers one
    assert (await asyncio.wait_for(running, _BOUND_S)).exit_code == 0
    assert scene.journal_lines() == ["replay start", "replay end"]


async def test_cluster_kills_what_ignores_sigterm_when_asked_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C waits for nobody."""
    monkeypatch.setattr(StopRequests, "_SAME_INTERRUPT_S", 0.0)  # nobody presses it as fast as this test
    cluster, recorder = scene.cluster_of(scene.spec("replay", "--deaf"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay")
    os.kill(os.getpid(), signal.SIGINT)
    await recorder.until(lambda messages: any(message.startswith("stopping") for message in messages))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, _BOUND_S)
    assert cluster.pid_of("replay") is None


async def test_cluster_says_what_it_killed_at_a_stop_and_what_is_lost(scene: Scene) -> None:
    """A learner that does not end in time costs its unsaved updates: one line, and the end of the run as failed."""
    settings = replace(_SETTINGS, stop_timeout_s=0.2)
    cluster, recorder = scene.cluster_of(scene.spec("learner", "--deaf"), settings=settings)
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "learner")
    os.kill(os.getpid(), signal.SIGINT)
    outcome = await asyncio.wait_for(running, _BOUND_S)
    late = "learner did not end within 0.2 s (launcher.stop_timeout_s) and was killed"
    lost = f"{late}: its updates since the last checkpoint are lost"
    assert recorder.messages[-1] == lost
    assert outcome == Outcome(1, f"stopped as asked; {lost}")


@pytest.mark.parametrize("code", [1, -9])
async def test_cluster_says_that_its_learner_could_not_save_at_a_stop(scene: Scene, code: int) -> None:
    """As on a full disk or out of memory: the last lines of its log, and the end of the run as failed."""
    cluster, recorder = scene.cluster_of(scene.spec("learner", "--last-code", str(code)))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "learner")
    os.kill(os.getpid(), signal.SIGINT)
    outcome = await asyncio.wait_for(running, _BOUND_S)
    failed = f"learner {describe_exit(code)}"
    assert recorder.events[-1] == (failed, ["learner: the last words"])
    assert outcome == Outcome(1, f"stopped as asked; {failed}: its updates since the last checkpoint are lost")


async def test_cluster_that_stood_still_gives_its_services_their_time_again(scene: Scene) -> None:
    """A launcher that is suspended while it stops finds its learner ended in time, whenever it continues."""
    settings = replace(_SETTINGS, stop_timeout_s=2.0)
    cluster, recorder = scene.cluster_of(scene.spec("learner"), settings=settings)
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "learner")
    os.kill(os.getpid(), signal.SIGINT)
    await recorder.until(lambda messages: any(message.startswith("stopping") for message in messages))
    began_s = time.monotonic()

    def stood_still() -> bool:
        return time.monotonic() - began_s > 2.0 + settings.stop_timeout_s and "learner end" in scene.journal_lines()

    wait_until(stood_still, "a launcher that stands still, and its learner's end")
    assert scene.journal_lines() == ["learner start", "learner end"]
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")
    assert not any("did not end" in message for message in recorder.messages)


async def test_cluster_that_stood_still_does_not_kill_what_has_started_meanwhile(scene: Scene) -> None:
    """A launcher that is suspended in the first seconds finds a healthy service, however long it stood still."""
    settings = replace(_SETTINGS, start_timeout_s=5.0)
    cluster, recorder = scene.cluster_of(scene.spec("replay"), settings=settings)
    running = asyncio.create_task(cluster.run())
    while cluster.pid_of("replay") is None:
        await asyncio.sleep(0)
    began_s = time.monotonic()
    wait_until(scene.journal_lines, "a service that starts")
    wait_until(lambda: time.monotonic() - began_s > 1.0 + settings.start_timeout_s, "a launcher that stands still")
    await _ready(recorder, "replay")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")
    assert scene.journal_lines() == ["replay start", "replay end"]


async def test_cluster_stops_in_order_however_often_its_terminal_hangs_up(scene: Scene) -> None:
    """A closing terminal sends SIGHUP to the group and its shell once more: that is one request to stop."""
    cluster, recorder = scene.cluster_of(scene.spec("replay"), scene.spec("actor-0", kind="actor"))
    running = asyncio.create_task(cluster.run())
    await _ready(recorder, "replay", "actor-0")
    os.kill(os.getpid(), signal.SIGHUP)
    await recorder.until(lambda messages: any(message.startswith("stopping") for message in messages))
    os.kill(os.getpid(), signal.SIGHUP)
    assert await asyncio.wait_for(running, _BOUND_S) == Outcome(0, "stopped as asked")
