"""Takes new priorities back to the replay service without making the training thread wait."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.devices import use_device
from tidemill.errors import FailedPrecondition, NotFound, TidemillError, Unavailable
from tidemill.params.publisher import StalePublisher
from tidemill.replay.writing.chunk import SMALLEST_PRIORITY
from tidemill.services.learner import metrics
from tidemill.services.learner.divergence import check_finite

Keys = NDArray[np.uint64]
Send = Callable[[Keys, NDArray[np.float64]], object]
"""Sends keys [N] and priorities [N] to the table; bounded in time."""

_UPDATES_A_MESSAGE = 16
_MESSAGES_WAITING = 8
_STOP_S = 3.0

_log = structlog.get_logger()
_Message = list[tuple[Keys, Tensor]]


class PriorityWriter:
    """Collects priorities on the device, and copies and sends several updates together in a thread.

    Priorities are advice: what cannot be delivered is counted and dropped, never waited for.
    """

    def __init__(self, send: Send) -> None:
        """Start the thread.

        Args:
            send: Sends them; raises FailedPrecondition if a newer learner took over.
        """
        self._send = send
        self._collected: _Message = []
        self._queue: queue.Queue[_Message | None] = queue.Queue(_MESSAGES_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="priorities", daemon=True)
        self._thread.start()

    def offer(self, keys: Keys, priority: Tensor) -> None:
        """Hand over the priorities of one update; never blocks.

        Args:
            keys: Keys of the batch's items, uint64 [B].
            priority: Their new priorities, float32 [B] on any device; not written to afterwards.

        Raises:
            Diverged: Earlier priorities were not finite.
            StalePublisher: A newer learner took over.
        """
        self._collected.append((keys, priority))
        if len(self._collected) >= _UPDATES_A_MESSAGE:
            self.flush()

    def flush(self) -> None:
        """Send everything collected so far; never blocks. Raises what stopped the thread."""
        if self._error is not None:
            raise self._error
        if not self._collected:
            return
        message, self._collected = self._collected, []
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            _count_dropped(message)

    def close(self) -> None:
        """Send what is waiting, for a bounded time, and end the thread. May be called twice."""
        if self._thread.is_alive():
            with contextlib.suppress(TidemillError):  # what stopped the thread; the owner's last call was to raise it
                self.flush()
            try:
                self._queue.put(None, timeout=_STOP_S)
            except queue.Full:
                return  # the replay service is frozen; the thread ends with the process
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._deliver(message)
        except BaseException as error:  # re-raised in the training thread
            self._error = error

    def _deliver(self, message: _Message) -> None:
        keys = np.concatenate([keys for keys, _ in message])
        use_device(message[0][1].device)
        priorities = torch.cat([priority for _, priority in message]).cpu().numpy().astype(np.float64)
        check_finite([priorities], "priorities")
        try:
            self._send(keys, priorities + SMALLEST_PRIORITY)
        except FailedPrecondition as error:
            raise StalePublisher(str(error)) from error
        except (Unavailable, NotFound) as error:  # a service that restarts has neither items nor table
            _count_dropped(message)
            _log.debug("priorities dropped", reason=str(error))


def _count_dropped(message: list[tuple[Any, Any]]) -> None:
    metrics.PRIORITIES_DROPPED.inc(sum(len(keys) for keys, _ in message))
