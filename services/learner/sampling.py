"""The learner's side of the replay service: one server, or several shards as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray
from prometheus_client import REGISTRY

from services.learner.batches import Samples
from services.learner.damaged_items import Delete
from services.learner.priorities import Send
from services.learner.shard_metrics import ShardCollector
from services.learner.table import create_table
from tidemill.config.run import ClusterSettings
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.directory import ShardDirectory
from tidemill.replay.sampler import SampleStream
from tidemill.replay.shard import ShardReport
from tidemill.replay.sharded_priorities import ShardedPriorities
from tidemill.replay.sharded_sampler import ShardedSampleStream
from tidemill.replay.table_config import TableConfig
from tidemill.replay.union import shard_config

_CREATE_S = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True)
class Sampling:
    """What training takes from the replay service and gives back.

    Attributes:
        samples: Raw samples.
        send_priorities: Takes new priorities.
        delete_items: Removes items.
        shards: Reports on the shards; none for a single server.
    """

    samples: Samples
    send_priorities: Send
    delete_items: Delete
    shards: Callable[[], tuple[ShardReport, ...]]


def create_tables(cluster: ClusterSettings, directory: ShardDirectory | None, table: TableConfig) -> int:
    """Create the table, or each shard's part of it, where it is not there; return the items it holds.

    A shard that is away gets its part when it is first sampled.

    Raises:
        FatalError: The name is taken by a table with another configuration.
        Unavailable: No server answers.
    """
    part = shard_config(table, cluster.shard_count)
    addresses: Mapping[str, str] = {"": cluster.replay[0]} if directory is None else directory.current
    items, away = 0, []
    for address in addresses.values():
        with ReplayClient(address, deadline_s=_CREATE_S) as client:
            try:
                items += create_table(client, part)
            except Unavailable as error:
                away.append(error)
                _log.warning("a replay server is away at the start", address=address, why=str(error))
    if len(away) == len(addresses):
        raise away[-1] if away else Unavailable(f"no replay shard is known by {cluster.replay[0]}")
    return items


def start_sampling(
    cluster: ClusterSettings,
    directory: ShardDirectory | None,
    table: TableConfig,
    batch_size: int,
    credit: int,
    stack: ExitStack,
) -> Sampling:
    """Connect to the one server, or to the shards of a directory; `stack` ends what is started."""
    if directory is None:
        return _of_one(cluster.replay[0], table, batch_size, credit, stack)
    stream = ShardedSampleStream(
        directory, table, cluster.shard_count, batch_size, rng=np.random.default_rng(), credit=credit
    )
    stack.callback(stream.close)
    priorities = stack.enter_context(closing(ShardedPriorities(table.name, stream.client_of)))

    def delete(keys: NDArray[np.uint64]) -> None:
        for source in np.unique(keys[:, 1]).tolist():
            if shard := stream.client_of(source):
                shard.delete_items(table.name, keys[keys[:, 1] == source, 0])

    collector = ShardCollector(stream.reports, priorities)
    REGISTRY.register(collector)
    stack.callback(REGISTRY.unregister, collector)
    return Sampling(stream, priorities.send, delete, stream.reports)


def _of_one(address: str, table: TableConfig, batch_size: int, credit: int, stack: ExitStack) -> Sampling:
    client = stack.enter_context(ReplayClient(address))
    stream = SampleStream(address, table, batch_size, credit=credit)
    stack.callback(stream.close)

    def send(keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        client.update_priorities(table.name, keys, priorities)

    return Sampling(stream, send, partial(client.delete_items, table.name), tuple)
