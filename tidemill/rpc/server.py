"""A gRPC server with health, reflection, metrics and error mapping, as every service has it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Callable

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tidemill.errors import FatalError
from tidemill.rpc.access import AccessInterceptor, Tokens
from tidemill.rpc.addresses import host_and_port, why_not_free
from tidemill.rpc.interceptors import CallInterceptor
from tidemill.rpc.options import server_options
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.tls import check_server, server_credentials

BEAT_S = 1.0
"""Seconds between two heartbeats of a running event loop."""

_SILENCE_S = 5.0
_LAST_TURNS_S = 1.0
_CALL = "rpc_task"  # as gRPC names the task of a call
_OPEN_FILES = (65_536, 10_240, 4_096)
"""Limits to try: macOS may refuse those above its `kern.maxfilesperproc`, whatever the hard limit says."""
_HEALTH = "grpc.health.v1.Health"


class Health:
    """Health of a process, as its gRPC health service and its `/healthz` both report it.

    Read by the thread that serves `/healthz`, written by the event loop of the server.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin as not serving.

        Args:
            clock: Monotonic time in seconds.
        """
        self.serving = False
        """Whether the process is serving."""
        self._clock = clock
        self._beaten_s: float | None = None
        self._complaint = ""

    def beat(self) -> None:
        """Report that the event loop is running. After the first call it must be called every few seconds."""
        self._beaten_s = self._clock()

    def complain(self, complaint: str) -> None:
        """Report what is wrong beside that; empty if it is well again."""
        self._complaint = complaint

    def complaint(self) -> str:
        """Return a description of what is wrong; empty if the process is healthy."""
        if not self.serving:
            return "NOT_SERVING"
        if self._complaint:
            return self._complaint
        silent_s = 0.0 if self._beaten_s is None else self._clock() - self._beaten_s
        return f"the event loop has not turned for {silent_s:.0f} s" if silent_s > _SILENCE_S else ""


class RpcServer:
    """One gRPC server. Add servicers to `grpc`, `announce` them, `start`, and `set_serving` when ready."""

    def __init__(self, service: str, settings: ServerSettings) -> None:
        """Create the server without binding it.

        Args:
            service: Name of the process for messages, e.g. `replay`.
            settings: Where to listen.

        Raises:
            ConfigError: the address is beyond this machine, without TLS and tokens and with `insecure` not set; or a
                file of these is missing or wrong.
        """
        check_server(settings)
        self._credentials = server_credentials(settings)
        guards = [AccessInterceptor(Tokens(settings.tokens))] if settings.tokens else []
        self._service, self._settings = service, settings
        self._names = [_HEALTH]
        self._health = HealthServicer()
        self.health = Health()
        """Health for callers without gRPC."""
        self._heart: asyncio.Task[None] | None = None
        self.grpc = grpc.aio.server(
            interceptors=[CallInterceptor(), *guards],
            options=server_options(settings),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    def announce(self, full_service_name: str) -> None:
        """Make a service known to reflection and health, e.g. `tidemill.replay.v1.ReplayService`."""
        self._names.append(full_service_name)

    def check_free(self) -> None:
        """Raise FatalError if another process listens at the address: for what is to be known before files change."""
        error = why_not_free(self._settings.address)
        if error is not None and error.errno == errno.EADDRINUSE:
            raise self._unbound() from error

    async def start(self) -> str:
        """Bind and start; return the bound address, with the port that was taken.

        Raises:
            FatalError: the address cannot be bound.
        """
        self.check_free()  # before gRPC takes the place of another server's Unix socket
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME], self.grpc)
        await self.set_serving(False)
        raise_open_files()
        address = self._settings.address
        try:
            port = self._bind(address)
        except RuntimeError as error:
            raise self._unbound() from error
        await self.grpc.start()
        self._heart = asyncio.create_task(self._beat())
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the process and of every announced service."""
        states = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)
        self.health.serving = serving

    async def stop(self) -> None:
        """Report NOT_SERVING, let calls in progress end within the grace period, then stop."""
        self.health.serving = False
        if self._heart is not None:
            self._heart.cancel()
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(self._settings.grace_s)
        calls = [task for task in asyncio.all_tasks() if task.get_name() == _CALL]
        if calls:  # some turns behind their ends; gRPC prints a traceback of one that the end of the loop cancels
            await asyncio.wait(calls, timeout=_LAST_TURNS_S)

    def _unbound(self) -> FatalError:
        address = self._settings.address
        why = why_not_bound(address, f"{self._service}.server.address")
        return FatalError(f"cannot listen on {address}: {why}")

    def _bind(self, address: str) -> int:
        if self._credentials is None:
            return self.grpc.add_insecure_port(address)
        return self.grpc.add_secure_port(address, self._credentials)

    async def _beat(self) -> None:
        while True:
            self.health.beat()
            await asyncio.sleep(BEAT_S)


def raise_open_files() -> None:
    """Let this process open as many files as the system allows it, up to a bound: each connection is one.

    The usual soft limit of 1,024 is for programs that call `select`, which neither a server nor the launcher does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in _OPEN_FILES:
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def why_not_bound(address: str, setting: str = "server.address", *, takes_any_port: bool = True) -> str:
    """Return why a server could not listen on an address, and what to do.

    Args:
        address: `host:port` or `unix:///path`.
        setting: Where it is set.
        takes_any_port: Whether the setting may have port 0, for a free one.
    """
    another = f"choose another {setting}"
    if address.startswith("unix:"):
        if why_not_free(address):
            return f"another process listens there; {another}, or end that process"
        return f"is its folder there and writable, and no file of another kind at its place? If not, {another}"
    host, port = host_and_port(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"the host {host!r} is not known ({error.strerror}); use 127.0.0.1 or an address of this machine"
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; use 127.0.0.1 or one that is"
        if error.errno == errno.EACCES:
            return f"port {port} needs privileges; {another}, with a port from 1024 up"
    free = ", or port 0 for a free one" if takes_any_port else ", or end that process"
    return f"another process listens there; {another}{free}"
