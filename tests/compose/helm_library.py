"""`python -m tests.compose.helm_library CHART`: print what a Helm chart renders, by Helm as a library.

For each path of a VALUES.json on standard input there is a line of JSON: the manifests, and Helm's words if it refuses.

The library installs charts and has no dry run. It is given a server that answers as an empty cluster would, and refuses
the first object: the record of the release, which holds everything that was rendered.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_sdkpy

_WARNING = 2
_KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("Job",),
    "cert-manager.io/v1": ("Certificate", "Issuer"),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}
_RELEASE = re.compile(rb"H4sI[A-Za-z0-9+/=]+")  # gzip, in base64


class _Cluster(BaseHTTPRequestHandler):
    """Knows kinds and holds no object."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Answer what Helm asks about versions and kinds; nothing else is there."""
        path = urlsplit(self.path).path
        if path == "/version":
            self._answer(200, {"major": "1", "minor": "31", "gitVersion": "v1.31.0"})
        elif path == "/api":
            self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            self._answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(_groups())})
        elif (version := re.sub("^/apis?/", "", path)) in _KINDS:
            self._answer(200, {"kind": "APIResourceList", "groupVersion": version, "resources": _resources(version)})
        elif path.endswith("/secrets"):
            self._answer(200, {"kind": "SecretList", "apiVersion": "v1", "items": []})
        else:
            self._refuse(404, "NotFound")

    def do_POST(self) -> None:
        """Keep the release, and let the installation end."""
        self.server.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._refuse(403, "Forbidden")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _refuse(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
        self._answer(code, status)

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Cluster)
        self.posted: list[bytes] = []


def _groups() -> Iterator[dict[str, Any]]:
    for version in _KINDS:
        group, _, number = version.rpartition("/")
        if group:
            named = {"groupVersion": version, "version": number}
            yield {"name": group, "versions": [named], "preferredVersion": named}


def _resources(version: str) -> list[dict[str, Any]]:
    verbs = ["create", "get", "list"]
    return [
        {"name": f"{re.sub('y$', 'ie', kind.lower())}s", "kind": kind, "namespaced": True, "verbs": verbs}
        for kind in _KINDS[version]
    ]


class _Refused(Exception):
    """Helm's words."""


def main() -> None:
    """Render the chart with each of the values."""
    for file in sys.stdin:
        values = json.loads(Path(file.rstrip("\n")).read_text(encoding="utf-8"))
        try:
            answer = (_render(sys.argv[1], values), "")
        except _Refused as refused:
            answer = ("", str(refused))
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _render(chart: str, values: dict[str, Any]) -> str:
    """Lint the chart and return what it renders."""
    server = _Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        access = Path(folder) / "config"
        address = {"server": f"http://127.0.0.1:{server.server_port}"}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        access.write_text(
            json.dumps(
                {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": address}]}
                | {"contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
            )
        )
        with helm_sdkpy.Configuration(namespace="mine", kubeconfig=str(access)) as configuration:
            linted = asyncio.run(helm_sdkpy.Lint(configuration).run(chart))
            complaints = [said for said in linted["Messages"] or [] if said["Severity"] >= _WARNING]
            if complaints or linted["Errors"]:
                raise _Refused(f"helm lint: {complaints} {linted['Errors']}")
            try:
                asyncio.run(helm_sdkpy.Install(configuration).run("run", chart, values=values, wait=False))
            except helm_sdkpy.InstallError as refused:
                if not server.posted:
                    raise _Refused(str(refused)) from refused
    server.shutdown()
    server.server_close()
    (release,) = _RELEASE.findall(server.posted[0])
    manifest: str = json.loads(gzip.decompress(base64.b64decode(release)))["manifest"]
    return manifest


if __name__ == "__main__":
    main()
