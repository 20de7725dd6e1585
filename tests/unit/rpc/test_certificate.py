"""When certificates end: read from their bytes as `cryptography` reads it, and shown to Prometheus."""

from __future__ import annotations

import base64
import datetime
import math
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tests.support.naming import naming
from tests.support.security import become, guarded
from tidemill.rpc.certificate import end_of, watch_certificates
from tidemill.rpc.settings import ServerSettings
from tidemill.services.tools.certs import make

_KEY = ec.generate_private_key(ec.SECP256R1())
_BEGIN = datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)


def _certificate(end: datetime.datetime, name: str = "tidemill") -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, _KEY.public_key(), x509.random_serial_number(), _BEGIN, end)
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def _shown(use: str) -> float | None:
    return REGISTRY.get_sample_value("tidemill_certificate_expires_timestamp_seconds", {"use": use})


def test_end_is_that_which_cryptography_reads(tmp_path: Path) -> None:
    """Of every certificate that `tidemill certs` makes."""
    make(tmp_path)
    files = sorted(tmp_path.glob("*.pem"))
    assert [file.name for file in files] == ["ca.pem", "client.pem", "server.pem"]
    for file in files:
        data = file.read_bytes()
        assert end_of(data) == x509.load_pem_x509_certificate(data).not_valid_after_utc


@settings(deadline=None, max_examples=25)
@given(
    end=st.datetimes(datetime.datetime(1960, 1, 2), datetime.datetime(9999, 12, 31)),
    name=st.text(st.characters(codec="ascii", categories=("Lu", "Ll")), min_size=1, max_size=60),
)
def test_any_end_is_read(end: datetime.datetime, name: str) -> None:
    """Before 2050 it has two digits of the year, later four; names may be long."""
    end = end.replace(tzinfo=datetime.UTC, microsecond=0)
    assert end_of(_certificate(end, name)) == end


def test_first_to_end_counts() -> None:
    """A file may hold the certificates between the server's and the CA."""
    ends = [datetime.datetime(year, 6, 1, tzinfo=datetime.UTC) for year in (2031, 2029, 2055)]
    assert end_of(b"a note\n" + b"".join(map(_certificate, ends))) == ends[1]


def test_bytes_that_are_no_certificate_are_refused() -> None:
    """Whatever is cut off or changed up to the validity: one kind of error, which says what is wrong."""
    with pytest.raises(ValueError, match=naming("PEM")):
        end_of(b"-----BEGIN PRIVATE KEY-----")
    der = x509.load_pem_x509_certificate(_certificate(datetime.datetime(2031, 1, 1))).public_bytes(Encoding.DER)
    for cut in range(len(der)):
        with pytest.raises(ValueError, match="certificate is"):
            end_of(_pem(der[:cut]))
    for at in range(60):
        for value in (0x00, 0x80, 0xFF):
            try:
                end_of(_pem(der[:at] + bytes([value]) + der[at + 1 :]))
            except ValueError as error:
                assert "certificate is" in str(error)  # noqa: PT017 - other values are the serial number's, and fine
    with pytest.raises(ValueError, match=naming("base64")):
        end_of(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----")


def _pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def test_ends_are_shown_and_follow_a_renewed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its use; a file that is half written keeps the end before, the whole one is read at the next scrape."""
    make(tmp_path)
    become(monkeypatch, ca=tmp_path / "ca.pem")
    watch_certificates(guarded(tmp_path))
    ca_end = end_of((tmp_path / "ca.pem").read_bytes()).timestamp()
    assert _shown("ca") == ca_end
    first = _shown("server")
    assert first == end_of((tmp_path / "server.pem").read_bytes()).timestamp()
    assert (_shown("client"), _shown("client_ca")) == (None, None)
    renewed = _certificate(datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC))
    (tmp_path / "server.pem").write_bytes(renewed[:300])
    assert _shown("server") == first
    (tmp_path / "server.pem").unlink()
    assert _shown("server") == first
    (tmp_path / "new").write_bytes(renewed)
    os.replace(tmp_path / "new", tmp_path / "server.pem")
    assert _shown("server") == datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC).timestamp()


def test_end_of_a_client_is_that_of_the_files_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections keep them, so a renewed file counts from the next start of the process."""
    make(tmp_path)
    uses = {"ca": tmp_path / "ca.pem", "client": tmp_path / "client.pem"}
    become(monkeypatch, ca=uses["ca"])
    monkeypatch.setenv("TIDEMILL_TLS_CERT", str(uses["client"]))
    watch_certificates(ServerSettings())
    ends = {use: end_of(file.read_bytes()).timestamp() for use, file in uses.items()}
    for file in uses.values():
        file.write_bytes(_certificate(datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)))
    assert {use: _shown(use) for use in uses} == ends


def test_file_that_was_never_read_shows_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares to nothing, so no alert takes it for a certificate of 1970; a scrape works."""
    become(monkeypatch)
    watch_certificates(ServerSettings(tls_cert=str(tmp_path / "missing.pem")))
    shown = _shown("server")
    assert shown is not None
    assert math.isnan(shown)
