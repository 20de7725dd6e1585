"""Client side of an export: the parts of a table, decoded as they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array, Ints
from tidemill.errors import InvalidArgument
from tidemill.replay.argument_types import check_range
from tidemill.replay.codec import decode_chunks
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import unpack_blocks, unpack_config
from tidemill.rpc.channel import open_channel
from tidemill.rpc.silence import each_within
from tidemill.rpc.status import translated


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Whole chunks of streams, their steps one after the other.

    Attributes:
        columns: Each column of the table, [R, ...].
        step_counts: Steps of each chunk, int64 [C].
        continues: Which chunks follow the one before in the same stream, [C].
        params_versions: Version of the parameters that chose each chunk's last action, uint64 [C].
        is_corrupt: Which chunks do not decode; their rows mean nothing, [C].
    """

    columns: dict[str, Array]
    step_counts: Ints
    continues: NDArray[np.bool_]
    params_versions: NDArray[np.uint64]
    is_corrupt: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items in the order of their insertion.

    Attributes:
        first_rows: Row of each one's first step, counted over all steps, int64 [N].
        lengths: Steps of each, int64 [N].
        priorities: float64 [N].
        payloads: The payload of each, uint8 [N, payload_bytes].
        ages: Items inserted after each, int64 [N].
        times_sampled: How often each was sampled, int64 [N].
    """

    first_rows: Ints
    lengths: Ints
    priorities: NDArray[np.float64]
    payloads: NDArray[np.uint8]
    ages: Ints
    times_sampled: Ints

    def take(self, places: Ints) -> Items:
        """Return some of them."""
        return Items(*(getattr(self, name)[places] for name in Items.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class Start:
    """First message of an export.

    Attributes:
        config: The table's configuration.
        items: How many items were chosen.
    """

    config: TableConfig
    items: int


@contextmanager
def open_export(
    address: str,
    table: str,
    *,
    newest: int | None = None,
    min_age: int = 0,
    max_age: int | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    timeout_s: float = 60.0,
) -> Iterator[Iterator[Start | Steps | Items]]:
    """Give the block the parts of an export: a `Start`, then `Steps`, then `Items`.

    Args:
        address: Of the server.
        table: Name of the table.
        newest: Only so many of the newest items; None means all.
        min_age: Only items with at least so many inserted after them.
        max_age: Only items with at most so many inserted after them; None means any.
        since_s: Only items that came at this Unix time, in seconds, or later; None means any.
        until_s: Only items that came before this one; None means any.
        timeout_s: Longest wait for the next part, in seconds.

    Raises:
        InvalidArgument: An argument is out of range.
        NotFound: No such table.
        ResourceExhausted: The server needed the memory that the export held.
        Unavailable: The server cannot be reached, stopped, or was silent for `timeout_s`.
    """
    if newest is not None and newest < 1:
        raise InvalidArgument(f"newest is {newest}, must be at least 1, or None for all items")
    for name, value in (("newest", newest), ("min_age", min_age), ("max_age", max_age)):
        if value is not None:
            check_range(name, value, 0, 2**63 - 1)
    request = pb.ExportRequest(
        table=table, newest=newest or 0, min_age=min_age, max_age=max_age, since_s=since_s, until_s=until_s
    )
    channel = open_channel(address)
    try:
        call = replay_pb2_grpc.ReplayServiceStub(channel).Export(request)
        try:
            with translated():
                yield _parts(call, address, timeout_s)
        finally:
            call.cancel()
    finally:
        channel.close()


def _parts(call: Any, address: str, timeout_s: float) -> Iterator[Start | Steps | Items]:  # noqa: ANN401 - gRPC's
    config: TableConfig | None = None
    for message in each_within(call, f"the replay server at {address}", timeout_s):
        if message.HasField("start"):
            config = unpack_config(message.start.config)
            yield Start(config, message.start.items)
        elif config is not None and message.HasField("chunks"):
            yield _steps(config, message.chunks)
        elif config is not None:
            yield _items(config, message.items)


def _steps(config: TableConfig, message: pb.ExportChunks) -> Steps:
    step_counts = np.array(message.chunks.step_counts, dtype=np.int64)
    rows = int(step_counts.sum())
    columns: dict[str, Array] = {spec.name: np.zeros((rows, *spec.shape), spec.dtype) for spec in config.signature}
    starts = np.cumsum(step_counts) - step_counts
    corrupt = decode_chunks(config.signature, unpack_blocks(message.chunks), step_counts, columns, starts)
    return Steps(
        columns,
        step_counts,
        np.array(message.continues, dtype=np.bool_),
        np.array(message.chunks.params_versions, dtype=np.uint64),
        corrupt,
    )


def _items(config: TableConfig, message: pb.ExportItems) -> Items:
    payloads = np.frombuffer(b"".join(message.payloads), dtype=np.uint8)
    return Items(
        np.array(message.first_rows, dtype=np.int64),
        np.array(message.lengths, dtype=np.int64),
        np.array(message.priorities, dtype=np.float64),
        payloads.reshape(len(message.lengths), config.payload_bytes),
        np.array(message.ages, dtype=np.int64),
        np.array(message.times_sampled, dtype=np.int64),
    )
