"""A stand-in for an OpenTelemetry collector: takes OTLP by HTTP, appends one JSON line per message to a file.

    python -m tests.support.otlp_collector FILE

It prints its port.
"""

from __future__ import annotations

import gzip
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Take a message."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        if is_known:
            message = ExportTraceServiceRequest.FromString(body)
            with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
                file.write(f"{json_format.MessageToJson(message, indent=None)}\n")
        self.send_response(200 if is_known else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing but messages."""


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
