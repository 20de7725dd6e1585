"""The HTTP server of the status page: this machine only, a few short requests at a time, four buttons with a token.

What a page of another site could try is refused: a foreign Host (a name that was bound to 127.0.0.1 later), a foreign
Origin, a POST without the token or of another content type. Nothing in a URL ever becomes a path.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from pathlib import Path
from socketserver import TCPServer
from typing import Any, BinaryIO

from tidemill.errors import ConfigError, InvalidArgument, TidemillError
from tidemill.rpc.addresses import listening_at
from tidemill.rpc.http_bounds import BoundedThreads, RequestReader

READ_S = 5.0
"""Time a client has for its whole request, in seconds."""
SEND_S = 20.0
"""Time it has to take the answer, in seconds."""
MAX_CONNECTIONS = 16
"""Requests at the same time; further ones are closed at once."""

_MAX_BODY_BYTES = 256
_BLOCK_BYTES = 2**20
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?")
_TOKEN_HEADER = "X-Tidemill-Token"


class StatusPage:
    """Serves one run's page in daemon threads until `close`."""

    def __init__(
        self,
        document: Callable[[], Mapping[str, Any]],
        files: Mapping[str, tuple[Path, str]],
        control: Callable[[str], str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        read_s: float = READ_S,
    ) -> None:
        """Listen, for browsers that open the page as 127.0.0.1 or localhost.

        Args:
            document: What `/status.json` holds, read by several threads.
            files: For each further path of a URL the one file it shows, and its content type.
            control: Carries out a button's verb and returns what it did; raises `InvalidArgument` for an unknown one.
            host: Address to listen at; another one is for where 127.0.0.1 leads to it, as to a container's port.
            port: Port to listen on; 0 takes a free one.
            read_s: Time a client has for its whole request, in seconds.

        Raises:
            ConfigError: the port is not free.
        """
        self.token = secrets.token_urlsafe(16)
        try:
            self._server = _Server((host, port), document, files, control, self.token, read_s)
        except OSError as error:
            raise ConfigError(
                f"launcher.status_page_port is {port}, which cannot be served: {error.strerror}; 0 takes a free port, "
                "--launcher.no-status-page serves none"
            ) from error
        serve = partial(self._server.serve_forever, poll_interval=0.1)  # how long `close` may wait
        threading.Thread(target=serve, name="status-page", daemon=True).start()

    @property
    def port(self) -> int:
        """Port that was taken."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Address of the page; the fragment, which a browser keeps to itself, allows the buttons."""
        return f"http://127.0.0.1:{self.port}/#{self.token}"

    def close(self) -> None:
        """Stop listening; requests under way end by themselves."""
        self._server.shutdown()
        self._server.server_close()


class _Server(BoundedThreads, HTTPServer):
    max_connections = request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        address: tuple[str, int],
        document: Callable[[], Mapping[str, Any]],
        files: Mapping[str, tuple[Path, str]],
        control: Callable[[str], str],
        token: str,
        read_s: float,
    ) -> None:
        self.page = resources.files(__package__).joinpath("page.html").read_bytes()
        self.policy = content_security_policy(self.page.decode())
        self.document, self.files, self.control, self.token = document, files, control, token
        self.read_s = read_s
        self.control_lock = threading.Lock()
        self.address_family, host = listening_at(*address)
        super().__init__((host, address[1]), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of this machine's name that HTTPServer makes."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    server: _Server
    server_version, sys_version = "tidemill", ""
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(code)d %(message)s\n"

    def setup(self) -> None:
        """Read through the bounds."""
        super().setup()
        self.rfile = io.BufferedReader(RequestReader(self.connection, self.server.read_s))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as http.server has it
        """Log nothing: the page asks every two seconds."""

    def end_headers(self) -> None:
        """Add to every answer what keeps other sites out."""
        self.connection.settimeout(SEND_S)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", self.server.policy)
        super().end_headers()

    def do_GET(self) -> None:
        """Answer with the page, its data, or one of the files that the page shows."""
        with self._refusals():
            self._check_sender()
            if self.path == "/":
                self._answer(200, "text/html; charset=utf-8", self.server.page)
            elif self.path == "/status.json":
                self._answer_json(200, self.server.document())
            elif self.path in self.server.files:
                self._answer_file(*self.server.files[self.path])
            else:
                raise _Refused(404, "there is no such page")

    def do_HEAD(self) -> None:
        """Answer as a GET request, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Carry out the verb of a button."""
        with self._refusals():
            self._check_sender(is_page=True)
            verb = self._verb()
            if not self.server.control_lock.acquire(blocking=False):
                raise _Refused(409, "another button's request is in progress; try again when it has finished")
            try:
                self._answer_json(200, {"message": self.server.control(verb)})
            except InvalidArgument as error:
                raise _Refused(400, str(error)) from error
            except TidemillError as error:
                raise _Refused(502, str(error)) from error
            finally:
                self.server.control_lock.release()

    def _check_sender(self, *, is_page: bool = False) -> None:
        """Refuse what another site sends, or, with `is_page`, whatever is not the page itself."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            raise _Refused(403, "this page is served to 127.0.0.1 and localhost only")
        own = f"http://{hosts[0]}"
        if is_page and not origins:
            raise _Refused(403, f"the request has no Origin header; a button's request must have `Origin: {own}`")
        if origins not in ([], [own]):
            raise _Refused(403, "requests of this origin are refused")
        if self.path != "/" and self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise _Refused(403, "requests of other sites are refused")

    def _verb(self) -> str:
        if self.path != "/ctl":
            raise _Refused(404, "there is no such button")
        if self.headers.get("Content-Type") != "application/json":
            raise _Refused(415, "the content type must be application/json")
        token = self.headers.get(_TOKEN_HEADER, "")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(403, "the token is not that of this run; open the page by the address that the run printed")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,4}", length) or int(length) > _MAX_BODY_BYTES:
            raise _Refused(413, f"the body must have at most {_MAX_BODY_BYTES} bytes")
        try:
            verb = json.loads(self.rfile.read(int(length)))["verb"]
        except (ValueError, TypeError, KeyError) as error:
            raise _Refused(400, 'the body must be {"verb": NAME}') from error
        return str(verb)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except _Refused as refused:
            self._answer_json(refused.status, {"error": refused.reason})

    def _answer_json(self, status: int, document: Mapping[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(document).encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._send(io.BytesIO(body), len(body))

    def _answer_file(self, file: Path, content_type: str) -> None:
        """Answer with a file, or with the range of it that a video player asks for."""
        try:
            content = file.open("rb")
        except OSError as error:
            raise _Refused(404, "not there yet") from error
        with content:
            size = content.seek(0, io.SEEK_END)
            first, last = self._range(size)
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Type", content_type)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last + 1 - first))
            if "Range" in self.headers:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            content.seek(first)
            self._send(content, last + 1 - first)

    def _range(self, size: int) -> tuple[int, int]:
        """Return the first and last byte that are asked for."""
        if "Range" not in self.headers:
            return 0, size - 1
        found = _RANGE.fullmatch(self.headers["Range"])
        if found:
            first, last = int(found[1]), min(int(found[2] or size), size - 1)
            if first <= last:
                return first, min(last, first + 8 * _BLOCK_BYTES)
        raise _Refused(416, "there is no such range")

    def _send(self, content: BinaryIO, count: int) -> None:
        """Send the body of an answer, which a HEAD request does not get."""
        if self.command == "HEAD":
            return
        end_s = time.monotonic() + SEND_S
        while count > 0 and (block := content.read(min(count, _BLOCK_BYTES))):
            self.connection.settimeout(max(end_s - time.monotonic(), 1e-3))
            self.wfile.write(block)
            count -= len(block)


_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def content_security_policy(page: str) -> str:
    """Return a policy that allows the page's own script and style by their hashes, its own data, and nothing else."""

    def sources(tag: str) -> str:
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{each}'" for each in hashes)

    return (
        f"default-src 'none'; script-src {sources('script')}; style-src {sources('style')}; connect-src 'self'; "
        "media-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
