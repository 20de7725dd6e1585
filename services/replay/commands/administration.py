"""`tidemill replay tables`, `update`, `delete`, `drop`: looks at a running server and changes its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tidemill.errors import ConfigError
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription, TableUpdate, describe_limiter
from tidemill.services.replay.commands.options import add_times, command_parser, times_of

_DEADLINE_S = 30.0
_SWITCH = {"on": True, "off": False}


def tables(arguments: Sequence[str]) -> int:
    """Print every table of a server; return 0."""
    parser = command_parser("tables", "List the tables of a running replay server and the changes made to them in use.")
    options = parser.parse_args(arguments)
    with ReplayClient(options.address, deadline_s=_DEADLINE_S) as client:
        found = client.list_tables()
    for table in found:
        print("\n".join(described(table)))
    if not found:
        print("no tables: the first learner or writer creates one")
    return 0


def update(arguments: Sequence[str]) -> int:
    """Change a table of a server and print it; return 0. Only `Unavailable` may come after a change."""
    parser = command_parser(
        "update",
        "Change a table of a running replay server, immediately and permanently. A restarted server keeps the change, "
        "and so do writers and learners that create the table as before. A rate limiter that is changed or switched "
        "on starts balanced. With several shards, change each of them for its part of the table.",
    )
    parser.add_argument("table", help="name of the table")
    for name, kind, what in _OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=what)
    parser.add_argument("--rate-limiter", choices=_SWITCH, help="off while you fill the table with recorded data")
    options = parser.parse_args(arguments)
    values = {name: getattr(options, name) for name, _, _ in _OPTIONS}
    if not options.rate_limiter and all(value is None for value in values.values()):
        names = (*(f"--{name.replace('_', '-')}" for name in values), "--rate-limiter")
        raise ConfigError(f"no change given; set at least one of {', '.join(names)}")
    change = TableUpdate(**values, rate_limiter_on=_SWITCH[options.rate_limiter] if options.rate_limiter else None)
    with ReplayClient(options.address, deadline_s=_DEADLINE_S) as client:
        print("\n".join(described(client.update_table(options.table, change))))
    return 0


def delete(arguments: Sequence[str]) -> int:
    """Delete items of a server's table and print how many; return 0. Only `Unavailable` may come after a deletion."""
    parser = command_parser(
        "delete",
        "Delete the items of a table of a running replay server that meet every given condition.",
    )
    parser.add_argument("table", help="name of the table")
    parser.add_argument(
        "--actor",
        default="",
        metavar="ID",
        help="only items of this writer: the name of a ReplayWriter, or an actor's id",
    )
    parser.add_argument("--env", type=int, metavar="N", help="only items of this environment of that writer, from 0")
    parser.add_argument(
        "--min-age", type=int, default=0, metavar="N", help="only items with at least N inserted after them"
    )
    add_times(parser)
    options = parser.parse_args(arguments)
    if options.env is not None and not options.actor:
        raise ConfigError(f"--env is {options.env}, which needs the --actor that it is an environment of")
    if not options.actor and not options.min_age and options.since is options.until is None:
        raise ConfigError("no condition given; set at least one of --actor, --min-age, --since and --until")
    with ReplayClient(options.address, deadline_s=_DEADLINE_S) as client:
        deleted = client.delete_matching_items(
            options.table,
            actor_id=options.actor,
            env_index=options.env,
            min_age=options.min_age,
            **times_of(options),
        )
    print(f"deleted {deleted:,} items of {options.table}")
    return 0


def drop(arguments: Sequence[str]) -> int:
    """Drop a table of a server and print how many items went with it; return 0."""
    parser = command_parser(
        "drop",
        "Drop a table of a running replay server permanently: its items, its configuration and its counters. First "
        "stop the programs that write to it or sample it: a program that knows the configuration creates the table "
        "again.",
    )
    parser.add_argument("table", help="name of the table")
    options = parser.parse_args(arguments)
    with ReplayClient(options.address, deadline_s=_DEADLINE_S) as client:
        dropped = client.drop_table(options.table)
    print(f"dropped {options.table}, which had {dropped:,} items")
    return 0


def described(table: TableDescription) -> Iterator[str]:
    """Yield what is said of a table, line by line."""
    config = table.config
    exponent = f" with exponent {config.sampler.priority_exponent:g}" if config.sampler.priority_exponent else ""
    yield f"{config.name}: {table.items:,} of at most {config.max_items:,} items, {table.held_bytes:,} bytes"
    yield f"  {config.sampler.kind.value} sampler{exponent}, {config.remover.kind.value} remover"
    yield f"  {table.inserts:,} inserts, {table.samples:,} samples, {table.evictions:,} evictions"
    waiting = [side for side in ("insert", "sample") if getattr(table, f"{side}_blocked")]
    limiter = describe_limiter(config.rate_limiter, is_on=not table.rate_limiter_off)
    yield f"  {limiter}{f'; holds back {waiting[0]}s' if waiting and not table.rate_limiter_off else ''}"
    if table.log_full:
        yield "  the server's DISK IS FULL: changes are made, but not confirmed until it has room"
    if table.updated_fields:
        yield f"  changed in use: {', '.join(table.updated_fields)}"


_OPTIONS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("max_items", int, "maximum items; the remover picks which to evict"),
    ("max_bytes", int, "maximum bytes of chunks and payloads, 0 for no limit"),
    ("max_times_sampled", int, "maximum samples of an item, 0 for no limit"),
    ("priority_exponent", float, "exponent on the priority, of a prioritized sampler"),
    ("min_size", int, "rate limiter: samples wait until the table has held this many items"),
    ("samples_per_insert", float, "rate limiter: samples for each insert on average, 0 for no ratio"),
    ("error_buffer", float, "rate limiter: how far either side may be ahead, in samples"),
    ("queue_size", int, "rate limiter: inserts wait while the table has this many items, 0 for no queue"),
)
