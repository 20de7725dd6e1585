"""Batches of a run in lock-step, decoded when they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.batch import SampledBatch
from tidemill.replay.sampling.seeded_stream import SeededSampleStream
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.decoder import Batch


class RoundBatches:
    """A `BatchSource` that decodes each sample when its first batch is needed, in the training thread.

    What the decoder asks of the counters is then the same in every run.
    """

    def __init__(
        self,
        stream: SeededSampleStream,
        decode: Callable[[SampledBatch, float], list[Batch]],
        counters: Counters,
        decoders: Counters,
        *,
        batches: int,
        clock: Callable[[], float],
    ) -> None:
        """Take the parts.

        Args:
            stream: Gives the samples, the first of them the one that the next update's batch is in.
            decode: Turns a sample and the time of its arrival into `batches` batches.
            counters: Say how many updates were made; learn the count of agent decisions.
            decoders: What the decoder takes for the counters: the updates before a sample's first batch, in a
                learner that resumes in the middle of a sample too.
            batches: Batches of one sample.
            clock: Monotonic time in seconds.
        """
        self._stream, self._decode, self._counters, self._clock = stream, decode, counters, clock
        self._decoders = decoders
        self._used = counters.learner_steps % batches  # of the first sample, by the run before a restart
        self._current: deque[Batch] = deque()

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout_s` seconds.

        Raises:
            TidemillError: The replay service refused, or items cannot be decoded.
        """
        if not self._current:
            self._receive(timeout_s)
        return self._current.popleft() if self._current else None

    @property
    def replay(self) -> ReplayClient:
        """Of the same server; closed with the stream."""
        return self._stream.client

    def close(self) -> None:
        """End the stream. May be called twice."""
        self._stream.close()

    def _receive(self, timeout_s: float) -> None:
        sample = self._stream.take(timeout_s)
        if sample is None:
            return
        self._decoders.learner_steps = self._counters.learner_steps - self._used
        batches = self._decode(sample, self._clock())
        if not batches:  # the mirror was written over by a new call's batches
            self._stream.again()
            return
        for shard, stored in sample.stored.items():
            self._counters.observe(stored, shard)
        self._current.extend(batches[self._used :])
        self._used = 0
