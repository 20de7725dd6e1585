"""A whole cluster with two replay shards: both are used, shown, and started again when they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.support.launched import launched, learner_of, tidemill
from tests.support.waiting import wait_until
from tidemill.errors import Unavailable
from tidemill.learner.status import LearnerStatus

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def status_of(folder: Path) -> LearnerStatus:
    """Return the status of the learner; an empty one while it cannot be reached."""
    with learner_of(folder) as learner, contextlib.suppress(Unavailable):
        return learner.get_status()
    return LearnerStatus()


def pid_of_shard(number: int, root: Path) -> int:
    """Return the process of one shard of the cluster whose runs lie below `root`."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text().split("\0") if folder.name.isdigit() else []
            is_ours = "tidemill.services.replay" in words and any(word.startswith(str(root)) for word in words)
            if is_ours and words[words.index("--replay.shard") + 1] == str(number):
                return int(folder.name)
    raise AssertionError(f"no process of shard {number}")


def test_train_uses_two_shards_and_survives_the_death_of_one(config_file: Path, tmp_path: Path) -> None:
    """Each gives samples; `tidemill status` shows both; training continues over a kill; the shard is taken back."""
    folder = tmp_path / "runs" / "small"
    options = ("--replay.shards", "2", "--launcher.actors", "2")
    with launched("train", "--config", str(config_file), *options) as cluster:
        for name in ("replay-0", "replay-1", "learner", "actor-0", "actor-1"):
            cluster.until(f"{name} is ready")
        wait_until(lambda: [s.samples > 100 for s in status_of(folder).shards] == [True, True], "samples of both")
        shown = tidemill("status", str(folder))
        assert "shard 0" in shown
        assert "shard 1" in shown
        os.kill(pid_of_shard(1, tmp_path), signal.SIGKILL)
        cluster.until("replay-1 was killed by signal 9")
        before = status_of(folder)
        wait_until(lambda: status_of(folder).learner_steps > before.learner_steps + 40, "steps without it or with it")
        cluster.until("replay-1 is ready", count=2)
        given = before.shards[1].samples
        wait_until(lambda: [s.live for s in status_of(folder).shards] == [True, True], "both shards")
        wait_until(lambda: status_of(folder).shards[1].samples > given, "samples of what was restored")
        cluster.send(signal.SIGINT)
        assert cluster.wait() == 0
        assert cluster.children() == {}
    assert (folder / "logs" / "replay-1.log").stat().st_size > 0
    assert [path.name for path in sorted((folder / "replay").iterdir())] == ["0", "1"]
