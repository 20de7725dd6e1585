"""Place of a learner's rows, and the process that samples them: this one, or one rank for the whole machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace

import structlog
import torch

from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError
from tidemill.replay.sampling.mirror import Reserve, TableMirror
from tidemill.replay.sampling.mirror_memory import free_bytes, open_mirror
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.replay.sampling.shared_mirror import SampleDealer, SharedMirror, fetch_mirror
from tidemill.replay.sampling.source import Connect, OpenedSource, SampleShape
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent, observation_columns_of
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo, StepVote
from tidemill.services.learner.status import metrics

_log = structlog.get_logger()


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


class LearnerRows:
    """Rows of its table that a learner keeps (`Keep`).

    Attributes:
        on_device: The observations that are on the training device, once opened; None if all are in the host's memory.
    """

    def __init__(
        self,
        config: LearnerConfig,
        rank: RankInfo,
        group: LearnerGroup,
        *,
        stride: int,
        device: torch.device | None = None,
    ) -> None:
        """Take what decides.

        Args:
            config: The learner's settings.
            rank: Which of the ranks it is.
            group: All of them.
            stride: Steps from the start of an item to that of the next.
            device: What `mirror_device` returned: where every rank keeps a separate mirror, if all of them can. With
                `learner.mirror_device: auto` they share one in the host's memory otherwise.
        """
        self._config, self._rank, self._group = config, rank, group
        self._stride, self._device = stride, device
        self._timeout_s = config.learner.ranks_timeout_s
        self._own: TableConfig | None = None
        self.on_device: DeviceRows | None = None

    def open(self, table: TableConfig, shape: SampleShape, connect: Connect, stack: ExitStack) -> OpenedSource:
        """Start to sample (`Keep`). Where ranks share a machine, all of them must do so at the same time.

        The first table is the run's own. Of others, whose chunks may have any length, no rows are kept.

        Raises:
            Unavailable: Another rank did not come in time.
        """
        if self._own is not None:
            return OpenedSource(connect(None, shape.in_flight))
        self._own = table
        mirror = self._on_all_devices(table, shape)
        if mirror is None and (shared := self._shared(table, shape, connect, stack)) is not None:
            return shared
        if mirror is None:
            mirror = self.keep(table, shape)
        return OpenedSource(connect(mirror, shape.in_flight), mirror)

    def keep(self, table: TableConfig, shape: SampleShape) -> TableMirror | None:
        """Return this rank's own mirror, its observations on the device if they may be there and fit.

        None if there is too little memory for one. The ranks of a machine divide the host's free memory.
        """
        mirror = self._on_device(table, shape)
        return self._mirror(table, shape, free_bytes() // self._rank.local_size) if mirror is None else mirror

    def _shared(
        self, table: TableConfig, shape: SampleShape, connect: Connect, stack: ExitStack
    ) -> OpenedSource | None:
        """Return this rank's source of batches; None if each rank samples for itself. All ranks decide the same."""
        if not self._is_wanted:
            return None
        door = f"{self._group.broadcast(os.urandom(16).hex().encode()).decode()}-{self._rank.machine}"
        with ExitStack() as opening:
            shared = self._open_door(door, opening) if self._keeps else None
            mirror = self._mirror_for_all(table, shape, shared) if shared is not None else None
            if self._any_lacks(self._keeps and mirror is None):  # and no door is knocked at before it is open
                _log.info("each learner keeps a separate mirror, because a machine cannot share one")
                return None
            if shared is not None and mirror is not None:
                ranks = self._rank.local_size
                others = [stack.enter_context(closing(it)) for it in shared.admit(mirror, ranks - 1, self._timeout_s)]
                metrics.MIRROR_READERS.set(ranks)
                sampler = connect(mirror, ranks * shape.in_flight)
                stack.enter_context(closing(SampleDealer(sampler, others)))
                _log.info("sampling for the learners of this machine", ranks=ranks)
                return OpenedSource(sampler, mirror)
        return None if self._rank.local_size == 1 else self._dealt(door, table, stack)

    def _on_all_devices(self, table: TableConfig, shape: SampleShape) -> TableMirror | None:
        """Return this rank's own mirror, its observations on its device; None if any rank has no room for them.

        Batches dealt by one process would hold up all GPUs, which have room for the table more often than not.
        """
        if self._device is None or not self._is_wanted:
            return None
        mirror = self._on_device(table, shape)
        if not self._any_lacks(mirror is None):
            return mirror
        if mirror is not None:
            _log.info("too little device memory for another learner's mirror: all share one in host memory")
            metrics.MIRROR_DEVICE_BYTES.set(0)
            self.on_device = None
        return None

    def _on_device(self, table: TableConfig, shape: SampleShape) -> TableMirror | None:
        """Return a mirror whose observations are on the device; None if they may not be there or do not fit."""
        if (device := self._device) is None:
            return None
        opened: list[DeviceRows] = []

        def keep(rows: int) -> DeviceRows:
            opened.append(DeviceRows(table.signature, rows, device, self._config.table.chunk_length))
            return opened[0]

        on_host = device.type == "cpu"
        free = free_bytes() // self._rank.local_size if on_host else torch.cuda.mem_get_info(device)[0]
        try:
            mirror = self._mirror(table, shape, free, elsewhere=keep)
        except torch.OutOfMemoryError as error:
            _log.warning("too little device memory for the mirror", reason=str(error))
            return None
        if mirror is not None:
            self.on_device, size_bytes = opened[0], opened[0].size_bytes
            _log.info("the mirror keeps its observations in device memory", device=str(device), mib=size_bytes >> 20)
            metrics.MIRROR_DEVICE_BYTES.set(size_bytes)
        return mirror

    def _mirror(
        self,
        table: TableConfig,
        shape: SampleShape,
        free: int,
        *,
        reserve: Reserve = reserve_private,
        elsewhere: Callable[[int], DeviceRows] | None = None,
    ) -> TableMirror | None:
        """Return a mirror in the memory allowed, by default half of the free bytes; None if that is too little."""
        learner = self._config.learner
        mirror = open_mirror(
            table,
            shape,
            stride=self._stride,
            chunk_length=self._config.table.chunk_length,
            limit_bytes=free // 2 if learner.mirror_mib < 0 else learner.mirror_mib * 2**20,
            reserve=reserve,
            elsewhere=elsewhere,
            must_be_whole=elsewhere is not None and learner.mirror_device == "auto",
        )
        if mirror is not None:
            metrics.MIRROR_BYTES.labels("this_rank").set(mirror.size_bytes)
        return mirror

    def _any_lacks(self, lacks: bool) -> bool:
        """True if any rank lacks a batch. A collective call: all ranks make it at the same time."""
        vote = StepVote(stop=False, pause=False, lacks_batch=lacks, largest_weight=0.0)
        return self._group.all_agree(vote).lacks_batch

    @property
    def _is_wanted(self) -> bool:
        # of a queue each item is drawn once, and a rank that takes two batches would leave another waiting
        learner = self._config.learner
        is_wanted = learner.share_mirror and learner.mirror_mib != 0 and self._config.table.sampler != "fifo"
        return is_wanted and learner.mirror_device != "device" and self._rank.size > 1

    @property
    def _keeps(self) -> bool:
        return self._rank.local_size > 1 and self._rank.local_index == 0

    def _open_door(self, door: str, opening: ExitStack) -> SharedMirror | None:
        try:
            return opening.enter_context(closing(SharedMirror(door)))
        except OSError as error:
            _log.warning("cannot share memory with the other learners on this machine", reason=str(error))
            return None

    def _mirror_for_all(self, table: TableConfig, shape: SampleShape, shared: SharedMirror) -> TableMirror | None:
        """Return a mirror with room for the batches of all ranks; None if it cannot be had."""
        ranks = self._rank.local_size
        for_all = replace(shape, in_flight=ranks * shape.in_flight, hold=ranks * shape.hold)
        try:
            return self._mirror(table, for_all, free_bytes(), reserve=shared.arrays.reserve)
        except OSError as error:
            _log.warning("cannot share memory with the other learners on this machine", reason=str(error))
            return None

    def _dealt(self, door: str, table: TableConfig, stack: ExitStack) -> OpenedSource:
        """Sample through the machine's first rank."""
        sampler, mirror = fetch_mirror(door, table.signature, self._timeout_s)
        stack.enter_context(closing(sampler))
        metrics.MIRROR_BYTES.labels("another_rank").set(mirror.size_bytes)
        return OpenedSource(sampler, mirror)
