"""The batches of one table, decoded when they are taken or ahead of that in threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tidemill.replay.batch import SampledBatch
from tidemill.replay.sampling.decode_pool import DecodePool
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_decoder import SampleDecoder
from tidemill.replay.sampling.sampler import EndOfBatches
from tidemill.replay.sampling.source import OpenedSource


class TableFeed:
    """Takes samples from their source and hands out their batches. `take` may be called from any thread."""

    def __init__(
        self,
        opened: OpenedSource,
        decoder: SampleDecoder,
        *,
        threads: int,
        prefetch_samples: int,
        epochs: int,
        on_sample: Callable[[SampledBatch], object],
        is_over: Callable[[], bool],
    ) -> None:
        """Start the threads, if there are any.

        Args:
            opened: The source of samples.
            decoder: Makes batches of them.
            threads: Threads that decode; 0 decodes in the thread that takes batches. With `epochs` at most 1.
            prefetch_samples: Decoded samples that threads hold ready.
            epochs: Epochs after which the batches end; 0 for no end.
            on_sample: Called with each sample as it arrives, in their order.
            is_over: Whether there is no more to wait for.
        """
        self._opened, self._decoder, self._epochs = opened, decoder, epochs
        self._on_sample, self._is_over = on_sample, is_over
        self._epochs_are_over = threading.Event()
        self._ready: deque[ReplayBatch] = deque()
        self._pool: DecodePool[SampledBatch, ReplayBatch] | None = None
        if threads:
            self._pool = DecodePool(self._receive, self._decode, threads=threads, prefetch_samples=prefetch_samples)

    def take(self, timeout_s: float) -> ReplayBatch | None:
        """Return the next batch, or None if none comes within `timeout_s` seconds.

        Raises:
            EndOfBatches: It is over.
            TidemillError: A server refused for good.
        """
        while not self._is_over():
            try:
                return self._ready.popleft()
            except IndexError:  # nothing is ready, or another thread was faster
                pass
            over = self._epochs_are_over.is_set()  # asked first: what was decoded before is in the pool by then
            if self._pool is not None:
                batch = self._pool.take(0.0 if over else timeout_s)
                if batch is not None or not over:
                    return batch
            elif not over:
                if (sample := self._receive(timeout_s)) is not None:
                    self._ready.extend(self._decode(sample))
                    continue
                if not self._epochs_are_over.is_set():
                    return None
            break
        raise EndOfBatches

    def put_back(self, batch: ReplayBatch) -> None:
        """Hand a batch out once more, before all others."""
        self._ready.appendleft(batch)

    @property
    def corrupt_items(self) -> int:
        """Items that were replaced because they could not be decoded."""
        return self._decoder.corrupt_items

    @property
    def overruns(self) -> int:
        """Times that batches were dropped because the mirror's rows were written over while they were read."""
        return self._decoder.overruns

    def close(self) -> None:
        """End the threads; the source is closed before. May be called twice."""
        if self._pool is not None:
            self._pool.close()

    def _receive(self, timeout_s: float) -> SampledBatch | None:
        if self._epochs_are_over.is_set():
            time.sleep(timeout_s)  # of a thread that has nothing more to do before it is closed
            return None
        sample = self._opened.source.take(timeout_s)
        if sample is None:
            return None
        if sample.epoch is not None and self._epochs and sample.epoch.number >= self._epochs:
            self._epochs_are_over.set()
            return None
        self._on_sample(sample)
        return sample

    def _decode(self, sample: SampledBatch) -> list[ReplayBatch]:
        batches = self._decoder.decode(sample)
        if not batches:  # the mirror was written over by a new call's batches
            self._opened.source.again()
        return batches
