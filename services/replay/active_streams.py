"""The streaming calls in progress, so that they can be ended when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from tidemill.errors import Unavailable

_STOPPING = "the replay server is stopping"


class ActiveStreams:
    """Calls that would last for as long as their caller likes."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._newest: dict[int, asyncio.Task[Any]] = {}  # call of each epoch
        self._closed = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the present task as a call while the block runs: all of it, its wait for the first message included.

        Raises:
            Unavailable: the server stops.
        """
        if self._closed:
            raise Unavailable(_STOPPING)
        task = _present_task()
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable(_STOPPING) from None
            raise
        finally:
            self._tasks.discard(task)

    @contextlib.contextmanager
    def appending_to(self, epoch: int) -> Iterator[None]:
        """Note that the present call appends to an epoch while the block runs; an earlier call that does is ended.

        Raises:
            Unavailable: a newer call appends to the epoch.
        """
        task = _present_task()
        if earlier := self._newest.get(epoch):
            earlier.cancel()
        self._newest[epoch] = task
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed and self._newest.get(epoch) is not task:
                raise Unavailable(f"another call has resumed epoch {epoch}") from None
            raise
        finally:
            if self._newest.get(epoch) is task:
                del self._newest[epoch]

    def close(self) -> None:
        """End every call with UNAVAILABLE."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()


def _present_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "calls run in tasks"
    return task
