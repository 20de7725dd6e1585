"""Answers of one appending call that wait for the disk, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_MAX_ANSWERS = 256


async def when_durable(
    answers: AsyncIterator[tuple[int, T]], durable: Callable[[int], Awaitable[None]]
) -> AsyncIterator[T]:
    """Yield answers once they may go, while more messages are stored.

    Args:
        answers: Stores a message at each turn; yields the record that has it and the answer to it.
        durable: Waits until a record may be acknowledged.

    Raises:
        Exception: what `answers` raised, after the answers before it.
    """
    waiting: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_MAX_ANSWERS)

    async def store() -> None:
        try:
            async for entry in answers:
                await waiting.put(entry)
        except Exception as error:
            await waiting.put(error)
        else:
            await waiting.put(None)

    storing = asyncio.create_task(store())
    try:
        while (entry := await waiting.get()) is not None:
            if isinstance(entry, Exception):
                raise entry
            await durable(entry[0])
            yield entry[1]
    finally:
        storing.cancel()
