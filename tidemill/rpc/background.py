"""A gRPC server in a separate thread, for processes whose main thread acts or trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tidemill.rpc.server import Health, RpcServer
from tidemill.rpc.settings import ServerSettings

_T = TypeVar("_T")
_STARTUP_S = 30.0


class BackgroundServer:
    """Runs one `RpcServer` on an event loop in a daemon thread.

    Servicers run in that thread; what they share with the main thread must be safe for both.
    """

    def __init__(self, service: str, settings: ServerSettings) -> None:
        """Start the thread and create the server in it, unbound.

        Raises:
            ConfigError: the address is refused, see `RpcServer`.
        """
        self._settings = settings
        self.loop = asyncio.new_event_loop()
        """The loop of that thread, in which servicers run."""
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"{service}-rpc", daemon=True)
        self._thread.start()
        try:
            self.server = self._call(_create(service, settings))
        except BaseException:
            self._end_loop()
            raise

    @property
    def health(self) -> Health:
        """Whether the process is well, for its `/healthz`."""
        return self.server.health

    def start(self) -> str:
        """Bind and start; return the bound address."""
        return self._call(self.server.start())

    def set_serving(self, serving: bool) -> None:
        """Set the health of the process."""
        self._call(self.server.set_serving(serving))

    def stop(self) -> None:
        """Stop the server gracefully and end the thread. May be called twice."""
        if self.loop.is_closed():
            return
        try:
            self._call(self.server.stop(), timeout_s=self._settings.grace_s + _STARTUP_S)
        finally:
            self._end_loop()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop."""
        self.stop()

    def _call(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float = _STARTUP_S) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STARTUP_S)
        self.loop.close()


async def _create(service: str, settings: ServerSettings) -> RpcServer:
    return RpcServer(service, settings)  # grpc.aio binds the server to the loop that is running here
