"""What writes the streams of an actor, to one replay server or to several shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.replay.chunk import Chunk, ItemBatch


class Appending(Protocol):
    """An `Appender` or a `ShardedAppender`; their properties are explained there."""

    def append(self, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = (), timeout_s: float | None = None) -> bool:
        """Queue chunks and the items that end in them; wait while too much is unacknowledged."""

    def opened(self, timeout_s: float) -> bool:
        """Wait until the server has named the epoch; return False if it has not after `timeout_s` seconds."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; return False if that took longer than `timeout_s` seconds."""

    def close(self) -> None:
        """End the call and the threads without waiting for acknowledgements. May be called twice."""

    @property
    def epoch(self) -> int:
        """Epoch of the streams."""

    @property
    def superseded_epoch(self) -> int:
        """Epoch of an earlier life of this actor, 0 if there was none."""

    @property
    def env_steps(self) -> int:
        """Agent decisions stored by the server that is written to, of all actors."""

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks queued or sent and not yet acknowledged."""

    @property
    def blocked_s(self) -> float:
        """Seconds the owner has waited in `append` so far."""

    @property
    def restarts(self) -> int:
        """How often the streams began anew."""

    @property
    def dropped_chunks(self) -> int:
        """Chunks dropped unacknowledged."""
