"""A learner that samples other tables beside its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.feeder import SPEC, TABLE
from tests.support.free_ports import free_port
from tests.support.learner_cluster import LearnerCluster
from tests.support.naming import naming
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.sources import SourceSettings
from tidemill.errors import ConfigError, Unavailable
from tidemill.learner.source_table import find_source
from tidemill.replay import (
    RateLimiterConfig,
    ReplayClient,
    SelectorConfig,
    SelectorKind,
    Server,
)
from tidemill.replay.sampling import sample_stream
from tidemill.replay.shards import directory
from tidemill.replay.table_config import TableUpdate
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
    # A step is counted before what it used is.
    wait_until(lambda: _lags() - before == own.samples, "the policy lags of the last update")
    status = cluster.wait_for_status(lambda s: sum(each.samples for each in s.sources) == own.samples, "its samples")
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


@pytest.mark.parametrize("how", ["limiter off", "once enough"])
def test_source_with_fewer_items_than_min_size_is_used_where_its_server_lets_it_be(
    cluster: LearnerCluster, how: str
) -> None:
    """With its rate limiter off, as a copied part of a larger table has it, or after items were deleted."""
    least = 30 if how == "limiter off" else 19
    write_demonstrations(cluster.replay, demonstrations(rate_limiter=RateLimiterConfig(min_size=least)))
    client = cluster.replay_client()
    if how == "limiter off":
        client.update_table("demos", TableUpdate(rate_limiter_on=False))
    else:
        client.delete_matching_items("demos", min_age=10)
    assert client.describe_table("demos").items < least
    cluster.start_learner(*_HALF)
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 20, "20 updates")


def test_learner_with_sources_resumes(cluster: LearnerCluster) -> None:
    """The next one continues from the checkpoint with the same sources, or with other fractions of them."""
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
    wait_until(lambda: cluster.replay_client().describe_table("demos").samples > before, "samples of the source")
    second.terminate()
    assert second.wait() is None

    def limit() -> float:
        return cluster.replay_client().describe_table("replay").config.rate_limiter.samples_per_insert

    half = pytest.approx(limit() / 2)  # a quarter of each batch is drawn from the run's own table then
    third = cluster.start_learner("--learner.sources", "demos", "{fraction: 0.75}", "--agent.batch-size", "32")
    wait_until(lambda: limit() == half, "another limit")
    updates = cluster.wait_for_status(lambda s: s.learner_steps > 0, "a status").learner_steps
    cluster.wait_for_status(lambda s: s.learner_steps > updates + 20, "20 more updates")
    third.terminate()
    assert third.wait() is None


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
        (
            {"rate_limiter": RateLimiterConfig(min_size=20)},
            "learner.sources.demos 'demos' 0 20 tidemill replay update demos --min-size",
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


@pytest.mark.parametrize("least", ["most of the items", "more, limiter off"])
@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "dns"])
def test_source_that_one_of_several_servers_has(
    cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch, is_listed: bool, least: str
) -> None:
    """Those without a part have no part in `min_size` either, and one may be away."""
    with Server() as other:
        limiter = RateLimiterConfig(min_size=12 if least == "most of the items" else 30)
        write_demonstrations(other.address, demonstrations(rate_limiter=limiter))
        if limiter.min_size == 30:
            with ReplayClient(other.address) as client:
                client.update_table("demos", TableUpdate(rate_limiter_on=False))
        servers = [cluster.replay, other.address, f"127.0.0.1:{free_port()}"]
        monkeypatch.setattr(directory, "resolve_now", lambda _: servers)
        monkeypatch.setattr(sample_stream, "_OPENING_S", 0.5)
        replay = ", ".join(f'"{each}"' for each in (servers if is_listed else ["dns:///demos:7401"]))
        cluster.start_learner(*_HALF, "--learner.sources.demos.replay", f"[{replay}]")
        cluster.feed()
        status = cluster.wait_for_status(lambda s: s.learner_steps >= 20, "20 updates")
    assert status.sources[0].items == 19
    assert status.shards == ()  # of the run's own table, which one server has


@pytest.mark.parametrize("has_part", [True, False])
def test_source_with_too_few_items_is_waited_for_while_a_server_is_away(
    monkeypatch: pytest.MonkeyPatch, has_part: bool
) -> None:
    """That server may have the rest, or all of them, so nothing is wrong with the settings."""
    wait_for_ready = ReplayClient.wait_for_ready
    with Server() as server:
        monkeypatch.setattr(
            ReplayClient,
            "wait_for_ready",
            lambda client, _: wait_for_ready(client, WAIT_S if client._address == server.address else 0.1),
        )
        if has_part:
            write_demonstrations(server.address, demonstrations(rate_limiter=RateLimiterConfig(min_size=30)))
        addresses = (server.address, f"127.0.0.1:{free_port()}")
        with pytest.raises(Unavailable, match=naming("learner.sources.demos.replay")) as caught:
            find_source("demos", SourceSettings(), addresses, demonstrations())
    reason = str(caught.value.__cause__)
    assert addresses[1] in reason
    assert addresses[0] not in reason


def test_source_without_a_table(cluster: LearnerCluster) -> None:
    """The message says which tables there are."""
    learner = cluster.start_learner(*_HALF)
    failure = learner.wait()
    assert isinstance(failure, ConfigError)
    with pytest.raises(ConfigError, match=naming(f"learner.sources.demos.table 'demos' ['{TABLE}']")):
        raise failure


def _imported_rows(action: int = 0) -> Rows:
    """Yield episodes of five decisions that are terminated, as an import does."""
    for _ in range(8):
        for number in range(6):
            row = {
                "observation": np.zeros(4, np.float32),
                "action": np.int64(action),
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


def test_source_with_actions_that_the_agent_cannot_take_ends_the_learner(cluster: LearnerCluster) -> None:
    """Such as those of an environment that counts from 1."""
    rows = _imported_rows(action=2)
    fill_table(cluster.replay, "demos", rows, name="d", steps=40, item_steps=2, sampler=None, timeout_s=WAIT_S)
    learner = cluster.start_learner(*_HALF)
    cluster.feed()
    failure = learner.wait()
    assert isinstance(failure, ConfigError)
    with pytest.raises(ConfigError, match=naming("learner.sources.demos 2 [0, 1]")):
        raise failure
