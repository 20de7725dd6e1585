"""The replay table that an agent and the run's settings ask for: its settings and its creation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog

from tidemill.config.services import LearnerSettings
from tidemill.config.sources import fractions_of
from tidemill.config.table import TableSettings
from tidemill.errors import AlreadyExists, FatalError, Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import MAX_BATCH_STEPS
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import (
    RateLimiterConfig,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    TableDescription,
    shard_config,
)
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.data.decoder import STATE_DTYPE
from tidemill.types import OBSERVATION, Signature

_MIN_VECTORS, _MIN_IMAGES = 2048, 128
"""Items of a call that make it worth its cost."""

_MAX_BATCHES = 8
"""In one call, so that the last one's priorities are not much older than the first one's."""

_MAX_IMAGE_BATCHES = 4
"""The same of images, of which a batch is a greater part of what was learned from."""

_CREATE_S = 5.0
_RESOLVE_S = 10.0  # a name is asked for every 5 s

_log = structlog.get_logger()


def table_config(
    table: TableSettings, learner: LearnerSettings, agent: Agent, signature: Signature, batch_size: int
) -> TableConfig:
    """Return the table to create.

    Args:
        table: How the table samples and how much it keeps.
        learner: The ratio of updates to agent decisions.
        agent: Says how many steps its items need.
        signature: The columns of its streams.
        batch_size: Items of one update.

    Raises:
        ConfigError: The table cannot hold the ratio.
    """
    batches = batches_per_sample(table, learner, signature, batch_size, agent.window.length)
    return TableConfig(
        name=table.name,
        signature=signature,
        sampler=_sampler(table),
        max_items=table.max_items,
        max_item_steps=agent.window.length,
        rate_limiter=_rate_limiter(table, learner, agent.window.stride, batch_size, batches),
        max_times_sampled=1 if table.sampler == "fifo" else 0,  # a queue: each item once
        payload_bytes=agent.recurrent_state_size * STATE_DTYPE.itemsize,
    )


def batches_per_sample(
    table: TableSettings, learner: LearnerSettings, signature: Signature, batch_size: int, item_steps: int
) -> int:
    """Return the number of batches of one sample call: as set, or enough to make the cost of a call small.

    The number that is chosen keeps a call of items with `item_steps` steps within a server's limit. For a queue it is
    one: a second batch may not be there before the first was learned from.

    A call costs about half a millisecond of both sides besides its items (benchmarks/learner.py): as much as decoding
    some thousand short vectors, or a few dozen stacks of images. Of images that the learner mirrors, a call brings
    little more than keys: of batches of 512 a server gives out three times as many if it draws eight in one call
    (benchmarks/replay_draw.py).
    """
    if learner.batches_per_sample:
        return learner.batches_per_sample
    if table.sampler == "fifo":
        return 1
    has_images = any(len(column.shape) > 1 for column in signature if column.name.startswith(OBSERVATION))
    worthwhile = _MIN_IMAGES if has_images and not learner.mirror_mib else _MIN_VECTORS
    with_sources = math.ceil(batch_size / fractions_of(learner.sources)[0])
    most = min(_MAX_IMAGE_BATCHES if has_images else _MAX_BATCHES, MAX_BATCH_STEPS // (with_sources * item_steps))
    return max(min(worthwhile // batch_size, most), 1)


@dataclass(frozen=True)
class FoundTable:
    """Contents of a table when the learner started, over all shards.

    Attributes:
        items: Its items.
        fencing_token: Greatest fencing token of a learner that it has heard of; 0 for none.
    """

    items: int
    fencing_token: int


def create_tables(directory: ShardDirectory, table: TableConfig) -> FoundTable:
    """Create the table, or each shard's part of it, if it does not exist; return what it holds.

    A table of earlier settings takes the limits of these: the default batch of an on-policy run follows `actor.count`.
    A name of shards is waited for; an unavailable shard gets its part when it is first sampled.

    Raises:
        FatalError: The name is taken by a table with another configuration.
        Unavailable: No server answers.
    """
    part = shard_config(table, directory.count)
    addresses = directory.known(_RESOLVE_S)
    found, unavailable = [], []
    for address in addresses.values():
        with ReplayClient(address, deadline_s=_CREATE_S) as client:
            try:
                found.append(create_table(client, part))
            except Unavailable as error:
                unavailable.append(error)
                _log.warning("replay server unavailable at start", address=address, reason=str(error))
    if len(unavailable) == len(addresses):
        raise unavailable[-1] if unavailable else Unavailable(f"no replay shard is known by {directory.addresses[0]}")
    return FoundTable(sum(part.items for part in found), max(part.fencing_token for part in found))


def create_table(replay: ReplayClient, config: TableConfig) -> TableDescription:
    """Create the table, or find the one that is there and give it these limits; return its description.

    Raises:
        FatalError: The name is taken by a table with another configuration; the message says what to do.
    """
    try:
        replay.create_table(config, redeclare=True)
    except AlreadyExists as error:
        raise FatalError(
            f"{error}. The table was made with other settings: set these back, or choose another table.name. For "
            "another priority exponent use `tidemill replay update`"
        ) from error
    return replay.describe_table(config.name)


def _sampler(table: TableSettings) -> SelectorConfig:
    kind = SelectorKind(table.sampler)
    return SelectorConfig(kind, table.priority_exponent if kind is SelectorKind.PRIORITIZED else 0.0)


def _rate_limiter(
    table: TableSettings, learner: LearnerSettings, stride: int, batch_size: int, batches: int
) -> RateLimiterConfig:
    """Return the limiter that holds the ratio: one item is inserted every `stride` decisions."""
    samples_per_insert = learner.updates_per_env_step * batch_size * stride
    if samples_per_insert == 0 and table.sampler == "fifo":  # inserts wait long before an item would be evicted
        queue_size = max(table.max_items // 2, table.min_size, batch_size)
        return RateLimiterConfig(min_size=table.min_size, queue_size=queue_size)
    if samples_per_insert == 0:
        return RateLimiterConfig(min_size=table.min_size)
    one_call = batch_size * batches
    return RateLimiterConfig(
        min_size=table.min_size,
        samples_per_insert=samples_per_insert,
        error_buffer=max(table.error_buffer_updates * batch_size, one_call),
    )
