"""Structured logs; `/metrics` for Prometheus, `/healthz` for what keeps the process running, `/logs` for the page."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import platform
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import REGISTRY, Gauge, Metric, disable_created_metrics, make_wsgi_app
from prometheus_client.registry import Collector

from tidemill import kernel
from tidemill.errors import FatalError
from tidemill.rpc.addresses import host_and_port, joined, listening_at
from tidemill.rpc.certificate import watch_certificates
from tidemill.rpc.http_bounds import BoundedThreads, RequestReader
from tidemill.rpc.server import Health, why_not_bound
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.tls import check_exposure

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def configure_logging(service: str, *, level: str = "info", json: bool = False) -> None:
    """Log to standard error, one event per line, with the time and the service's name.

    Args:
        service: Name of the process, added to every event.
        level: `debug`, `info`, `warning` or `error`.
        json: One JSON object per line, for a log collector; plain text otherwise.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=_takes_colours(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _named(service),
            *([structlog.processors.dict_tracebacks] if json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _takes_colours() -> bool:
    """True if standard error is a terminal that shows colours, and its user has not turned them off (no-color.org)."""
    shows = os.environ.get("TERM", "").lower() not in ("dumb", "unknown") and not os.environ.get("NO_COLOR")
    return shows and sys.stderr.isatty()


_LAST_LINES = 12
_LINE_CHARACTERS = 400
_last_lines: deque[str] = deque(maxlen=_LAST_LINES)  # of the log; appended to as a whole, read as a copy


class _Forgiving(io.TextIOBase):
    """A stream that loses what its file does not take: a full disk costs lines of the log, not the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose the text; the last lines are kept for `/logs` in any case."""
        _last_lines.extend(line[:_LINE_CHARACTERS] for line in text.splitlines()[-_LAST_LINES:] if line)
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or leave it for later."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def _named(service: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("service", service)
        return event

    return add


_identity: dict[str, str] = {}


def identify(run: str, name: str) -> None:
    """Label every metric of this process with its run and its own name, `actor-3` for one; may be called again.

    Addresses change with every start, and two runs may share a Prometheus.
    """
    _identity.update(run=run, process=name)


class _Identified(Collector):
    """Metrics of the process, with its labels."""

    def collect(self) -> Iterator[Metric]:
        """Return every metric."""
        for metric in REGISTRY.collect():
            labelled = copy.copy(metric)
            labelled.samples = [sample._replace(labels={**sample.labels, **_identity}) for sample in metric.samples]
            yield labelled


def watch_disk(folder: Path) -> None:
    """Let Prometheus read how full the disk of a folder is; the folder may be made later."""
    free = _gauge("tidemill_disk_free_bytes", "Free bytes of the disk this process writes to.")
    size = _gauge("tidemill_disk_size_bytes", "Size of the disk this process writes to.")
    free.set_function(partial(_disk_bytes, folder.absolute(), "free"))
    size.set_function(partial(_disk_bytes, folder.absolute(), "total"))


def _disk_bytes(folder: Path, what: str) -> float:
    made = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return float(getattr(shutil.disk_usage(made), what))


def serve_metrics(settings: ServerSettings, health: Health | None = None, *, place: int = 0) -> str:
    """Serve /metrics, /healthz and /logs in daemon threads; return their `host:port`, or nothing if turned off.

    Args:
        settings: Where to serve them.
        health: What /healthz says; without it a process is well as long as it answers.
        place: Number of this process among those of the machine that share the settings, from 0; each has a port of
            its own, in order. Port 0 takes a free one for each.

    Raises:
        ConfigError: the address is beyond this machine and `metrics_insecure` is not set.
        FatalError: the address cannot be bound.
    """
    if not settings.metrics_address:
        return ""
    check_exposure(
        settings.metrics_address,
        insecure=settings.insecure or settings.metrics_insecure,
        remedy="set server.metrics_insecure if the network is trusted",
    )
    host, first_port = host_and_port(settings.metrics_address)
    port = first_port and first_port + place
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nothing reads
    build = _gauge("tidemill_build_info", "1 for the running build, named by its labels.", "version", "python")
    build.labels(version("tidemill"), platform.python_version()).set(1)
    in_use = "1 if this process uses the compiled kernel, 0 if Python code instead."
    _gauge("tidemill_kernel_in_use", in_use).set(kernel.available)
    watch_certificates(settings)
    start = _gauge(
        "tidemill_start_time_seconds",
        "When this process started, in Unix time. A container that is started again may get another address: it keeps "
        "the name of its host.",
        "host",
    )
    start.labels(socket.gethostname()).set(time.time())
    try:
        taken = start_http_endpoint(host, port, health)
    except OSError as error:
        address = joined(host, port)
        why = why_not_bound(address, "server.metrics_address")
        raise FatalError(f"cannot serve metrics on {address}: {why}, or an empty address for no metrics") from error
    return joined(host, taken)


@cache
def _gauge(name: str, about: str, *labels: str) -> Gauge:
    """Return the gauge of a name, made at its first use: a process without a value does not show it."""
    return Gauge(name, about, labels)


_MAX_CONNECTIONS = 32
_REQUEST_S = 5.0


class _Server(BoundedThreads, WSGIServer):
    max_connections = _MAX_CONNECTIONS


class _ServerV6(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take IPv4 as well where every address is meant, whatever the system's default is."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _SilentHandler(WSGIRequestHandler):
    def setup(self) -> None:
        """Read through the bounds."""
        super().setup()
        self.rfile = io.BufferedReader(RequestReader(self.connection, _REQUEST_S))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a request comes every few seconds."""


def start_http_endpoint(host: str, port: int, health: Health | None) -> int:
    """Serve in daemon threads; return the port that was taken.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        health: What `/healthz` says; None for a process that has no service to be asked about.

    Raises:
        OSError: The address cannot be bound.
    """
    family, address = listening_at(host, port)
    kind = _ServerV6 if family == socket.AF_INET6 else _Server
    server = make_server(address, port, _application(health), kind, _SilentHandler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server.server_port


def _application(health: Health | None) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(_Identified())

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/logs":
            start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
            return ["".join(f"{line}\n" for line in list(_last_lines)).encode()]
        if environ["PATH_INFO"] != "/healthz":
            return metrics(environ, start_response)
        complaint = health.complaint() if health is not None else ""
        status = "503 Service Unavailable" if complaint else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{complaint or 'SERVING'}\n".encode()]

    return answer
