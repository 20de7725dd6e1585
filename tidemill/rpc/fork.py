"""The process that a client belongs to: gRPC's channels and their threads do not live on in a forked child.

A call there would wait forever, so every client asks first. It is one system call that costs 0.1 µs. A child that was
forked beside a server of its parent cannot use gRPC at all: one in twenty was aborted by a new client that it opened.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

from tidemill.errors import FailedPrecondition


class _Lineage:
    """This process's place in a line of forks.

    Attributes:
        servers: The servers of gRPC that are in it.
        beside_servers_of: The process with servers that it, or one before it, was forked from; 0 for none.
    """

    def __init__(self) -> None:
        self.servers: set[object] = set()
        self.beside_servers_of = 0
        self._collects = False
        os.register_at_fork(before=self._forking, after_in_parent=self._has_forked, after_in_child=self._forked)

    def _forking(self) -> None:
        self._collects |= gc.isenabled()
        gc.disable()

    def _has_forked(self) -> None:
        if self._collects:
            gc.enable()
        self._collects = False

    def _forked(self) -> None:
        gc.freeze()  # a call or channel of the parent that is collected here aborts the process
        self._has_forked()
        if self.servers:
            self.beside_servers_of = os.getppid()
        self.servers.clear()


_lineage = _Lineage()


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Say that this process has a server of gRPC in it."""
    server = object()
    _lineage.servers.add(server)
    try:
        yield
    finally:
        _lineage.servers.discard(server)


class OwnerProcess:
    """Remembers in which process an object was made."""

    def __init__(self, what: str) -> None:
        """Remember this process as that of `what`, the name of a class.

        Raises:
            FailedPrecondition: It was forked from a process while that had a server in it.
        """
        if parent := _lineage.beside_servers_of:
            raise FailedPrecondition(
                f"a {what} cannot be made in process {os.getpid()}: it was forked from process {parent} while that had "
                "a Server, which gRPC does not survive; start processes with the `spawn` method, or before the Server"
            )
        self._what, self._pid = what, os.getpid()

    def check(self) -> None:
        """Raise FailedPrecondition in a process that was forked since, and while Python ends."""
        if self.is_here:
            return
        if self.is_process:
            raise FailedPrecondition(
                f"this {self._what} is used while Python ends, when no thread runs any more: close it before, by a "
                "`with` block that the program leaves or by `close`"
            )
        raise FailedPrecondition(
            f"this {self._what} was made by process {self._pid} and is used in {os.getpid()}, forked from it: "
            "make it in the process that uses it, which is best started with the `spawn` method"
        )

    @property
    def is_here(self) -> bool:
        """Whether this is still the process, and its threads run: at the end of Python a wait for one never ends."""
        return self.is_process and not sys.is_finalizing()

    @property
    def is_process(self) -> bool:
        """Whether this is still the process, though its threads may no longer run."""
        return os.getpid() == self._pid


class Reopened:
    """Is pickled as the arguments of its constructor: the process that unpickles it makes a new client with them."""

    _opened_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:  # noqa: ANN401 - those of the constructor
        """Remember the arguments."""
        made = super().__new__(cls)
        made._opened_with = (arguments, named)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments. TypeError: `stop` was given, an event of this process's threads."""
        arguments, named = self._opened_with
        if named.get("stop") is not None:
            raise TypeError(f"a {type(self).__name__} with `stop` cannot be pickled: that event is this process's own")
        return partial(type(self), *arguments, **named), ()
