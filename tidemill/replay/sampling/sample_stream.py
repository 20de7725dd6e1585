"""Batches of one table of one server, received ahead of use by credit."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.batch import EpochPlace, SampledBatch
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.shard import ShardReport
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import unpack_sample
from tidemill.rpc.channel import MAX_MESSAGE_BYTES


def seed_of(seed: int, part: int) -> int:
    """Return the seed, 0 to 2**64 - 1, of one of several parts that are drawn by one."""
    return int(np.random.SeedSequence([seed, part]).generate_state(1, np.uint64)[0])


class SampleStream:
    """What a `ReplaySampler` takes batches from when there is one server, whose limiter holds it back (ADR 0034).

    At most `max_in_flight_batches` are under way or ready: the server sends what it has credit for, and each one taken
    grants another. When the call breaks, batches under way are lost and count as sampled, and the table is created
    again if the server lost it. With `max_times_sampled` the items of batches that were not taken are in the table
    again when the call breaks or is closed, so what is ready then is dropped, and drawn again. Every method may be
    called from any thread; each batch goes to one of them.
    """

    priorities_dropped = unknown_keys = 0  # its priorities are answered one by one, so nothing has to be counted

    def __init__(  # noqa: PLR0913 - those of `ReplaySampler`
        self,
        address: str,
        table: TableConfig,
        batch_size: int,
        *,
        max_in_flight_batches: int = 4,
        without_replacement: bool = False,
        mirror: TableMirror | None = None,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        seed: int | None = None,
        allow_smaller: bool = False,
        by_epoch: bool = False,
    ) -> None:
        """Start connecting in the background; the arguments are those of `ReplaySampler`."""
        self._table, self._max_in_flight, self._mirror = table.name, max_in_flight_batches, mirror
        self._settles = bool(table.max_times_sampled)
        self._seed = seed
        self._epoch = EpochPlace(seed if seed is not None else secrets.randbits(64)) if by_epoch else None
        self._changed = threading.Condition()  # guards everything below
        self._ready: deque[SampledBatch] = deque()
        self._is_connected = self._is_closed = False
        self._calls = 0  # opened so far
        self._error: BaseException | None = None
        size = mirror.size if mirror is not None else None
        self._call = SampleCall(
            table.name,
            address,
            table,
            batch_size,
            without_replacement,
            self,
            size,
            item_counts=item_counts,
            settles=self._settles,
            max_message_bytes=max_message_bytes,
            allow_smaller=allow_smaller,
        )
        self._call.start()

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed.

        Raises:
            TidemillError: The server refused for good.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._is_closed, timeout_s)
            if self._is_closed:
                return None
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
            batch = self._ready.popleft()
            self._grant(1, taken=(batch.number,) if self._settles and batch.number else ())
        return batch

    def ask_smaller(self) -> None:
        """Ask that the next batch be as large as the table can make it now."""
        with self._changed:
            if self._is_connected and not self._ready:
                self._call.send(pb.SampleRequest(smaller=True))

    def update_priorities(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Set the priorities [N] of items by key [N], see `ReplayClient.update_priorities`."""
        self._call.client.update_priorities(self._table, keys, priorities, fencing_token, deadline_s=deadline_s)

    def delete_items(self, keys: NDArray[np.uint64]) -> None:
        """Remove items by key [N], see `ReplayClient.delete_items`."""
        self._call.client.delete_items(self._table, keys)

    def reports(self) -> tuple[ShardReport, ...]:
        """Return nothing: there are no shards."""
        return ()

    @property
    def reconnects(self) -> int:
        """How often the call was lost and opened again."""
        return max(self._calls - 1, 0)

    def close(self) -> None:
        """End the call and the thread, and every wait, within a bounded time. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._call.close()

    def opened(self, _call: SampleCall, _created: bool) -> None:
        """Grant what is not ready; with nothing to grant the next `take` opens the stream (`SampleCallOwner`)."""
        with self._changed:
            # batches that are ready are kept: what follows them is drawn by another seed, or from the place behind them
            seed = None if self._seed is None or self._epoch is not None else seed_of(self._seed, self._calls)
            self._call.draw_by(seed=seed, epoch=self._epoch)
            self._is_connected = True
            self._calls += 1
            self._grant(self._max_in_flight - len(self._ready))

    def answered(self, _call: SampleCall, answer: pb.SampleResponse) -> None:
        """Keep a batch, its rows in the order in which the server sends them (`SampleCallOwner`)."""
        batch = unpack_sample(answer, mirrored=self._mirror is not None)
        if self._mirror is not None:
            batch = self._mirror.keep(batch)
        with self._changed:
            if batch.epoch is not None:
                self._epoch = batch.epoch
            self._ready.append(batch)
            self._changed.notify_all()

    def lost(self, _call: SampleCall) -> None:
        """Grant nothing before the next call (`SampleCallOwner`)."""
        with self._changed:
            self._is_connected = False
            if self._settles:
                self._ready = deque(batch for batch in self._ready if not batch.number)  # those are back in the table

    def failed(self, error: BaseException) -> None:
        """Keep what ended the calls for good; `take` raises it (`SampleCallOwner`)."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _grant(self, credit: int, taken: Sequence[int] = ()) -> None:
        if self._is_connected and credit:
            self._call.send(pb.SampleRequest(credit=credit, taken=taken))
