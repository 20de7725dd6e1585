"""What the log writes of the state at the start of a segment, as JSON documents."""

from __future__ import annotations

from typing import Any

from tidemill.replay.wire import config_to_json
from tidemill.services.replay.chunks.logged_blocks import logged
from tidemill.services.replay.state import ReplayState
from tidemill.services.replay.streams import Epoch


def describe_state(replay: ReplayState) -> dict[str, Any]:
    """Return what a restart needs to know of everything before a segment, except chunks and items."""
    return {
        "store_id": replay.store_id,
        "env_steps": replay.env_steps,
        "next_epoch": replay.streams.next_epoch,
        "next_stream": replay.streams.next_stream,
        "tables": [
            {
                "number": replay.number_of(table),
                "config": config_to_json(table.config),
                "stats": table.stats.to_array().tolist(),
            }
            for table in replay.tables
        ],
        "epochs": [describe_epoch(epoch) for epoch in replay.streams.epochs],
    }


def describe_epoch(epoch: Epoch) -> dict[str, Any]:
    """Return an epoch and how far its streams are."""
    blocks = logged(epoch.store)
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
