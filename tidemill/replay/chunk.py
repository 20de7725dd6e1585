"""Messages of an actor: chunks of its streams, and the items that end in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.replay.table_config import MAX_PRIORITY

SMALLEST_PRIORITY = 1e-6
"""Added to each priority, since an item of priority 0 is never sampled (Schaul et al., 2016, 3.3)."""

SLOT_OF_KEY = np.uint64(2**32 - 1)
"""Bits of a key that name the item's slot: of the keys with the same slot, at most one is in the table at a time."""


@dataclass(slots=True)  # not frozen: a server makes one for each chunk that comes, in a third of the time
class Chunk:
    """Consecutive steps of one stream, encoded by column.

    Attributes:
        env_index: Which of the actor's streams, 0 .. env_count - 1.
        first_step: Number of the first step in its stream, a multiple of the chunk length.
        step_count: Steps in the chunk; fewer than the chunk length ends the stream.
        decision_count: How many of the steps were decisions of the agent.
        params_version: Version of the parameters that chose the last action; 0 means none.
        blocks: One block for each column in the signature's order, from `tidemill.replay.codec.encode`.
    """

    env_index: int
    first_step: int
    step_count: int
    decision_count: int
    params_version: int
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ItemBatch:
    """Items of one table by column, all of which end in chunks sent with them.

    Attributes:
        table_index: Index into the appender's `tables`.
        chunk_indices: Index into the chunks of the same call of the chunk with the item's last step, [N].
        last_offsets: Position of the item's last step in that chunk, [N].
        lengths: Steps of each item, at least 1, [N].
        priorities: First priority of each, from `TableConfig.least_priority` to `MAX_PRIORITY`, float64 [N].
        payloads: Opaque bytes handed back with each item, as many as the table says; empty if it says none.
        times_sampled: How often each was sampled before, such as in the table it is imported from, [N]; None for never.
    """

    table_index: int
    chunk_indices: NDArray[np.integer]
    last_offsets: NDArray[np.integer]
    lengths: NDArray[np.integer]
    priorities: NDArray[np.float64]
    payloads: tuple[bytes, ...] = ()
    times_sampled: NDArray[np.integer] | None = None


def check_priorities(priorities: NDArray[np.float64], first: int = 0, *, least: float = 0.0) -> None:
    """Raise InvalidArgument, with place and value, unless all priorities are from `least` to `MAX_PRIORITY`.

    Args:
        priorities: Any numbers, [N].
        first: Place of the first of them, if they are part of a longer list.
        least: `TableConfig.least_priority` of their table.
    """
    right = are_priorities(priorities, least)
    if not right.all():
        at = int(right.argmin())
        raise InvalidArgument(f"priorities[{first + at}] is {priorities[at]}, must be {allowed_priorities(least)}")


def are_priorities(priorities: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    """Whether each of some numbers can be the priority of an item, [N]; for `least` see `check_priorities`."""
    right: NDArray[np.bool_] = (priorities >= least) & (priorities <= MAX_PRIORITY)
    return right


def allowed_priorities(least: float) -> str:
    """The numbers that can be priorities, for messages."""
    allowed = "finite and not negative, at most" if least == 0 else f"finite, {least:g} to"
    return f"{allowed} {MAX_PRIORITY:g}"
