"""Schedules checkpoints and writes them in a thread."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from tidemill.errors import FatalError, TidemillError
from tidemill.learner.status import SavedCheckpoint
from tidemill.params.publisher import StalePublisher
from tidemill.rl.state_tree import flatten
from tidemill.services.learner.checkpoint.format import Checkpoint
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.status import metrics
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.divergence import Diverged, check_finite

_CLOSE_S = 10.0
_SLOWEST_BYTES_PER_S = 1e7  # a disk that writes more slowly counts as one that hangs
_ENDS = (Diverged, StalePublisher)

_log = structlog.get_logger()
_Job = tuple[Checkpoint, Future[SavedCheckpoint], bool]
"""What is written, who is told, and whether it must be on the disk by then."""


def longest_write_s(size_bytes: int) -> float:
    """Return how long a learner that ends waits for a checkpoint whose tensors have a size, in seconds."""
    return _CLOSE_S + size_bytes / _SLOWEST_BYTES_PER_S


class Checkpointer:
    """Copies the learner's state in the training thread and writes it in another, one at a time.

    A checkpoint that cannot be written is a warning and training continues, unless a newer learner took over or the
    state is not finite: that is not written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        capture: Callable[[], Checkpoint],
        *,
        every_s: float,
        steps: int,
        clock: Callable[[], float],
        fence: Callable[[], None] = lambda: None,
        limit_s: Callable[[int], float] = longest_write_s,
        end_s: float = math.inf,
    ) -> None:
        """Start the writing thread.

        Args:
            store: Where checkpoints are kept.
            capture: Returns a copy of the learner's state that training does not touch.
            every_s: Seconds between two checkpoints; 0 means only on request.
            steps: Updates of the checkpoint that was restored; 0 if there was none.
            clock: Monotonic time in seconds.
            fence: Raises StalePublisher if a newer learner took over; asked by the thread before each write.
            limit_s: How long the end waits for a checkpoint, in seconds, given the size of its tensors in bytes.
            end_s: How long it waits in all, for the checkpoint in flight and for the last one, in seconds.
        """
        self._fence = fence
        self._store, self._capture, self._every_s, self._clock = store, capture, every_s, clock
        self.steps = steps
        """Updates in the newest checkpoint; 0 means there is none."""
        metrics.CHECKPOINT_STEPS.set(steps)
        self.error = ""
        """Reason the newest attempt failed; empty if it succeeded or there was none."""
        self._limit_s, self._end_s = limit_s, end_s
        self._wait_s = self._longest_wait_s(0)
        self._due = clock() + every_s
        self._jobs: queue.Queue[_Job | None] = queue.Queue(1)
        self._writing: Future[SavedCheckpoint] | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def poll(self, control: Control, learner_steps: int) -> None:
        """Start a checkpoint if one is due or requested; call it between two updates only.

        Raises:
            Diverged: The previous state was not finite.
            StalePublisher: The previous checkpoint was refused: a newer learner took over.
        """
        if self._writing is not None and not self._writing.done():
            return
        if self._writing is not None and isinstance(error := self._writing.exception(), _ENDS):
            raise error
        if (request := control.take_checkpoint_request()) is not None:
            if request.set_running_or_notify_cancel():
                self._start(request, sync=True)
        elif self._every_s > 0 and self._clock() >= self._due:
            self._due = self._clock() + self._every_s
            if learner_steps != self.steps:
                self._start(Future())

    def write_now(self) -> None:
        """Write a checkpoint and wait until it is written.

        Raises:
            Diverged: The state is not finite.
            FatalError: It could not be written.
            StalePublisher: It was refused: a newer learner took over.
        """
        if self._writing is not None:
            self._writing.exception()
        written: Future[SavedCheckpoint] = Future()
        self._start(written)
        error = written.exception()
        if isinstance(error, _ENDS):
            raise error
        if error is not None:
            raise FatalError(f"checkpoint not written: {error}") from error

    def finish(self) -> str:
        """Write a last checkpoint and end the thread, both within a bounded time.

        Returns:
            Reason the last checkpoint is not written; empty if it is.

        Raises:
            Diverged: The state is not finite.
            StalePublisher: The checkpoint was refused: a newer learner took over.
        """
        last: Future[SavedCheckpoint] = Future()
        error: BaseException | None = None
        ends_at = self._clock() + self._end_s
        try:
            if self._writing is not None:
                self._writing.exception(self._wait_s)
            self._start(last)
            error = last.exception(min(self._wait_s, ends_at - self._clock()))
        except TimeoutError:
            error = TimeoutError(f"the disk took longer than {round(self._wait_s, 2):g} s")
            self.error = str(error)
            _log.error("last checkpoint not written in time, a resume starts from an earlier one", reason=self.error)
            self._wait_s = 0.0  # nor does `close` wait
        self.close()
        if isinstance(error, _ENDS):
            raise error
        return str(error or "")

    def close(self) -> None:
        """End the thread after what it is writing, within a bounded time. May be called twice."""
        if self._thread.is_alive():
            try:
                self._jobs.put(None, timeout=self._wait_s)
            except queue.Full:
                return  # the disk hangs; the thread ends with the process
            self._thread.join(self._wait_s)

    def _start(self, future: Future[SavedCheckpoint], *, sync: bool = False) -> None:
        started = time.perf_counter()
        self._writing, checkpoint = future, self._capture()
        self._wait_s = self._longest_wait_s(sum(each.nbytes for each in flatten(checkpoint.agent)[1].values()))
        self._jobs.put_nowait((checkpoint, future, sync))
        metrics.WAIT_SECONDS.labels("checkpoint").inc(time.perf_counter() - started)

    def _longest_wait_s(self, size_bytes: int) -> float:
        return min(self._limit_s(size_bytes), self._end_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            checkpoint, future, sync = job
            try:
                future.set_result(self._write(checkpoint, sync=sync))
            except Exception as error:
                metrics.CHECKPOINT_FAILURES.inc()
                self.error = str(error)
                _log.warning("checkpoint not written", reason=str(error))
                future.set_exception(error if isinstance(error, TidemillError) else TidemillError(str(error)))

    def _write(self, checkpoint: Checkpoint, *, sync: bool) -> SavedCheckpoint:
        self._fence()
        check_finite(flatten(checkpoint.agent)[1].values(), "parameters")
        with metrics.CHECKPOINT_SECONDS.time():
            path = self._store.write(checkpoint, sync=sync)
        self.steps, self.error = checkpoint.counters["learner_steps"], ""
        metrics.CHECKPOINT_STEPS.set(self.steps)
        _log.info("checkpoint written", path=str(path), learner_steps=self.steps)
        return SavedCheckpoint(str(path.resolve()), self.steps)
