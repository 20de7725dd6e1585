"""One sampler for the ranks of a machine: what they read is the table, and each batch goes to one of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.support.mirrored_table import BATCH, CONFIG, HOLD, check, taken, wait_for_tables, writers
from tests.support.naming import because, naming
from tests.support.replay_service import CHUNK_LENGTH
from tests.support.replay_shards import local_shards
from tests.support.replay_streams import SIGNATURE
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, Unavailable
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.shared_mirror import (
    DealtSampler,
    SampleDealer,
    SharedMirror,
    fetch_mirror,
)
from tidemill.replay.sampling.source import SampleSource
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import SelectorConfig, SelectorKind

pytestmark = pytest.mark.requires_linux

RANKS = 3
TABLE = replace(CONFIG, sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0))


@dataclass(frozen=True)
class Machine:
    """The ranks of one machine.

    Attributes:
        sampler: The owner's.
        dealer: Gives the others their batches.
        mirror: Where the owner keeps rows.
        others: Sampler and mirror of each other rank.
    """

    sampler: SampleSource
    dealer: SampleDealer
    mirror: TableMirror
    others: list[tuple[DealtSampler, TableMirror]]


def _opened(parts: int, stack: ExitStack) -> tuple[SharedMirror, TableMirror, str]:
    name = f"{os.getpid()}-{os.urandom(8).hex()}"
    shared = stack.enter_context(closing(SharedMirror(name)))
    slots = least_slots(BATCH, CONFIG.max_item_steps, CHUNK_LENGTH, HOLD)
    size = MirrorSize(slots, CHUNK_LENGTH, HOLD)
    return shared, TableMirror(SIGNATURE, size, parts, shared.arrays.reserve), name


@contextmanager
def machine(addresses: list[str]) -> Iterator[Machine]:
    """Sample a table for three ranks, with the least slots that are allowed."""
    with ExitStack() as stack:
        shared, mirror, name = _opened(1 if len(addresses) == 1 else 2 * len(addresses), stack)
        with ThreadPoolExecutor() as pool:
            fetched = [pool.submit(fetch_mirror, name, SIGNATURE, WAIT_S) for _ in range(RANKS - 1)]
            connections = shared.admit(mirror, RANKS - 1, WAIT_S)
            others = [future.result() for future in fetched]
        shared.close()
        sampler = SampleStream(ShardDirectory(addresses), TABLE, BATCH, mirror=mirror)
        dealer = stack.enter_context(closing(SampleDealer(sampler, connections)))
        for other, _ in others:
            stack.enter_context(closing(other))
        wait_for_tables(addresses)
        yield Machine(sampler, dealer, mirror, others)


def _dealt(sampler: DealtSampler) -> SampledBatch:
    batch = sampler.take(WAIT_S)
    assert batch is not None
    return batch


@pytest.mark.parametrize("shards", [1, 2])
def test_every_rank_reads_what_the_owner_keeps(shards: int) -> None:
    """While the table turns over, of one server and of several, and the samples of all are drawn once."""
    with local_shards(shards) as servers:
        addresses = [server.address for server in servers]
        with machine(addresses) as ranks, writers(*addresses) as opened:
            seen: set[int] = set()
            rounds = 0
            while rounds < 40 or (len(seen) < shards and rounds < 4_000):  # a shard may come late on a busy machine
                rounds += 1
                seen |= check(ranks.mirror, taken_by_owner(ranks))
                for sampler, mirror in ranks.others:
                    seen |= check(mirror, _dealt(sampler))
                for writer in opened:
                    writer.write()
            samples = sum(_samples(address) for address in addresses)
        assert seen == set(range(1, shards + 1))
        taken_items = rounds * RANKS * BATCH
        assert taken_items <= samples <= taken_items + 8 * BATCH  # and what was under way


def taken_by_owner(ranks: Machine) -> SampledBatch:
    """Return the owner's next batch."""
    batch = ranks.sampler.take(WAIT_S)
    assert batch is not None
    return batch


def _samples(address: str) -> int:
    with ReplayClient(address) as client:
        return client.describe_table("t").samples


@pytest.mark.parametrize("shards", [1, 2])
def test_priorities_reach_the_table_through_the_owner(shards: int) -> None:
    """Keys of every shard: once all but one item have priority 0, every rank draws that one alone."""
    with local_shards(shards) as servers:
        addresses = [server.address for server in servers]
        with machine(addresses) as ranks, writers(*addresses):
            (first, _), (second, _) = ranks.others
            chosen = _dealt(first).keys[0]

            def only_chosen() -> bool:
                keys = np.unique(_dealt(second).keys.reshape(BATCH, -1), axis=0)
                others = keys[(keys != chosen).any(axis=1)].reshape(-1, *np.shape(chosen))
                first.update_priorities(others, np.zeros(len(others)))
                return len(keys) == 1 and bool((keys[0] == chosen).all())

            wait_until(only_chosen, "the one item that is left")
            batch = _dealt(first)
            assert batch.probabilities.tolist() == pytest.approx([1.0] * BATCH)


def test_errors_are_those_of_the_owners_sampler() -> None:
    """By kind, message and reason: an overtaken learner must learn of it, whichever rank it is."""
    with local_shards(1) as (server,), machine([server.address]) as ranks, writers(server.address):
        sampler, _ = ranks.others[0]
        keys = _dealt(sampler).keys
        sampler.update_priorities(keys, np.ones(BATCH), fencing_token=7)
        with pytest.raises(FailedPrecondition, match="fencing", check=because(Reason.FENCING_TOKEN_SUPERSEDED)):
            sampler.update_priorities(keys, np.ones(BATCH), fencing_token=6)
        with pytest.raises(InvalidArgument, match="priorit", check=because(None)):
            sampler.update_priorities(keys, np.full(BATCH, -1.0), fencing_token=7)
        check(ranks.others[0][1], _dealt(sampler))  # and the connection is as good as before


def test_deleted_items_are_gone_for_all() -> None:
    """A corrupt item that one rank finds is removed from the table."""
    with local_shards(1) as (server,), machine([server.address]) as ranks, writers(server.address):
        (first, _), (second, _) = ranks.others
        gone = np.unique(_dealt(first).keys)[:1]
        first.delete_items(gone)
        for _ in range(8):  # those under way were drawn before
            taken(ranks.sampler)  # type: ignore[arg-type]
        assert not any(np.isin(_dealt(rank).keys, gone).any() for rank in (first, second) for _ in range(10))


def test_rank_that_ends_leaves_the_others_their_batches() -> None:
    """Whether between two questions or while it waits for a batch."""
    with local_shards(1) as (server,), machine([server.address]) as ranks:
        (first, _), (second, mirror) = ranks.others
        assert first.take(0.0) is None  # asked: the table is empty
        first.close()
        with writers(server.address):
            for _ in range(10):
                check(mirror, _dealt(second))
                check(ranks.mirror, taken_by_owner(ranks))


def test_owner_that_ends_ends_the_others() -> None:
    """They raise instead of waiting, whatever they ask."""
    with local_shards(1) as (server,), machine([server.address]) as ranks:
        waiting, _ = ranks.others[0]
        assert waiting.take(0.0) is None
        ranks.dealer.close()
        for sampler, _ in ranks.others:
            with pytest.raises(Unavailable):
                sampler.take(WAIT_S)
            with pytest.raises(Unavailable):
                sampler.update_priorities(np.zeros(1, np.uint64), np.zeros(1))


def test_owner_waits_for_the_last_priorities() -> None:
    """It ends once the others have hung up, and not before: their last priorities go through it."""
    with local_shards(1) as (server,), machine([server.address]) as ranks, writers(server.address):
        (first, _), (second, _) = ranks.others
        keys = _dealt(first).keys
        ending = threading.Thread(target=ranks.dealer.close)
        ending.start()
        first.update_priorities(keys, np.ones(BATCH))
        for sampler in (first, second):
            sampler.close()
        ending.join(WAIT_S)
        assert not ending.is_alive()


def test_missing_ranks_are_waited_for_no_longer_than_said() -> None:
    """The error says how many came, and those that did are told."""
    with ExitStack() as stack:
        shared, mirror, name = _opened(1, stack)
        with ThreadPoolExecutor() as pool:
            fetched = pool.submit(fetch_mirror, name, SIGNATURE, WAIT_S)
            began_s = time.monotonic()
            with pytest.raises(Unavailable, match=naming("2 4")):
                shared.admit(mirror, 2, 2.0)
            assert time.monotonic() - began_s < WAIT_S
            sampler, _ = fetched.result()
        with closing(sampler), pytest.raises(Unavailable):
            sampler.take(WAIT_S)


def test_closed_door_is_an_error() -> None:
    """Nobody is admitted once all ranks were, and another table's columns do not fit what is shared."""
    with ExitStack() as stack:
        shared, mirror, name = _opened(1, stack)
        with ThreadPoolExecutor() as pool:
            larger = tuple(replace(column, shape=(*column.shape, 99)) for column in SIGNATURE)
            fetched = pool.submit(fetch_mirror, name, larger, WAIT_S)
            for connection in shared.admit(mirror, 1, WAIT_S):
                stack.enter_context(closing(connection))
            with pytest.raises(Exception, match="ends before"):
                fetched.result()
        shared.close()
        with pytest.raises(Unavailable, match=naming("mirror")):
            fetch_mirror(name, SIGNATURE, 1.0)
