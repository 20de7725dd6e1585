"""A learner that samples other tables beside its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.feeder import SPEC, TABLE
from tests.support.learner_cluster import LearnerCluster
from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import ConfigError, FatalError
from tidemill.replay import (
    RateLimiterConfig,
    SelectorConfig,
    SelectorKind,
)
from tidemill.replay.transfer.filling import Rows, fill_table
from tidemill.types import signature_of

_HALF = ("--learner.sources", "demos", "{fraction: 0.5}", "--agent.batch-size", "32")


def _lags() -> float:
    """Return how many items the learners of this process have counted by their policy lag."""
    return REGISTRY.get_sample_value("tidemill_learner_policy_lag_items_versions_count") or 0.0


def test_half_of_each_batch_is_of_a_source(cluster: LearnerCluster) -> None:
    """As many items of either, priorities to both, and the ratio of updates to decisions as without a source."""
    write_demonstrations(cluster.replay, demonstrations())
    before = _lags()
    held = ("--table.error-buffer-updates", "20", "--learner.batches-per-sample", "1")
    cluster.start_learner(*_HALF, *held, "--learner.updates-per-env-step", "0.5")
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 100, "100 updates")
    status, own = cluster.rested(16)
    assert 20 < status.learner_steps - 0.5 * (own.inserts - 64) <= 20 + 1
    demos = cluster.replay_client().describe_table("demos")
    assert demos.items == 19
    assert 0 <= demos.samples - own.samples <= 16 * 8  # what was fetched ahead and not used
    assert own.samples == 16 * status.learner_steps
    assert demos.priority_updates > 0
    assert own.priority_updates > 0
    assert demos.unknown_keys == own.unknown_keys == 0
    assert _lags() - before == own.samples  # demonstrations have no policy lag
    (source,) = status.sources
    assert (source.name, source.fraction, source.items) == ("demos", 0.5, 19)
    assert source.samples == own.samples
    assert source.age_s > 0
    assert status.env_steps - own.inserts <= 16  # of the run alone; a chunk's steps may wait for their items


@pytest.mark.parametrize("counts", [True, False])
def test_steps_of_a_source_are_not_taken_for_the_runs_own(cluster: LearnerCluster, counts: bool) -> None:
    """They count in its own table, if its writer says so."""
    write_demonstrations(cluster.replay, demonstrations(), counts=counts)
    assert cluster.replay_client().describe_table("demos").env_steps == (20 if counts else 0)
    cluster.start_learner(*_HALF)
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 20, "20 updates")
    status, own = cluster.rested(16)
    assert status.env_steps - own.inserts <= 16  # a chunk's steps may wait for their items


def test_learner_with_sources_resumes(cluster: LearnerCluster) -> None:
    """The next one continues from the checkpoint with the same sources; other fractions need another table."""
    write_demonstrations(cluster.replay, demonstrations())
    first = cluster.start_learner(*_HALF)
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 50, "50 updates")
    first.terminate()
    assert first.wait() is None
    before = cluster.replay_client().describe_table("demos").samples
    second = cluster.start_learner(*_HALF)
    resumed = cluster.wait_for_status(lambda s: s.learner_steps >= 100, "100 updates")
    assert "updates" in resumed.restored
    assert cluster.replay_client().describe_table("demos").samples > before
    second.terminate()
    assert second.wait() is None
    third = cluster.start_learner("--learner.sources", "demos", "{fraction: 0.75}", "--agent.batch-size", "32")
    failure = third.wait()
    assert isinstance(failure, FatalError)
    assert "choose another table.name" in str(failure)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "learner.sources.demos 'demos' 0 1"),
        (
            {"signature": tuple(c for c in signature_of(SPEC) if c.name != "reward")},
            "learner.sources.demos 'reward' observation action float32",
        ),
        (
            {
                "signature": tuple(
                    dataclasses.replace(c, shape=(3,)) if c.name == "observation" else c for c in signature_of(SPEC)
                )
            },
            "demos 'observation' [3] [4] 'replay'",
        ),
        ({"max_item_steps": 4}, "learner.sources.demos 4 2"),
        ({"payload_bytes": 8}, "learner.sources.demos 8 0"),
        ({"sampler": SelectorConfig(SelectorKind.FIFO)}, "fifo max_times_sampled 0"),
        ({"max_times_sampled": 2}, "prioritized max_times_sampled 2"),
        (
            {"rate_limiter": RateLimiterConfig(1, 4.0, 100.0)},
            "samples_per_insert 4 tidemill replay update demos --rate-limiter off",
        ),
    ],
)
def test_source_that_cannot_be_used_ends_the_learner(
    cluster: LearnerCluster, settings: dict[str, Any], message: str
) -> None:
    """One line names the source and what differs, before anything is trained."""
    cluster.replay_client().create_table(demonstrations(**settings))
    learner = cluster.start_learner(*_HALF)
    failure = learner.wait()
    assert isinstance(failure, ConfigError)
    with pytest.raises(ConfigError, match=naming(message)):
        raise failure


def test_source_without_a_table(cluster: LearnerCluster) -> None:
    """The message says which tables there are."""
    learner = cluster.start_learner(*_HALF)
    failure = learner.wait()
    assert isinstance(failure, ConfigError)
    with pytest.raises(ConfigError, match=naming(f"learner.sources.demos.table 'demos' ['{TABLE}']")):
        raise failure


def _imported_rows() -> Rows:
    """Yield episodes of five decisions that are terminated, as an import does."""
    for _ in range(8):
        for number in range(6):
            row = {
                "observation": np.zeros(4, np.float32),
                "action": np.int64(0),
                "reward": np.float32(0),
                "terminated": np.bool_(number == 4),
                "truncated": np.bool_(False),
                "is_first": np.bool_(number == 0),
            }
            yield row, number == 5


@pytest.mark.parametrize("history", [0, 1])
def test_source_made_without_the_history_of_a_stack_ends_the_learner(cluster: LearnerCluster, history: int) -> None:
    """Its items are as long as they must be, but act at the last observation of an episode."""
    made = {"item_steps": 3 - history, "history": history}
    fill_table(cluster.replay, "demos", _imported_rows(), name="d", steps=40, **made, sampler=None, timeout_s=WAIT_S)
    learner = cluster.start_learner(*_HALF, "--env.observation-stack", "2")
    cluster.feed()
    if history:
        cluster.wait_for_status(lambda s: s.learner_steps >= 20, "20 updates")
        return
    failure = learner.wait()
    assert isinstance(failure, ConfigError)
    with pytest.raises(ConfigError, match=naming("learner.sources.demos --history 1 --item-steps 2")):
        raise failure
