"""The question to a server that acknowledges nothing: does it hold back inserts, and why."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.errors import TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import describe_limiter

ASK_S = 1.0
"""Longest wait for the answer, in seconds."""


def why_held_back(address: str, tables: Collection[str], timeout_s: float = ASK_S) -> str:
    """Ask a server once why it takes no inserts into some tables; empty if it does not say.

    Args:
        address: Of the server.
        tables: Names of the tables.
        timeout_s: Longest wait for the answer, at most `ASK_S`; 0 asks nothing.
    """
    if timeout_s <= 0:
        return ""
    try:
        with ReplayClient(address, deadline_s=min(timeout_s, ASK_S)) as client:
            found = [table for table in client.list_tables() if table.config.name in tables]
    except TidemillError:
        return ""
    held = [table.config for table in found if table.insert_blocked]
    if held:
        named = " and ".join(
            f"table {config.name!r} holds back inserts ({describe_limiter(config.rate_limiter, is_on=True)})"
            for config in held
        )
        return f"{named}; sample it, or switch its rate limiter off with `tidemill replay update`"
    return "its disk is full" if any(table.log_full for table in found) else ""
