"""Status that a learner reports."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.replay.sampling.shard_report import ShardReport

POLICY_LAG = "policy_lag"
"""Metric of every learner: how many versions behind the newest its newest batch was collected, on average."""


class LearnerState(enum.Enum):
    """State of a learner."""

    UNKNOWN = 0
    """Reported by a server newer than this client."""
    STARTING = 1
    """Connecting, restoring a checkpoint, building the networks."""
    WAITING = 2
    """Waiting for the table to reach its minimum size or for its rate limiter."""
    TRAINING = 3
    """Taking updates."""
    PAUSED = 4
    """Paused by a caller."""
    STOPPING = 5
    """Publishing and checkpointing for the last time."""
    ENDED = 6
    """Idle after the end of its run."""


@dataclass(frozen=True)
class SourceStatus:
    """One of `learner.sources` as the learner sees it."""

    name: str
    """Its name."""
    fraction: float
    """Share of each batch that comes from it, 0 to 1."""
    items: int = 0
    """Items in its table when the newest batch was drawn; 0 before the first batch."""
    samples: int = 0
    """Items of it that the process has learned from, each as often as it was drawn; of several ranks, by this one."""
    age_s: float = 0.0
    """Mean seconds from the insertion of an item of the newest batch to its use; 0 while unknown."""


@dataclass(frozen=True)
class LearnerStatus:
    """A learner at one moment."""

    state: LearnerState = LearnerState.STARTING
    """State of the learner."""
    learner_steps: int = 0
    """Updates, those before a resume included."""
    env_steps: int = 0
    """Agent decisions of the run, those before a resume or a reset of its table included."""
    steps_per_s: float = 0.0
    """Updates per second over the last few seconds."""
    wait_fraction: float = 0.0
    """Share of the last few seconds the training thread waited for data or other learners, 0 to 1."""
    params_version: int = 0
    """Newest version the parameter server acknowledged; 0 means none."""
    fencing_token: int = 0
    """Fencing token of the learner as a publisher; 0 means none yet."""
    checkpoint_steps: int = 0
    """Updates at the newest checkpoint; 0 means none."""
    table_items: int = 0
    """Items in the table when the newest batch was drawn."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Newest values of the agent's metrics, e.g. `critic_loss`, and the `policy_lag` of the newest batch."""
    uptime_s: float = 0.0
    """Seconds since the process started."""
    max_learner_steps: int = 0
    """Updates at which the learner stops; 0 means no limit."""
    restored: str = ""
    """Data that the start restored, in words; empty for a fresh start."""
    shards: tuple[ShardReport, ...] = ()
    """The replay shards, in order of name; none with a single replay server."""
    checkpoint_error: str = ""
    """Why the newest attempt at a checkpoint failed; empty if it did not, or there was none."""
    sources: tuple[SourceStatus, ...] = ()
    """The sources of each batch besides the run's own table, in order of `learner.sources`."""
    end: str = ""
    """How the run ended, in words; empty while it has not."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that is on disk."""

    path: str
    """Where it lies, as the learner sees the file system."""
    learner_steps: int
    """Updates it holds."""
