"""The streaming calls in progress, so that they can be ended when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from tidemill.errors import Unavailable


class ActiveStreams:
    """ActiveStreams that would go on for as long as their caller likes."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._newest: dict[int, asyncio.Task[Any]] = {}  # call of each epoch
        self._closed = False

    @contextlib.contextmanager
    def running(self, epoch: int = 0) -> Iterator[None]:
        """Count the present task as a call while the block runs.

        Args:
            epoch: What it appends to; an earlier call that does is ended. 0 for a call that does not append.

        Raises:
            Unavailable: the server stops, or a newer call appends to the epoch.
        """
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._tasks.add(task)
        if epoch:
            if earlier := self._newest.get(epoch):
                earlier.cancel()
            self._newest[epoch] = task
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable("the replay server is stopping") from None
            if epoch and self._newest.get(epoch) is not task:
                raise Unavailable(f"another call has resumed epoch {epoch}") from None
            raise
        finally:
            self._tasks.discard(task)
            if epoch and self._newest.get(epoch) is task:
                del self._newest[epoch]

    def close(self) -> None:
        """End every call with UNAVAILABLE."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
