"""The process that a client belongs to: gRPC's channels and their threads do not live on in a forked child.

A call there would wait forever, so every client asks first. It is one system call that costs 0.1 µs.
"""

from __future__ import annotations

import os

from tidemill.errors import FailedPrecondition


class OwnerProcess:
    """Remembers in which process an object was made."""

    def __init__(self, what: str) -> None:
        """Remember this process as that of `what`, the name of a class."""
        self._what, self._pid = what, os.getpid()

    def check(self) -> None:
        """Raise FailedPrecondition in a process that was forked since."""
        if not self.is_here:
            raise FailedPrecondition(
                f"this {self._what} was made by process {self._pid} and is used in {os.getpid()}, forked from it: "
                "make it in the process that uses it, which is best started with the `spawn` method"
            )

    @property
    def is_here(self) -> bool:
        """Whether this is still the process."""
        return os.getpid() == self._pid
