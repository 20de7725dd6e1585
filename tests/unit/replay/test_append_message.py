"""How a call of `append` becomes messages that a server takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_streams import make_chunk, make_items
from tidemill.errors import InvalidArgument
from tidemill.replay.chunk import Chunk
from tidemill.replay.limits import MAX_MESSAGE_BLOCKS, MAX_MESSAGE_BYTES, MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS
from tidemill.replay.writing.append_message import AppendMessage, messages_of

_CHUNK = make_chunk(0, 0, 0, 4)


def chunks_of(count: int) -> list[Chunk]:
    """Return one chunk of each of so many streams."""
    return [replace(_CHUNK, env_index=i) for i in range(count)]


def sizes(messages: list[AppendMessage]) -> list[tuple[int, int]]:
    """Return the chunks and items of each message."""
    datas = [message.request.data for message in messages]
    return [(len(data.chunks), sum(len(batch.lengths) for batch in data.items)) for data in datas]


def test_call_within_the_limits_is_one_message() -> None:
    """As many chunks and items as a message may have go together."""
    items = make_items(0, [(i % MAX_MESSAGE_CHUNKS, 0, 1) for i in range(MAX_MESSAGE_ITEMS)])
    assert sizes(messages_of(chunks_of(MAX_MESSAGE_CHUNKS), [items])) == [(MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS)]
    assert sizes(messages_of([], [])) == [(0, 0)]


def test_items_go_with_the_chunk_they_end_in() -> None:
    """Of 2,500 streams each message has its own, with their items of both tables, priorities and payloads."""
    places = [(i, i % 4, 1 + i % 2) for i in range(2500)]
    first = make_items(0, places, [float(i) for i in range(2500)], [b"%d" % i for i in range(2500)])
    second = replace(make_items(1, places[::-1]), times_sampled=np.arange(2500)[::-1])
    messages = messages_of(chunks_of(2500), [first, second])
    assert sizes(messages) == [(1024, 2048), (1024, 2048), (452, 904)]
    start = 0
    for message in messages:
        data, end = message.request.data, start + message.chunks
        assert [chunk.env_index for chunk in data.chunks] == list(range(start, end)) == message.env_index.tolist()
        own, other = data.items
        assert list(own.chunk_indices) == list(range(message.chunks))
        assert list(own.priorities) == list(range(start, end))
        assert list(own.payloads) == [b"%d" % i for i in range(start, end)]
        assert list(own.last_offsets) == [i % 4 for i in range(start, end)]
        assert list(other.chunk_indices) == list(range(message.chunks))[::-1]
        assert (list(own.times_sampled), list(other.times_sampled)) == ([], list(range(start, end))[::-1])
        start = end


@pytest.mark.parametrize(
    "chunks, items, expected",
    [
        (chunks_of(3), [(i % 3, 0, 1) for i in range(MAX_MESSAGE_ITEMS + 1)], [(2, 10924), (1, 5461)]),
        ([replace(_CHUNK, blocks=(b"",) * (MAX_MESSAGE_BLOCKS // 2))] * 3, [], [(2, 0), (1, 0)]),
        ([replace(_CHUNK, blocks=(bytes(MAX_MESSAGE_BYTES // 2),))] * 3, [], [(2, 0), (1, 0)]),
        ([replace(_CHUNK, blocks=(bytes(MAX_MESSAGE_BYTES + 1),))] * 2, [], [(1, 0), (1, 0)]),
    ],
    ids=["items", "blocks", "bytes", "a chunk that is too large goes alone"],
)
def test_call_beyond_a_limit_is_divided(
    chunks: list[Chunk], items: list[tuple[int, int, int]], expected: list[tuple[int, int]]
) -> None:
    """Each message has as many chunks as it may, in their order."""
    assert sizes(messages_of(chunks, [make_items(0, items)])) == expected


def test_call_that_cannot_be_divided_is_refused() -> None:
    """Items of one chunk go together; an item of no chunk goes nowhere."""
    count = MAX_MESSAGE_ITEMS + 1
    with pytest.raises(InvalidArgument, match=naming(count, MAX_MESSAGE_ITEMS)):
        messages_of(chunks_of(2), [make_items(0, [(1, 0, 1)] * count)])
    items = replace(make_items(0, [(0, 0, 1)] * count), chunk_indices=np.full(count, 2))
    with pytest.raises(InvalidArgument, match=naming("chunk_indices 2 2 2")):
        messages_of(chunks_of(2), [items])
