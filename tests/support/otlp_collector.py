"""A stand-in for an OpenTelemetry collector: takes OTLP by HTTP, writes one JSON line per message to standard output.

    python -m tests.support.otlp_collector

The first line is the port.
"""

from __future__ import annotations

import gzip
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Take a message."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        if is_known:
            message = ExportTraceServiceRequest.FromString(body)
            _say(json_format.MessageToJson(message, indent=None))
        self.send_response(200 if is_known else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing but messages."""


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        _say(str(server.server_port))
        server.serve_forever()
