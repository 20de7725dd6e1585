"""Messages and batches beyond what one message may hold: divided if they can be, or refused at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_service import local_server, rpc_count, server_process
from tests.support.waiting import WAIT_S
from tidemill.errors import InvalidArgument
from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.rpc.settings import MEBIBYTE

FIFO = SelectorConfig(SelectorKind.FIFO)


def queue_of(step: dict[str, np.ndarray], payload_bytes: int = 0) -> TableConfig:
    """Return a queue of steps like one, each given once."""
    return TableConfig(
        "t",
        signature_like(step),
        FIFO,
        max_items=1000,
        max_item_steps=1,
        max_times_sampled=1,
        payload_bytes=payload_bytes,
    )


def noise(size_bytes: int, number: int = 0) -> dict[str, np.ndarray]:
    """Return a step that cannot be compressed."""
    pixels = np.random.default_rng(number).integers(0, 256, size_bytes, dtype=np.uint8)
    return {"image": pixels, "number": np.array(number)}


def test_two_cameras_are_stored_although_sixteen_steps_do_not_fit_a_message() -> None:
    """16 steps of 1.8 MiB are more than the 20 MiB that a server takes: chunks are shorter."""
    table = queue_of(noise(2 * 640 * 480 * 3))
    with server_process() as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
            for number in range(20):
                writer.append(noise(2 * 640 * 480 * 3, number))
            writer.flush(WAIT_S)
        with ReplayDataset(server.address, table, 4, timeout_s=WAIT_S, prefetch=1) as dataset:
            numbers = [batch["number"][:, -1].tolist() for batch in (next(dataset) for _ in range(5))]
        assert numbers == np.arange(20).reshape(5, 4).tolist()


def test_step_that_never_fits_is_refused_by_append() -> None:
    """It names the step's bytes; nothing is sent, and smaller steps after it are stored."""
    with local_server() as server:
        with ReplayWriter(
            server.address, queue_of(noise(2**20)), windows=ItemWindow(1), max_message_bytes=2**20
        ) as writer:
            with pytest.raises(InvalidArgument, match=r"\b10\d+\b.*\b1048576\b"):
                writer.append(noise(2**20))
            for number in range(3):
                writer.append({"image": np.zeros(2**20, np.uint8), "number": np.array(number)})
            writer.flush(WAIT_S)
        assert server.replay.find("t").size == 3


def test_server_that_takes_less_than_a_chunk_refuses_the_writer_by_name() -> None:
    """The server says what it takes; with that as `max_message_bytes` the same steps are stored."""
    table = queue_of(noise(100_000))
    with local_server(max_request_bytes=2**20) as server:
        with pytest.raises(InvalidArgument, match=naming("max_message_bytes 16777216 1048576")):
            ReplayWriter(server.address, table)
        with ReplayWriter(server.address, table, windows=ItemWindow(1), max_message_bytes=2**20) as writer:
            for number in range(40):
                writer.append(noise(100_000, number))
            writer.flush(WAIT_S)
        assert server.replay.find("t").size == 40


def test_payloads_count_towards_a_message() -> None:
    """More than fit end the chunk's room: `create_item` refuses the first beyond it, and what was taken is stored."""
    table = queue_of({"x": np.zeros(1)}, payload_bytes=65_536)
    with (
        local_server(max_request_bytes=2**20) as server,
        ReplayWriter(server.address, table, max_message_bytes=2**20) as writer,
    ):
        writer.append({"x": np.zeros(1)})
        for _ in range(4):
            writer.create_item("t", last=1, payload=bytes(65_536))
        with pytest.raises(InvalidArgument, match=naming("5 327680")):
            writer.create_item("t", last=1, payload=bytes(65_536))
        writer.flush(WAIT_S)
        assert server.replay.find("t").size == 4


@pytest.mark.parametrize("client_bytes", [2**16, 2**20, 64 * MEBIBYTE])
@pytest.mark.parametrize("server_bytes", [2**20, 64 * MEBIBYTE])
def test_batch_larger_than_a_message_comes_in_parts(client_bytes: int, server_bytes: int) -> None:
    """Whichever side takes less: every byte is right, and each item of a queue comes once."""
    table = queue_of(noise(100_000))
    with local_server(server_bytes, max_request_bytes=2**20) as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(1), max_message_bytes=2**20) as writer:
            for number in range(60):
                writer.append(noise(100_000, number))
            writer.flush(WAIT_S)
        sent = rpc_count("msg_sent", "Sample")
        with ReplayDataset(
            server.address, table, 20, timeout_s=WAIT_S, prefetch=1, max_message_bytes=client_bytes
        ) as dataset:
            for first in (0, 20, 40):
                batch = next(dataset)
                assert batch["number"][:, -1].tolist() == list(range(first, first + 20))
                for i in range(20):
                    assert (batch["image"][i, -1] == noise(100_000, first + i)["image"]).all()
        in_parts = min(client_bytes, server_bytes) < 20 * 100_000
        assert (rpc_count("msg_sent", "Sample") - sent > 3) is in_parts
        assert server.replay.find("t").counters.samples == 60


def test_batch_that_never_fits_is_refused_at_once_and_costs_a_queue_nothing() -> None:
    """Beyond the server's memory for batches: the first `take` says so, and all items are still there."""
    table = queue_of(noise(100_000))
    with local_server(stored_limit=16 * MEBIBYTE) as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(1), max_message_bytes=2**20) as writer:
            for number in range(60):
                writer.append(noise(100_000, number))
            writer.flush(WAIT_S)
        with ReplaySampler([server.address], table, 50) as sampler:
            for _ in range(2):
                with pytest.raises(InvalidArgument, match=r"\b50\b.*\b5\d+\b.*max_memory_mib"):
                    sampler.take(WAIT_S)
        described = server.replay.find("t")
        assert (described.size, described.counters.samples) == (60, 0)
        with ReplaySampler([server.address], table, 20, max_in_flight_batches=1) as sampler:
            assert len([sampler.take(WAIT_S) for _ in range(3)]) == 3


def test_message_that_an_empty_server_could_not_keep_is_refused_for_good() -> None:
    """A server with too little memory for one chunk says so at once, and `flush` raises that."""
    table = queue_of(noise(300_000))
    with local_server(stored_limit=2**18) as server, ReplayClient(server.address) as client:
        writer = ReplayWriter(server.address, table, chunk_length=4)
        for number in range(4):
            writer.append(noise(300_000, number))
        with pytest.raises(InvalidArgument, match=naming("max_memory_mib")):
            writer.flush(WAIT_S)
        writer.close()
        assert client.describe_table("t").items == 0


def test_queued_message_that_is_too_large_is_an_error_not_a_wait(tmp_path: Path) -> None:
    """GRPC refuses a message that was queued before the server said what it takes; the next call raises that."""
    table = queue_of(noise(100_000))
    options: tuple[str, ...] = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        writer = ReplayWriter(address, table, chunk_length=16)
    for number in range(17):
        writer.append(noise(100_000, number))
    options += ("--replay.server.max-request-bytes", "1000000")
    with server_process(address, *options), pytest.raises(InvalidArgument, match="larger than max"):
        writer.flush(WAIT_S)
    writer.close()
