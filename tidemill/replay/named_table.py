"""Tables that a program names instead of describing them: the configuration is the server's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemill.errors import InvalidArgument, NotFound, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_address, check_type
from tidemill.replay.client import ReplayClient
from tidemill.replay.shards.directory import ShardDirectory, check_addresses, servers_now
from tidemill.replay.table_config import TableConfig
from tidemill.rpc.channel import DEADLINE_S, Backoff

_LOOK_S = 1.0  # longest question, and longest pause between two, while a table is waited for

_log = LateLogger()


Servers = str | Sequence[str] | ShardDirectory
"""Address of the only server, of each of several, or a directory that the caller has opened, and closes."""


def read_servers(servers: Servers) -> tuple[str, ...] | ShardDirectory:
    """Return servers as they are used: checked, and one address as a tuple."""
    return servers if isinstance(servers, ShardDirectory) else addresses_of(servers)


def addresses_and_count(servers: tuple[str, ...] | ShardDirectory) -> tuple[tuple[str, ...], int]:
    """Return the addresses of servers, and over how many of them tables are divided."""
    if isinstance(servers, ShardDirectory):
        return servers.addresses, servers.count
    return servers, len(servers)


def addresses_of(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return one address or several as a tuple. TypeError, InvalidArgument: they are something else."""
    check_type("address", addresses, (str, list, tuple), "'HOST:PORT' or a list of such addresses, as Server.address")
    several = (addresses,) if isinstance(addresses, str) else tuple(addresses)
    check_addresses(several)
    for address in several:
        check_address(address)
    return several


def stored_table(addresses: Sequence[str], table: TableConfig | str, timeout_s: float = DEADLINE_S) -> TableConfig:
    """Return a table's configuration; of a name, that of the first server that has it, which may have a part of it.

    Raises:
        TypeError: It is neither a configuration nor a name.
        NotFound: No server has a table of the name; the message has those that there are.
        Unavailable: A server did not answer within `timeout_s` seconds, and no other has the table.
    """
    check_type("table", table, (TableConfig, str), "a TableConfig, or the name of a table that the server has")
    if isinstance(table, TableConfig):
        return table
    return next(_parts(addresses, table, timeout_s, "start what creates the table first, or give a TableConfig"))


def awaited_table(
    addresses: Sequence[str], table: TableConfig | str, timeout_s: float | None, stop: threading.Event
) -> TableConfig:
    """Return a table's configuration as `stored_table` does, once a server has it.

    Args:
        addresses: The servers.
        table: Its configuration or its name.
        timeout_s: How long to wait; None waits until `stop` is set.
        stop: Ends the wait.

    Raises:
        TypeError: It is neither a configuration nor a name.
        NotFound: No server had a table of the name in time; the message has those that there are.
        Unavailable: A server did not answer in time, and no other has the table.
    """
    deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    pause, is_told = Backoff(first_s=0.05, limit_s=_LOOK_S), False
    while True:
        try:
            return stored_table(addresses, table, min(max(deadline_s - time.monotonic(), 0.0), _LOOK_S))
        except (NotFound, Unavailable) as failure:
            if stop.is_set() or time.monotonic() >= deadline_s:
                raise
            if not is_told:
                _log.info("waiting for the table", table=table, reason=str(failure))
            is_told = True
        stop.wait(pause.next_s())


def read_table(
    servers: tuple[str, ...] | ShardDirectory,
    table: TableConfig | str,
    *,
    create: bool,
    must_exist: bool = False,
    instead: str = "start what creates the table first, or give a TableConfig and create=True",
) -> TableConfig:
    """Return the configuration of a table to sample; of a name, that of all servers' parts together.

    Args:
        servers: Those that have it.
        table: Its configuration or its name.
        create: Whether the reader may create it. Otherwise the servers are asked whether they have it.
        must_exist: Whether a server without a part of it stays without one, and so has no part in `min_size`.
        instead: What to do if no server has a table of a name, for the message.

    Raises:
        TypeError: It is neither a configuration nor a name.
        InvalidArgument: A name is to be created.
        NotFound: No server has the table; the message has those that there are.
        Unavailable: A server did not answer within 10 s, and no other has the table.
    """
    check_type("table", table, (TableConfig, str), "a TableConfig, or the name of a table that the server has")
    check_type("create", create, bool, "True or False")
    addresses, count = addresses_and_count(servers)
    if isinstance(table, TableConfig):
        if not create:
            next(_parts(addresses, table.name, DEADLINE_S, "start what creates the table first, or give create=True"))
        return table
    if create:
        raise InvalidArgument(f"create is True with the name {table!r}: give a TableConfig to create a table")
    parts = _parts(addresses, table, DEADLINE_S, instead)
    part = next(parts)
    limiter = replace(
        part.rate_limiter,
        min_size=part.rate_limiter.min_size * (min(count, 1 + len(list(parts))) if must_exist else count),
        error_buffer=part.rate_limiter.error_buffer * count,
        queue_size=part.rate_limiter.queue_size * count,
    )
    return replace(part, max_items=part.max_items * count, max_bytes=part.max_bytes * count, rate_limiter=limiter)


def _parts(addresses: Sequence[str], name: str, timeout_s: float, instead: str) -> Iterator[TableConfig]:
    """Yield each server's configuration of a table of this name; once one has it, no other is waited for."""
    addresses = servers_now(addresses, timeout_s)
    reasons: list[str] = []
    names: set[str] = set()
    for address in addresses:
        with ReplayClient(address) as client:
            try:
                if name not in names:
                    client.wait_for_ready(timeout_s / len(addresses))
                found = {each.config.name: each.config for each in client.list_tables()}
            except Unavailable as why:
                reasons.append(str(why))
                continue
        names |= found.keys()
        if name in found:
            yield found[name]
    if name in names:
        return
    if reasons:
        raise Unavailable("; ".join(reasons))
    one = len(addresses) == 1
    where = f"server at {addresses[0]} has" if one else f"servers at {', '.join(addresses)} have"
    there = f"only {sorted(names)}" if names else "no table at all"
    raise NotFound(f"the replay {where} no table {name!r}, {there}: {instead}")
