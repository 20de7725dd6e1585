"""Requests that hold too much, or are damaged, and the largest that a server must read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.replay_messages import field
from tests.support.replay_streams import make_chunk, make_items
from tidemill.replay.chunk import Chunk
from tidemill.replay.limits import MAX_DRAWS, MAX_MESSAGE_BLOCKS, MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_append

MIB = 2**20

GOOD = pb.AppendRequest(
    data=pack_append([make_chunk(0, 0, 0, 4)], [make_items(0, [(0, 3, 2)], payloads=[b"abc"])])
).SerializeToString()


def data(value: bytes) -> bytes:
    """Return an AppendRequest with `data`."""
    return field(2, value)


EMPTY = {number: field(number, b"") for number in range(1, 7)}
Hostile = tuple[Any, bytes, str]
HOSTILE: dict[str, Callable[[], Hostile]] = {  # each is made by its test: together they are 60 MB
    "items": lambda: (pb.AppendRequest, data(EMPTY[2] * MIB), "data 2056"),
    "chunks": lambda: (pb.AppendRequest, data(EMPTY[1] * MIB), "data 2056"),
    "chunks, few enough for draws": lambda: (pb.AppendRequest, data(EMPTY[1] * 1025), "data.chunks 1025"),
    "blocks of one chunk": lambda: (
        pb.AppendRequest,
        data(field(1, EMPTY[6] * MIB)),
        "data.chunks 72",
    ),
    "blocks": lambda: (pb.AppendRequest, data(field(1, EMPTY[6] * 64) * 1024), "data.chunks"),
    "payloads": lambda: (pb.AppendRequest, data(field(2, EMPTY[6] * MIB)), "data.items 16392"),
    "payloads of tables": lambda: (pb.AppendRequest, data(field(2, EMPTY[6] * 9000) * 16), "data.items"),
    "packed numbers": lambda: (pb.AppendRequest, data(field(2, field(2, bytes(MIB)))), "1048576"),
    "numbers one by one": lambda: (
        pb.AppendRequest,
        data(field(2, b"\x10\x00" * MIB)),
        "data.items 16392",
    ),
    "data again and again": lambda: (pb.AppendRequest, data(b"") * MIB, "AppendRequest 8"),
    "signature": lambda: (
        pb.AppendRequest,
        field(1, EMPTY[5] * MIB),
        "open 2097152 65536",
    ),
    "unknown fields": lambda: (pb.AppendRequest, data(b"\x78\x00" * MIB), "data 2056"),
    "a table's signature": lambda: (
        pb.CreateTableRequest,
        field(1, EMPTY[2] * MIB),
        "CreateTableRequest 2097157",
    ),
    "draws": lambda: (pb.SampleRequest, EMPTY[3] * (MAX_DRAWS + 9), "SampleRequest 1032"),
    "many draws": lambda: (pb.SampleRequest, EMPTY[3] * MIB, "SampleRequest 2097152"),
    "tables": lambda: (pb.UpdatePrioritiesRequest, EMPTY[1] * MIB, "UpdatePrioritiesRequest 1032"),
    "keys": lambda: (pb.DeleteItemsRequest, field(2, bytes(9 * MIB)), "DeleteItemsRequest 9437189"),
    "keys one by one": lambda: (pb.DeleteItemsRequest, (b"\x11" + bytes(8)) * 2000, "1032"),
    "a name": lambda: (pb.DescribeTableRequest, field(1, b"a" * MIB), "DescribeTableRequest 1048580"),
    "a group": lambda: (pb.DescribeTableRequest, b"\x1b\x1c", "3"),
    "half a field": lambda: (pb.AppendRequest, data(field(1, b"")[:-1]), "AppendRequest"),
    "a field beyond its message": lambda: (
        pb.AppendRequest,
        data(b"\x0a\x01") + b"\x08\x00",
        "data",
    ),
    "an endless number": lambda: (
        pb.AppendRequest,
        b"\x08" + b"\xff" * 100,
        "AppendRequest",
    ),
    "a name that is no text": lambda: (
        pb.DescribeTableRequest,
        field(1, b"\xff"),
        "DescribeTableRequest",
    ),
}


def fullest() -> pb.AppendRequest:
    """Return the largest message there may be: of chunks, of blocks and of items."""
    block = tuple(bytes([i]) for i in range(MAX_MESSAGE_BLOCKS // MAX_MESSAGE_CHUNKS))
    chunks = [Chunk(2**32 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1, block) for _ in range(MAX_MESSAGE_CHUNKS)]
    items = make_items(0, [(2**32 - 1,) * 3] * MAX_MESSAGE_ITEMS, payloads=[b"\0"] * MAX_MESSAGE_ITEMS)
    return pb.AppendRequest(data=pack_append(chunks, [items]))
