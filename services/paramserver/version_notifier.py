"""Lets calls wait for a change of what the server holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidemill.errors import Reason, Unavailable

_T = TypeVar("_T")


class VersionNotifier:
    """Wakes every waiting call after a change; each looks at the newest state only, so a slow one skips.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._closed = False

    def notify(self) -> None:
        """Let every waiting call look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """End every wait, now and later, with `Unavailable`."""
        self._closed = True
        self.notify()

    async def wait_for(self, find: Callable[[], _T | None]) -> _T:
        """Wait until `find` returns something, and return it.

        Raises:
            Unavailable: The server stops.
        """
        while (found := find()) is None:
            if self._closed:
                raise Unavailable("the parameter server is stopping", reason=Reason.STOPPING)
            await self._changed.wait()
        return found

    async def wait_for_within(self, find: Callable[[], _T | None], timeout_s: float) -> _T | None:
        """Wait as `wait_for`, at most `timeout_s` seconds; None when nothing was found in time."""
        if (found := find()) is not None or timeout_s <= 0:
            return found
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait_for(find)
        except TimeoutError:
            return None
