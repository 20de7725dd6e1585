"""Requests as they come, as bytes, to messages: what one holds is counted before any of it is unpacked.

An empty submessage is two bytes on the wire and hundreds in memory, and each costs the event loop time. So every
request is walked first, field by field, and refused at the first field too many; protobuf parses only what passed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from tidemill import kernel
from tidemill.errors import InvalidArgument, Reason
from tidemill.replay.limits import MAX_DRAWS, MAX_KEYS, MAX_MESSAGE_BLOCKS, MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS
from tidemill.replay.table_config import MAX_COLUMNS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.leases import Leases
from tidemill.services.replay.sample_queue import SampleQueue


class Outgoing:
    """A message's bytes, handed out once.

    gRPC keeps what a call yielded last until it yields again: with callers who sample much and read little that is most
    of a server's memory.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        """Take the bytes."""
        self._data = data

    def take(self) -> bytes:
        """Return the bytes and let go of them."""
        data, self._data = self._data, b""
        return data


M = TypeVar("M", bound=Message)

_NAME_BYTES = 1024  # a message of a name and little else
_TABLE_BYTES = 64 * 1024  # one that has a signature of `MAX_COLUMNS`
_DRAW_BYTES = 40  # of one draw at most
_KEY_BYTES, _PRIORITY_BYTES = 8, 8
_MOST_FIELDS = MAX_DRAWS + 8  # of a message whose lists are packed, or are draws
_PLAIN_FIELDS = 8  # of a chunk or a batch of items besides its blocks or payloads
_FIELD_BYTES = 2  # of the shortest field
_ITEM_BYTES = 4 * 5 + 8  # of its numbers: four of at most 32 bits and a double

_MOST_BYTES: dict[type[Message], int] = {
    pb.CreateTableRequest: _TABLE_BYTES,
    pb.ListTablesRequest: _NAME_BYTES,
    pb.DescribeTableRequest: _NAME_BYTES,
    pb.UpdateTableRequest: _NAME_BYTES,
    pb.ResetTableRequest: _NAME_BYTES,
    pb.DropTableRequest: _NAME_BYTES,
    pb.DeleteMatchingItemsRequest: _NAME_BYTES,
    pb.ExportRequest: _NAME_BYTES,
    pb.CheckpointRequest: _NAME_BYTES,
    pb.SampleRequest: _NAME_BYTES + MAX_DRAWS * _DRAW_BYTES,
    pb.UpdatePrioritiesRequest: _NAME_BYTES + MAX_KEYS * (_KEY_BYTES + _PRIORITY_BYTES),
    pb.DeleteItemsRequest: _NAME_BYTES + MAX_KEYS * _KEY_BYTES,
}
_VARINT, _BYTES = 0, 2  # wire types; 3 and 4 are groups, which proto3 does not have
_OPEN, _DATA = 1 << 3 | _BYTES, 2 << 3 | _BYTES  # tags of AppendRequest; with another wire type they are unknown fields
_CHUNKS, _ITEMS = 1 << 3 | _BYTES, 2 << 3 | _BYTES  # tags of AppendData
_LISTS = (2, 3, 4, 5, 7)  # fields of ItemBatch that hold numbers
_WIDTHS = {1: 8, 5: 4}  # bytes of those that have a fixed size

Field = tuple[int, int, int]
"""Tag of a field, which is its number and wire type, and where its value begins and ends."""


def add_handlers(servicer: object, server: grpc.aio.Server) -> None:
    """Let a server answer the replay service's calls by the servicer's methods of their names, given bytes."""
    service = pb.DESCRIPTOR.services_by_name["ReplayService"]
    handlers = {
        method.name: _KINDS[method.client_streaming, method.server_streaming](
            getattr(servicer, method.name), request_deserializer=_as_sent, response_serializer=_serialized
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def read(kind: type[M], raw: bytes) -> M:
    """Return a message. InvalidArgument: it is not one of this kind, or holds more than it may."""
    try:
        if kind is pb.AppendRequest:
            check_append(raw)
        else:
            _check_flat(raw, kind.DESCRIPTOR.name, _MOST_BYTES[kind])
        return kind.FromString(raw)
    except (DecodeError, IndexError) as error:
        raise InvalidArgument(
            f"the request cannot be read as {kind.DESCRIPTOR.name}: {error}", reason=Reason.UNDECODABLE
        ) from None


async def read_each(kind: type[M], requests: AsyncIterable[bytes]) -> AsyncIterator[M]:
    """Yield the messages of a stream; raises like `read`."""
    async for raw in requests:
        yield read(kind, raw)


def _check_flat(raw: bytes, name: str, most_bytes: int) -> None:
    if len(raw) > most_bytes:
        raise InvalidArgument(f"{name} has {len(raw)} bytes, must have at most {most_bytes}", reason=Reason.TOO_LARGE)
    _fields(raw, 0, len(raw), _MOST_FIELDS, name)


def append_limits() -> kernel.AppendLimits:
    """Return the limits of an AppendRequest in `check_append`."""
    return kernel.AppendLimits(
        open_bytes=_TABLE_BYTES,
        request_fields=_PLAIN_FIELDS,
        data_fields=MAX_MESSAGE_CHUNKS + _MOST_FIELDS,
        chunks=MAX_MESSAGE_CHUNKS,
        chunk_fields=MAX_COLUMNS + _PLAIN_FIELDS,
        blocks=MAX_MESSAGE_BLOCKS,
        items=MAX_MESSAGE_ITEMS,
        list_bytes=MAX_MESSAGE_ITEMS * _ITEM_BYTES,
        plain_fields=_PLAIN_FIELDS,
        lists=sum(1 << number for number in _LISTS),
    )


_APPEND_LIMITS = append_limits()


def check_append(raw: bytes) -> None:
    """Raise InvalidArgument if an AppendRequest holds more than it may, before memory is taken for it."""
    if kernel.available and kernel.append_fits(raw, _APPEND_LIMITS):
        return  # it takes a twentieth of the time, but does not say what is wrong with a request
    data: list[Field] = []
    for tag, start, end in _fields(raw, 0, len(raw), _PLAIN_FIELDS, "AppendRequest"):
        if tag == _OPEN and end - start > _TABLE_BYTES:
            raise InvalidArgument(f"open has {end - start} bytes, must have at most {_TABLE_BYTES}")
        if tag == _DATA:  # of several, protobuf makes one
            data += _fields(raw, start, end, MAX_MESSAGE_CHUNKS + _MOST_FIELDS, "data")
    _check_chunks(raw, [field for field in data if field[0] == _CHUNKS])
    _check_items(raw, [field for field in data if field[0] == _ITEMS])


def _check_chunks(raw: bytes, chunks: list[Field]) -> None:
    if len(chunks) > MAX_MESSAGE_CHUNKS:
        raise InvalidArgument(f"data.chunks has {len(chunks)} entries, must have at most {MAX_MESSAGE_CHUNKS}")
    left = MAX_MESSAGE_BLOCKS + _PLAIN_FIELDS * len(chunks)
    if _size(chunks) <= _FIELD_BYTES * left:
        return  # they cannot hold more
    for _, start, end in chunks:
        left -= len(_fields(raw, start, end, min(MAX_COLUMNS + _PLAIN_FIELDS, left), "an entry of data.chunks"))


def _check_items(raw: bytes, items: list[Field]) -> None:
    left, list_bytes = MAX_MESSAGE_ITEMS + _PLAIN_FIELDS * len(items), 0
    if _size(items) <= _FIELD_BYTES * left:
        return
    for _, start, end in items:
        fields = _fields(raw, start, end, left, "data.items")
        left -= len(fields)
        list_bytes += sum(field_end - begin for tag, begin, field_end in fields if tag >> 3 in _LISTS)
    if list_bytes > MAX_MESSAGE_ITEMS * _ITEM_BYTES:
        raise InvalidArgument(
            f"data.items has {list_bytes} bytes of numbers, must have {MAX_MESSAGE_ITEMS} items at most"
        )


def _size(messages: list[Field]) -> int:
    return sum(end - start for _, start, end in messages)


def _fields(raw: bytes, start: int, end: int, most: int, what: str) -> list[Field]:
    """Return the fields of a message that lies at `start` to `end`, not looking into them.

    Raises:
        InvalidArgument: there are more than `most`, or they do not end with the message.
        IndexError: the bytes end within a varint.
    """
    found: list[Field] = []
    at = start
    while at < end:
        if len(found) == most:
            raise InvalidArgument(f"{what} has more than {most} fields")
        tag = raw[at]
        at += 1
        if tag > 127:
            tag, at = _varint(raw, at - 1)
        kind, begin = tag & 7, at
        if kind == _BYTES:
            size = raw[at]
            begin = at = at + 1
            if size > 127:
                size, begin = _varint(raw, at - 1)
            at = begin + size
        elif kind == _VARINT:
            while raw[at] > 127:
                at += 1
            at += 1
        elif kind in _WIDTHS:
            at += _WIDTHS[kind]
        else:
            raise InvalidArgument(f"{what} has a field of wire type {kind}, which proto3 does not have")
        found.append((tag, begin, at))
    if at != end:
        raise InvalidArgument(f"{what} ends in the middle of a field")
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends; one of more than ten bytes ends there."""
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
    return value, at


def times_of(request: pb.ExportRequest | pb.DeleteMatchingItemsRequest) -> tuple[float | None, float | None]:
    """Return between which Unix times items are asked for, in seconds; None for any."""
    since_s = request.since_s if request.HasField("since_s") else None
    return since_s, request.until_s if request.HasField("until_s") else None


def _as_sent(raw: bytes) -> bytes:
    return raw


def _serialized(answer: Message | Outgoing) -> bytes:
    return answer.take() if isinstance(answer, Outgoing) else answer.SerializeToString()


_KINDS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def grant(queue: SampleQueue, leases: Leases, request: pb.SampleRequest) -> None:
    """Settle the batches that one message names, and add those that it is ready to take.

    Raises:
        InvalidArgument: A batch is too large, or was not sent, or too many wait.
    """
    for number in request.taken:
        leases.settle(number, returned=False)
    for number in request.returned:
        leases.settle(number, returned=True)
    if request.smaller and (not request.HasField("smaller_after") or request.smaller_after == leases.newest):
        queue.smaller.set()
    queue.grant(request.credit)
    for draw in request.draws:
        queue.draw(
            draw.items,
            draw.counted,
            seed=draw.seed if draw.HasField("seed") else None,
            at_step_count=draw.at_step_count if draw.HasField("at_step_count") else None,
        )


async def read_credit(requests: AsyncIterator[pb.SampleRequest], queue: SampleQueue, leases: Leases) -> None:
    """Add what the messages after the first one grant, until there are no more or one of them is wrong."""
    try:
        async for request in requests:
            if request.HasField("open"):
                raise InvalidArgument("`open` is set again, must be set in the first message of Sample only")
            grant(queue, leases, request)
    except Exception as error:  # which the call raises, as nothing awaits this
        queue.close(error)
    else:
        queue.close()
