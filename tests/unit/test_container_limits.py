"""Memory and processors of a container, as both versions of control groups state them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill import container_limits


def _write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_limit_of_a_group_around_ours_counts(tmp_path: Path) -> None:
    """A service of systemd or a pod limits its processes two levels up; what is cached there is not used."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/pod/learner\n")
    _write(root / "pod", memory__max=1000, memory__current=700, memory__stat="anon 300\ninactive_file 400")
    _write(root / "pod/learner", memory__max="max", memory__current=600, memory__stat="inactive_file 400")
    assert (container_limits.memory_bytes(root, own), container_limits.free_memory_bytes(root, own)) == (1000, 700)
    _write(root / "pod/learner", memory__max=900, memory__current=850, memory__stat="inactive_file 50")
    assert (container_limits.memory_bytes(root, own), container_limits.free_memory_bytes(root, own)) == (900, 100)


def test_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Its path is `/`, or one of the host that is not there."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    _write(root, memory__max=500, memory__current=600, memory__stat="inactive_file 0")
    for path in ("/", "/system.slice/docker-1.scope"):
        own.write_text(f"0::{path}\n")
        assert (container_limits.memory_bytes(root, own), container_limits.free_memory_bytes(root, own)) == (500, 0)


def test_version_1_is_read_too(tmp_path: Path) -> None:
    """Its files have other names, and no limit is a number near 2^63."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("12:cpu,cpuacct:/x\n5:memory:/docker/1\n")
    files = {"memory__usage_in_bytes": 300, "memory__stat": "total_inactive_file 100"}
    _write(root / "memory/docker/1", memory__limit_in_bytes=1000, **files)
    _write(root / "memory", memory__limit_in_bytes=2**63 - 4096, **files)
    assert (container_limits.memory_bytes(root, own), container_limits.free_memory_bytes(root, own)) == (1000, 800)


def test_machine_without_limits_says_none(tmp_path: Path) -> None:
    """Neither group nor Linux."""
    assert container_limits.memory_bytes(tmp_path, tmp_path / "none") is None
    assert container_limits.free_memory_bytes(tmp_path, tmp_path / "none") is None


@pytest.mark.requires_linux
def test_smallest_quota_of_processors_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the group, of those around it, and of the processors that the process may use; never less than one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/pod/actor\n")
    assert container_limits.cpus(root, own) == 8
    _write(root / "pod", cpu__max="350000 100000")
    _write(root / "pod/actor", cpu__max="max 100000")
    assert container_limits.cpus(root, own) == 3
    _write(root / "pod/actor", cpu__max="50000 100000")
    assert container_limits.cpus(root, own) == 1


@pytest.mark.requires_linux
def test_quota_of_version_1_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its controllers may share a line; no quota is -1."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/docker/1\n")
    _write(root / "cpu/docker/1", cpu__cfs_quota_us=200000, cpu__cfs_period_us=50000)
    _write(root / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert container_limits.cpus(root, own) == 4


_ASK = "from tidemill import container_limits; print(container_limits.cpus())"


@pytest.mark.requires_linux
def test_processors_of_a_pinned_process_are_counted() -> None:
    """As `taskset` and Slurm pin it."""
    allowed = {min(os.sched_getaffinity(0))}
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1\n"


def _groups_of(controller: str, levels: int) -> list[Path]:
    """Make groups of this machine, each inside the one before it. The test is skipped where none can be made."""
    folders = [Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup")]
    parent = next((each for each in folders if (each / "cgroup.procs").exists()), None)
    if os.geteuid() != 0 or parent is None:
        pytest.skip("takes root, and control groups that can be written")
    made: list[Path] = []
    try:
        for level in range(levels):
            group = (made[-1] if made else parent) / f"tidemill-test-{os.getpid()}-{level}"
            group.mkdir()
            made.append(group)
            if level + 1 < levels and (group / "cgroup.subtree_control").exists():
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        _remove(made)
        pytest.skip(f"no group can be made here: {error}")
    return made


def _remove(groups: list[Path]) -> None:
    for group in reversed(groups):
        group.rmdir()


def _limit(group: Path, files: dict[str, str]) -> None:
    """Write a limit into the file, of either version, that a group has."""
    names = [name for name in files if (group / name).exists()]
    if not names:
        _remove([group])
        pytest.skip(f"groups have no {' or '.join(files)} here")
    (group / names[0]).write_text(files[names[0]])


_LEARNER = """
import threading, torch
from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.services.learner.learner import Learner
settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "learner": {"device": "cpu", "threads": 0}}
Learner(from_document(LearnerConfig, settings), threading.Event())._build()
print(torch.get_num_threads())
"""


_MEMORY_USERS = """
from tidemill.replay.sampling.mirror_memory import free_bytes
from tidemill.services.tools.doctor.machine import memory
print(free_bytes(), memory()[0].text)
"""


def _asked_in(group: Path, what: str) -> str:
    """Return the limits that a process in a group prints."""
    return _printed_in(group, f"from tidemill import container_limits; print(container_limits.{what})")


def _printed_in(group: Path, code: str) -> str:
    """Return the output of a process in a group."""
    join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); "
    command = [sys.executable, "-c", join + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.requires_linux
def test_quota_of_a_real_group_is_counted() -> None:
    """In a group of this machine with one processor's time, which as root a test may make: torch has one thread."""
    (group,) = groups = _groups_of("cpu", 1)
    _limit(group, {"cpu.max": "100000 100000", "cpu.cfs_quota_us": "100000"})
    try:
        assert _asked_in(group, "cpus()") == "1\n"
        assert _printed_in(group, _LEARNER) == "1\n"
    finally:
        _remove(groups)


@pytest.mark.requires_linux
def test_memory_limit_of_a_real_group_around_ours_is_seen() -> None:
    """As those of a slice of systemd, a job of Slurm or a pod: the group of the process has none."""
    around, own = groups = _groups_of("memory", 2)
    _limit(around, {"memory.max": str(2**30), "memory.limit_in_bytes": str(2**30)})
    try:
        limit, free = map(int, _asked_in(own, "memory_bytes(), container_limits.free_memory_bytes()").split())
        seen = _printed_in(own, _MEMORY_USERS).split()
    finally:
        _remove(groups)
    assert limit == 2**30
    assert 2**29 < free < limit
    assert 2**29 < int(seen[0]) < limit, "the mirror"
    assert 0.5 < float(seen[1]) <= 1.0, "doctor, in GiB"
