"""`tidemill certs`: a CA, certificates of servers, and a token for each role; together or in a folder per service."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.atomic_files import is_disk_full, is_there, replacing
from tidemill.errors import ConfigError, FatalError
from tidemill.file_lock import locked
from tidemill.rpc.access import ACTOR, EVALUATOR, LEARNER, OPERATOR, ROLES, digest_line
from tidemill.settings.argument_parser import ArgumentParser

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as Key

CA_DAYS = 3650
CERTIFICATE_DAYS = 365

CLOCK_TOLERANCE = datetime.timedelta(days=1)
"""How far a certificate begins before it is made: clocks of machines differ, and are set back."""

KEEP_DAYS = 30
"""With `--keep` a certificate is renewed when it lasts less than this."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate holds."""

COMMON_HOST = "tidemill"
"""Name that every server of `--services` holds: TIDEMILL_TLS_NAME of clients that reach some by their addresses."""


@dataclass(frozen=True)
class Share:
    """Credentials that one service needs.

    Attributes:
        role: Of the token that it brings to servers; empty if it calls none.
        serves: Whether others call it: it has a certificate, its key, and digests of tokens to compare with.
        hosts: Names in its certificate besides its own.
    """

    role: str = ""
    serves: bool = False
    hosts: tuple[str, ...] = ()


SERVICES = {
    "replay": Share(serves=True),
    "paramserver": Share(serves=True),
    "learner": Share(LEARNER, serves=True),
    "actor": Share(ACTOR),
    "evaluator": Share(EVALUATOR),
    "inference": Share(ACTOR, serves=True, hosts=tuple(f"inference-{gpu}" for gpu in range(1, 8))),
    "operator": Share(OPERATOR),
}
"""The services of a cluster in containers, and the person who steers it."""

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_TOKEN_BYTES = 32
_LOCK = ".lock"


@dataclass(frozen=True)
class _Authority:
    """A CA: its key, and the certificate that clients know."""

    key: Key
    certificate: x509.Certificate


_ABOUT = """Make certificates and tokens for a cluster of several machines: ca.pem, server.pem and server.key for TLS,
tokens.txt for servers, ROLE.token for the clients of each role, and client.pem and client.key for servers that also ask
for a certificate. Run it again to renew the certificates: the CA, the tokens and the servers' names stay, and running
servers load the new certificate. ca.key signs certificates: keep it off the cluster's machines."""

_ABOUT_SERVICES = """for containers: instead of server.* and client.*, write a folder per service with only the files it
needs: server.pem, server.key and the digests of all tokens for a server, ca.pem and token for a client"""


def certs(argv: Sequence[str]) -> int:
    """Write the files and say what to do with them; return the exit code."""
    parser = ArgumentParser(prog="tidemill certs", description=_ABOUT)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the files, created with mode 0700")
    parser.add_argument(
        "--host", metavar="NAME", nargs="+", action="extend", default=[],
        help=f"names or addresses by which clients reach servers, in addition to {', '.join(LOCAL_HOSTS)}",
    )  # fmt: skip
    parser.add_argument("--services", action="store_true", help=_ABOUT_SERVICES)
    parser.add_argument(
        "--shards", metavar="N", type=int, default=0, help="with --services: also the names replay-0 to replay-(N-1)"
    )
    parser.add_argument(
        "--keep", action="store_true",
        help=f"renew only certificates that last less than {KEEP_DAYS} days or lack a name",
    )  # fmt: skip
    parser.add_argument(
        "--rotate", metavar="ROLE", choices=ROLES, nargs="+", default=[],
        help="issue new tokens for these roles; the old ones stay valid until --retire (implies --keep)",
    )  # fmt: skip
    parser.add_argument(
        "--retire", metavar="ROLE", choices=ROLES, nargs="+", default=[],
        help="accept only the newest token of these roles (implies --keep)",
    )  # fmt: skip
    options = parser.parse_args(list(argv))
    folder: Path = options.folder.resolve()
    for host in options.host:
        _check_host(host)
    if options.shards and not options.services:
        raise ConfigError(f"--shards {options.shards} names servers of --services: add --services, or leave it out")
    changes_tokens = bool(options.rotate or options.retire)
    keep = options.keep or changes_tokens  # tokens change alone, whatever the hosts were
    with _using(folder):
        _check_signed_here(folder, services=options.services)
        if changes_tokens and not options.services and is_there(folder / "replay" / "tokens.txt"):
            raise ConfigError(
                f"{folder} holds a folder for each service, whose tokens --rotate and --retire change only with "
                "--services: add --services"
            )
        _change_tokens(folder, options.rotate, options.retire)
        if options.services:
            shards = [f"replay-{number}" for number in range(options.shards)]
            make_services(folder, [*shards, *options.host], keep=keep)
        else:
            make(folder, options.host, keep=keep)
    services = f"Wrote {folder}: a CA, tokens, and a folder each for {', '.join(SERVICES)}."
    print(services if options.services else _advice(folder))
    return 0


def _check_host(host: str) -> None:
    """Raise a `ConfigError` if a certificate cannot hold a name or an address."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return
    if not _HOST.fullmatch(host):
        raise ConfigError(
            f"--host {host!r} is neither a host name nor an address: write it without a scheme or a port, and a name "
            "with letters beyond ASCII in its xn-- form"
        )


def _check_signed_here(folder: Path, *, services: bool) -> None:
    """Raise a `ConfigError` if a folder without a CA holds certificates, which those of a new CA would replace.

    Not with --services where only the folders of services are left, as in containers that lost the volume of the CA:
    all that trusted it get the new one. It may only be kept elsewhere, so a line says that.
    """
    if is_there(folder / "ca.key") or is_there(folder / "ca.pem"):
        return
    is_lost = services and not is_there(folder / "tokens.txt") and all(is_there(folder / name) for name in SERVICES)
    for own in ("server", "client", *(f"{name}/server" for name in SERVICES)):
        for file in (folder / f"{own}.pem", folder / f"{own}.key"):
            if is_there(file) and is_lost:
                print(
                    f"{folder} has lost its CA and gets a new CA and new tokens: clients elsewhere need the new ca.pem "
                    "and token. If the old ones were only moved away, put ca.key, ca.pem, tokens.txt and the files "
                    "*.token back and run the command again."
                )
                return
            if is_there(file):
                raise ConfigError(
                    f"{file} would be replaced, and {folder} lacks ca.key, the key of the CA that its clients trust: "
                    "run the command where ca.key is and copy the files, or take an empty folder for a new CA"
                )


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Turn an error of a file in the folder into a `ConfigError` that names it, unless the disk is full."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise ConfigError(
            f"cannot use {error.filename or folder} ({error.strerror}); choose another folder, or run the command as "
            "the owner of this one"
        ) from error


def make(folder: Path, hosts: Sequence[str] = (), *, keep: bool = False) -> None:
    """Write the CA and the tokens that are missing, and new certificates of servers and clients.

    Args:
        folder: Where to; created if it is not there.
        hosts: Names and addresses of servers, besides those of this machine.
        keep: Whether certificates stay that hold these names and do not expire soon.

    Raises:
        FatalError: The package `cryptography` is not installed, or half of a CA is there.
    """
    with _prepared(folder) as authority:
        _write_certificate(folder, "server", authority, [*LOCAL_HOSTS, *hosts], keep=keep)
        _write_certificate(folder, "client", authority, keep=keep)


def make_services(folder: Path, hosts: Sequence[str] = (), *, keep: bool = False) -> None:
    """Write the CA and the tokens that are missing, and for each service a folder with what it needs.

    Args:
        folder: Where to; created if it is not there.
        hosts: Names and addresses of servers, besides those of this machine and of the services.
        keep: Whether certificates stay that hold these names and do not expire soon.

    Raises:
        FatalError: As `make`.
    """
    with _prepared(folder) as authority:
        for name, share in SERVICES.items():
            own = folder / name
            own.mkdir(mode=0o700, exist_ok=True)
            if share.serves:
                _write_certificate(
                    own, "server", authority, [*LOCAL_HOSTS, name, *share.hosts, COMMON_HOST, *hosts], keep=keep
                )
                _write_changed(own / "tokens.txt", _digests(folder / "tokens.txt"))
            if share.role:
                _write_changed(own / "ca.pem", (folder / "ca.pem").read_bytes())
                _write_changed(own / "token", (folder / f"{share.role}.token").read_bytes())


@contextlib.contextmanager
def _prepared(folder: Path) -> Iterator[_Authority]:
    """Make the folder, the CA and the tokens that are missing. The block gets the CA, and has the folder to itself."""
    try:
        import cryptography as _  # noqa: F401
    except ImportError:
        raise FatalError("the package `cryptography` is missing: pip install 'tidemill[security]'") from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / _LOCK):
        authority = _authority(folder)
        _write_tokens(folder)
        yield authority


def _authority(folder: Path) -> _Authority:
    """Return the CA of a folder, made if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key_file, ca_file = folder / "ca.key", folder / "ca.pem"
    if is_there(key_file) != is_there(ca_file):
        raise FatalError(f"{folder} holds one of ca.key and ca.pem: put the other back, or take an empty folder")
    if is_there(key_file):
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(ca_file.read_bytes())
        except (ValueError, TypeError):  # damaged, or with a password
            raise FatalError(f"{key_file} and {ca_file} are damaged: put them back, or take an empty folder") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise FatalError(f"{key_file} is not a key that `tidemill certs` made")
        return _Authority(key, certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Tidemill CA {secrets.token_hex(4)}")  # told apart from another in messages
    ca = (
        _builder(name, name, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_file, _pem_of_key(key))
    _write(ca_file, ca.public_bytes(serialization.Encoding.PEM))
    return _Authority(key, ca)


def _write_certificate(
    folder: Path, kind: str, authority: _Authority, hosts: Sequence[str] = (), *, keep: bool = False
) -> None:
    """Write KIND.key and KIND.pem; a client's holds no host, so that whoever takes it cannot pass for a server.

    A server's keeps the names of the one that it replaces, by which clients may call it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    former = _issued(folder / f"{kind}.pem", authority)
    names, held = [_alternative(host) for host in hosts], _names_in(former) if former and hosts else []
    if keep and former and set(names) <= set(held) and _is_good(former, folder / f"{kind}.key"):
        return
    key = ec.generate_private_key(ec.SECP256R1())
    usage = ExtendedKeyUsageOID.SERVER_AUTH if kind == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(_name(f"Tidemill {kind}"), authority.certificate.subject, key, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if hosts:
        names = list(dict.fromkeys([*names, *held]))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write(folder / f"{kind}.key", _pem_of_key(key))
    signed = builder.sign(authority.key, hashes.SHA256())
    _write(folder / f"{kind}.pem", signed.public_bytes(serialization.Encoding.PEM))


def _issued(file: Path, authority: _Authority) -> x509.Certificate | None:
    """Return the certificate in a file; None if there is none of this CA."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        certificate.verify_directly_issued_by(authority.certificate)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return None
    return certificate


def _names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    from cryptography import x509

    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (ValueError, x509.ExtensionNotFound):
        return []


def _is_good(certificate: x509.Certificate, key_file: Path) -> bool:
    """True if a certificate is valid for long enough and the key is its own."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return False
    rest = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return key.public_key() == certificate.public_key() and rest.days >= KEEP_DAYS


def _write_tokens(folder: Path) -> None:
    """Write the tokens that are missing; those that are there stay, such as a second one of a role."""
    file = folder / "tokens.txt"
    lines = _text(file).splitlines() if is_there(file) else []
    for role in ROLES:
        own = folder / f"{role}.token"
        if not is_there(own):
            known = [words[1] for line in lines if (words := line.split())[:1] == [role] and words[1:]]
            _write(own, f"{known[-1] if known else secrets.token_hex(_TOKEN_BYTES)}\n".encode())
        entry = f"{role} {_text(own).strip()}"
        if entry not in lines:
            lines.append(entry)
    _write_changed(file, "\n".join([*lines, ""]).encode())


def _change_tokens(folder: Path, rotated: Sequence[str], retired: Sequence[str]) -> None:
    """Add a token to some roles, and take all but the newest from others."""
    file = folder / "tokens.txt"
    if not (rotated or retired):
        return
    if not file.exists():
        raise FatalError(f"{file} is not there: make tokens first, without --rotate and --retire")
    with locked(folder / _LOCK):
        lines = _text(file).splitlines()
        new = {role: secrets.token_hex(_TOKEN_BYTES) for role in rotated}
        lines += [f"{role} {token}" for role, token in new.items()]
        for role in retired:
            own = folder / f"{role}.token"
            if not (role in new or is_there(own)):
                raise FatalError(
                    f"{own} is not there, so the newest token of {role} is not known: put the file back, or also give "
                    f"--rotate {role}"
                )
            newest = new.get(role) or _text(own).strip()
            lines = [line for line in lines if line.split() in ([role, newest], []) or line.split()[0] != role]
        _write_changed(file, "\n".join([*lines, ""]).encode())
        for role, token in new.items():  # after the servers' file: nobody has a token that no server knows
            _write(folder / f"{role}.token", f"{token}\n".encode())


def _digests(file: Path) -> bytes:
    """Return a file of tokens with each in the form that tells nobody what it is."""
    entries = [line.partition("#")[0].split() for line in _text(file).splitlines()]
    return "".join(f"{words[0]} {digest_line(words[1])}\n" for words in entries if len(words) == 2).encode()


def _text(file: Path) -> str:
    """Return the text of a file of tokens."""
    try:
        return file.read_text(encoding="ascii")
    except UnicodeDecodeError:  # whose message would hold the text
        raise ConfigError(f"{file} is not ASCII, which servers refuse: write its comments in plain letters") from None


def _write_changed(path: Path, data: bytes) -> None:
    """Make a file, or replace it if it holds something else: servers read again what was replaced."""
    if not path.exists() or path.read_bytes() != data:
        _write(path, data)


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem_of_key(key: Key) -> bytes:
    from cryptography.hazmat.primitives import serialization as pem

    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Make or replace a file that only this user reads, from its first byte on."""
    with replacing(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)


def _advice(folder: Path) -> str:
    return f"""Wrote {folder}: a CA, certificates for {CERTIFICATE_DAYS} days, tokens.

Servers:  --SERVICE.server.tls-cert {folder}/server.pem --SERVICE.server.tls-key {folder}/server.key
          --SERVICE.server.tokens {folder}/tokens.txt
Clients:  export TIDEMILL_TLS_CA={folder}/ca.pem TIDEMILL_TOKEN_FILE={folder}/ROLE.token
          with ROLE one of {", ".join(ROLES)}; `operator` for `tidemill status` and `tidemill ctl`"""
