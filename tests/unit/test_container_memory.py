"""The memory of a container, as both versions of control groups state it."""

from __future__ import annotations

from pathlib import Path

from tidemill import container_memory


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
    assert (container_memory.limit_bytes(root, own), container_memory.free_bytes(root, own)) == (1000, 700)
    _write(root / "pod/learner", memory__max=900, memory__current=850, memory__stat="inactive_file 50")
    assert (container_memory.limit_bytes(root, own), container_memory.free_bytes(root, own)) == (900, 100)


def test_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Its path is `/`, or one of the host that is not there."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    _write(root, memory__max=500, memory__current=600, memory__stat="inactive_file 0")
    for path in ("/", "/system.slice/docker-1.scope"):
        own.write_text(f"0::{path}\n")
        assert (container_memory.limit_bytes(root, own), container_memory.free_bytes(root, own)) == (500, 0)


def test_version_1_is_read_too(tmp_path: Path) -> None:
    """Its files have other names, and no limit is a number near 2^63."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("12:cpu,cpuacct:/x\n5:memory:/docker/1\n")
    files = {"memory__usage_in_bytes": 300, "memory__stat": "total_inactive_file 100"}
    _write(root / "memory/docker/1", memory__limit_in_bytes=1000, **files)
    _write(root / "memory", memory__limit_in_bytes=2**63 - 4096, **files)
    assert (container_memory.limit_bytes(root, own), container_memory.free_bytes(root, own)) == (1000, 800)


def test_machine_without_limits_says_none(tmp_path: Path) -> None:
    """Neither group nor Linux."""
    assert container_memory.limit_bytes(tmp_path, tmp_path / "none") is None
    assert container_memory.free_bytes(tmp_path, tmp_path / "none") is None
