"""Random streams of rows as actors write them, and what a reader should make of them, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FRAME = (2, 3)
"""Shape of one observation of these streams."""


@dataclass
class Stream:
    """Rows of one stream and, beside them, the stack the environment showed at each row.

    Attributes:
        columns: Rows by column, [R, ...].
        stacks: The last `frame_stack` observations at each row, oldest first, [R, stack, *FRAME].
        final: Whether a row is a final observation step, on which no item starts, [R].
    """

    columns: dict[str, NDArray[Any]]
    stacks: NDArray[np.uint8]
    final: NDArray[np.bool_]


@dataclass
class StreamBuilder:
    """Plays made-up episodes and keeps a plain list as the stack, the obvious way."""

    frame_stack: int
    rng: np.random.Generator
    rows: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[NDArray[np.uint8]] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)

    def play(self, length: int, ending: str) -> None:
        """Add an episode of `length` actions that ends `terminated`, `truncated` or `terminated_final`."""
        frames: list[NDArray[np.uint8]] = []
        for step in range(length):
            last = step == length - 1
            self._add(frames, is_first=step == 0, ending=ending if last else "", final=False)
        if ending in ("truncated", "terminated_final"):
            self._add(frames, is_first=False, ending="", final=True)

    def _add(self, frames: list[NDArray[np.uint8]], is_first: bool, ending: str, final: bool) -> None:
        frames.append(self.rng.integers(256, size=FRAME, dtype=np.uint8))
        padded = [frames[0]] * self.frame_stack + frames
        self.stacks.append(np.stack(padded[-self.frame_stack :]))
        self.final.append(final)
        self.rows.append(
            {
                "observation": frames[-1],
                "action": self.rng.integers(4),
                "reward": np.float32(
                    np.nan if final else self.rng.normal()
                ),  # a final observation step's reward means nothing
                "terminated": ending.startswith("terminated"),
                "truncated": ending == "truncated",
                "is_first": is_first,
            }
        )

    def build(self) -> Stream:
        """Return the rows so far."""
        columns = {name: np.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        return Stream(columns, np.stack(self.stacks), np.array(self.final))


def window_rows(start: int, frame_stack: int, steps: int) -> list[int]:
    """Return the rows of the item that starts acting at `start`; before the stream its first row repeats."""
    return [max(row, 0) for row in range(start - frame_stack + 1, start + steps + 1)]
