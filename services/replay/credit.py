"""Batches that a caller of Sample is ready to take."""

from __future__ import annotations

import asyncio


class Credit:
    """A count that the reading side grants and the sending side takes from."""

    def __init__(self, count: int) -> None:
        """Begin with `count` batches."""
        self._count = count
        self._closed = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def grant(self, count: int) -> None:
        """Add batches."""
        self._count += count
        self._changed.set()

    def close(self, error: BaseException | None = None) -> None:
        """Note that no more is granted, because the caller half-closed or, with `error`, sent something wrong."""
        self._closed = True
        self._error = error
        self._changed.set()

    async def take(self) -> bool:
        """Take one batch, waiting for it; return False once all are taken and no more will come.

        Raises:
            TidemillError: the caller sent something wrong.
        """
        while not self._count:
            if self._closed:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if not self._count:
            return False
        self._count -= 1
        return True
