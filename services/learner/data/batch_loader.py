"""Batches for the training thread, decoded ahead of their use in background threads."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidemill.replay.sampling.batch import SampledBatch
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.decoder import Batch

_POLL_S = 0.2
_JOIN_S = 5.0


class SampleSource(Protocol):
    """Where raw samples come from, such as a `ReplaySampler`."""

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next sample, or None if there is none in time."""

    def close(self) -> None:
        """End what `take` waits for."""


class BatchLoader:
    """A bounded queue of decoded batches.

    The threads hand over the batches of a whole sample at once: a hand-over costs the training thread
    more than taking a batch does.
    """

    def __init__(
        self,
        samples: SampleSource,
        decode: Callable[[SampledBatch, float], list[Batch]],
        counters: Counters,
        *,
        threads: int,
        prefetch_samples: int,
        clock: Callable[[], float],
    ) -> None:
        """Start the threads.

        Args:
            samples: Source of raw samples; closed with this.
            decode: Turns a sample and the time of its arrival into batches.
            counters: Learn the count of agent decisions that each sample carries.
            threads: Threads that decode, at least 1. With one, batches keep the order of their samples.
            prefetch_samples: Decoded samples held ready, at least 1.
            clock: Monotonic time in seconds.
        """
        self._samples, self._decode, self._counters, self._clock = samples, decode, counters, clock
        self._ready: queue.Queue[list[Batch]] = queue.Queue(prefetch_samples)
        self._current: deque[Batch] = deque()
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._receiving = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout_s`; 0 does not wait at all.

        Raises:
            TidemillError: What ended a decoding thread, such as a table of another configuration.
        """
        if not self._current:
            try:
                self._current.extend(self._ready.get(block=timeout_s > 0, timeout=timeout_s))
            except queue.Empty:
                if self._error is not None:
                    raise self._error from None
                return None
        return self._current.popleft()

    def close(self) -> None:
        """End the threads and the source, within a bounded time. May be called twice."""
        self._closed.set()
        self._samples.close()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                sample = self._receive()
                batches = [] if sample is None else self._decode(sample, self._clock())
                if batches:  # a sample of corrupt items alone gives none
                    self._hand_over(batches)
        except BaseException as error:  # re-raised in the training thread
            self._error = error

    def _receive(self) -> SampledBatch | None:
        with self._receiving:  # keeps the counts of agent decisions in their order
            sample = self._samples.take(_POLL_S)
            if sample is not None:
                for shard, stored in sample.stored.items():
                    self._counters.observe(stored, shard)
            return sample

    def _hand_over(self, batches: list[Batch]) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(batches, timeout=_POLL_S)
            except queue.Full:
                continue
            return
