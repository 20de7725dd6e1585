"""A learner on two replay shards: it samples and updates both, loses one, continues, and takes it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.feeder import TABLE, Feeder
from tests.support.learner_cluster import LearnerCluster, Process, is_serving, learner_cluster
from tests.support.scraped import scrape
from tests.support.waiting import wait_until
from tidemill.learner.status import LearnerStatus
from tidemill.replay.client import ReplayClient
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import serve_metrics


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LearnerCluster]:
    """A parameter server; shards and learner are the test's."""
    with learner_cluster(tmp_path) as running:
        running.start_params()
        yield running


def started(cluster: LearnerCluster, address: str, name: str) -> Process:
    """Start a shard and wait until it serves."""
    log = cluster.folder / f"{name}.log"
    process = Process("tidemill.services.replay", ["--replay.server.address", address], log)
    wait_until(lambda: is_serving(address), f"{name} serves")
    return process


def updates_of(address: str) -> int:
    """Return how many priorities a shard was given."""
    with ReplayClient(address) as client:
        return client.describe_table(TABLE).priority_updates


def is_live(status: LearnerStatus) -> list[bool]:
    """Return for each shard whether it answers."""
    return [shard.live for shard in status.shards]


def test_learner_goes_on_when_one_of_its_shards_dies_and_takes_it_back(cluster: LearnerCluster) -> None:
    """Both shards give samples and get priorities; without one, steps continue; when it is back its table is made."""
    addresses = [cluster.replay.replace("replay.sock", f"shard-{number}.sock") for number in range(2)]
    first = started(cluster, addresses[0], "shard-0")
    second = started(cluster, addresses[1], "shard-1")
    feeders = [Feeder(address, chunks_per_s=30.0) for address in addresses]
    try:
        learner = cluster.start_learner("--cluster.replay", *addresses)
        cluster.wait_for_status(
            lambda status: len(status.shards) == 2 and all(shard.samples > 500 for shard in status.shards),
            "both sampled",
        )
        wait_until(lambda: all(updates_of(address) > 100 for address in addresses), "priorities on both")
        second.close()
        without = cluster.wait_for_status(lambda status: is_live(status) == [True, False], "one left out")
        cluster.wait_for_status(lambda status: status.learner_steps > without.learner_steps + 50, "steps without it")
        second = started(cluster, addresses[1], "shard-1-again")
        again = cluster.wait_for_status(lambda status: is_live(status) == [True, True], "it to be taken back")
        cluster.wait_for_status(lambda status: status.shards[1].samples > again.shards[1].samples, "its samples")
        assert again.env_steps >= without.env_steps
        with closing(cluster.learner_client()) as client:
            client.stop("the test is over")
        assert learner.wait() is None
    finally:
        for feeder in feeders:
            feeder.close()
        first.close()
        second.close()


def test_metrics_tell_of_each_shard(cluster: LearnerCluster) -> None:
    """Live or not, items, total_weight, samples and their share, by shard; what became of priorities."""
    addresses = [cluster.replay.replace("replay.sock", f"shard-{number}.sock") for number in range(2)]
    shard = started(cluster, addresses[0], "shard-0")
    feeder = Feeder(addresses[0], chunks_per_s=30.0)
    try:
        cluster.start_learner("--cluster.replay", *addresses)
        cluster.wait_for_status(lambda status: bool(status.shards) and status.shards[0].samples > 500, "samples")
        metrics = serve_metrics(ServerSettings())
        found = scrape(metrics)
    finally:
        feeder.close()
        shard.close()
    name = "tidemill_learner_shard"
    assert (found[f'{name}_live{{shard="0"}}'], found[f'{name}_live{{shard="1"}}']) == (1.0, 0.0)
    assert (found[f'{name}_sample_ratio{{shard="0"}}'], found[f'{name}_sample_ratio{{shard="1"}}']) == (1.0, 0.0)
    assert found[f'{name}_samples_total{{shard="0"}}'] > 500
    assert found[f'{name}_items{{shard="0"}}'] > 0
    assert found[f'{name}_total_weight{{shard="0"}}'] > 0
    assert {f"{name}_priorities_dropped_total", f"{name}_unknown_keys_total"} <= set(found)
