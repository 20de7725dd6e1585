"""Good messages of the replay service with one thing wrong, and fields written byte by byte."""

from __future__ import annotations

from typing import Any

from tests.support.replay_service import CHUNK_LENGTH
from tests.support.replay_streams import SIGNATURE, make_chunk, make_items
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_append, pack_signature

MAX_MESSAGE_BYTES = 1024 * 1024


def opening(actor_id: str = "a", **fields: Any) -> pb.AppendRequest:  # noqa: ANN401 - any field of the message
    """Return a good first message of Append with some fields replaced."""
    good: dict[str, Any] = {
        "env_count": 1,
        "tables": ["t"],
        "signature": pack_signature(SIGNATURE),
        "chunk_length": CHUNK_LENGTH,
    }
    return pb.AppendRequest(open=pb.AppendOpen(actor_id=actor_id, **(good | fields)))


def data_with(**fields: Any) -> pb.AppendRequest:  # noqa: ANN401
    """Return a good chunk with one good item, some fields of the chunk replaced."""
    data = pack_append([make_chunk(0, 0, 0, 4)], [make_items(0, [(0, 3, 2)])])
    for name, value in fields.items():
        if name == "columns":
            del data.chunks[0].columns[:]
            data.chunks[0].columns.extend(value)
        else:
            setattr(data.chunks[0], name, value)
    return pb.AppendRequest(data=data)


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    head = b""
    while value > 127:
        head += bytes([value & 127 | 128])
        value >>= 7
    return head + bytes([value])


def field(number: int, value: bytes) -> bytes:
    """Return a field whose value is bytes or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value
