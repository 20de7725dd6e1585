"""What the log writes of the state at the start of a segment, as JSON documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.replay.wire import config_to_json
from tidemill.services.replay.chunks.logged_blocks import LogBlocks
from tidemill.services.replay.streams import Epoch, StreamRegistry
from tidemill.services.replay.tables.table import Table


def describe_state(
    streams: StreamRegistry, tables: Sequence[tuple[int, Table]], store_id: int, env_steps: int
) -> dict[str, Any]:
    """Return what a restart needs to know of everything before a segment, but for chunks and items.

    Args:
        streams: The streams.
        tables: Each with its number in the log.
        store_id: Names what `env_steps` counts.
        env_steps: Agent decisions stored.
    """
    return {
        "store_id": store_id,
        "env_steps": env_steps,
        "next_epoch": streams.next_epoch,
        "next_stream": streams.next_stream,
        "tables": [
            {"number": number, "config": config_to_json(table.config), "stats": table.stats.to_array().tolist()}
            for number, table in tables
        ],
        "epochs": [describe_epoch(epoch) for epoch in streams.epochs],
    }


def describe_epoch(epoch: Epoch) -> dict[str, Any]:
    """Return an epoch and how far its streams are."""
    blocks = epoch.store.blocks
    assert isinstance(blocks, LogBlocks), "a log keeps the blocks"
    return {
        "actor_id": epoch.actor_id,
        "number": epoch.number,
        "table": blocks.table,
        "chunk_length": epoch.chunk_length,
        "tail_steps": epoch.tail_steps,
        "first_stream": epoch.streams[0].number,
        "next_steps": epoch.next_steps(),
        "ended": [int(stream.ended) for stream in epoch.streams],
    }
