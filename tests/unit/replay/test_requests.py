"""What is counted in a request before anything of it is unpacked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.hostile_requests import GOOD, HOSTILE, fullest
from tests.support.naming import naming
from tests.support.replay_streams import make_config
from tidemill.errors import InvalidArgument
from tidemill.replay.limits import MAX_DRAWS, MAX_MESSAGE_BLOCKS, MAX_MESSAGE_CHUNKS, MAX_MESSAGE_ITEMS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_config
from tidemill.services.replay.requests import read


class Watched(bytes):
    """Bytes that count how many of them are looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - as of bytes
        self.looks += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("name", HOSTILE)
def test_request_that_holds_too_much_is_refused_after_a_look(name: str) -> None:
    """Each field is named, and no more of the message was looked at than a good one may hold."""
    kind, raw, message = HOSTILE[name]()
    watched = Watched(raw)
    with pytest.raises(InvalidArgument, match=naming(message)):
        read(kind, watched)
    assert watched.looks < 4 * (MAX_MESSAGE_ITEMS + MAX_MESSAGE_BLOCKS + 10 * MAX_MESSAGE_CHUNKS)


@pytest.mark.parametrize(
    "message",
    [
        fullest(),
        pb.CreateTableRequest(config=pack_config(make_config())),
        pb.SampleRequest(
            open=pb.SampleOpen(table="t", batch_size=1), draws=[pb.Draw(items=2**32 - 1, counted=2**32 - 1)] * MAX_DRAWS
        ),
        pb.UpdatePrioritiesRequest(table="t", keys=[2**64 - 1] * 2**20, priorities=[1.0] * 2**20),
        pb.ListTablesRequest(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_largest_good_request_is_read_as_it_is(message: Any) -> None:  # noqa: ANN401 - of any kind
    """Every list may be as long as the contract says."""
    assert read(type(message), message.SerializeToString()) == message


def as_read(raw: bytes) -> bytes | str:
    """Return a request as protobuf would write what was read, or why it was refused."""
    try:
        return read(pb.AppendRequest, raw).SerializeToString(deterministic=True)
    except InvalidArgument as error:
        return str(error)


@given(noise=st.binary(max_size=40), cut=st.integers(0, len(GOOD)), end=st.integers(0, 40))
@example(noise=b"\x10\x00", cut=0, end=0)  # `data` as a number, which protobuf takes for an unknown field
def test_reading_agrees_with_protobuf(noise: bytes, cut: int, end: int) -> None:
    """What protobuf cannot read is refused, and nothing else but groups and fields without number."""
    raw = GOOD[:cut] + noise + GOOD[min(cut + end, len(GOOD)) :]
    found = as_read(raw)
    try:
        expected = pb.AppendRequest.FromString(raw)
    except DecodeError:
        assert isinstance(found, str)
        return
    if isinstance(found, str):
        assert re.search("wire type|more than 8 fields", found)
    else:
        assert found == expected.SerializeToString(deterministic=True)
