"""Tables that a learner samples besides its own: found and checked before training, their parts of a batch joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.config.sections import LearnerConfig
from tidemill.config.sources import SourceSettings, fractions_of
from tidemill.errors import ConfigError
from tidemill.learner.source_table import find_source
from tidemill.learner.status import SourceStatus
from tidemill.replay.sampling.mixture import TableAt
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_decoder import ItemRows, Transform
from tidemill.replay.shares import split_batch
from tidemill.replay.table_config import SelectorKind, TableConfig
from tidemill.rl.transitions import gather_frame_stacks
from tidemill.services.learner.data.decoder import DEVICE_BATCH, WEIGHT, Batch
from tidemill.services.learner.data.device import DeviceBatch
from tidemill.services.learner.status import metrics

_log = structlog.get_logger()

_ROUNDED = 1e-3  # of a number that was scaled to [-1, 1] in few bits


@dataclass(frozen=True)
class Mixture:
    """All tables of a learner, the run's own first.

    Attributes:
        tables: Each with its fraction of a batch, as `ReplayDataset` takes them.
        weights: Factor of the importance weights of each table's items.
        prioritized: Numbers of the tables that are drawn by priority.
    """

    tables: Mapping[TableConfig | TableAt, float]
    weights: tuple[float, ...]
    prioritized: frozenset[int]


class SourceReports:
    """What each source has given, for the status and Prometheus.

    Written by the training thread, read by others. Policy lag is none of it: the versions of other runs and of
    demonstrations do not compare with those of this one, so a source's items have an age instead.
    """

    def __init__(self, sources: Mapping[str, SourceSettings]) -> None:
        """Start with no samples."""
        self._newest = tuple(SourceStatus(name, source.fraction) for name, source in sources.items())
        for name, source in sources.items():
            metrics.SOURCE_RATIO.labels(name).set(source.fraction)

    def read(self) -> tuple[SourceStatus, ...]:
        """Return the newest report of each source."""
        return self._newest

    def record(self, batch: Batch, now: float) -> None:
        """Count the items of a batch whose update begins now, by `time.monotonic`."""
        if not self._newest:
            return
        replay = batch.replay
        since_s = max(now - replay.received_at, 0.0)
        reports = []
        for source, (_, items) in zip(self._newest, batch.tables()[1:], strict=True):
            samples, held = items.stop - items.start, int(replay.table_items[items.start])
            age_s = 0.0 if replay.table_s is None else _mean_age(replay.table_s[items], since_s)
            metrics.SOURCE_SAMPLES.labels(source.name).inc(samples)
            metrics.SOURCE_ITEMS.labels(source.name).set(held)
            metrics.SOURCE_AGE_SECONDS.labels(source.name).set(age_s)
            reports.append(replace(source, items=held, samples=source.samples + samples, age_s=age_s))
        self._newest = tuple(reports)


def _mean_age(table_s: NDArray[np.float32], since_s: float) -> float:
    """Return the mean age of items that left their table `since_s` seconds ago; 0 if their server does not say it."""
    known = table_s[~np.isnan(table_s)]
    return float(known.mean()) + since_s if len(known) else 0.0


def open_sources(config: LearnerConfig, table: TableConfig) -> Mixture:
    """Return the tables that batches are drawn from.

    Args:
        config: The learner's settings.
        table: The run's own table.

    Raises:
        ConfigError: A source has no table, no items, other columns or longer items, or could not be drawn from for
            ever; the message names it.
        Unavailable: A server does not answer.
    """
    tables: dict[TableConfig | TableAt, float] = {}
    weights, prioritized = [1.0], [config.table.sampler == "prioritized"]
    own, *others = fractions_of(config.learner.sources)
    tables[table] = own
    for (name, source), fraction in zip(config.learner.sources.items(), others, strict=True):
        addresses = source.replay or config.cluster.replay
        found, items = find_source(name, source, addresses, table)
        _log.info("sampling from a source", source=name, table=found.name, items=items, fraction=source.fraction)
        tables[TableAt(found, addresses)] = fraction
        weights.append(source.weight)
        prioritized.append(found.sampler.kind is SelectorKind.PRIORITIZED)
    return Mixture(tables, tuple(weights), frozenset(number for number, is_so in enumerate(prioritized) if is_so))


def refusing_undecided(transform: Transform, sources: Sequence[str], history: int) -> Transform:
    """Return a transform that raises ConfigError for an item of a source whose first action nobody took.

    A table's configuration has the sum of history and steps only. Items of the same length that were made without a
    history have their decision in an earlier row, and the agent would learn from the row behind the end of an episode.

    Args:
        transform: Makes the columns of batches.
        sources: Names of the sources, which are the tables from number 1 on.
        history: Rows of an item before its first action. Without any there is nothing to confuse.
    """
    if not (sources and history):
        return transform

    def checked(rows: ItemRows) -> Mapping[str, Any]:
        if rows.table and _last_observations(rows)[:, history].any():
            raise ConfigError(
                f"learner.sources.{sources[rows.table - 1]}: items start to act at an episode's last observation, "
                f"must have {history} steps of history before their decision: import the data again with "
                f"--history {history} and --item-steps {rows.index.shape[1] - history}, or write it with "
                f"ItemWindow({rows.index.shape[1] - history}, history={history}, across_episodes=True) and "
                "is_decision=False for an episode's last observation"
            )
        return transform(rows)

    return checked


def _last_observations(rows: ItemRows) -> NDArray[np.bool_]:
    """Return a mask of the rows of items that are an episode's last observation, where nobody acted, [B, L]."""
    before, at = rows.index[:, :-1], rows.index[:, 1:]
    ended = rows.columns["terminated"][before] | rows.columns["truncated"][before]
    # the rows are the same where an item is padded because a stream starts with it
    return np.pad(ended & ~rows.columns["is_first"][at] & (before != at), ((0, 0), (1, 0)))


def refusing_actions(
    transform: Transform,
    sources: Sequence[str],
    options: Sequence[int],
    acting: slice | None,
    *,
    may_exceed: bool = False,
) -> Transform:
    """Return a transform that raises ConfigError for an item of a source with an action that the agent cannot take.

    Args:
        transform: Makes the columns of batches.
        sources: Names of the sources, which are the tables from number 1 on.
        options: Of each discrete choice of an action; empty for continuous actions, which may be rounded.
        acting: Rows of an item whose actions the agent learns from. Others may be anything, and so may an action at an
            episode's last observation. None: all rows.
        may_exceed: Whether a run may store continuous actions beyond [-1, 1], as a Gaussian draws them.
    """
    if not sources:
        return transform
    most = np.inf if may_exceed else 1 + _ROUNDED
    low, high = (0, np.array(options) - 1) if options else (-most, np.array([most]))

    def checked(rows: ItemRows) -> Mapping[str, Any]:
        if not rows.table:
            return transform(rows)
        index = rows.index if acting is None else rows.index[:, acting][~_last_observations(rows)[:, acting]]
        action = rows.columns["action"][index]
        if not (fits := (action >= low) & (action <= high)).all():
            last = np.broadcast_to(high, action.shape)[~fits][0]
            raise ConfigError(
                f"learner.sources.{sources[rows.table - 1]}: an action is {action[~fits][0]:g}, must be in "
                f"{[0, int(last)] if options else [-1, 1]}: write actions as a run stores them, continuous ones scaled "
                "from the environment's bounds to [-1, 1] and discrete ones from 0. To import a dataset so, see the "
                "options of tidemill replay from-minari and from-lerobot"
            )
        return transform(rows)

    return checked


def clipping_rewards(transform: Transform, *, clips: bool) -> Transform:
    """Return a transform that replaces the rewards of sources by their signs; those of a run are stored so.

    Args:
        transform: Makes the columns of batches.
        clips: Whether the run clips rewards; otherwise `transform` is left as it is.
    """
    if not clips:
        return transform

    def clipped(rows: ItemRows) -> Mapping[str, Any]:
        if rows.table:
            rows = replace(rows, columns={**rows.columns, "reward": np.sign(rows.columns["reward"])})
        return transform(rows)

    return clipped


def own_items(config: LearnerConfig) -> int:
    """Return how many items of each update come from the run's own table.

    Several ranks, each of which rounds its share, may draw less than an item each more or fewer. The number is the same
    for all of them, because the table is: a run continues with more learners or fewer.
    """
    return split_batch(config.agent.batch_size, fractions_of(config.learner.sources))[0]


def joined_columns(parts: Sequence[ReplayBatch]) -> dict[str, Any]:
    """Return the columns of a batch of several tables, each as `ToDevice` made it, in the training thread (`Join`)."""
    largest = max(part.largest_weight for part in parts)
    each: list[Mapping[str, Tensor]] = []
    kept: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        columns = dict(part.columns)
        on_device: DeviceBatch = columns.pop(DEVICE_BATCH)
        on_device.wait()
        columns[WEIGHT] = columns[WEIGHT] * (part.largest_weight / largest)
        each.append(gather_frame_stacks(columns))
        kept |= {f"{number}/{name}": tensor for name, tensor in on_device.tensors.items()}
    joined: dict[str, Any] = {name: torch.cat([columns[name] for columns in each]) for name in each[0]}
    return joined | {DEVICE_BATCH: DeviceBatch(kept, parts[-1].columns[DEVICE_BATCH].event)}
