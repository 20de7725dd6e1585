"""TLS of servers, and the rule that an address which others reach needs TLS and tokens."""

from __future__ import annotations

import ipaddress
import ssl
from functools import partial
from pathlib import Path

import grpc

from tidemill.errors import ConfigError
from tidemill.logger import LateLogger
from tidemill.rpc.access import read_secret
from tidemill.rpc.addresses import SERVER, is_server_address
from tidemill.rpc.reloaded import Reloaded
from tidemill.rpc.settings import ServerSettings

_log = LateLogger()


def is_local(address: str) -> bool:
    """True if an address is on this machine only: a Unix socket or loopback.

    Args:
        address: `host:port`, `dns:///name:port`, `ipv4:...`, `ipv6:...` or `unix:///path`.
    """
    if address.startswith("unix:"):
        return True
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        address = address.removeprefix(scheme)
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(address: str, *, insecure: bool, remedy: str = "") -> None:
    """Refuse an address other machines can reach, unless `insecure` is set.

    Args:
        address: `host:port` or `unix:///path`.
        insecure: Whether it may be reached by others, because they are told apart or the network is trusted.
        remedy: What the message says to do besides listening on loopback.

    Raises:
        ConfigError: `address` is not loopback or a Unix socket and `insecure` is false, or it is malformed.
    """
    if address.startswith("unix:"):
        return
    if not is_server_address(address):
        raise ConfigError(f"address is {address!r}, allowed: {SERVER}")
    if not (insecure or is_local(address)):
        remedy = remedy or "set server.insecure if the network is trusted"
        raise ConfigError(
            f"address {address!r} can be reached from other machines without authentication; use 127.0.0.1, or {remedy}"
        )


def check_server(settings: ServerSettings) -> None:
    """Refuse a server that others reach without TLS and tokens, or one with half of them.

    Raises:
        ConfigError: It is; the message says which settings are missing.
    """
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("server.tls_cert and server.tls_key belong together: set both, or neither")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ConfigError("server.tls_client_ca needs server.tls_cert and server.tls_key")
    is_guarded = bool(settings.tls_cert and settings.tokens)
    check_exposure(
        settings.address,
        insecure=settings.insecure or is_guarded,
        remedy="set server.tls_cert, server.tls_key and server.tokens (`tidemill certs` makes the files), "
        "or set server.insecure if the network is trusted",
    )


def server_credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """Return the credentials of a server; None where it listens in plaintext: on a Unix socket, or without TLS files.

    The files are looked at again at each handshake, so that a certificate is renewed without a restart.

    Raises:
        ConfigError: A file cannot be read or used, or other users may read the key.
    """
    if not settings.tls_cert or settings.address.startswith("unix:"):
        return None
    certificate = Reloaded(
        [path for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if path],
        partial(_read_certificate, settings),
        _log.error,
        "cannot reload the certificate, keeping the old one",
    )

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Return the newest certificate if it is another than before. Called by gRPC for each handshake."""
        if not certificate.refresh():
            return None
        _log.info("certificate reloaded", file=settings.tls_cert)
        return certificate.value

    return grpc.dynamic_ssl_server_credentials(
        certificate.value,
        changed,  # type: ignore[arg-type]  # gRPC takes None for "as before"
        require_client_authentication=bool(settings.tls_client_ca),
    )


def _read_certificate(settings: ServerSettings) -> grpc.ServerCertificateConfiguration:
    key = read_secret(settings.tls_key, "server.tls_key").encode()
    chain = read_pem(settings.tls_cert, "server.tls_cert")
    check_pair(settings.tls_cert, settings.tls_key, "server.tls_key")
    client_ca = read_pem(settings.tls_client_ca, "server.tls_client_ca") if settings.tls_client_ca else None
    return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)


def read_pem(path: str, setting: str) -> bytes:
    """Return the bytes of a file of certificates. ConfigError: it cannot be read, or has none, or a broken one."""
    try:
        data = Path(path).read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        data = b""
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise ConfigError(f"{setting}: {path} is not a certificate in PEM format")
    return data


def check_pair(cert: str, key: str, setting: str) -> None:
    """Raise ConfigError unless a key is that of a certificate: gRPC keeps such a failure to its own log.

    Args:
        cert: File of the certificate.
        key: File of the key.
        setting: The setting that names the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # whether they are strong enough is not the question here
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # or it would ask at the terminal
    except ssl.SSLError as error:
        why = error.reason or "not a key in PEM format, or one with a passphrase"
        # no cause: an OSError, which SSLError is, says that the same files may be readable later
        raise ConfigError(f"{setting}: {key} is not the key of {cert} ({why})") from None
