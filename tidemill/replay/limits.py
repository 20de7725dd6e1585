"""Size limits of one message of the replay contract: as much as a server handles without a pause for others."""

from __future__ import annotations

from tidemill.types import Codec, Signature

MAX_ENV_COUNT = 2**14
"""Streams of one actor."""

MAX_MESSAGE_BYTES = 2**24
"""Bytes of the chunks and payloads of one Append message, unless it is one chunk: a server takes 20 MiB by default."""

LEAST_MESSAGE_BYTES = 2**16
"""Least bytes that a message must be allowed to have."""

_PAYLOAD_PART = 4
"""Of a message, one in so many bytes is for payloads where items have any."""

MAX_MESSAGE_CHUNKS = 1024
"""Chunks of one Append message."""

MAX_MESSAGE_BLOCKS = 2**14
"""Blocks of all its chunks: chunks times columns."""

MAX_MESSAGE_ITEMS = 2**14
"""Items of one Append message, of all tables together."""

MAX_KEYS = 2**20
"""Keys of one UpdatePriorities or DeleteItems message."""

MAX_BATCH_SIZE = 2**16
"""Items of one sample."""

MAX_BATCH_STEPS = 2**22
"""Steps of one sample: where they lie is looked up chunk by chunk before its size is known."""

MAX_DRAWS = 1024
"""Draws of one Sample call that may be unanswered."""


def lz4_bound(size_bytes: int) -> int:
    """Return the greatest size of an LZ4 block of so many bytes (LZ4_COMPRESSBOUND in lz4.h)."""
    return size_bytes + size_bytes // 255 + 16


def most_chunk_bytes(signature: Signature, steps: int) -> int:
    """Return the bytes that a chunk of so many steps has at most, however badly it can be compressed."""
    sizes = [(column.codec, steps * column.step_bytes) for column in signature]
    return sum(size if codec is Codec.RAW else lz4_bound(size) for codec, size in sizes)


def fitting_chunk_length(signature: Signature, chunk_length: int, most_bytes: int = MAX_MESSAGE_BYTES) -> int:
    """Return the largest divisor of a chunk's length with which every chunk fits in `most_bytes`.

    It is 1 where not even a step is sure to fit: then what a step has once it is compressed decides.
    """
    divisors = (length for length in range(chunk_length, 0, -1) if chunk_length % length == 0)
    return next((length for length in divisors if most_chunk_bytes(signature, length) <= most_bytes), 1)


def payload_room(max_message_bytes: int) -> int:
    """Return how many bytes of payloads may end in one chunk."""
    return max_message_bytes // _PAYLOAD_PART


def least_slots(batch_size: int, max_item_steps: int, slot_steps: int, hold: int) -> int:
    """Return the slots that `hold` + 1 batches may need: an item may begin at the last step of a chunk."""
    return (hold + 1) * batch_size * (1 + -(-(max_item_steps - 1) // slot_steps))
