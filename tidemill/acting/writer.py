"""The writer of whoever acts: which steps of its environments become items of the replay table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.config.hindsight import first_priority, item_window
from tidemill.config.sections import ActorConfig, InferenceConfig
from tidemill.errors import NotFound, Unavailable
from tidemill.replay.writing.stream_items import ItemWindow
from tidemill.replay.writing.writer import ReplayWriter


def open_writer(  # noqa: PLR0913 - of them four are `ReplayWriter`'s
    config: ActorConfig | InferenceConfig,
    name: str,
    frame_stack: int,
    initial_priority: Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]],
    stop: threading.Event,
    *,
    num_envs: int,
    max_in_flight_chunks: int,
    hold: bool = False,
    epoch: int = 0,
) -> ReplayWriter | None:
    """Return a writer once the replay service has the learner's table; None if `stop` was set before.

    Args:
        config: Says which algorithm learns, from which table, and where that is.
        name: Name of the writer.
        frame_stack: Frames of an observation.
        initial_priority: `Policy.initial_priority`.
        stop: Ends every wait.
        num_envs: Environments that it writes for.
        max_in_flight_chunks: Chunks of each environment that may be unacknowledged.
        hold: See `ReplayWriter`.
        epoch: See `ReplayWriter`.
    """
    window = item_window(config.agent, config.table, frame_stack)
    try:
        return ReplayWriter(
            config.cluster.replay,
            config.table.name,
            num_envs=num_envs,
            windows=ItemWindow(
                length=window.steps + 1,
                stride=window.stride,
                priority=first_priority(config.table, initial_priority),
                history=window.history,
                across_episodes=True,
                keep_all=window.keep_all,
            ),
            name=name,
            chunk_length=config.table.chunk_length,
            max_in_flight_chunks=max_in_flight_chunks,
            timeout_s=None,
            create=False,
            stop=stop,
            hold=hold,
            epoch=epoch,
        )
    except (NotFound, Unavailable):
        if stop.is_set():
            return None
        raise
