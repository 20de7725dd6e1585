"""The actor's side of the replay service: one server, or the shard that the actor's name prefers."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing

from tidemill.config.sections import ActorConfig
from tidemill.replay.append import Appender
from tidemill.replay.appending import Appending
from tidemill.replay.directory import ShardDirectory, is_sharded
from tidemill.replay.sharded_appender import ShardedAppender
from tidemill.types import Signature


def open_writer(
    config: ActorConfig, actor_id: str, signature: Signature, stop: threading.Event, stack: ExitStack
) -> Appending:
    """Start connecting in the background; `stack` ends what is started."""
    addresses, num_envs, table = config.cluster.replay, config.env.num_envs, config.table
    limit = config.actor.max_in_flight_chunks * num_envs
    if not is_sharded(addresses):
        return stack.enter_context(
            Appender(
                addresses[0],
                actor_id,
                num_envs,
                signature,
                [table.name],
                table.chunk_length,
                max_in_flight_chunks=limit,
                stop=stop,
            )
        )
    directory = stack.enter_context(closing(ShardDirectory(addresses)))
    return stack.enter_context(
        ShardedAppender(
            directory,
            actor_id,
            num_envs,
            signature,
            [table.name],
            table.chunk_length,
            max_in_flight_chunks=limit,
            stop=stop,
        )
    )
