"""Learners under torchrun beside a real replay service: they share the work, survive a kill and end together."""

from __future__ import annotations

import os
import re
import signal
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tests.support.forked_service import fork_service
from tests.support.free_ports import free_port
from tests.support.learner_cluster import LearnerCluster
from tests.support.processes import sockets_of
from tests.support.ranks import RANKS, start_ranks, workers
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.run import RANK_FAILURE
from tidemill.learner.status import LearnerState
from tidemill.programs.fork_server import Order

_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
_BYTE_STEP = -1 if sys.byteorder == "little" else 1


def test_killed_rank_brings_all_back_from_the_checkpoint(cluster: LearnerCluster) -> None:
    """Whichever it is, all start again where the newest checkpoint was, and steps continue counting from there."""
    learner = start_ranks(cluster)
    cluster.wait_for_status(lambda s: s.learner_steps > 50, "50 updates")
    failure = cluster.checkpoints.parent / RANK_FAILURE
    for victim in (1, 0):
        saved = cluster.learner_client().save_checkpoint()
        os.kill(workers(learner.pid)[victim], signal.SIGKILL)
        where = f"{saved.learner_steps:,} updates"
        cluster.wait_for_status(lambda s, where=where: where in s.restored, f"a resume at {where}")  # type: ignore[misc]
        assert re.fullmatch("lost rank [01], which ended with exit code (-9|1)\n", failure.read_text())
        failure.unlink()
        cluster.wait_for_status(lambda s, at=saved: s.learner_steps > at.learner_steps, "further steps")  # type: ignore[misc]
        assert len(workers(learner.pid)) == RANKS
        for pid in workers(learner.pid):  # forked, not a program that imports torch again
            assert b"tidemill.programs.child" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert "rank 0 of 2 lost the others" in learner.text()
    learner.signal(signal.SIGTERM)
    assert learner.wait() == 0, learner.text()


def test_rank_that_hangs_is_ended_soon_after_another_died(cluster: LearnerCluster) -> None:
    """One that is stuck, as in a wait for its GPU, heeds no signal; all start again without waiting for it."""
    learner = cluster.start_learner_process(module="tests.process.patient_torchrun", before=(str(RANKS), "3"))
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "an update of both ranks")
    saved = cluster.learner_client().save_checkpoint()
    hanging, victim = workers(learner.pid)
    os.kill(hanging, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: hanging not in workers(learner.pid), "the end of the rank that hangs")  # not in an hour
    cluster.wait_for_status(lambda s: f"{saved.learner_steps:,} updates" in s.restored, "a resume at the checkpoint")
    learner.signal(signal.SIGTERM)
    assert learner.wait() == 0, learner.text()


def test_rank_that_fails_does_not_wait_for_an_exchange_in_flight(tmp_path: Path) -> None:
    """The other is silent and the exchange never ends; the process that failed does."""
    port, log = free_port(), tmp_path / "log"
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    with log.open("wb") as output:
        try:
            for place in ("0", "1"):
                environment = os.environ | shared | {"RANK": place, "LOCAL_RANK": place}
                ranks.append(fork_service(Order("tests.process.deserted_rank", [str(4 * WAIT_S)], environment), output))
            wait_until(lambda: "fails now" in log.read_text(encoding="utf-8"), "an exchange in flight")
            assert ranks[0].wait(WAIT_S) == 1
            assert ranks[1].poll() is None
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(WAIT_S)


def test_ranks_under_nohup_outlive_their_terminal(cluster: LearnerCluster) -> None:
    """As a learner without torchrun does."""
    learner = cluster.start_learner_process(module="tests.process.ranks_under_nohup", before=(str(RANKS), "3"))
    status = cluster.wait_for_status(lambda s: s.learner_steps > 0, "an update of both ranks")
    learner.signal(signal.SIGHUP)
    cluster.wait_for_status(lambda s: s.learner_steps > status.learner_steps + 50, "further steps")
    learner.signal(signal.SIGTERM)
    assert learner.wait() == 0, learner.text()


def test_ranks_pause_and_stop_together_and_steps_count_once(cluster: LearnerCluster) -> None:
    """Two ranks that take half a batch each keep the ratio of one: a step of both is one step."""
    ratio = ("--learner.updates-per-env-step", "0.5", "--table.error-buffer-updates", "20")
    few = ("--learner.batches-per-sample", "1", "--learner.prefetch-batches", "1")
    learner = start_ranks(cluster, *ratio, *few)
    cluster.wait_for_status(lambda s: s.env_steps >= 600, "600 decisions")
    status, table = cluster.rested(32, spare=4 * 16)  # four halves that one rank has and the other waits for
    assert 20 < table.samples / 32 - 0.5 * (table.inserts - 64) <= 20 + 1
    assert table.samples / 32 - 2 <= status.learner_steps <= table.samples / 32
    cluster.feed()
    client = cluster.learner_client()
    client.pause()
    paused = cluster.wait_for_status(lambda s: s.state is LearnerState.PAUSED, "the pause")
    assert client.save_checkpoint().learner_steps == paused.learner_steps
    client.resume()
    cluster.wait_for_status(lambda s: s.learner_steps > paused.learner_steps, "further steps")
    client.stop("enough")
    assert learner.wait() == 0, learner.text()
    assert "enough" in learner.text()


def test_every_rank_serves_its_metrics_and_listens_on_loopback_alone(cluster: LearnerCluster) -> None:
    """The second on the port after the first's; what only the first does only the first shows, so no alert rings.

    Neither torchrun's store nor what carries the gradients can be reached from another machine.
    """
    port = free_port(in_a_row=2)
    learner = start_ranks(cluster, "--learner.server.metrics-address", f"127.0.0.1:{port}")
    cluster.wait_for_status(lambda s: s.learner_steps > 50, "50 updates")
    wait_until(lambda: _metrics(port + 1).get("tidemill_learner_steps_total", 0) > 0, "steps of the second rank")
    first, second = _metrics(port), _metrics(port + 1)
    assert first.keys() - second.keys() >= {"tidemill_learner_params_version", "tidemill_learner_checkpoint_steps"}
    assert second["tidemill_learner_env_steps"] > 0
    addresses = _listening([learner.pid, *workers(learner.pid)])
    assert len(addresses) >= 3 + 2  # the store, what carries gradients, the control service; metrics
    assert [address for address in addresses if not address.is_loopback] == []
    learner.signal(signal.SIGTERM)
    assert learner.wait() == 0, learner.text()


def _metrics(port: int) -> dict[str, float]:
    """Return the samples of a process that have no labels."""
    return {name: value for name, value in scrape(f"127.0.0.1:{port}").items() if "{" not in name}


def test_ranks_that_cannot_share_the_batch_are_refused(cluster: LearnerCluster) -> None:
    """One line names the sizes; nothing is started."""
    learner = start_ranks(cluster, "--agent.batch-size", "33")
    assert learner.wait() == 2
    assert "agent.batch_size is 33, which 2 learners cannot share evenly" in learner.text()
    wait_until(lambda: not cluster.checkpoints.exists(), "no checkpoint")


def _listening(pids: list[int]) -> list[IPv4Address | IPv6Address]:
    """Return the addresses at which processes listen for TCP connections."""
    own = {inode for pid in pids for inode in sockets_of(pid)}
    found: list[IPv4Address | IPv6Address] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            local, state, inode = (line.split()[place] for place in (1, 3, 9))
            if state == _LISTENS and inode in own:
                # words of 32 bits, each as the machine keeps it
                words = bytes.fromhex(local.partition(":")[0])
                address = b"".join(words[i : i + 4][::_BYTE_STEP] for i in range(0, len(words), 4))
                found.append(ip_address(address))
    return found
