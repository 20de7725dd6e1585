"""What Prometheus sees of the log beside its sizes."""

from __future__ import annotations

from prometheus_client import Histogram

FSYNC_SECONDS = Histogram(
    "tidemill_replay_fsync_seconds",
    "Time the disk took to confirm what was written to the log.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
