"""Several replay servers inside the test's process, and what tests of shards ask of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from tests.support.replay_service import CHUNK_LENGTH, LocalServer, local_server
from tests.support.replay_streams import SIGNATURE, make_chunk, make_items
from tests.support.waiting import WAIT_S
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig, shard_config
from tidemill.replay.writing.appender import StreamAppender


@contextmanager
def local_shards(count: int, table: TableConfig | None = None) -> Iterator[list[LocalServer]]:
    """Serve `count` shards, each with its part of the table if one is given."""
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(count)]
        for server in servers if table else ():
            with ReplayClient(server.address) as client:
                assert table is not None
                client.create_table(shard_config(table, count))
        yield servers


@contextmanager
def sampling(
    addresses: Sequence[str],
    table: TableConfig,
    batch_size: int,
    *,
    credit: int = 4,
    without_replacement: bool = False,
) -> Iterator[SampleStream]:
    """Sample a table from shards."""
    directory = ShardDirectory(addresses)
    stream = SampleStream(
        directory,
        table,
        batch_size,
        rng=np.random.default_rng(11),
        max_in_flight_batches=credit,
        without_replacement=without_replacement,
    )
    with closing(stream):
        yield stream
    directory.close()


def fill(address: str, stream: int, priorities: Sequence[float]) -> None:
    """Append one stream whose steps 0, 1, ... are items of one step with these priorities."""
    with StreamAppender(address, f"filler-{stream}", 1, SIGNATURE, ("t",), CHUNK_LENGTH) as appender:
        for first in range(0, len(priorities), CHUNK_LENGTH):
            part = list(priorities[first : first + CHUNK_LENGTH])
            items = make_items(0, [(0, i, 1) for i in range(len(part))], part)
            assert appender.append([make_chunk(stream, 0, first, len(part))], [items], timeout_s=WAIT_S)
        assert appender.flush(WAIT_S)


def taken(stream: SampleStream) -> SampledBatch:
    """Return the next batch; there must be one."""
    batch = stream.take(WAIT_S)
    assert batch is not None
    return batch


def assert_distributed(counts: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]) -> None:
    """Fail if a chi-square test rejects that the counts come from these probabilities, at a level of 1e-5."""
    assert set(counts) <= {item for item, probability in expected.items() if probability > 0}
    total = sum(counts.values())
    cells = {item: probability * total for item, probability in expected.items() if probability > 0}
    statistic = sum((counts[item] - mean) ** 2 / mean for item, mean in cells.items())
    freedom = max(len(cells) - 1, 1)
    # the quantile by Wilson & Hilferty (1931)
    limit = freedom * (1 - 2 / (9 * freedom) + 4.265 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"chi-square {statistic:.1f} over {limit:.1f} at {freedom} degrees of freedom"
