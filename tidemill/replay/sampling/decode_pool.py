"""Batches decoded ahead of their use in background threads."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_POLL_S = 0.2
_JOIN_S = 5.0

S = TypeVar("S")
T = TypeVar("T")


class DecodePool(Generic[S, T]):
    """A bounded queue of decoded batches.

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
        self._current: deque[T] = deque()
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._receiving = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout_s: float) -> T | None:
        """Return the next batch, or None if there is none within `timeout_s`; 0 does not wait at all.

        Raises:
            BaseException: What ended a decoding thread, such as a table of another configuration.
        """
        while True:
            try:
                return self._current.popleft()
            except IndexError:  # or another thread was faster
                pass
            try:
                self._current.extend(self._ready.get(block=timeout_s > 0, timeout=timeout_s))
            except queue.Empty:
                if self._error is not None:
                    raise self._error from None
                return None

    def close(self) -> None:
        """End the threads within a bounded time, once what `receive` waits for has ended. May be called twice."""
        self._closed.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                with self._receiving:
                    sample = self._receive_sample(_POLL_S)
                batches = [] if sample is None else self._decode(sample)
                if batches:  # a sample of corrupt items alone gives none
                    self._hand_over(batches)
        except BaseException as error:  # re-raised in the thread that takes batches
            self._error = error

    def _hand_over(self, batches: Sequence[T]) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(batches, timeout=_POLL_S)
            except queue.Full:
                continue
            return
