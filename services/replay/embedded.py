"""A replay server inside of a program, for notebooks, tests and trainings of one process: `tidemill.replay.Server`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from tidemill.closing import Closing
from tidemill.config.services import ReplaySettings, StorageSettings
from tidemill.errors import InvalidArgument, Unavailable
from tidemill.replay.argument_types import check_integer, check_type
from tidemill.rpc.client_security import plaintext
from tidemill.rpc.fork import OwnerProcess, serving
from tidemill.services.replay.server import ReplayServer

Ack = Literal["write", "fsync"]

_GRACE_S = 0.5
_CLOSE_S = 60.0
_INTERRUPTED_S = 2.0  # the restoring of a table cannot be interrupted, and ends by itself


class Server(Closing):
    """A replay server in a thread of this process, on loopback, until `close`, the end of the block or of the program.

    The program ends with its main thread: join your own threads before, or those that write or read find no server.

    It is the server that `tidemill replay` runs, with the same guarantees, and clients of any process of this machine
    may use it. It speaks plaintext without tokens. Clients of this process and of those that it starts know that,
    whatever `TIDEMILL_TLS_CA` and `TIDEMILL_TOKEN_FILE` say. It shares the interpreter with your program, which both
    slow down where both compute: a training that keeps a core busy is better served by `tidemill replay`, a process of
    its own, and nothing else has to change.

    Example:
        >>> from tidemill import replay
        >>> step = {"observation": [0.0, 0.5], "action": 1, "reward": 0.25}
        >>> uniform = replay.SelectorConfig(replay.SelectorKind.UNIFORM)
        >>> table = replay.TableConfig("walks", replay.signature_like(step), uniform, max_items=1000, max_item_steps=1)
        >>> with replay.Server() as server:
        ...     with replay.ReplayWriter(server.address, table, windows=replay.ItemWindow(length=1)) as writer:
        ...         writer.append(step)
        ...     with replay.ReplayDataset(server.address, table, batch_size=2) as dataset:
        ...         batch = next(dataset)
        >>> batch["observation"].shape  # 2 items of 1 step
        (2, 1, 2)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        ack: Ack = "write",
    ) -> None:
        """Restore the tables of the folder and serve.

        Args:
            folder: Where the tables are kept; None keeps them in memory, and they end with the server.
            port: Of 127.0.0.1; 0 takes a free one.
            ack: With a folder, when steps are acknowledged: once the system has them, which survives a killed program,
                or once the disk has them.

        Raises:
            FatalError: The port is taken, or the folder cannot be used; the message says why.
            InvalidArgument: `ack` is something else.
            TypeError: An argument is of another type.
        """
        self._owner = OwnerProcess("Server")
        check_type("folder", folder, (str, os.PathLike, type(None)), "a path or None")
        check_integer("port", port)
        if ack not in get_args(Ack):
            raise InvalidArgument(f"ack is {ack!r}, must be 'write' or 'fsync'")
        settings = ReplaySettings(
            server=replace(ReplaySettings().server, address=f"127.0.0.1:{port}", metrics_address="", grace_s=_GRACE_S),
            storage=StorageSettings(folder=str(Path(folder).absolute()) if folder is not None else "", ack=ack),
        )
        self._error: BaseException | None = None
        started: Future[str] = Future()
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        # a daemon, since the program may end without `close`: what is registered below then still saves the priorities
        self._thread = threading.Thread(target=self._run, args=(settings, started), name="replay-server", daemon=True)
        try:
            self._thread.start()
            self._address = started.result()  # without a bound: a large folder takes as long as its disk does
        except BaseException:
            self._end(_INTERRUPTED_S)
            raise
        # not atexit, which comes when threads can no longer be given work, such as writing a snapshot
        cast(Any, threading)._register_atexit(_end, weakref.ref(self))

    @property
    def address(self) -> str:
        """Where it listens, `127.0.0.1:PORT`: for `ReplayWriter`, `ReplayDataset` and `ReplayClient`."""
        return self._address

    def close(self) -> None:
        """End every call, write what the log still has to write, and end the thread. May be called twice.

        Raises:
            FatalError: The folder could not be written any more, since when nothing was served.
            Unavailable: The disk did not take the rest within a minute.
        """
        if not self._owner.is_here:
            return  # a forked child has neither the thread nor the log
        self._end()
        if self._thread.is_alive():
            raise Unavailable(f"the replay server at {self._address} did not end within {_CLOSE_S:g} s")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _end(self, timeout_s: float = _CLOSE_S) -> None:
        if self._owner.is_here and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout_s)

    def _run(self, settings: ReplaySettings, started: Future[str]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(settings, started))
        except BaseException as error:  # handed to the owner, who raises it
            if started.done():
                self._error = error
            else:
                started.set_exception(error)

    async def _serve(self, settings: ReplaySettings, started: Future[str]) -> None:
        server = ReplayServer(settings)
        with serving():
            try:
                address = await server.start()
                with plaintext(address):
                    started.set_result(address)
                    await server.serve_until(asyncio.create_task(self._stop.wait()))
            finally:
                await server.stop()


def _end(server: weakref.ref[Server]) -> None:
    """End a server that the program has left open."""
    if (left := server()) is not None:
        left._end()
