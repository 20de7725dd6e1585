"""What the replay client refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_streams import make_config
from tidemill.errors import InvalidArgument
from tidemill.replay.chunk import Chunk
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.transfer.copying import copy_tables
from tidemill.replay.transfer.exporting import export_table
from tidemill.replay.transfer.importing import import_table
from tidemill.replay.writing.appender import StreamAppender
from tidemill.types import ColumnSpec

_NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


@pytest.mark.parametrize("env_index", [-1, 2])
def test_append_refuses_a_stream_the_actor_does_not_have(env_index: int) -> None:
    """A chunk of environment 2 of 0 .. 1 is refused by number, and nothing is queued."""
    chunk = Chunk(env_index, 0, 1, 1, 0, (b"\0",))
    with StreamAppender(_NOBODY, "a", 2, (ColumnSpec("c", "uint8", ()),), ["t"], 4) as appender:
        with pytest.raises(InvalidArgument, match=naming("env_index", env_index, 0, 1)):
            appender.append([chunk])
        assert appender.unacknowledged_chunks == 0


@pytest.mark.parametrize("size_bytes", [2**16 - 1, 2**31])
def test_sampling_refuses_messages_of_a_size_that_no_channel_has(size_bytes: int) -> None:
    """Too small for a part of a batch, or beyond the 32 bits of gRPC's arguments."""
    with (
        closing(ShardDirectory([_NOBODY])) as servers,
        pytest.raises(InvalidArgument, match=naming("max_message_bytes", size_bytes, 2**16)),
    ):
        SampleStream(servers, make_config("t"), 4, max_message_bytes=size_bytes)


def test_update_refuses_float_keys() -> None:
    """A key does not fit into a float, so float keys are refused instead of rounded to another item's."""
    with ReplayClient(_NOBODY) as client, pytest.raises(InvalidArgument, match=naming("keys float64")):
        client.update_priorities("t", np.array([1.0]), np.array([1.0]))


@pytest.mark.parametrize(
    "transfer",
    [
        partial(export_table, _NOBODY, "t", "nowhere"),
        partial(import_table, _NOBODY, "nowhere"),
        partial(copy_tables, _NOBODY, "127.0.0.1:10"),
    ],
)
def test_transfer_names_the_timeout_that_it_refuses(transfer: Callable[..., object]) -> None:
    """By the argument that was given, before a server or a folder is looked for."""
    with pytest.raises(InvalidArgument, match=naming("timeout_s 0")):
        transfer(timeout_s=0)
