"""Packed contents of one `append` call, and whether the server has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.replay import wire
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.limits import MAX_MESSAGE_BLOCKS, MAX_MESSAGE_BYTES, MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.tracing import tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@dataclass(frozen=True, slots=True, eq=False)
class AppendMessage:
    """One message of `append`, which the server stores whole or not at all.

    Attributes:
        request: What is sent.
        env_index: Stream of each chunk, [C].
        end_step: The step after each chunk's last, [C].
        size_bytes: About how many bytes it has.
        span: Its span if it is traced, which ends once it is stored.
    """

    request: pb.AppendRequest
    env_index: NDArray[np.int64]
    end_step: NDArray[np.int64]
    size_bytes: int
    span: Span | None = None

    @classmethod
    def of(cls, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> Self:
        """Pack chunks and the items that end in them, within `limits`, into one request."""
        env_index = np.array([chunk.env_index for chunk in chunks], dtype=np.int64)
        end_step = np.array([chunk.first_step + chunk.step_count for chunk in chunks], dtype=np.int64)
        size_bytes = sum(map(_size_bytes, chunks)) + _CHUNK_BYTES * len(chunks)
        for batch in items:
            size_bytes += sum(map(len, batch.payloads)) + _ITEM_BYTES * len(batch.lengths)
        request = pb.AppendRequest(data=wire.pack_append(chunks, items))
        span = _traced(request.data, chunks) if any(len(batch.lengths) for batch in items) else None
        return cls(request, env_index, end_step, size_bytes, span)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the request of bytes from `request.SerializeToString()`."""
        request = pb.AppendRequest.FromString(data)
        chunks = request.data.chunks
        env_index = np.array([chunk.env_index for chunk in chunks], dtype=np.int64)
        end_step = np.array([chunk.first_step + chunk.step_count for chunk in chunks], dtype=np.int64)
        return cls(request, env_index, end_step, len(data))

    def check_size(self, most_bytes: int) -> None:
        """Raise InvalidArgument if a server that takes so many bytes would never take it; 0 means not known."""
        if not most_bytes or self.size_bytes < _SURELY_FITS * most_bytes:
            return
        if (size := self.request.ByteSize()) > most_bytes:
            raise InvalidArgument(
                f"a message of {self.chunks} chunks and {self.steps} steps has {size} bytes, the server takes at most "
                f"{most_bytes}: use a smaller chunk_length or max_message_bytes, fewer or smaller payloads, or a "
                "greater server.max_request_bytes of the server"
            )

    def ended(self, *, stored: bool) -> None:
        """End its span: the server has stored it, or it is given up."""
        if self.span is not None and self.span.is_recording():
            self.span.set_attribute("acknowledged", stored)
            self.span.end()

    @property
    def steps(self) -> int:
        """Steps of its chunks together."""
        return sum(chunk.step_count for chunk in self.request.data.chunks)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.env_index)

    def is_stored(self, next_steps: NDArray[np.int64]) -> bool:
        """True if a server whose streams continue at `next_steps` has stored the whole message."""
        return bool((next_steps[self.env_index] >= self.end_step).all())


def _traced(data: pb.AppendData, chunks: Sequence[Chunk]) -> Span | None:
    """Begin the trace of a message, if it is one that is traced."""
    if (own := tracer()) is None:
        return None
    newest = chunks[-1]
    attributes = {
        "env_index": newest.env_index,
        "first_step": newest.first_step,
        "step_count": newest.step_count,
        "params_version": newest.params_version,
        "chunks": len(chunks),
    }
    span = own.append(len(chunks), attributes)
    if span is not None:
        from tidemill.tracing.tracer import header

        data.traceparent = header(span)
    return span


def messages_of(
    chunks: Sequence[Chunk], items: Sequence[ItemBatch], max_message_bytes: int = MAX_MESSAGE_BYTES
) -> list[AppendMessage]:
    """Return the messages of a call in their order: one, or as many as keep each within `limits`.

    `max_message_bytes` is for the chunks and payloads of one, unless it has one chunk only.

    Raises:
        InvalidArgument: it has to be divided, and an item names no chunk of it, or too many items end in one chunk.
    """
    blocks, size_bytes = sum(len(chunk.blocks) for chunk in chunks), sum(map(_size_bytes, chunks))
    size_bytes += sum(len(payload) for batch in items for payload in batch.payloads)
    whole = np.array([len(chunks), blocks, sum(len(batch.lengths) for batch in items), size_bytes])
    most = np.array([MAX_MESSAGE_CHUNKS, MAX_MESSAGE_BLOCKS, MAX_MESSAGE_ITEMS, max_message_bytes])
    if (whole <= most).all():
        return [AppendMessage.of(chunks, items)]
    return [
        AppendMessage.of(chunks[part.start : part.stop], [_within(batch, part) for batch in items])
        for part in _parts(chunks, items, most)
    ]


def _parts(chunks: Sequence[Chunk], items: Sequence[ItemBatch], most: NDArray[np.int64]) -> list[range]:
    """Split chunks into consecutive ranges, each as long as the limits of a message allow."""
    ends = _items_by_chunk(len(chunks), items)
    payload_bytes = _payload_bytes(len(chunks), items)
    parts, start, size = [], 0, np.zeros(4)
    for i, chunk in enumerate(chunks):
        own = np.array([1, len(chunk.blocks), ends[i], _size_bytes(chunk) + payload_bytes[i]])
        if i > start and (size + own > most).any():
            parts.append(range(start, i))
            start, size = i, np.zeros(4)
        size = size + own
    return [*parts, range(start, len(chunks))]


def _items_by_chunk(chunks: int, items: Sequence[ItemBatch]) -> NDArray[np.int64]:
    """Return how many items end in each chunk."""
    indices = np.concatenate([np.zeros(0, dtype=np.int64), *(batch.chunk_indices for batch in items)])
    if len(indices) and not 0 <= indices.min() <= indices.max() < chunks:
        raise InvalidArgument(f"chunk_indices are {indices.min()} .. {indices.max()}, must be below {chunks} chunks")
    ends = np.bincount(indices, minlength=chunks)
    if ends.max(initial=0) > MAX_MESSAGE_ITEMS:
        raise InvalidArgument(f"{ends.max()} items end in one chunk, must be at most {MAX_MESSAGE_ITEMS}")
    return ends


def _size_bytes(chunk: Chunk) -> int:
    return sum(map(len, chunk.blocks))


def _payload_bytes(chunks: int, items: Sequence[ItemBatch]) -> NDArray[np.int64]:
    """Return the bytes of the payloads of the items that end in each chunk."""
    sizes = np.zeros(chunks, dtype=np.int64)
    for batch in items:
        if batch.payloads:
            np.add.at(sizes, batch.chunk_indices, list(map(len, batch.payloads)))
    return sizes


def _within(batch: ItemBatch, part: range) -> ItemBatch:
    """Return the items that end in some of the chunks."""
    places = np.flatnonzero((batch.chunk_indices >= part.start) & (batch.chunk_indices < part.stop))
    return ItemBatch(
        batch.table_index,
        batch.chunk_indices[places] - part.start,
        batch.last_offsets[places],
        batch.lengths[places],
        batch.priorities[places],
        tuple(batch.payloads[i] for i in places.tolist()) if batch.payloads else (),
        batch.times_sampled[places] if batch.times_sampled is not None else None,
    )


_CHUNK_BYTES, _ITEM_BYTES = 64, 40  # of their numbers
_SURELY_FITS = 0.75
"""Part of a limit below which a message is within it: its bytes are counted exactly only beyond."""
