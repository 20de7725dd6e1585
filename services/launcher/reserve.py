"""A learner in reserve: it has imported torch, which takes most of the time of a restart, and waits to be needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidemill.services.launcher.child import Child


class Reserve:
    """At most one process that waits. It has no address, no checkpoint and no part in the run before it is taken."""

    def __init__(self, start: Callable[[], Awaitable[Child]]) -> None:
        """Have none yet; `start` makes one that waits."""
        self._start = start
        self._child: Child | None = None

    async def refill(self) -> None:
        """Start a process to wait, unless one does."""
        if self._child is None or self._child.has_ended:
            self._child = await self._start()

    def take(self) -> Child | None:
        """Return the process that waits and let it begin; None if there is none."""
        child, self._child = self._child, None
        if child is None or child.has_ended:
            return None
        child.begin()
        return child

    async def close(self) -> None:
        """End the process that waits."""
        child, self._child = self._child, None
        if child is not None:
            child.send("kill")
            await child.wait()
