"""The mirror that two learners of one machine share, as processes: its memory is there once, and goes with them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.learner_cluster import LearnerCluster, Process, learner_cluster
from tests.support.processes import runs, sockets_of
from tests.support.ranks import start_ranks, workers
from tests.support.waiting import wait_until

_HALF = ("--learner.sources", "demos", "{fraction: 0.5}", "--agent.batch-size", "32")
_NAME = "/memfd:tidemill-mirror"
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+) *(.*)$")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LearnerCluster]:
    """A cluster that is fed, with no learner yet."""
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params()
        cluster.feed(chunks_per_s=200.0)
        yield cluster


class Mapped:
    """What a process has mapped of shared mirrors.

    Attributes:
        files: Inode of each file.
        access: Access to them, such as `rw-s`.
        kib: Sums over them of `Rss`, `Pss` and whatever else the system says.
    """

    def __init__(self, pid: int) -> None:
        """Read it."""
        self.files: set[str] = set()
        self.access: set[str] = set()
        self.kib: dict[str, int] = {}
        is_of_mirror = False
        for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
            if found := _MAPPING.match(line):
                access, inode, path = found.groups()
                if is_of_mirror := path.startswith(_NAME):
                    self.files.add(inode)
                    self.access.add(access)
            elif is_of_mirror and line.endswith(" kB"):
                name, size, _ = line.split()
                self.kib[name.rstrip(":")] = self.kib.get(name.rstrip(":"), 0) + int(size)


def _doors(inodes: set[str] | None = None) -> set[str]:
    """Return the names of the sockets by which mirrors are fetched: of all processes, or of those with these inodes."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    found = [line.split()[6:] for line in lines if "@tidemill-mirror" in line]
    return {name for inode, name in found if inodes is None or inode in inodes}


def _trained(cluster: LearnerCluster, learner: Process, steps: int) -> list[int]:
    cluster.wait_for_status(lambda s: s.learner_steps > steps, f"{steps} updates")
    return workers(learner.pid)


def test_memory_of_two_ranks_is_there_once(cluster: LearnerCluster) -> None:
    """Both map one file, whose pages count half to each; the second rank only reads it, and keeps no other.

    A source beside the run's table is not mirrored: each rank draws its part of every batch from it.
    """
    write_demonstrations(cluster.replay, demonstrations())
    learner = start_ranks(cluster, *_HALF)
    first, second = (Mapped(pid) for pid in _trained(cluster, learner, 200))
    assert first.files == second.files
    assert len(first.files) == 1
    assert (first.access, second.access) == ({"rw-s"}, {"r--s"})
    assert second.kib["Rss"] > 0
    shared = second.kib["Rss"]  # the owner has mapped these pages, too: it wrote them
    assert second.kib["Pss"] == pytest.approx(shared / 2, abs=len(second.kib) + 0.1 * shared)
    assert "sampling for the learners of this machine" in learner.text()
    drawn = cluster.replay_client().describe_table("demos").samples
    updates = cluster.learner_client().get_status().learner_steps  # not fewer than when these were drawn
    assert 16 * 200 <= drawn <= 16 * (updates + 100)  # half of each batch, and what both ranks fetch ahead
    assert learner.text().count("source=demos") == 2
    cluster.learner_client().stop("enough")
    assert learner.wait() == 0, learner.text()


def test_nothing_is_left_of_a_killed_rank(cluster: LearnerCluster) -> None:
    """Whichever it is: all start again with another file, none has the old one, and /dev/shm has no more orphans."""
    before = set(os.listdir("/dev/shm"))
    learner, old, doors = start_ranks(cluster), set[str](), set[str]()
    steps = 50
    for victim in (1, 0):
        ranks = _trained(cluster, learner, steps)
        files = {inode for pid in ranks for inode in Mapped(pid).files}
        assert len(files) == 1
        assert not files & old
        old |= files
        new_doors = _doors({inode for pid in ranks for inode in sockets_of(pid)})
        assert len(new_doors - doors) == 1
        doors |= new_doors
        steps = cluster.learner_client().save_checkpoint().learner_steps
        os.kill(ranks[victim], signal.SIGKILL)
        wait_until(lambda ranks=ranks: not any(map(runs, ranks)), "the end of all ranks")  # type: ignore[misc]
    _trained(cluster, learner, steps)
    assert not old & {inode for pid in workers(learner.pid) for inode in Mapped(pid).files}
    learner.signal(signal.SIGTERM)
    assert learner.wait() == 0, learner.text()
    wait_until(lambda: _orphans() <= before, "no more orphans")
    assert not doors & _doors()


def _orphans() -> set[str]:
    """Return the names in /dev/shm that no process has mapped; other tests' processes may have some of theirs there."""
    there = set(os.listdir("/dev/shm"))
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended
            there -= set(re.findall(r"/dev/shm/(\S+)$", maps.read_text(encoding="utf-8"), re.MULTILINE))
    return there & set(os.listdir("/dev/shm"))  # some have gone meanwhile, with the processes that had them


def test_ranks_keep_their_own_mirrors_when_told_to(cluster: LearnerCluster) -> None:
    """Nothing is mapped by both."""
    learner = start_ranks(cluster, "--learner.no-share-mirror")
    assert [Mapped(pid).files for pid in _trained(cluster, learner, 50)] == [set(), set()]
    cluster.learner_client().stop("enough")
    assert learner.wait() == 0, learner.text()
