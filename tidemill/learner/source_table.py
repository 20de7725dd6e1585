"""The table of one of `learner.sources`, found on its servers and compared with the run's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.config.sources import SourceSettings
from tidemill.errors import ConfigError, InvalidArgument, NotFound, Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.named_table import addresses_of, read_table
from tidemill.replay.sampling.mixture import mismatch
from tidemill.replay.shards.directory import servers_now
from tidemill.replay.table_config import RateLimiterConfig, SelectorKind, TableConfig, TableDescription

_ASK_S = 10.0
_FILL = "fill the table first, or name one that the server has"


def find_source(
    name: str, source: SourceSettings, addresses: tuple[str, ...], own: TableConfig
) -> tuple[TableConfig, int]:
    """Return the configuration of a source's table, which fits the run's own, and its number of items.

    Args:
        name: Of the source.
        source: Its settings.
        addresses: Of its servers.
        own: The run's own table, of which the columns and the sizes of items count.

    Raises:
        ConfigError: There is no such table, it has no items, other columns or longer items, or could not be drawn from
            for ever; the message names the source.
        Unavailable: A server does not answer within 10 s, and the others have no table or too few items.
    """
    here, table = f"learner.sources.{name}", source.table or name
    try:
        servers = servers_now(addresses_of(addresses), _ASK_S)
        found = read_table(servers, table, create=False, must_exist=True, instead=_FILL)
    except (NotFound, InvalidArgument) as error:
        raise ConfigError(f"{here}.table is {table!r}: {error}") from error
    except Unavailable as error:
        raise _unreachable(here, addresses, error) from error
    if why := mismatch(found, own):
        raise ConfigError(f"{here}: {why}, as in the run's table {own.name!r}")
    if found.payload_bytes != own.payload_bytes:
        raise ConfigError(f"{here}: items have {found.payload_bytes} bytes of payload, must have {own.payload_bytes}")
    if found.sampler.kind not in (SelectorKind.UNIFORM, SelectorKind.PRIORITIZED) or found.max_times_sampled:
        raise ConfigError(
            f"{here}: table {table!r} has the sampler {found.sampler.kind.value} and max_times_sampled "
            f"{found.max_times_sampled}, must have uniform or prioritized and 0"
        )
    parts, silent = _describe(servers, table)
    described, holder = tuple(parts.values()), next(iter(parts), servers[0])
    limiter, items = found.rate_limiter, sum(each.items for each in described)
    if limiter.samples_per_insert and not all(each.rate_limiter_off for each in described):
        raise ConfigError(
            f"{here}: the rate limiter of table {table!r} would hold the learner back (samples_per_insert "
            f"{limiter.samples_per_insert:g}): tidemill replay update {holder} {table} --rate-limiter off"
        )
    # each server decides by itself, too: it may have held its min_size once, or its rate limiter is off
    if items < limiter.min_size and (not parts or any(each.sample_blocked for each in described)):
        if silent is not None:  # it may have the rest
            raise _unreachable(here, addresses, silent) from silent
        raise ConfigError(
            f"{here}: table {table!r} at {', '.join(addresses)} has {items} items, must have at least "
            f"{limiter.min_size}: fill it before the learner starts, or lower that number with "
            f"tidemill replay update {holder} {table} --min-size NUMBER"
        )
    return replace(found, rate_limiter=RateLimiterConfig()), items  # it holds the learner back no more


def _describe(servers: Sequence[str], table: str) -> tuple[dict[str, TableDescription], Unavailable | None]:
    """Return the state of a table on each server that has it, by address, and why another one does not answer."""
    parts: dict[str, TableDescription] = {}
    silent: Unavailable | None = None
    for address in servers:
        try:
            with ReplayClient(address, deadline_s=_ASK_S) as client:
                parts[address] = client.describe_table(table)
        except NotFound:
            pass
        except Unavailable as error:
            silent = error
    return parts, silent


def _unreachable(here: str, addresses: tuple[str, ...], error: Unavailable) -> Unavailable:
    return Unavailable(
        f"{here}.replay is {', '.join(addresses)}, where a replay server does not answer ({error}): start it, such as "
        f"by `tidemill replay --folder FOLDER --listen {addresses[0]}`, or correct the address"
    )
