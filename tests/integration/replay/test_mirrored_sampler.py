"""A sampler that keeps what it was sent: its batches are the table's, through turnover, lost shards and restarts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import grpc
import pytest

from tests.support.mirrored_table import BATCH, CONFIG, HOLD, Writer, check, mirror, taken, wait_for_tables, writers
from tests.support.naming import naming
from tests.support.replay_service import CHUNK_LENGTH, local_server, server_process
from tests.support.replay_shards import local_shards
from tests.support.replay_streams import SIGNATURE, make_chunk, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc.status import from_rpc_error


@pytest.mark.parametrize("spare_slots", [0, 40])
@pytest.mark.parametrize("shards", [1, 3])
def test_batches_are_whole_while_the_table_turns_over(shards: int, spare_slots: int) -> None:
    """Of one server and of several, with slots for the whole table and with the least that is allowed."""
    with local_shards(shards) as servers:
        addresses = [server.address for server in servers]
        kept = mirror(1 if shards == 1 else 2 * shards, spare_slots)
        with closing(SampleStream(ShardDirectory(addresses), CONFIG, BATCH, mirror=kept)) as sampler:
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
        with closing(SampleStream(ShardDirectory(addresses), CONFIG, BATCH, mirror=kept)) as sampler:
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
        closing(SampleStream(ShardDirectory([server.address]), CONFIG, BATCH, mirror=kept)) as sampler,
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
        (pb.Mirror(slots=223, slot_steps=CHUNK_LENGTH, hold=HOLD), "mirror.slots 223 224 2097152"),
        (pb.Mirror(slots=2**21 + 1, slot_steps=CHUNK_LENGTH, hold=HOLD), "mirror.slots 2097153"),
        (pb.Mirror(slots=224, slot_steps=0, hold=HOLD), "mirror.slot_steps 0"),
        (pb.Mirror(slots=2**21, slot_steps=CHUNK_LENGTH, hold=2**16 + 1), "mirror.hold 65537"),
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
        with pytest.raises(grpc.RpcError, match=naming(why)) as caught:
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
        with pytest.raises(grpc.RpcError, match=naming("chunk 8 mirror.slot_steps 4 keep.chunk_length")) as caught:
            next(answers)
    assert type(failure := from_rpc_error(caught.value)) is FailedPrecondition
    assert failure.reason is Reason.SLOT_TOO_SMALL
