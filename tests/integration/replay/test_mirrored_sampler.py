"""A sampler that keeps what it was sent: its batches are the table's, through turnover, lost shards and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.replay_service import CHUNK_LENGTH, local_server, open_appender, server_process
from tests.support.replay_shards import local_shards
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.batch import SampledBatch
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.appender import StreamAppender

ITEM, BATCH, HOLD = 5, 16, 6
CONFIG = make_config(max_items=60, max_item_steps=ITEM)


def mirror(parts: int = 1, spare_slots: int = 40) -> TableMirror:
    """Return a mirror with a few slots more than the least."""
    slots = least_slots(BATCH, ITEM, CHUNK_LENGTH, HOLD) + spare_slots
    return TableMirror(SIGNATURE, MirrorSize(slots, CHUNK_LENGTH, HOLD), parts)


class Writer:
    """Appends one stream to a server for as long as a test needs it; its `stream` column names it."""

    def __init__(self, address: str, stream: int) -> None:
        self._stream, self._next = stream, 0
        self._appender = open_appender(address, f"writer-{stream}")

    def write(self, chunks: int = 1) -> None:
        """Append chunks with an item that ends at each step; waits until they are stored."""
        for _ in range(chunks):
            items = [(0, i, min(ITEM, self._next + i + 1)) for i in range(CHUNK_LENGTH)]
            chunk = make_chunk(self._stream, 0, self._next, CHUNK_LENGTH)
            assert self._appender.append([chunk], [make_items(0, items)], timeout_s=WAIT_S)
            self._next += CHUNK_LENGTH
        assert self._appender.flush(WAIT_S)

    def close(self) -> None:
        """End the call."""
        self._appender.close()


@contextmanager
def writers(*addresses: str) -> Iterator[list[Writer]]:
    """Open a writer to each server, and fill its table a little."""
    opened = [Writer(address, number + 1) for number, address in enumerate(addresses)]
    for writer in opened:
        writer.write(3)
    yield opened
    for writer in opened:
        writer.close()


def check(kept: TableMirror, batch: SampledBatch) -> set[int]:
    """Check that each item is consecutive steps of one stream, whole; return the streams."""
    rows = kept.rows_of(batch, ITEM)
    columns = {name: column[rows] for name, column in kept.columns.items()}
    assert kept.is_intact(batch)
    assert not batch.blocks
    within = np.maximum(np.arange(ITEM) - (ITEM - batch.lengths[:, None]), 0)
    steps = columns["step"]
    np.testing.assert_array_equal(steps, steps[:, :1] + within)
    np.testing.assert_array_equal(columns["frame"][..., 0], steps)
    np.testing.assert_array_equal(columns["frame"][..., 1], steps * 7)
    streams = columns["stream"][..., 0]
    np.testing.assert_array_equal(columns["frame"][..., 2], streams)
    assert (streams == streams[:, :1]).all()
    assert (steps[:, 0] < 1 + batch.params_versions.max()).all()
    return set(streams[:, 0].tolist())


def taken(sampler: ReplaySampler) -> SampledBatch:
    """Return the next batch; there must be one."""
    batch = sampler.take(WAIT_S)
    assert batch is not None
    return batch


@pytest.mark.parametrize("spare_slots", [0, 40])
@pytest.mark.parametrize("shards", [1, 3])
def test_batches_are_whole_while_the_table_turns_over(shards: int, spare_slots: int) -> None:
    """Of one server and of several, with slots for the whole table and with the least that is allowed."""
    with local_shards(shards) as servers:
        addresses = [server.address for server in servers]
        kept = mirror(1 if shards == 1 else 2 * shards, spare_slots)
        with ReplaySampler(addresses, CONFIG, BATCH, mirror=kept) as sampler:
            wait_for_tables(addresses)
            with writers(*addresses) as opened:
                seen: set[int] = set()
                for batches in range(2_000):
                    if batches >= 60 and len(seen) == shards:  # on a busy machine a shard may answer late
                        break
                    seen |= check(kept, taken(sampler))
                    for writer in opened:
                        writer.write()
    assert seen == set(range(1, shards + 1))


def test_lost_shard_is_left_out_and_taken_back() -> None:
    """What was kept of it is not used for what comes later."""
    with server_process() as lasting, server_process() as first:
        addresses = [lasting.address, first.address]
        kept = mirror(4)
        with ReplaySampler(addresses, CONFIG, BATCH, mirror=kept) as sampler:
            wait_for_tables(addresses)
            with writers(lasting.address) as (writer,):
                with closing(Writer(first.address, 2)) as other:
                    other.write(3)
                    wait_until(lambda: check(kept, taken(sampler)) == {1, 2}, "items of both shards")
                    first.close()
                wait_until(lambda: not all(report.live for report in sampler.shards()), "the shard to be left out")
                for _ in range(10):
                    writer.write()
                    check(kept, taken(sampler))
                with server_process(first.address) as second:
                    wait_for_tables([second.address])
                    with closing(Writer(second.address, 3)) as other:
                        other.write(3)
                        wait_until(lambda: check(kept, taken(sampler)) == {1, 3}, "items of the new shard")


def test_server_that_is_restarted_is_sampled_from_its_log(tmp_path: Path) -> None:
    """The rows of a new connection take the place of the old ones, read from disk."""
    options = ("--replay.storage.folder", str(tmp_path / "log"))
    kept = mirror()
    with (
        server_process("127.0.0.1:0", *options) as server,
        ReplaySampler([server.address], CONFIG, BATCH, mirror=kept) as sampler,
    ):
        wait_for_tables([server.address])
        with writers(server.address) as (writer,):
            for _ in range(10):
                check(kept, taken(sampler))
                writer.write()
            server.close()
            with server_process(server.address, *options):
                writer.write(20)
                wait_until(
                    lambda: int(taken(sampler).params_versions.min()) > 13 * CHUNK_LENGTH, "the newest items alone"
                )
                for _ in range(20):
                    check(kept, taken(sampler))


def test_table_that_fits_costs_few_bytes_per_item() -> None:
    """Once every chunk was sent, a sample has keys, probabilities and places: under 100 bytes per item."""
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(CONFIG)
        with writers(server.address) as (writer,), grpc.insecure_channel(server.address) as channel:
            writer.write(15)
            opening = pb.SampleOpen(table="t", batch_size=BATCH, mirror=mirror().size.to_message())
            answers = replay_pb2_grpc.ReplayServiceStub(channel).Sample(
                iter([pb.SampleRequest(open=opening, credit=100)])
            )
            sizes = [(answer.ByteSize(), len(answer.chunks.sent)) for answer in answers]
    assert sum(sent for _, sent in sizes) <= 18
    assert max(size for size, sent in sizes if not sent) < 100 * BATCH


@pytest.mark.parametrize(
    "asked, why",
    [
        (pb.Mirror(slots=223, slot_steps=CHUNK_LENGTH, hold=HOLD), r"mirror.slots is 223, must be 224 \.\. 2097152"),
        (pb.Mirror(slots=2**21 + 1, slot_steps=CHUNK_LENGTH, hold=HOLD), "mirror.slots is 2097153"),
        (pb.Mirror(slots=224, slot_steps=0, hold=HOLD), "mirror.slot_steps is 0"),
        (pb.Mirror(slots=2**21, slot_steps=CHUNK_LENGTH, hold=2**16 + 1), "mirror.hold is 65537"),
    ],
)
def test_mirror_that_cannot_be_kept_is_refused(asked: pb.Mirror, why: str) -> None:
    """The message names the field, the value and what is allowed."""
    with (
        local_server() as server,
        ReplayClient(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        client.create_table(CONFIG)
        opening = pb.SampleOpen(table="t", batch_size=BATCH, mirror=asked)
        answers = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([pb.SampleRequest(open=opening, credit=1)]))
        with pytest.raises(grpc.RpcError, match=why) as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_chunk_that_is_longer_than_a_slot_ends_the_call() -> None:
    """It would lie over the next slot."""
    with (
        local_server() as server,
        ReplayClient(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        client.create_table(CONFIG)
        with StreamAppender(server.address, "long", 1, SIGNATURE, ("t",), 8) as appender:
            assert appender.append([make_chunk(1, 0, 0, 8)], [make_items(0, [(0, 7, 5)])], timeout_s=WAIT_S)
            assert appender.flush(WAIT_S)
        opening = pb.SampleOpen(table="t", batch_size=BATCH, mirror=mirror().size.to_message())
        answers = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([pb.SampleRequest(open=opening, credit=1)]))
        with pytest.raises(grpc.RpcError, match=r"a chunk has 8 steps, mirror\.slot_steps is 4") as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def wait_for_tables(addresses: list[str]) -> None:
    """Wait until the sampler has created its table everywhere."""
    for address in addresses:
        with ReplayClient(address) as client:
            client.wait_for_ready(WAIT_S)
            wait_until(partial(_has_table, client), "the table")


def _has_table(client: ReplayClient) -> bool:
    return bool(client.list_tables())
