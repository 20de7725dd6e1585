"""Settings of the replay service's log on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemill.config.check import check


@dataclass(frozen=True)
class StorageSettings:
    """Where and how the replay service keeps its tables; without a folder they are in memory only."""

    folder: str = ""
    """Folder of the log; `{run}` in it stands for the run's folder, `{shard}` for `replay.shard`. Empty: in memory
    only. `tidemill train` takes RUN/replay/SHARD unless `memory_only` is set."""
    memory_only: bool = False
    """Whether `tidemill train` keeps the tables in memory only: they are then lost when the service ends."""
    ack: Literal["write", "fsync"] = "write"
    """When an append is acknowledged: once the system has it (survives a killed process), or once the disk has."""
    fsync_interval_ms: float = 200.0
    """Longest time between a write and its way to the disk, in milliseconds: what a power failure may cost. Not used
    with `ack` fsync, which syncs whatever has come as soon as the disk is ready for more."""
    segment_mib: int = 64
    """Size at which a file of the log ends, in MiB."""
    max_queue_mib: int = 64
    """Most MiB that wait to be written before appends wait."""
    snapshot_every_s: float = 60.0
    """Seconds between two snapshots of priorities and counters; 0: only on request and at the end."""

    def __post_init__(self) -> None:
        check(self.fsync_interval_ms > 0, "replay.storage.fsync_interval_ms", self.fsync_interval_ms, "more than 0")
        for name in ("segment_mib", "max_queue_mib"):
            check(getattr(self, name) >= 1, f"replay.storage.{name}", getattr(self, name), "at least 1")
        check(self.snapshot_every_s >= 0, "replay.storage.snapshot_every_s", self.snapshot_every_s, "0 or more")
