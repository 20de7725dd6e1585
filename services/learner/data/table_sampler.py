"""What the parts of a learner need of a sampler, whether it is their own or another rank's."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.sampling.batch import SampledBatch
from tidemill.replay.shards.shard import ShardReport

Keys = NDArray[np.uint64]


class TableSampler(Protocol):
    """What a learner needs of a `ReplaySampler`, or of another rank's."""

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if there is none in time."""

    def update_priorities(self, keys: Keys, priorities: NDArray[np.float64], fencing_token: int = 0) -> None:
        """Set new priorities of sampled items."""

    def delete_items(self, keys: Keys) -> None:
        """Remove sampled items from the table."""

    def shards(self) -> tuple[ShardReport, ...]:
        """Return what is known of each shard; nothing for a single server."""

    def close(self) -> None:
        """End it. May be called twice."""

    @property
    def reconnects(self) -> int:
        """How often its sample streams were lost and opened again."""

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered."""

    @property
    def unknown_keys(self) -> int:
        """Priorities delivered after their item had left the table."""
