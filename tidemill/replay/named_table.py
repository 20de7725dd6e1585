"""Tables that a program names instead of describing them: the configuration is the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.errors import NotFound, Unavailable
from tidemill.replay.argument_types import check_address, check_type
from tidemill.replay.client import ReplayClient
from tidemill.replay.shards.directory import check_addresses
from tidemill.replay.table_config import TableConfig
from tidemill.rpc.channel import DEADLINE_S


def addresses_of(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return one address or several as a tuple. TypeError, InvalidArgument: they are something else."""
    check_type("address", addresses, (str, list, tuple), "'HOST:PORT' or a list of such addresses, as Server.address")
    several = (addresses,) if isinstance(addresses, str) else tuple(addresses)
    check_addresses(several)
    for address in several:
        check_address(address)
    return several


def stored_table(addresses: Sequence[str], table: TableConfig | str, timeout_s: float = DEADLINE_S) -> TableConfig:
    """Return a table's configuration; of a name, that of the first server that answers, which may have a part of it.

    Raises:
        TypeError: It is neither a configuration nor a name.
        NotFound: The server has no table of the name; the message has those that it has.
        Unavailable: No server answered within `timeout_s` seconds.
    """
    check_type("table", table, (TableConfig, str), "a TableConfig, or the name of a table that the server has")
    if isinstance(table, TableConfig):
        return table
    reasons: list[str] = []
    for address in addresses:
        with ReplayClient(address) as client:
            try:
                client.wait_for_ready(timeout_s / len(addresses))
                found = {each.config.name: each.config for each in client.list_tables()}
            except Unavailable as why:
                reasons.append(str(why))
                continue
            if table in found:
                return found[table]
            raise NotFound(
                f"the replay server at {address} has no table {table!r}, it has {sorted(found) or 'none'}: "
                "start what creates the table first, or give a TableConfig"
            )
    raise Unavailable("; ".join(reasons))


def whole_table(addresses: Sequence[str], table: TableConfig | str) -> TableConfig:
    """Return a table's configuration; of a name, that of all servers' parts together. Raises as `stored_table`."""
    part, count = stored_table(addresses, table), len(addresses)
    if isinstance(table, TableConfig) or count == 1:
        return part
    limiter = replace(
        part.rate_limiter,
        min_size=part.rate_limiter.min_size * count,
        error_buffer=part.rate_limiter.error_buffer * count,
        queue_size=part.rate_limiter.queue_size * count,
    )
    return replace(part, max_items=part.max_items * count, max_bytes=part.max_bytes * count, rate_limiter=limiter)
