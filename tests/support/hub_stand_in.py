"""A stand-in for the API of the Hugging Face Hub: one process, repositories in memory, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_onlyfortests"


@dataclass
class Hub:
    """What the Hub has, and what it was asked.

    Attributes:
        address: For `HF_ENDPOINT`.
        files: Files of each repository.
        private: Names of the private ones.
        calls: Method and path of each request.
    """

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def commit_of(self, name: str) -> str:
        """Return the id of a repository's newest commit."""
        content = repr(sorted(self.files[name].items())).encode()
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def hub_stand_in() -> Iterator[Hub]:
    """Serve an empty Hub on a free port."""
    hub = Hub()

    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self._path()
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid credentials"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in self.of.files:
                return self._json({"error": "exists", "url": f"{self.of.address}/{name}"}, 409)
            self.of.files[name] = {}
            if asked.get("private") or asked.get("visibility") == "private":
                self.of.private.add(name)
            return self._json({"url": f"{self.of.address}/{name}"})
        owner, repository, what = path.removeprefix("/api/models/").split("/")[:3]
        name = f"{owner}/{repository}"
        if what == "preupload":
            asked = json.loads(body)["files"]
            return self._json(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
            )
        for line in body.splitlines():  # a commit
            operation = json.loads(line)
            if operation["key"] == "file":
                value = operation["value"]
                self.of.files[name][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del self.of.files[name][operation["value"]["path"]]
        oid = self.of.commit_of(name)
        return self._json({"success": True, "commitOid": oid, "commitUrl": f"{self.of.address}/{name}/commit/{oid}"})

    def do_GET(self) -> None:
        self._get(with_body=True)

    def do_HEAD(self) -> None:
        self._get(with_body=False)

    def _get(self, *, with_body: bool) -> None:
        path = self._path()
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        name = "/".join(parts[:2])
        may_read = name not in self.of.private or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if name not in self.of.files or not may_read:
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        files, commit = self.of.files[name], self.of.commit_of(name)
        if path.startswith("/api/models/"):
            if len(parts) > 3 and parts[2] == "revision" and parts[3] not in ("main", commit):
                return self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            if len(parts) > 2 and parts[2] == "tree":
                return self._json(
                    [{"type": "file", "path": p, "size": len(d), "oid": _oid(d)} for p, d in files.items()]
                )
            return self._json(
                {"id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": p} for p in files]}
            )
        data = files.get("/".join(parts[4:]))  # OWNER/NAME/resolve/REVISION/FILE
        if data is None:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        return self._answer(data, 200, {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"'}, with_body=with_body)

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.of.calls.append(f"{self.command} {path}")
        return path

    def _json(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(json.dumps(content).encode(), status, headers or {}, kind="application/json")

    def _answer(
        self,
        data: bytes,
        status: int,
        headers: dict[str, str],
        *,
        kind: str = "application/octet-stream",
        with_body: bool = True,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: `calls` has it."""


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
