"""Credentials of a client, from the environment: the CA it trusts, its token, and its own certificate.

Variables and not settings: they differ by process and machine, and a run's config is copied and published.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import grpc

from tidemill.errors import ConfigError
from tidemill.logger import LateLogger
from tidemill.rpc.access import METADATA_KEY, SCHEME, read_secret
from tidemill.rpc.options import Options
from tidemill.rpc.reloaded import Reloaded
from tidemill.rpc.tls import check_pair, is_local, read_pem

CA, TOKEN_FILE, CERT, KEY, NAME, EXCEPT = (
    "TIDEMILL_TLS_CA",
    "TIDEMILL_TOKEN_FILE",
    "TIDEMILL_TLS_CERT",
    "TIDEMILL_TLS_KEY",
    "TIDEMILL_TLS_NAME",
    "TIDEMILL_TLS_EXCEPT",
)
"""The variables: paths of PEM files and of a token, the name that is looked for in every server's certificate, and the
addresses of servers that are called in plaintext, without a token, in spite of the others."""

_NOT_CONNECTED = "failed to connect to all addresses"
_TLS_FAILURES = {
    "certificate has expired": "the server's certificate has expired; `tidemill certs` renews it",
    "certificate is not yet valid": "the server's certificate is not yet valid: compare the clocks of the two machines",
    "Hostname Verification Check failed": (
        f"the server's certificate does not hold its name; `tidemill certs --host NAME` adds one, {NAME} sets another"
    ),
    "CERTIFICATE_VERIFY_FAILED": f"the server's certificate is not of the CA that {CA} names",
    "WRONG_VERSION_NUMBER": f"the server speaks plaintext; unset {CA}, or give the server a certificate",
}
"""What gRPC says of a connection that failed in TLS, and what that means."""

_log = LateLogger()
_excepting = threading.Lock()  # guards changes of the variable


def never_connected(details: str) -> bool:
    """True if a call failed because no connection was made, by the details of its status."""
    return _NOT_CONNECTED in details


def tls_failure(details: str) -> str:
    """Return why TLS prevented a connection; empty if it did not.

    Args:
        details: Of a call's status.
    """
    if not never_connected(details):
        return ""
    if "Socket closed" in details:  # all that a client is told of a handshake that the server has ended
        if os.environ.get(CA):
            certificate = os.environ.get(CERT) or "none"
            return (
                f"TLS failed: the server refused this client's certificate ({CERT} is {certificate}); has it expired?"
            )
        return f"the server closed the connection: if it speaks TLS, set {CA} to the CA of its certificate"
    return next((f"TLS failed: {why}" for sign, why in _TLS_FAILURES.items() if sign in details), "")


def channel_credentials(address: str) -> grpc.ChannelCredentials | None:
    """Return the credentials of a channel; None for plaintext: to a Unix socket or an exception, or if no CA is named.

    Raises:
        ConfigError: A file cannot be read or used, and never could be in this process, or a certificate has no key.
    """
    ca = os.environ.get(CA, "")
    if not ca or address.startswith("unix:") or _is_excepted(address):
        return None
    cert, key = os.environ.get(CERT, ""), os.environ.get(KEY, "")
    if bool(cert) != bool(key):
        raise ConfigError(f"{CERT} and {KEY} belong together: set both, or neither")
    files = _tls_files(_absolute(ca), *map(_absolute, filter(None, (cert, key))))
    files.refresh(anyway=True)
    return grpc.ssl_channel_credentials(*files.value)


def name_options() -> Options:
    """Return the channel argument that replaces the name looked for in certificates; nothing if none is set.

    Shards behind one DNS name are reached by their addresses, which no certificate holds.
    """
    name = os.environ.get(NAME, "")
    return [("grpc.ssl_target_name_override", name)] if name else []


def token_interceptors(address: str) -> list[TokenInterceptor]:
    """The interceptor that adds the token to a channel's calls. Empty without a token and for exempt addresses.

    Raises:
        ConfigError: The token would travel in plaintext beyond this machine, or its file cannot be read.
    """
    path = os.environ.get(TOKEN_FILE, "")
    if not path or _is_excepted(address):
        return []
    if not (os.environ.get(CA) or is_local(address)):
        raise ConfigError(
            f"{TOKEN_FILE} is set and {CA} is not: a token is never sent to {address} in plaintext; "
            f"set {CA} to the CA of its certificate, or unset {TOKEN_FILE} if that server takes calls without one"
        )
    return [TokenInterceptor(_absolute(path))]


@contextlib.contextmanager
def plaintext(address: str) -> Iterator[None]:
    """Have this process and those that it starts call an address in plaintext and without a token."""
    with _excepting:
        os.environ[EXCEPT] = " ".join([*os.environ.get(EXCEPT, "").split(), address])
    try:
        yield
    finally:
        with _excepting:
            left = [each for each in os.environ.get(EXCEPT, "").split() if each != address]
            if left:
                os.environ[EXCEPT] = " ".join(left)
            else:
                os.environ.pop(EXCEPT, None)


@cache
def _absolute(path: str) -> str:
    """Return a path from the root, as it was at the first call: an environment may change the working directory."""
    return os.path.abspath(path)


@cache
def _tls_files(ca: str, cert: str = "", key: str = "") -> Reloaded[tuple[bytes, bytes | None, bytes | None]]:
    """The CA, the client's own key and its certificate, for all channels: a bad file ends no client that reconnects."""

    def read() -> tuple[bytes, bytes | None, bytes | None]:
        root = read_pem(ca, CA)
        if not cert:
            return root, None, None
        own_key, chain = read_secret(key, KEY).encode(), read_pem(cert, CERT)
        check_pair(cert, key, KEY)
        return root, own_key, chain

    paths = [path for path in (ca, cert, key) if path]
    return Reloaded(paths, read, _log.warning, "cannot reload the CA or the certificate, keeping the old ones")


@cache
def _token(path: str) -> Reloaded[str]:
    """The token of a file, for all channels: see `_tls_files`."""

    def read() -> str:
        words = read_secret(path, TOKEN_FILE).split()
        if len(words) != 1:
            raise ConfigError(f"{TOKEN_FILE}: {path} must hold one token alone, it has {len(words)} words")
        return SCHEME + words[0]

    return Reloaded([path], read, _log.warning, "cannot reload the token, keeping the old one")


def _is_excepted(address: str) -> bool:
    return address in os.environ.get(EXCEPT, "").split()


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _CallDetails(_Details, grpc.ClientCallDetails):  # type: ignore[misc]  # a list is as good as a tuple
    """Details of a call for gRPC, with metadata added."""


class TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token of a file to each call; the file is read again when it changes."""

    def __init__(self, path: str) -> None:
        """Read the token; a file that was good before in this process and is bad now is logged.

        Raises:
            ConfigError: The file cannot be read, others may read it, or it holds no single word.
        """
        self._token = _token(path)
        self._token.refresh(anyway=True)

    def _continued(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:  # noqa: ANN401
        self._token.refresh()
        metadata = [*(details.metadata or ()), (METADATA_KEY, self._token.value)]
        with_token = _CallDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(with_token, request)

    # gRPC passes the arguments by position, under whichever names
    intercept_unary_unary = intercept_unary_stream = _continued  # type: ignore[assignment]
    intercept_stream_unary = intercept_stream_stream = _continued  # type: ignore[assignment]
