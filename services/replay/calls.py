"""The streaming calls in progress, so that they can be ended when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from tidemill.errors import Unavailable


class Calls:
    """Calls that would go on for as long as their caller likes."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the present task as a call while the block runs.

        Raises:
            Unavailable: the server stops.
        """
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable("the replay server is stopping") from None
            raise
        finally:
            self._tasks.discard(task)

    def close(self) -> None:
        """End every call with UNAVAILABLE."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
