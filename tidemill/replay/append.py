"""The appending side of the replay client: what an actor writes its streams with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tidemill.errors import FailedPrecondition
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.types import Signature


class StreamRestarted(FailedPrecondition):
    """The server lost the streams; the owner goes on with step 0 of each."""


class Appender:
    """Sends chunks and items of one actor's streams; each is stored exactly once.

    A background thread holds the connection. When it breaks, it reconnects with backoff, learns from the server
    which steps are missing and resends only those. The owner calls every method from one thread.

    When the server no longer knows the streams (one that keeps its tables in memory was restarted), everything
    unacknowledged is dropped and counted in `dropped_chunks`, `restarts` grows, and the next `append` raises
    `StreamRestarted` once, having taken nothing: from then on the owner numbers the steps of every stream from 0.

    Errors that a retry cannot cure (a malformed chunk, a signature that is not the table's, another actor of the
    same name) are raised by the next call of any method.
    """

    def __init__(
        self,
        address: str,
        actor_id: str,
        env_count: int,
        signature: Signature,
        tables: Sequence[str],
        chunk_length: int,
        *,
        max_unacknowledged_chunks: int = 256,
        stop: threading.Event | None = None,
    ) -> None:
        """Start connecting in the background; does not wait for the server or for the tables to exist.

        Args:
            address: Address of the replay service.
            actor_id: Name of the actor, unique among those that append at the same time.
            env_count: Number of streams, one for each environment.
            signature: Columns of the streams, equal to that of every table named.
            tables: Names of the tables that items may go to.
            chunk_length: Steps of every chunk but a stream's last, 1 .. 1024.
            max_unacknowledged_chunks: Chunks that may be unacknowledged before `append` waits.
            stop: Ends every wait when set.
        """
        raise NotImplementedError

    def append(
        self, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = (), timeout_s: float | None = None
    ) -> bool:
        """Queue chunks and the items that end in them; wait while too much is unacknowledged.

        One call becomes one message: it is stored whole or not at all.

        Args:
            chunks: New chunks, those of one stream in order.
            items: At most one batch for each table.
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            True once it is queued; False if `stop` was set while it waited: then nothing was taken.

        Raises:
            StreamRestarted: the server lost the streams; nothing was taken, see the class.
            Unavailable: `timeout_s` passed; nothing was taken.
            TidemillError: the server refused the streams for good.
        """
        raise NotImplementedError

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; return False if that took longer than `timeout_s` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """End the call and the thread without waiting for acknowledgements. May be called twice."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """Epoch of the streams; 0 before the first connection."""
        raise NotImplementedError

    @property
    def env_steps(self) -> int:
        """Agent decisions stored by the server, of all actors, as of the newest acknowledgement."""
        raise NotImplementedError

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks queued or sent and not yet acknowledged."""
        raise NotImplementedError

    @property
    def blocked_s(self) -> float:
        """Seconds the owner has waited in `append` so far."""
        raise NotImplementedError

    @property
    def restarts(self) -> int:
        """How often the server lost the streams."""
        raise NotImplementedError

    @property
    def dropped_chunks(self) -> int:
        """Chunks dropped because the server lost the streams before it acknowledged them."""
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether the server has accepted the streams on the present connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
