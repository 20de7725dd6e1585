"""The streaming calls in progress of a servicer: so many at most, all ended when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from tidemill.errors import Reason, ResourceExhausted, Unavailable

_T = TypeVar("_T")

OPEN_TIMEOUT_S = 30.0
"""Longest wait for a call's first message, in seconds."""


class OpenCalls:
    """Counts calls of one RPC and ends them."""

    def __init__(
        self,
        service: str,
        most: int | None = None,
        setting: str = "",
        *,
        most_each: int | None = None,
        setting_each: str = "",
    ) -> None:
        """Begin without calls.

        Args:
            service: Names the server in messages, such as `inference service`.
            most: Calls at a time; None for any number.
            setting: Name of the setting that says `most`.
            most_each: Calls of one caller at a time; None for any number.
            setting_each: Name of the setting that says `most_each`.
        """
        self._stopping = f"the {service} is stopping"
        self._most = most
        self._most_each = most_each
        self._callers = Counter[str]()
        self._setting = setting
        self._setting_each = setting_each
        self._tasks: set[asyncio.Task[Any]] = set()
        self._newest: dict[int, asyncio.Task[Any]] = {}  # call of each epoch
        self._closed = False

    @contextlib.contextmanager
    def running(self, caller: str = "") -> Iterator[None]:
        """Count the present call, its wait for the first message included, and let `close` end it.

        Args:
            caller: Who makes the call.

        Raises:
            Unavailable: The server stops.
            ResourceExhausted: As many calls are open as may be, of all callers or of this one.
        """
        if self._closed:
            raise Unavailable(self._stopping, reason=Reason.STOPPING)
        if self._most is not None and len(self._tasks) >= self._most:
            raise ResourceExhausted(
                f"{self._most} calls are open, the maximum ({self._setting}); call again later",
                reason=Reason.TOO_MANY_CALLS,
            )
        if self._most_each is not None and self._callers[caller] >= self._most_each:
            raise ResourceExhausted(
                f"{caller} has {self._most_each} calls open, the maximum ({self._setting_each}); call again later",
                reason=Reason.TOO_MANY_CALLS,
            )
        task = _present_task()
        self._tasks.add(task)
        self._callers[caller] += 1
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable(self._stopping, reason=Reason.STOPPING) from None
            raise
        finally:
            self._tasks.discard(task)
            if self._callers[caller] == 1:
                del self._callers[caller]
            else:
                self._callers[caller] -= 1

    @contextlib.contextmanager
    def appending_to(self, epoch: int) -> Iterator[None]:
        """Note that the present call appends to an epoch while the block runs; an earlier call that does is ended.

        Raises:
            Unavailable: A newer call appends to the epoch.
        """
        task = _present_task()
        if earlier := self._newest.get(epoch):
            earlier.cancel()
        self._newest[epoch] = task
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed and self._newest.get(epoch) is not task:
                raise Unavailable(f"another call has resumed epoch {epoch}", reason=Reason.CALL_REPLACED) from None
            raise
        finally:
            if self._newest.get(epoch) is task:
                del self._newest[epoch]

    def close(self) -> None:
        """End every call with UNAVAILABLE, because the server stops."""
        self._closed = True
        for task in tuple(self._tasks):
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
        raise Unavailable(
            f"no message came for {OPEN_TIMEOUT_S:g} s; call again", reason=Reason.CALLER_SILENT
        ) from None


def _present_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "calls run in tasks"
    return task
