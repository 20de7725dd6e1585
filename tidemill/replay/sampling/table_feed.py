"""The batches of one table, decoded when they are taken or ahead of that in threads."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.replay.batch import Lease, SampledBatch
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_decoder import SampleDecoder
from tidemill.replay.sampling.source import EndOfBatches, OpenedSource

_POLL_S = 0.2
_EMPTY_S = 0.01  # of a sample without a whole batch: the next may be as small
_JOIN_S = 5.0

S = TypeVar("S")
T = TypeVar("T")


class DecodePool(Generic[S, T]):
    """A bounded queue of decoded samples.

    The threads hand over the batches of a whole sample at once: a hand-over costs the training thread
    more than taking a batch does.
    """

    def __init__(
        self,
        receive: Callable[[float], S | None],
        decode: Callable[[S], Sequence[T]],
        *,
        threads: int,
        prefetch_samples: int,
    ) -> None:
        """Start the threads.

        Args:
            receive: Returns the next sample, or None if there is none within so many seconds; called by one thread at a
                time, so that it sees samples in their order.
            decode: Turns a sample into batches; called by all threads.
            threads: Threads that decode, at least 1. With one, batches keep the order of their samples.
            prefetch_samples: Decoded samples held ready, at least 1.
        """
        self._receive_sample, self._decode = receive, decode
        self._ready: queue.Queue[Sequence[T]] = queue.Queue(prefetch_samples)
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._receiving = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout_s: float) -> Sequence[T] | None:
        """Return the batches of the next sample, or None if there are none in time; 0 does not wait at all.

        Raises:
            BaseException: What ended a decoding thread, such as a table of another configuration.
        """
        try:
            return self._ready.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            if self._error is not None:
                raise self._error from None
            return None

    def close(self) -> None:
        """End the threads within a bounded time, once what `receive` waits for has ended. May be called twice."""
        self._closed.set()
        with self._ready.not_full:
            self._ready.maxsize += len(self._threads)  # room for the batches that each holds
            self._ready.not_full.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                with self._receiving:
                    sample = self._receive_sample(_POLL_S)
                batches = [] if sample is None else self._decode(sample)
                if batches:
                    self._hand_over(batches)
                elif sample is not None:  # of corrupt items alone, or of fewer than a batch
                    self._closed.wait(_EMPTY_S)
        except BaseException as error:  # re-raised in the thread that takes batches
            self._error = error
            self._closed.set()  # the other threads stop, or the reason would wait behind what they decode

    def _hand_over(self, batches: Sequence[T]) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(batches, timeout=_POLL_S)
            except queue.Full:
                continue
            return


@dataclass(frozen=True, slots=True, eq=False)
class FedBatch:
    """A batch that is ready.

    Attributes:
        batch: The batch.
        lease: To be settled when the batch is handed out; None if nothing is.
    """

    batch: ReplayBatch
    lease: Lease | None

    @property
    def is_void(self) -> bool:
        """Whether the batch must not be handed out: its items come again."""
        return self.lease is not None and self.lease.is_void

    def settle(self) -> bool:
        """Note that the batch is handed out, unless it must not be; true if it is."""
        if self.lease is not None:
            self.lease.settle()
        return not self.is_void  # once it is settled it cannot become void


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
        self._ready: deque[FedBatch] = deque()
        self._pool: DecodePool[SampledBatch, FedBatch] | None = None
        if threads:
            self._pool = DecodePool(self._receive, self._decode, threads=threads, prefetch_samples=prefetch_samples)
        self._more = self._decoded if self._pool is None else self._pool.take

    def take(self, timeout_s: float) -> FedBatch | None:
        """Return the next batch, to be settled or put back, or None if none comes within `timeout_s` seconds.

        Raises:
            EndOfBatches: It is over.
            TidemillError: A server refused for good.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._is_over():
            try:
                fed = self._ready.popleft()
            except IndexError:  # nothing is ready, or another thread was faster
                pass
            else:
                if fed.is_void:
                    continue
                return fed
            over = self._epochs_are_over.is_set()  # asked first: what was decoded before is in the pool by then
            batches = self._more(0.0 if over else max(deadline_s - time.monotonic(), 0.0))
            if batches:
                self._ready.extend(batches)
            elif over and batches is None:
                break
            elif not self._epochs_are_over.is_set() and (batches is None or time.monotonic() >= deadline_s):
                return None
        why = "the dataset is closed, or its `stop` is set" if self._is_over() else "every epoch is over"
        raise EndOfBatches(f"no more batches: {why}")

    def put_back(self, fed: FedBatch) -> None:
        """Hand a batch out once more, before all others."""
        self._ready.appendleft(fed)

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

    def _decoded(self, timeout_s: float) -> Sequence[FedBatch] | None:
        sample = self._receive(timeout_s)
        if sample is None:
            return None
        if not (batches := self._decode(sample)):
            time.sleep(min(timeout_s, _EMPTY_S))
        return batches

    def _decode(self, sample: SampledBatch) -> list[FedBatch]:
        batches = self._decoder.decode(sample)
        if not batches:  # the mirror was written over by a new call's batches
            self._opened.source.again()
            if sample.lease is not None:  # its items are corrupt: they must not come again
                sample.lease.settle()
        return [FedBatch(batch, sample.lease) for batch in batches]
