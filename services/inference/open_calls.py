"""The calls that are open: so many at most, each with a first message in time, all ended when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from tidemill.errors import ResourceExhausted, Unavailable

_T = TypeVar("_T")

OPEN_TIMEOUT_S = 30.0
"""Longest wait for a call's first message, in seconds."""

_STOPPING = "the inference service is stopping"


class OpenCalls:
    """Counts calls of one RPC and ends them."""

    def __init__(self, most: int, setting: str) -> None:
        """Allow so many calls at a time, as a setting says."""
        self._most, self._setting = most, setting
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the present call, its wait for the first message included, and let `close` end it."""
        if self._closed:
            raise Unavailable(_STOPPING)
        if len(self._tasks) >= self._most:
            raise ResourceExhausted(f"{self._most} calls are open, the maximum ({self._setting}); call again later")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable(_STOPPING) from None
            raise
        finally:
            self._tasks.discard(task)

    def close(self) -> None:
        """End the calls in progress, because the server stops."""
        self._closed = True
        for task in self._tasks:
            task.cancel()


async def first_of(requests: AsyncIterator[_T], default: _T) -> _T:
    """Return the first message of a call, or the default if it holds none.

    Raises:
        Unavailable: None came in time.
    """
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return await anext(requests, default)
    except TimeoutError:
        raise Unavailable(f"no message came for {OPEN_TIMEOUT_S:g} s; call again") from None
