"""Checkpoints on disk: round trip, corruption, other runs, full disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.support.damage import empty, flip, tear
from tests.support.naming import because, naming
from tidemill import formats
from tidemill.errors import FatalError, Reason, ResourceExhausted, TidemillError
from tidemill.params.publisher import StalePublisher
from tidemill.services.learner.checkpoint.format import Checkpoint
from tidemill.services.learner.checkpoint.store import CheckpointStore, check_fits


def _checkpoint(steps: int = 5, *, algorithm: str = "sac", width: int = 3, fencing_token: int = 0) -> Checkpoint:
    return Checkpoint(
        algorithm=algorithm,
        network={"actor.0.weight": [width, 2]},
        config_digest="ab",
        counters={"learner_steps": steps},
        agent={
            "weight": torch.full((width, 2), float(steps)),
            "optimizer": {"0": {"step": torch.tensor(2.0)}},
        },
        rng={"python": (3, (1, 2), None), "torch": torch.arange(4, dtype=torch.uint8)},
        fencing_token=fencing_token,
    )


def _steps(store: CheckpointStore) -> int | None:
    found = store.newest()
    return None if found is None else found[1].counters["learner_steps"]


def test_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    """Every field of a written checkpoint is read back by a store of a new process; folders are made as needed."""
    written = _checkpoint()
    path = CheckpointStore(tmp_path / "new" / "checkpoints", keep=2).write(written)
    found = CheckpointStore(tmp_path / "new" / "checkpoints", keep=2).newest()
    assert found is not None
    assert found[0] == path
    read = found[1]
    assert (read.algorithm, read.network, read.config_digest) == ("sac", {"actor.0.weight": [3, 2]}, "ab")
    assert read.counters == written.counters
    assert torch.equal(read.agent["weight"], written.agent["weight"])
    assert read.agent["optimizer"]["0"]["step"].item() == 2.0
    assert read.rng["python"] == (3, (1, 2), None)
    assert torch.equal(read.rng["torch"], written.rng["torch"])


def test_checksum_file_is_what_sha256sum_checks(tmp_path: Path) -> None:
    """An operator can check a checkpoint with coreutils."""
    path = CheckpointStore(tmp_path, keep=1).write(_checkpoint())
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", path.with_suffix(".sha256").name],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stderr


def test_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    """A fresh run restores nothing, and makes no folder by looking."""
    assert CheckpointStore(tmp_path / "none", keep=1).newest() is None
    assert not (tmp_path / "none").exists()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """With keep = 2 the third checkpoint removes the first, checksum included."""
    store = CheckpointStore(tmp_path, keep=2)
    for steps in (1, 2, 3):
        store.write(_checkpoint(steps))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000000-00000002.safetensors",
        "checkpoint-000000-00000002.sha256",
        "checkpoint-000000-00000003.safetensors",
        "checkpoint-000000-00000003.sha256",
    ]
    assert _steps(store) == 3


def test_newest_token_is_restored_whatever_the_numbers(tmp_path: Path) -> None:
    """A checkpoint that an older learner wrote last is older; it is also the first to be removed."""
    newer, older = CheckpointStore(tmp_path / "newer", keep=2), CheckpointStore(tmp_path / "older", keep=9)
    newer.write(_checkpoint(6000, fencing_token=2))
    for steps in (1000, 1500, 1994):
        older.write(_checkpoint(steps, fencing_token=1))
    for path in (tmp_path / "older").iterdir():  # as if it had been frozen between its last look and its rename
        path.rename(tmp_path / "newer" / path.name)
    assert (_steps(newer), newer.fencing_token) == (6000, 2)
    newer.write(_checkpoint(6018, fencing_token=2))
    assert sorted(path.name for path in (tmp_path / "newer").glob("*.safetensors")) == [
        "checkpoint-000002-00000001.safetensors",
        "checkpoint-000002-00000004.safetensors",
    ]


def test_older_fencing_token_writes_nothing_beside_a_newer_one(tmp_path: Path) -> None:
    """The refusal names both fencing tokens, and the folder stays as it was."""
    store = CheckpointStore(tmp_path, keep=9)
    store.write(_checkpoint(6, fencing_token=3))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StalePublisher, match=naming("fencing 3 learner 2")):
        store.write(_checkpoint(9, fencing_token=2))
    assert sorted(tmp_path.iterdir()) == before


def test_learner_superseded_while_it_writes_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks once more between writing its bytes and giving them their name."""
    store, fsync, calls = CheckpointStore(tmp_path, keep=9), os.fsync, [0]

    def frozen_in(file: int) -> None:
        calls[0] += 1
        if calls[0] == 3:  # the checkpoint's own bytes; the checksum and its folder were before
            monkeypatch.setattr(os, "fsync", fsync)
            CheckpointStore(tmp_path, keep=9).write(_checkpoint(6, fencing_token=2))
        fsync(file)

    monkeypatch.setattr(os, "fsync", frozen_in)
    with pytest.raises(StalePublisher):
        store.write(_checkpoint(5, fencing_token=1))
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"checkpoint-000002-00000001"}


def _lose_checksum(path: Path) -> None:
    path.with_suffix(".sha256").unlink()


def _garble_checksum(path: Path) -> None:
    path.with_suffix(".sha256").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("corrupt", [tear, flip, empty, _lose_checksum, _garble_checksum])
def test_corrupt_checkpoint_is_skipped_for_the_one_before(tmp_path: Path, corrupt: Callable[[Path], None]) -> None:
    """Whatever happened to the newest file, the newest whole one is restored."""
    store = CheckpointStore(tmp_path, keep=3)
    store.write(_checkpoint(1))
    newest = store.write(_checkpoint(2))
    corrupt(newest)
    assert _steps(store) == 1


@pytest.mark.parametrize("calls", [("read_bytes",), ("listdir", "scandir")], ids=["file", "folder"])
def test_checkpoint_that_cannot_be_read_now_is_not_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...]
) -> None:
    """Nothing older is restored, nothing is written or removed; when the disk works again the newest is restored."""
    store = CheckpointStore(tmp_path, keep=2)
    for steps in (1, 2):
        store.write(_checkpoint(steps))
    before = sorted(tmp_path.iterdir())

    def fails(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        for call in calls:
            patched.setattr(Path if call == "read_bytes" else os, call, fails)
        with pytest.raises(TidemillError, match=naming(str(tmp_path), "Permission denied")):
            store.newest()
        if "listdir" in calls:
            with pytest.raises(TidemillError, match=naming(str(tmp_path), "Permission denied")):
                store.write(_checkpoint(3))
    assert sorted(tmp_path.iterdir()) == before
    assert _steps(store) == 2


def test_next_checkpoint_after_a_corrupt_one_is_the_newest(tmp_path: Path) -> None:
    """Numbers continue behind a corrupt file, so that it never hides a good one."""
    store = CheckpointStore(tmp_path, keep=3)
    flip(store.write(_checkpoint(1)))
    store.write(_checkpoint(2))
    assert _steps(store) == 2


def test_foreign_file_with_a_right_checksum_is_skipped(tmp_path: Path) -> None:
    """A safetensors file that is not a checkpoint counts as corrupt."""
    store = CheckpointStore(tmp_path, keep=3)
    path = store.write(_checkpoint(1))
    foreign = safetensors.torch.save({"a": torch.zeros(1)})
    path.write_bytes(foreign)
    path.with_suffix(".sha256").write_text(f"{hashlib.sha256(foreign).hexdigest()}  {path.name}\n")
    assert store.newest() is None


def test_half_written_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    """What a killed process left behind does not pile up."""
    leftover = tmp_path / "checkpoint-000000-00000009.safetensors.tmp"
    leftover.write_bytes(b"half")
    CheckpointStore(tmp_path, keep=1)
    assert not leftover.exists()


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC becomes ResourceExhausted; the older checkpoint stays and the folder holds nothing else."""
    store = CheckpointStore(tmp_path, keep=3)
    store.write(_checkpoint(1))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceExhausted, match="No space left on device", check=because(Reason.DISK_FULL)):
        store.write(_checkpoint(2))
    assert _steps(store) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_disk_that_fails_otherwise_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error is not called a full disk."""

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(TidemillError, match="Input/output error") as caught:
        CheckpointStore(tmp_path, keep=1).write(_checkpoint())
    assert not isinstance(caught.value, ResourceExhausted)


def test_checkpoint_of_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not skipped as corrupt: an older one must not be restored in its place without a word."""
    store = CheckpointStore(tmp_path, keep=1)
    store.write(_checkpoint())
    monkeypatch.setattr(formats, "NEWEST", {**formats.NEWEST, formats.CHECKPOINT: 3})
    with pytest.raises(FatalError, match=naming("safetensors 4 3")):
        store.newest()


def test_checkpoint_of_another_algorithm_is_refused() -> None:
    """The message names both algorithms and the way out."""
    with pytest.raises(FatalError, match=naming("dqn sac run.name")):
        check_fits(Path("c/x"), _checkpoint(algorithm="dqn"), _checkpoint())


def test_checkpoint_of_another_network_is_refused() -> None:
    """The message names the tensor and both shapes."""
    with pytest.raises(FatalError, match=naming("actor.0.weight [4, 2] actor.0.weight [3, 2]")):
        check_fits(Path("c/x"), _checkpoint(width=4), _checkpoint())


def test_checkpoint_whose_numbers_were_another_network_is_refused() -> None:
    """Logits of C51 would be read as quantiles, of which there are as many; early versions do not tell."""
    c51, qr = (replace(_checkpoint(), settings={"agent.distribution": each}) for each in ("c51", "qr"))
    with pytest.raises(FatalError, match=naming("agent.distribution c51 qr run.name")):
        check_fits(Path("c/x"), c51, qr)
    check_fits(Path("c/x"), _checkpoint(), qr)


def test_fitting_checkpoint_is_accepted() -> None:
    """Equal algorithm and shapes raise nothing."""
    check_fits(Path("c/x"), _checkpoint(1), _checkpoint(2))


def test_header_is_readable_json(tmp_path: Path) -> None:
    """Nothing in the file needs Tidemill, or runs code, to be looked at."""
    path = CheckpointStore(tmp_path, keep=1).write(_checkpoint(7))
    with safetensors.safe_open(str(path), framework="pt") as file:
        header = json.loads(file.metadata()["tidemill_checkpoint"])
    assert (header["format"], header["counters"]["learner_steps"]) == (4, 7)
