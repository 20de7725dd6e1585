"""Place of a learner's rows, and the process that samples them: this one, or one rank for the whole machine."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace

import structlog
import torch

from tidemill.config.sections import LearnerConfig
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.shared_mirror import SampleDealer, SharedMirror, fetch_mirror
from tidemill.replay.sampling.source import Connect, OpenedSource, SampleShape
from tidemill.replay.table_config import TableConfig
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.services.learner.data.kept_rows import (
    KeptRows,
    open_kept_rows,
    open_own_mirror,
    open_rows_on_device,
)
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo, StepVote
from tidemill.services.learner.status import metrics

_log = structlog.get_logger()


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
        kept = self._on_devices(table, shape)
        if kept is None and (shared := self._shared(table, shape, connect, stack)) is not None:
            return shared
        if kept is None:
            ranks = self._rank.local_size
            kept = open_kept_rows(self._config, table, shape, self._stride, ranks, self._device)
        self.on_device = kept.on_device
        return OpenedSource(connect(kept.mirror, shape.in_flight), kept.mirror)

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

    def _on_devices(self, table: TableConfig, shape: SampleShape) -> KeptRows | None:
        """Return the rows of this rank, their observations on its device; None if any rank has no room for them.

        Batches dealt by one process would hold up all GPUs, which have room for the table more often than not.
        """
        if self._device is None or not self._is_wanted:
            return None
        kept = open_rows_on_device(self._config, table, shape, self._stride, self._device)
        if not self._any_lacks(kept is None):
            return kept
        if kept is not None:
            _log.info("too little device memory for another learner's mirror: all share one in host memory")
            metrics.MIRROR_DEVICE_BYTES.set(0)
        return None

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
        reserve = shared.arrays.reserve
        try:
            return open_own_mirror(self._config, table, for_all, self._stride, 1, reserve=reserve)
        except OSError as error:
            _log.warning("cannot share memory with the other learners on this machine", reason=str(error))
            return None

    def _dealt(self, door: str, table: TableConfig, stack: ExitStack) -> OpenedSource:
        """Sample through the machine's first rank."""
        sampler, mirror = fetch_mirror(door, table.signature, self._timeout_s)
        stack.enter_context(closing(sampler))
        metrics.MIRROR_BYTES.labels("another_rank").set(mirror.size_bytes)
        return OpenedSource(sampler, mirror)
