"""The HTTP server of every process: `/metrics` for Prometheus, `/healthz` for whoever keeps the process running."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from tidemill.rpc.health import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
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
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = _ServerV6 if family == socket.AF_INET6 else _Server
    server = make_server(str(address[0]), port, _application(health), kind, _SilentHandler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server.server_port


def _application(health: Health | None) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            return metrics(environ, start_response)
        complaint = health.complaint() if health is not None else ""
        status = "503 Service Unavailable" if complaint else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{complaint or 'SERVING'}\n".encode()]

    return answer
