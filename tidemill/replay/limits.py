"""How much one message of the replay contract may hold: as much as a server handles without a pause for others."""

from __future__ import annotations

MAX_ENV_COUNT = 2**14
"""Streams of one actor."""

MAX_MESSAGE_BYTES = 2**24
"""Bytes of the chunks of one Append message, unless it is one chunk."""

MAX_MESSAGE_CHUNKS = 1024
"""Chunks of one Append message."""

MAX_MESSAGE_BLOCKS = 2**14
"""Blocks of all its chunks: chunks times columns."""

MAX_MESSAGE_ITEMS = 2**14
"""Items of one Append message, of all tables together."""

MAX_KEYS = 2**20
"""Keys of one UpdatePriorities or DeleteItems message."""

MAX_DRAWS = 1024
"""Draws of one Sample call that may be unanswered."""


def least_slots(batch_size: int, max_item_steps: int, slot_steps: int, hold: int) -> int:
    """Return the slots that `hold` + 1 batches may need: an item may begin at the last step of a chunk."""
    return (hold + 1) * batch_size * (1 + -(-(max_item_steps - 1) // slot_steps))
