"""Learners of two machines, each with a separate torchrun: one machine dies or is drained, and comes back."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.free_ports import free_port
from tests.support.learner_cluster import LearnerCluster, Process, learner_cluster
from tests.support.waiting import wait_until

_WAIT_S = 240.0  # a machine takes four starts of torch to come back

Start = Callable[[int], Process]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LearnerCluster]:
    """A cluster with no learner yet, whose learners talk over the loopback interface."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with learner_cluster(tmp_path) as cluster:
        yield cluster


def _starter(cluster: LearnerCluster, rendezvous: str, port: int, *settings: str) -> Start:
    """Return the command that starts the torchrun of machine 0 or 1, which has one learner."""

    def start(machine: int) -> Process:
        meeting = {
            "static": (f"--node-rank={machine}", "--master-addr=127.0.0.1", f"--master-port={port}"),
            "c10d": (
                *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"),
                *(f"--rdzv-conf=is_host={1 - machine}", "--local-addr=127.0.0.1"),
            ),
        }
        options = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=50", *meeting[rendezvous])
        return cluster.start_learner_process(
            *("--learner.ranks-timeout-s", "20"),
            *settings,
            module="tidemill.services.learner.torchrun",
            before=(*options, "-m", "tidemill.services.learner"),
        )

    return start


@pytest.mark.parametrize("rendezvous, end", [("c10d", signal.SIGKILL), ("static", signal.SIGTERM)])
def test_machine_that_ended_and_came_back_is_joined(
    cluster: LearnerCluster, rendezvous: str, end: signal.Signals
) -> None:
    """Whichever it is, the one where they meet as well, and also if it was asked to end, as a node that is drained.

    Both resume from the checkpoint, and end with 0 when asked.
    """
    cluster.start_replay()
    cluster.start_params()
    cluster.feed()
    start = _starter(cluster, rendezvous, free_port())
    machines = [start(0), start(1)]
    cluster.wait_for_status(lambda s: s.learner_steps > 50, "50 updates", _WAIT_S)
    for victim in (0, 1):
        _lose(cluster, machines, victim, end, start)
    for machine in machines:
        machine.signal(signal.SIGTERM)
    for machine in machines:
        assert machine.wait(_WAIT_S) == 0, machine.text()
        assert "Traceback" not in machine.text()


def _lose(cluster: LearnerCluster, machines: list[Process], victim: int, end: signal.Signals, start: Start) -> None:
    """End a machine, start it again and wait until both train on."""
    client = cluster.learner_client()
    before, saved = client.get_status().restored, client.save_checkpoint().learner_steps
    machines[victim].signal(end)  # its learner ends with it
    machines[victim].wait()
    machines[victim] = start(victim)
    where = f"{saved:,} updates" if end == signal.SIGKILL else " updates"  # asked to end it saves again
    cluster.wait_for_status(
        lambda s: where in s.restored != before and s.learner_steps > saved, "further steps", _WAIT_S
    )


def test_machines_end_with_zero_together(cluster: LearnerCluster) -> None:
    """None does while the first learner cannot mark the end of the run; one that returns after it waits for nobody."""
    cluster.start_replay()
    params = cluster.start_params()
    feeder = cluster.feed(chunks_per_s=2.0)  # 32 updates a second, so that it is far from the end when it is looked at
    job = ("--run.supervisor", "job", "--run.max-learner-steps", "600", "--cluster.connect-timeout-s", "5")
    start = _starter(cluster, "static", free_port(), *job)
    machines = [start(0), start(1)]
    cluster.wait_for_status(lambda s: s.learner_steps > 50, "50 updates", _WAIT_S)
    params.signal(signal.SIGSTOP)
    feeder.close()
    cluster.feed()

    def has_failed() -> bool:
        assert machines[1].is_running, machines[1].text()
        return "cannot mark the run as over" in machines[0].text() and "lost the others" in machines[1].text()

    wait_until(has_failed, "the end that fails", _WAIT_S)
    params.signal(signal.SIGCONT)
    for machine in (*machines, start(1)):
        assert machine.wait(_WAIT_S) == 0, machine.text()


def test_machine_that_waits_for_another_ends_when_asked(cluster: LearnerCluster) -> None:
    """With 0, though torch hears nothing while it waits."""
    port = free_port()
    machine = _starter(cluster, "static", port)(0)

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, "the first machine is where the others meet")
    assert os.waitpid(machine.pid, os.WNOHANG) == (0, 0)
    machine.signal(signal.SIGTERM)
    assert machine.wait() == 0, machine.text()


def test_machine_alone_gives_up_in_one_line(cluster: LearnerCluster) -> None:
    """Without restarts the meeting that does not come about is its end."""
    options = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-conf=timeout=1")
    meeting = ("--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    before = (*options, *meeting, "-m", "tidemill.services.learner")
    machine = cluster.start_learner_process(module="tidemill.services.learner.torchrun", before=before)
    assert machine.wait() == 1
    assert "learner: the other machines are lost, and there are no restarts left" in machine.text()
    assert "Traceback" not in machine.text()
