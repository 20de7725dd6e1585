"""Expiry of certificates, read from their files without a package for cryptography, which services do not have."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import math
import os
import re
from functools import cache, partial
from pathlib import Path

from prometheus_client import Gauge

from tidemill.rpc import client_security
from tidemill.rpc.settings import ServerSettings

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)

_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0
"""Tags of DER (X.690, section 8) that stand before the end of validity."""

_PIVOT_YEAR = 50
"""Two digits from this one on are a year of the last century (RFC 5280, section 4.1.2.5.1)."""

_TIME_DIGITS = re.compile(rb"\d{14}Z")
_HEADER_BYTES = 2
_LONG_FORM = 0x80
_MAX_LENGTH_BYTES = 4


def end_of(pem: bytes) -> datetime.datetime:
    """Return the earliest expiry of the certificates in a PEM file, in UTC.

    Raises:
        ValueError: It holds no certificate, or one that is malformed up to its validity.
    """
    found = _PEM.findall(pem)
    if not found:
        raise ValueError("there is no certificate in PEM format")
    return min(_end_of_der(_decoded(each)) for each in found)


def watch_certificates(settings: ServerSettings) -> None:
    """Let Prometheus read when the certificates of this process end: its server's, its client's and those they trust.

    A server's files are read at each scrape, as the server reloads them; one that cannot be read just now keeps its
    time. A client's are read once, as its channels keep them.
    """
    reloaded = {
        "server": settings.tls_cert,
        "client_ca": settings.tls_client_ca,
    }
    kept = {
        "ca": os.environ.get(client_security.CA, ""),
        "client": os.environ.get(client_security.CERT, ""),
    }
    named = {use: partial(_expires, Path(file), [math.nan]) for use, file in (reloaded | kept).items() if file}
    if not named:
        return
    gauge = _gauge()
    gauge.clear()
    for use, end in named.items():
        if use in reloaded:
            gauge.labels(use).set_function(end)
        else:
            gauge.labels(use).set(end())


@cache
def _gauge() -> Gauge:
    """Return the gauge of a process with certificates; others do not show any."""
    return Gauge(
        "tidemill_certificate_expires_timestamp_seconds",
        "When a certificate expires, in Unix time; `use` is what this process uses it for.",
        ["use"],
    )


def _expires(file: Path, last: list[float]) -> float:
    with contextlib.suppress(OSError, ValueError):  # half of it may be written; the server keeps the one before, too
        last[0] = end_of(file.read_bytes()).timestamp()
    return last[0]


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a certificate is not base64: {error}") from error


def _end_of_der(certificate: bytes) -> datetime.datetime:
    """Return the `notAfter` of a certificate (RFC 5280, section 4.1)."""
    body, _ = _enter(certificate, _SEQUENCE)
    signed, _ = _enter(body, _SEQUENCE)
    if signed[:1] == bytes([_VERSION]):
        _, signed = _enter(signed, _VERSION)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # the serial number, the signature's algorithm, the issuer
        _, signed = _enter(signed, tag)
    validity, _ = _enter(signed, _SEQUENCE)
    _, end = _enter(validity, _tag(validity))
    text, _ = _enter(end, _tag(end))
    return _time(_tag(end), text)


def _tag(data: bytes) -> int:
    """Return the tag of the first element, 0 if there is none, which no element has."""
    return data[0] if data else 0


def _enter(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the first element, whose tag is this, and what follows it."""
    if len(data) < _HEADER_BYTES or data[0] != tag:
        raise ValueError(f"a certificate is malformed: expected tag {tag:#x}, found {data[:2].hex() or 'its end'}")
    length, start = data[1], _HEADER_BYTES
    if length & _LONG_FORM:
        count = length & ~_LONG_FORM
        if not 0 < count <= _MAX_LENGTH_BYTES:
            raise ValueError(f"a certificate is malformed: a length has {count} bytes")
        start += count
        length = int.from_bytes(data[_HEADER_BYTES:start], "big")
    if start + length > len(data):
        raise ValueError(f"a certificate is truncated: {length} bytes expected, {max(len(data) - start, 0)} found")
    return data[start : start + length], data[start + length :]


def _time(tag: int, text: bytes) -> datetime.datetime:
    if tag == _UTC_TIME:
        text = (b"19" if text[:2] >= str(_PIVOT_YEAR).encode() else b"20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a certificate is malformed: tag {tag:#x} where its end should be")
    if not _TIME_DIGITS.fullmatch(text):
        raise ValueError(f"a certificate is malformed: it ends at {text!r}")
    return datetime.datetime.strptime(text.decode(), "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
