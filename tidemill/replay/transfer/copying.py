"""Copying of tables from one running server to another, for example to fork an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidemill.errors import AlreadyExists, InvalidArgument, NotFound
from tidemill.replay.argument_types import check_deadline
from tidemill.replay.client import ReplayClient
from tidemill.replay.transfer.exporting import TransferReport, export_table
from tidemill.replay.transfer.importing import import_table
from tidemill.temporary_folder import temporary_folder


def copy_tables(
    source: str,
    target: str,
    tables: Sequence[str] = (),
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    folder: str | Path | None = None,
    timeout_s: float = 60.0,
) -> tuple[TransferReport, ...]:
    """Copy tables of a running server to another one, which has none of them yet.

    Each is copied as it is at one moment, whatever is written to the source meanwhile; one table after the other.
    Tables are exported and imported, with all that `import_table` says of counters and rate limiters. Steps that
    several tables share are there once for each.

    Args:
        source: Address of the server that has the tables.
        target: Address of the other one.
        tables: Names of the tables; empty for all.
        since_s: Only items that came at this Unix time, in seconds, or later; None means any (see `export_table`).
        until_s: Only items that came before this one; None means any.
        folder: Where each is kept on disk meanwhile; None takes the system's temporary folder.
        timeout_s: Seconds to wait for a response from either server.

    Raises:
        InvalidArgument: Source and target are the same address.
        AlreadyExists: The target has one of the tables; nothing was copied.
        NotFound: The source has no such table; nothing was copied.
        FatalError: `folder` cannot be written to.
        FailedPrecondition: A time is given, and the source does not know when any item of a table came; nothing was
            copied.
        Unavailable: A server cannot be reached, or was silent for `timeout_s`. Tables that are complete stay at the
            target; one that is not is removed; if the target was away, the message says how to remove it.
    """
    check_deadline("timeout_s", timeout_s)
    if source == target:
        raise InvalidArgument(f"source and target are both {source}, must be two servers")
    with ReplayClient(source, deadline_s=timeout_s) as client:
        client.wait_for_ready(timeout_s)
        there = [table.config.name for table in client.list_tables()]
        names = tuple(tables) or tuple(there)
        if missing := [name for name in names if name not in there]:
            raise NotFound(f"no tables {missing} at {source}; tables: {', '.join(there) or 'none'}")
        for name in names:
            client.check_times(name, since_s, until_s)
    with ReplayClient(target, deadline_s=timeout_s) as client:
        client.wait_for_ready(timeout_s)
        taken = {table.config.name for table in client.list_tables()}
    if taken := taken & set(names):
        raise AlreadyExists(
            f"tables {sorted(taken)} are at {target} already: drop those of an interrupted copy (`tidemill replay drop "
            f"{target} TABLE`), name the others, or copy to a server without them"
        )
    reports = []
    for name in names:
        with temporary_folder("copy", folder) as temporary:
            exported = export_table(
                source, name, Path(temporary) / "table", since_s=since_s, until_s=until_s, timeout_s=timeout_s
            )
            imported = import_table(target, Path(temporary) / "table", timeout_s=timeout_s)
        reports.append(replace(imported, lost_items=exported.lost_items))
    return tuple(reports)
