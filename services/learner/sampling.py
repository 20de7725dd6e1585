"""The learner's side of the replay service: its table, and a sampler of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import structlog
from prometheus_client import REGISTRY

from tidemill.config.run import ClusterSettings
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.table import shard_config
from tidemill.replay.table_config import TableConfig
from tidemill.services.learner.shard_metrics import ShardCollector
from tidemill.services.learner.table import create_table

_CREATE_S = 5.0

_log = structlog.get_logger()


def create_tables(cluster: ClusterSettings, directory: ShardDirectory | None, table: TableConfig) -> int:
    """Create the table, or each shard's part of it, where it is not there; return the items it holds.

    An unavailable shard gets its part when it is first sampled.

    Raises:
        FatalError: The name is taken by a table with another configuration.
        Unavailable: No server answers.
    """
    part = shard_config(table, cluster.shard_count)
    addresses: Mapping[str, str] = {"": cluster.replay[0]} if directory is None else directory.current
    items, unavailable = 0, []
    for address in addresses.values():
        with ReplayClient(address, deadline_s=_CREATE_S) as client:
            try:
                items += create_table(client, part)
            except Unavailable as error:
                unavailable.append(error)
                _log.warning("replay server unavailable at the start", address=address, reason=str(error))
    if len(unavailable) == len(addresses):
        raise unavailable[-1] if unavailable else Unavailable(f"no replay shard is known by {cluster.replay[0]}")
    return items


def open_sampler(
    cluster: ClusterSettings,
    directory: ShardDirectory | None,
    table: TableConfig,
    batch_size: int,
    max_in_flight_batches: int,
    stack: ExitStack,
) -> ReplaySampler:
    """Start sampling, with metrics of the shards if there are several; `stack` ends it."""
    sampler = ReplaySampler(
        cluster.replay,
        table,
        batch_size,
        shard_count=cluster.shard_count,
        directory=directory,
        max_in_flight_batches=max_in_flight_batches,
    )
    stack.enter_context(sampler)
    if directory is not None:
        collector = ShardCollector(sampler)
        REGISTRY.register(collector)
        stack.callback(REGISTRY.unregister, collector)
    return sampler
