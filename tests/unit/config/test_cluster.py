"""Where the services are: one replay server, a list of shards, or a name for all of them."""

from __future__ import annotations

import pytest

from tidemill.config.load import load
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import ActorConfig
from tidemill.errors import ConfigError


def test_addresses_of_shards_are_words_on_the_command_line() -> None:
    """One as usual, several side by side; the table is divided over as many."""
    one = load(ActorConfig, ["--cluster.replay", "a:1"], prog="x", description="x").cluster
    assert (one.replay, one.shard_count) == (("a:1",), 1)
    three = ["--cluster.replay", "a:1", "b:1", "unix:///c", "--cluster.params", "p:1"]
    cluster = load(ActorConfig, three, prog="x", description="x").cluster
    assert (cluster.replay, cluster.params, cluster.shard_count) == (("a:1", "b:1", "unix:///c"), "p:1", 3)


def test_number_of_shards_behind_a_name_is_told() -> None:
    """A name says nothing about how many there will be."""
    assert ClusterSettings(replay=("dns:///replay:7401",), replay_shards=4).shard_count == 4


@pytest.mark.parametrize("replay", [(), ("",), ("a:1", "a:1"), ("dns:///a:1", "b:1")])
def test_addresses_that_cannot_be_meant_are_refused(replay: tuple[str, ...]) -> None:
    """None, an empty one, one twice, or a DNS name beside others: the message has the value."""
    with pytest.raises(ConfigError, match=r"cluster\.replay"):
        ClusterSettings(replay=replay)
