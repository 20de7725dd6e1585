"""Unary calls: tables are made, listed, described, deleted from and reset."""

from __future__ import annotations

import pytest

from tests.support.naming import naming
from tests.support.replay_service import LocalServer, open_appender, write
from tests.support.replay_streams import UNIFORM, make_config
from tests.support.waiting import WAIT_S
from tidemill.errors import NotFound, TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler


def test_tables_are_listed_deleted_from_and_reset(server: LocalServer, client: ReplayClient) -> None:
    """Unary calls change what they say, and refuse tables that are not there."""
    client.create_table(make_config("b"))
    client.create_table(make_config("a"))
    assert [table.config.name for table in client.list_tables()] == ["a", "b"]
    with open_appender(server.address, tables=("a", "b")) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with ReplaySampler(
        [server.address], make_config("a"), 8, max_in_flight_batches=1, without_replacement=True
    ) as stream:
        keys = next(stream).keys
    assert client.delete_items("a", keys[:3]) == 3
    assert client.delete_items("a", keys[:4]) == 1
    assert client.reset_table("a") == 4
    assert client.describe_table("a").items == 0
    assert [table.env_steps for table in client.list_tables()] == [0, 8]
    for call in (client.describe_table, client.reset_table):
        with pytest.raises(NotFound, match=naming("table 'nowhere'")):
            call("nowhere")
    with pytest.raises(TidemillError, match=naming("memory")):
        client.checkpoint()


def test_uniform_table_without_items_reports_an_empty_mass(client: ReplayClient) -> None:
    """A new table describes itself with zeros."""
    client.create_table(make_config(sampler=UNIFORM))
    described = client.describe_table("t")
    assert (described.items, described.total_weight, described.samples_per_insert) == (0, 0.0, 0.0)
    assert described.sample_blocked
    assert not described.insert_blocked
