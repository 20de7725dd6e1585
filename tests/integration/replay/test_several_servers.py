"""ReplayWriter and ReplayDataset over several servers, which hold a table together."""

from __future__ import annotations

import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.waiting import WAIT_S
from tidemill.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.replay import (
    ItemWindow,
    RateLimiterConfig,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    Server,
    TableConfig,
)
from tidemill.replay.table_config import shard_config

_TABLE = steps_table(
    sampler=SelectorConfig(SelectorKind.PRIORITIZED),
    max_times_sampled=0,
    rate_limiter=RateLimiterConfig(min_size=40, samples_per_insert=4.0, error_buffer=1000.0),
)


def _described(server: Server) -> tuple[int, TableConfig]:
    """Return how many items a server's part of the table has, and its configuration."""
    with ReplayClient(server.address) as client:
        (found,) = client.list_tables()
    return found.items, found.config


def _write(addresses: list[str], table: TableConfig | str, name: str, numbers: range) -> None:
    with ReplayWriter(addresses, table, windows=ItemWindow(1), name=name) as writer:
        for number in numbers:
            writer.append(numbered_step(number))


def test_one_configuration_is_divided_over_them(servers: list[Server]) -> None:
    """Each has its part; writers spread by name, batches hold items of all, and priorities find theirs."""
    addresses = [server.address for server in servers]
    _write(addresses, _TABLE, "first", range(10))
    for writer in range(1, 9):
        _write(addresses, "t" if writer > 6 else _TABLE, f"writer-{writer}", range(10 * writer, 10 * writer + 10))
    held = [_described(server) for server in servers if server.address in addresses]
    assert sum(items for items, _ in held) == 90
    assert min(items for items, _ in held) > 0
    for _, part in held:
        assert (part.max_items, part.rate_limiter.min_size, part.rate_limiter.error_buffer) == (334, 14, 1000.0 / 3)
    for table in (_TABLE, "t"):
        with ReplayDataset(addresses, table, 64, timeout_s=WAIT_S) as dataset:
            seen: set[int] = set()
            for _ in range(4):
                batch = next(dataset)
                assert batch.keys.shape == (64, 2)
                seen |= set(batch["number"][:, -1].tolist())
                dataset.update_priorities(batch, [2.0] * 64)
            assert {number // 10 for number in seen} == set(range(9))


def test_table_that_only_the_last_server_has_is_found(servers: list[Server]) -> None:
    """A single writer fills one of them; readers find the table by its name, and by its configuration."""
    addresses = [server.address for server in servers]
    with ReplayClient(addresses[-1]) as client:
        client.create_table(shard_config(_TABLE, 3))
    for table in (_TABLE, "t"):
        ReplayDataset(addresses, table, 1).close()
    with pytest.raises(NotFound, match=naming("table 'u' ['t']")):
        ReplayDataset(addresses, steps_table("u"), 1)


def test_another_server_takes_over_for_one_that_is_lost(servers: list[Server]) -> None:
    """The lost server keeps what it acknowledged; the writer continues, and stores what follows on another."""
    pair = servers[:2]
    addresses = [server.address for server in pair]
    with ReplayWriter(addresses, _TABLE, windows=ItemWindow(1), chunk_length=1, max_in_flight_chunks=1) as writer:
        writer.append(numbered_step(0))
        writer.flush(WAIT_S)
        first, second = pair if _has_items(pair[0]) else reversed(pair)
        assert not _has_items(second)
        first.close()
        for number in range(1, 5):
            writer.append(numbered_step(number), timeout_s=40.0)
        with pytest.raises(DataLoss, match=naming("1 1")):
            writer.flush(40.0)
        items, part = _described(second)
        assert items >= 3  # the one under way may have been stored by the lost server: it is never sent to another
        assert part.max_items == 500
        assert writer.restarts == 1


@pytest.mark.usefixtures("patient_questions")
def test_timeout_tells_of_all_servers_that_answer(servers: list[Server]) -> None:
    """The first one is gone: the items are those of the two others together."""
    addresses = [server.address for server in servers]
    for address in addresses[1:]:
        _write([address], shard_config(_TABLE, 3), "one", range(5))
    with ReplayDataset(addresses, _TABLE, 1, timeout_s=0.1) as dataset:
        servers[0].close()
        with pytest.raises(Unavailable, match="it has 10 items after 10 inserts and 0 samples, with min_size 40"):
            next(dataset)


def _has_items(server: Server) -> bool:
    with ReplayClient(server.address) as client:
        return any(table.items for table in client.list_tables())


def test_what_one_server_alone_can_do_is_refused(servers: list[Server]) -> None:
    """A writer's state is one server's; an address comes once."""
    addresses = [server.address for server in servers]
    with ReplayWriter(addresses, _TABLE) as writer, pytest.raises(FailedPrecondition, match=naming("state")):
        writer.state()
    with pytest.raises(InvalidArgument, match=naming("addresses")):
        ReplayWriter([addresses[0]] * 2, _TABLE)
    with pytest.raises(InvalidArgument, match=naming("addresses []")):
        ReplayWriter([], _TABLE)
