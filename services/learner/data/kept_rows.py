"""Rows of the table that a learner keeps: in host memory, or with the observations on the training device."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import torch

from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError
from tidemill.replay.sampling.mirror import Reserve, TableMirror
from tidemill.replay.sampling.mirror_memory import free_bytes, open_mirror
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.replay.sampling.source import SampleShape
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent, observation_columns_of
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.services.learner.status import metrics

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Rows of the table that a learner keeps.

    Attributes:
        mirror: Its rows; None if nothing is kept.
        on_device: Those of its observations that are on the training device; None if all of it is in the host's memory.
    """

    mirror: TableMirror | None
    on_device: DeviceRows | None = None


def mirror_device(config: LearnerConfig, agent: Agent, device: torch.device) -> torch.device | None:
    """Return the device whose memory may keep the mirror's observations; None for the host's alone.

    Raises:
        ConfigError: `learner.mirror_device` asks for a device, but the agent needs observations in host memory.
    """
    asked = config.learner.mirror_device
    if asked == "host" or not config.learner.mirror_mib or (asked == "auto" and device.type != "cuda"):
        return None
    if observation_columns_of(agent):
        return device
    if asked == "auto":
        return None
    reason = "table.hindsight relabels" if config.table.hindsight else f"{config.agent.algorithm} reads"
    raise ConfigError(
        f"learner.mirror_device is 'device', but {reason} observations in host memory; use 'auto' or 'host'"
    )


def open_kept_rows(
    config: LearnerConfig,
    table: TableConfig,
    shape: SampleShape,
    stride: int,
    ranks: int,
    device: torch.device | None,
) -> KeptRows:
    """Return the rows of the table that this process keeps, with observations on a device if they may and fit.

    Args:
        config: The learner's settings.
        table: The whole table.
        shape: What is sampled into it.
        stride: Steps from the start of an item to that of the next.
        ranks: Ranks of this machine that keep a mirror: the host's free memory is divided among them.
        device: What `mirror_device` returned.
    """
    if device is not None and (kept := open_rows_on_device(config, table, shape, stride, device)) is not None:
        return kept
    return KeptRows(open_own_mirror(config, table, shape, stride, ranks))


def open_rows_on_device(
    config: LearnerConfig, table: TableConfig, shape: SampleShape, stride: int, device: torch.device
) -> KeptRows | None:
    """Return rows whose observations are on a device; None if they do not fit."""
    opened: list[DeviceRows] = []

    def keep(rows: int) -> DeviceRows:
        opened.append(DeviceRows(table.signature, rows, device, config.table.chunk_length))
        return opened[0]

    limit_bytes = config.learner.mirror_mib * 2**20
    if limit_bytes < 0:
        limit_bytes = (free_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]) // 2
    try:
        mirror = open_mirror(
            table,
            shape,
            stride=stride,
            chunk_length=config.table.chunk_length,
            limit_bytes=limit_bytes,
            elsewhere=keep,
            must_be_whole=config.learner.mirror_device == "auto",
        )
    except torch.OutOfMemoryError as error:
        _log.warning("too little device memory for the mirror", reason=str(error))
        return None
    if mirror is None:
        return None
    _log.info("the mirror keeps its observations in device memory", device=str(device), mib=opened[0].size_bytes >> 20)
    metrics.MIRROR_BYTES.labels("this_rank").set(mirror.size_bytes)
    metrics.MIRROR_DEVICE_BYTES.set(opened[0].size_bytes)
    return KeptRows(mirror, opened[0])


def open_own_mirror(
    config: LearnerConfig,
    table: TableConfig,
    shape: SampleShape,
    stride: int,
    ranks: int,
    *,
    reserve: Reserve = reserve_private,
) -> TableMirror | None:
    """Return a mirror that this process keeps in the host's memory, None if it may not have the memory for one.

    Args:
        config: The learner's settings.
        table: The whole table.
        shape: What is sampled into it.
        stride: Steps from the start of an item to that of the next.
        ranks: Ranks of this machine that keep a mirror: the free memory is divided among them.
        reserve: Gives the memory.
    """
    limit_bytes = config.learner.mirror_mib * 2**20
    if limit_bytes < 0:
        limit_bytes = free_bytes() // 2 // ranks
    mirror = open_mirror(
        table,
        shape,
        stride=stride,
        chunk_length=config.table.chunk_length,
        limit_bytes=limit_bytes,
        reserve=reserve,
    )
    if mirror is not None:
        metrics.MIRROR_BYTES.labels("this_rank").set(mirror.size_bytes)
    return mirror
