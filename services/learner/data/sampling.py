"""Opens what a learner samples with: a sampler and its mirror, of its own or one for all ranks of the machine."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass

import structlog
import torch

from tidemill.config.sections import LearnerConfig
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.services.learner import metrics
from tidemill.services.learner.data.batch_loader import SampleSource
from tidemill.services.learner.data.kept_rows import (
    KeptRows,
    SampleShape,
    open_kept_rows,
    open_own_mirror,
    open_rows_on_device,
)
from tidemill.services.learner.data.table import collect, open_sampler
from tidemill.services.learner.data.table_sampler import TableSampler
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo, StepVote
from tidemill.services.learner.distributed.shared_sampling import (
    SampleDealer,
    SharedMirror,
    fetch_mirror,
)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """What a learner samples with.

    Attributes:
        source: Gives the batches; closes the sampler.
        sampler: Takes priorities and corrupt items.
        kept: The rows of the batches.
    """

    source: SampleSource
    sampler: TableSampler
    kept: KeptRows

    @property
    def mirror(self) -> TableMirror | None:
        """The rows of the batches; None if they bring them."""
        return self.kept.mirror


def open_sampling(
    config: LearnerConfig,
    directory: ShardDirectory | None,
    table: TableConfig,
    shape: SampleShape,
    rank: RankInfo,
    group: LearnerGroup,
    stack: ExitStack,
    device: torch.device | None = None,
) -> Sampling:
    """Start to sample; `stack` ends it. Where ranks share a machine, all of them must do so at the same time.

    Args:
        config: The learner's settings.
        directory: The replay shards; None if there is one server.
        table: The whole table.
        shape: What this rank needs.
        rank: Which of the ranks it is.
        group: All of them.
        stack: Ends it.
        device: What `mirror_device` returned: where every rank keeps a mirror of its own, if all of them can. With
            `learner.mirror_device: auto` they share one in the host's memory otherwise.

    Raises:
        Unavailable: Another rank did not come in time.
    """
    shared = _Shared(config, directory, table, shape, rank)
    kept = shared.on_devices(group, device)
    if kept is None and (sampling := shared.open(group, stack)) is not None:
        return sampling
    if kept is None:
        kept = open_kept_rows(config, table, shape, rank.local_size, device, shards=shared.shards)
    sampler = open_sampler(config.cluster, directory, table, shape.batch_size, shape.in_flight, kept.mirror, stack)
    return Sampling(sampler, sampler, kept)


class _Shared:
    """One rank's part in setting up a mirror for its machine."""

    def __init__(
        self,
        config: LearnerConfig,
        directory: ShardDirectory | None,
        table: TableConfig,
        shape: SampleShape,
        rank: RankInfo,
    ) -> None:
        self._config, self._directory, self._table = config, directory, table
        self._shape, self._rank = shape, rank
        self._timeout_s = config.learner.ranks_timeout_s
        self.shards = config.cluster.shard_count if directory is not None else 0

    def on_devices(self, group: LearnerGroup, device: torch.device | None) -> KeptRows | None:
        """Return the rows of this rank, their observations on its device; None if any rank has no room for them.

        Batches dealt by one process would hold up all GPUs, which have room for the table more often than not.
        """
        if device is None or not self._is_wanted:
            return None
        kept = open_rows_on_device(self._config, self._table, self._shape, device, self.shards)
        if not _any_lacks(group, kept is None):
            return kept
        if kept is not None:
            _log.info("another learner's device has no memory for the mirror: they share one of the host")
            metrics.MIRROR_DEVICE_BYTES.set(0)
        return None

    def open(self, group: LearnerGroup, stack: ExitStack) -> Sampling | None:
        """Return what this rank samples with; None if ranks sample each for itself: all of them decide so alike."""
        if not self._is_wanted:
            return None
        door = f"{group.broadcast(os.urandom(16).hex().encode()).decode()}-{self._rank.machine}"
        with ExitStack() as opening:
            kept = self._kept(door, opening) if self._keeps else None
            is_ready = kept is not None or not self._keeps
            if _any_lacks(group, not is_ready):  # and no door is knocked at before it is open
                _log.info("each learner keeps a mirror of its own: not all machines could share one")
                return None
            if kept is not None:
                return self._owner(*kept, stack)
        return None if self._rank.local_size == 1 else self._dealt(door, stack)

    @property
    def _is_wanted(self) -> bool:
        # of a queue each item is drawn once, and a rank that takes two batches would leave another waiting
        learner = self._config.learner
        is_wanted = learner.share_mirror and learner.mirror_mib != 0 and self._config.table.sampler != "fifo"
        return is_wanted and learner.mirror_device != "device" and self._rank.size > 1

    @property
    def _keeps(self) -> bool:
        return self._rank.local_size > 1 and self._rank.local_index == 0

    def _kept(self, door: str, opening: ExitStack) -> tuple[SharedMirror, TableMirror] | None:
        """Return the door and a mirror with room for the batches of all ranks; None if it cannot be had."""
        ranks, shape = self._rank.local_size, self._shape
        for_all = SampleShape(shape.batch_size, shape.stride, ranks * shape.in_flight, ranks * shape.hold)
        try:
            shared = opening.enter_context(closing(SharedMirror(door)))
            reserve = shared.arrays.reserve
            mirror = open_own_mirror(self._config, self._table, for_all, 1, shards=self.shards, reserve=reserve)
        except OSError as error:
            _log.warning("no memory can be shared with the other learners of this machine", reason=str(error))
            return None
        return (shared, mirror) if mirror is not None else None

    def _owner(self, shared: SharedMirror, mirror: TableMirror, stack: ExitStack) -> Sampling:
        """Hand the mirror to the others, and sample for all."""
        ranks, shape = self._rank.local_size, self._shape
        others = [stack.enter_context(closing(rank)) for rank in shared.admit(mirror, ranks - 1, self._timeout_s)]
        metrics.MIRROR_READERS.set(ranks)
        cluster, in_flight = self._config.cluster, ranks * shape.in_flight
        sampler = open_sampler(cluster, self._directory, self._table, shape.batch_size, in_flight, mirror, stack)
        dealer = stack.enter_context(closing(SampleDealer(sampler, others)))
        _log.info("sampling for the learners of this machine", ranks=ranks)
        return Sampling(dealer, sampler, KeptRows(mirror))

    def _dealt(self, door: str, stack: ExitStack) -> Sampling:
        """Sample through the machine's first rank."""
        sampler, mirror = fetch_mirror(door, self._table.signature, self._timeout_s)
        stack.enter_context(closing(sampler))
        collect(sampler, stack)
        metrics.MIRROR_BYTES.labels("another_rank").set(mirror.size_bytes)
        return Sampling(sampler, sampler, KeptRows(mirror))


def _any_lacks(group: LearnerGroup, lacks: bool) -> bool:
    """Return whether any rank lacks what it needs; all of them ask at the same time."""
    vote = StepVote(stop=False, pause=False, lacks_batch=lacks, largest_weight=0.0)
    return group.all_agree(vote).lacks_batch
