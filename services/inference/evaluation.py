"""An evaluation by episodes that clients play: which episodes belong to it, and how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tidemill.errors import FailedPrecondition, Reason


@dataclass(frozen=True)
class EpisodeEnd:
    """The end of an episode of an evaluation.

    Attributes:
        episode_return: Sum of its rewards.
        length: Its number of actions.
        has_failed: Whether it does not count.
    """

    episode_return: float = 0.0
    length: int = 0
    has_failed: bool = False


class Evaluation:
    """Takes the first episodes that begin, and waits for the end of each of them.

    Taking the first ones that end instead would favour short episodes.
    """

    def __init__(self, episodes: int, epsilon: float = 0.0) -> None:
        """Begin an evaluation of so many episodes, with so many random actions among all."""
        self.epsilon = epsilon
        self._episodes, self._free = episodes, episodes
        self._ends: asyncio.Queue[EpisodeEnd | None] = asyncio.Queue()

    def takes(self) -> bool:
        """True if an episode that begins now is part of the evaluation, which it then counts for."""
        self._free -= 1
        return self._free >= 0

    def add(self, end: EpisodeEnd) -> None:
        """Note the end of an episode that was taken."""
        self._ends.put_nowait(end)

    def replace(self) -> None:
        """End the evaluation, because another one has begun."""
        self._ends.put_nowait(None)

    async def ends(self) -> AsyncIterator[EpisodeEnd]:
        """Yield each episode that ends, until all have.

        Raises:
            FailedPrecondition: Another evaluation has begun.
        """
        for _ in range(self._episodes):
            end = await self._ends.get()
            if end is None:
                raise FailedPrecondition(
                    "a newer evaluation has replaced this one; start only one evaluator per run",
                    reason=Reason.EVALUATION_REPLACED,
                )
            yield end
