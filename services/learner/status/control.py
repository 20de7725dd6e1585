"""Requests of other threads to the training thread, which carries them out between two updates."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from tidemill.atomic_files import is_there
from tidemill.errors import FailedPrecondition, Reason
from tidemill.learner.status import SavedCheckpoint


class Control:
    """Pause, resume, checkpoint and stop. Safe to use from several threads."""

    def __init__(self, signalled: threading.Event, paused_file: Path | None = None) -> None:
        """Begin paused if a process before this one was.

        Args:
            signalled: Set by SIGTERM or Ctrl-C, which stops the learner as `stop` does.
            paused_file: There while the learner is paused, also if its process ends meanwhile. None: not kept.
        """
        self._signalled, self._paused_file = signalled, paused_file
        self._changed = threading.Condition()
        self.paused = paused_file is not None and is_there(paused_file)
        """Whether the training thread must not take a step."""
        self._stop_reason: str | None = None
        self._checkpoints: deque[Future[SavedCheckpoint]] = deque()

    def pause(self) -> None:
        """Take no update after the current one; raises FailedPrecondition when stopping."""
        self._set_paused(True)

    def resume(self) -> None:
        """Continue after a pause; raises FailedPrecondition when stopping."""
        self._set_paused(False)

    def stop(self, reason: str) -> None:
        """Have the training thread publish, checkpoint and end. Only the first reason is kept."""
        if not self.is_interrupted:
            self._keep(paused=False)
        self._stop(reason)

    def request_checkpoint(self) -> Future[SavedCheckpoint]:
        """Ask for a checkpoint; the future ends when it is on disk, or with why it is not.

        Raises:
            FailedPrecondition: The learner is stopping.
        """
        with self._changed:
            self._check_running()
            future: Future[SavedCheckpoint] = Future()
            self._checkpoints.append(future)
            self._changed.notify_all()
            return future

    @property
    def stop_reason(self) -> str | None:
        """Reason to stop; None while the learner runs."""
        return "a signal asked" if self.is_interrupted else self._stop_reason

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal alone asks to stop: the run is not over."""
        return self._stop_reason is None and self._signalled.is_set()

    def take_checkpoint_request(self) -> Future[SavedCheckpoint] | None:
        """Return the oldest request for a checkpoint, which the caller must then answer."""
        return self._checkpoints.popleft() if self._checkpoints else None

    def wait(self, timeout_s: float) -> None:
        """Block the training thread, while it is paused, until a request arrives or `timeout_s` passed.

        A request for a checkpoint that came before waits for one that is being written, and does not end the wait.
        """
        with self._changed:
            waiting = len(self._checkpoints)
            self._changed.wait_for(
                lambda: not self.paused or self.stop_reason or len(self._checkpoints) > waiting, timeout_s
            )

    def close(self) -> None:
        """Refuse requests that can no longer be carried out."""
        self._stop("the learner ended")
        while (request := self.take_checkpoint_request()) is not None:
            if request.set_running_or_notify_cancel():  # its caller has not given up
                request.set_exception(FailedPrecondition("the learner is stopping", reason=Reason.STOPPING))

    def _set_paused(self, paused: bool) -> None:
        with self._changed:
            self._check_running()
            self.paused = paused
            self._changed.notify_all()
            self._keep(paused=paused)

    def _keep(self, *, paused: bool) -> None:
        if self._paused_file is None:
            return
        with suppress(OSError):  # without the file the pause ends with the process
            if paused:
                self._paused_file.touch()
            else:
                self._paused_file.unlink(missing_ok=True)

    def _stop(self, reason: str) -> None:
        with self._changed:
            self._stop_reason = self._stop_reason or reason
            self._changed.notify_all()

    def _check_running(self) -> None:
        if self.stop_reason is not None:
            raise FailedPrecondition(f"the learner is stopping: {self.stop_reason}", reason=Reason.STOPPING)
