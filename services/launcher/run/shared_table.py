"""A check, before a new run starts, of its table on a replay service that other runs may share."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from tidemill.config.sections import RunConfig
from tidemill.errors import AlreadyExists, NotFound, Unavailable
from tidemill.file_lock import locked
from tidemill.replay.client import ReplayClient
from tidemill.replay.named_table import addresses_of
from tidemill.replay.shards.directory import servers_now
from tidemill.rpc.tls import is_local
from tidemill.services.launcher.run.folder import RunFolder, host_of, is_running
from tidemill.services.launcher.run.paths import runs_with_its_table

_ASK_S = 10.0


def check_new_table(config: RunConfig) -> str:
    """Ask the replay service that a new run does not start itself for items in the run's table.

    Returns:
        What its user should know of items that others wrote; empty for a table without items, for a service that does
        not answer, which the run waits for, and for a run that has no actors, because others write its table.

    Raises:
        AlreadyExists: The items are those of a run that has trained below the same root.
    """
    if not _writes_elsewhere(config) or not (items := _items(config)):
        return ""
    name, addresses = config.table.name, config.cluster.replay
    holds = f"table.name is {name!r}, and the replay service at {', '.join(addresses)} holds {items:,} items"
    for folder, other in runs_with_its_table(config):
        if not other.launcher.replay and _shares_replay(config, folder, other):
            raise AlreadyExists(
                f"{holds} of {folder} in the table of this name, which this run would train on and count as its own "
                "steps: choose another name with --table.name, and with --actor.id. To continue the earlier run, use "
                "`tidemill resume`"
            )
    return f"{holds} in a table of this name, which this run trains on; another --table.name starts with an empty one"


def create_alone(config: RunConfig, *, fresh: bool) -> RunFolder:
    """Make the folder of a new run as `RunFolder.create`, unless another run is filling the same table.

    Two runs that start at the same moment find no items of each other there, so one start waits for the other.

    Raises:
        AlreadyExists: Such a run is running below the same root. No folder was made or moved.
    """
    if not _writes_elsewhere(config):
        return RunFolder.create(config, fresh=fresh)
    own = config.run.folder
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another user's lock; if no folder can be made here, `create` says so
            own.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(own.parent / ".starting"))
        for folder, other in runs_with_its_table(config, lambda each: each.name != own.name and is_running(each)):
            if _writes_elsewhere(other) and _shares_replay(config, folder, other):
                raise AlreadyExists(
                    f"table.name is {config.table.name!r}, and {folder}, which is running, fills the table of this "
                    f"name at {', '.join(config.cluster.replay)}: choose another name with --table.name, and with "
                    "--actor.id"
                )
        return RunFolder.create(config, fresh=fresh)


def _writes_elsewhere(config: RunConfig) -> bool:
    """True if a run fills a table on a replay service that it does not start itself."""
    return not config.launcher.replay and (config.launcher.actors > 0 or config.inference.simulators > 0)


def _shares_replay(config: RunConfig, folder: Path, other: RunConfig) -> bool:
    """True if a run uses a replay service of the run in `folder`. At a local address each machine has its own."""
    is_elsewhere = host_of(folder) not in ("", socket.gethostname())
    shared = set(config.cluster.replay) & set(other.cluster.replay)
    return any(not (is_elsewhere and is_local(address)) for address in shared)


def _items(config: RunConfig) -> int:
    """Return the items in the run's table on all servers that answer."""
    try:
        servers = servers_now(addresses_of(config.cluster.replay), _ASK_S)
    except Unavailable:
        return 0
    return sum(_items_at(address, config.table.name) for address in servers)


def _items_at(address: str, table: str) -> int:
    try:
        with ReplayClient(address, deadline_s=_ASK_S) as client:
            return client.describe_table(table).items
    except (NotFound, Unavailable):
        return 0
