"""Processes that end with the one that started them, its parent. Imports nothing that takes time."""

from __future__ import annotations

import os
import signal
import sys

from tidemill import linux

PARENT_VARIABLE = "TIDEMILL_PARENT_PID"
"""Environment variable by which a process makes those it starts end when it does."""


def end_with_parent() -> None:
    """Get SIGKILL when the parent ends; end now if it already has.

    The parent is the process that `PARENT_VARIABLE` names; nothing happens without it.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")  # so that `stop_with_parent` does not ask again, more mildly
    _signalled_with(parent, signal.SIGKILL)


def stop_with_parent() -> None:
    """Get SIGTERM when the parent dies, so that a killed one leaves no orphan.

    A command so ends what it has started in order. What a launcher starts is ended at once, see
    `tidemill.programs.child`.
    """
    _signalled_with(os.environ.get(PARENT_VARIABLE, ""), signal.SIGTERM)


def die_with_parent() -> None:
    """Get SIGKILL when the parent dies, for a process that must not be taken for one that was stopped.

    A rank that is stopped stops all others; those of other machines shall wait for this one's return instead.
    """
    linux.end_with_parent(signal.SIGKILL)


def _signalled_with(parent: str, number: signal.Signals) -> None:
    """Get a signal when the parent ends, if it is named; end now if it already has."""
    if not parent:
        return
    linux.end_with_parent(number)
    if os.getppid() != int(parent):  # it ended before the request took effect
        sys.exit(0)
