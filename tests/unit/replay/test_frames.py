"""Messages between ranks of one machine: a batch arrives as it left, in however many pieces."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import naming
from tidemill.errors import DataLoss, Unavailable
from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.sampling.frames import FrameSocket, pack_batch, unpack_batch


@pytest.fixture
def ends() -> Iterator[tuple[FrameSocket, socket.socket]]:
    """One side of a connection, and the other's socket."""
    here, there = socket.socketpair()
    with closing(FrameSocket(here, 5.0)) as frames, there:
        yield frames, there


def _batch(rng: np.random.Generator, items: int, chunks: int, *, sharded: bool, payloads: bool) -> SampledBatch:
    return SampledBatch(
        keys=rng.integers(0, 2**64, (items, 2) if sharded else items, dtype=np.uint64),
        probabilities=rng.random(items),
        first_rows=rng.integers(0, 2**62, items),
        lengths=rng.integers(0, 2**62, items),
        payloads=tuple(rng.bytes(int(size)) for size in rng.integers(0, 9, items)) if payloads else (),
        step_counts=rng.integers(1, 99, chunks),
        params_versions=rng.integers(0, 2**64, chunks, dtype=np.uint64),
        blocks=(),
        table_items=int(rng.integers(2**60)),
        total_weight=float(rng.random()),
        stored={"": StoredSteps(2**64 - 1, 5)} if not sharded else {"a": StoredSteps(1, 2), "b": StoredSteps(3, 4)},
        limiter_diff=float(rng.standard_normal()),
        slots=rng.integers(0, 2**21, chunks),
        writes=rng.integers(0, 2**62, chunks),
    )


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans())
def test_batch_arrives_as_it_left(seed: int, items: int, chunks: int, sharded: bool, payloads: bool) -> None:
    """Every field, bit for bit, with keys of one server or of several."""
    sent = _batch(np.random.default_rng(seed), items, chunks, sharded=sharded, payloads=payloads)
    received = unpack_batch(*pack_batch(sent))
    for field in fields(SampledBatch):
        np.testing.assert_array_equal(getattr(received, field.name), getattr(sent, field.name), field.name)


def test_batch_of_another_size_than_it_says_is_refused() -> None:
    """Whether bytes are missing or too many."""
    header, body = pack_batch(_batch(np.random.default_rng(0), 3, 2, sharded=False, payloads=True))
    for wrong in (body[:-1], body + b"x", b""):
        with pytest.raises(DataLoss, match=naming("3 2")):
            unpack_batch(header, wrong)


def test_message_in_pieces_is_kept_until_it_is_whole(ends: tuple[FrameSocket, socket.socket]) -> None:
    """`receive` gives up between the pieces, byte by byte, and loses none; what follows is the next message."""
    frames, there = ends
    text, body = b'{"a":1}', b"body"
    message = struct.pack("<II", len(text), len(body)) + text + body
    for byte in message[:-1]:
        there.sendall(bytes([byte]))
        assert frames.receive(0.0) is None
    there.sendall(message[-1:] + message)
    assert frames.receive(5.0) == ({"a": 1}, body)
    assert frames.receive(5.0) == ({"a": 1}, body)


def test_size_is_checked_before_anything_is_read(ends: tuple[FrameSocket, socket.socket]) -> None:
    """Eight bytes that promise gigabytes are an error at once."""
    frames, there = ends
    there.sendall(struct.pack("<II", 2, 2**31))
    with pytest.raises(DataLoss, match="at most"):
        frames.receive(5.0)


def test_other_side_that_ends_is_noticed(ends: tuple[FrameSocket, socket.socket]) -> None:
    """By who waits for a message and by who sends one."""
    frames, there = ends
    there.close()
    with pytest.raises(Unavailable, match="ended"):
        frames.receive(5.0)
    with pytest.raises(Unavailable, match="lost"):
        frames.send({}, b"x")


def test_other_side_that_takes_nothing_is_given_up() -> None:
    """A frozen rank holds the sender up for as long as was said."""
    here, there = socket.socketpair()
    with closing(FrameSocket(here, 0.05)) as frames, there, pytest.raises(Unavailable, match="timed out"):
        frames.send({}, bytes(2**24))
