"""Where the replay service of a run keeps its log."""

from __future__ import annotations

import dataclasses

from tidemill.config.sections import RunConfig

RUN_LOG = "{run}/replay/{shard}"
"""Folder of each shard's log within the run's folder."""


def with_storage(config: RunConfig) -> RunConfig:
    """Return the settings with a log in the run's folder, unless there is one already or none is wanted."""
    storage = config.replay.storage
    if storage.folder or storage.memory_only:
        return config
    storage = dataclasses.replace(storage, folder=RUN_LOG)
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, storage=storage))
