"""`tidemill certs`: which files it writes for whom, and which it leaves as they are."""

from __future__ import annotations

import datetime
import errno
import fcntl
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography import x509

from tests.support.naming import naming
from tidemill.errors import ConfigError, FatalError
from tidemill.rpc.access import ROLES, Tokens
from tidemill.services.tools import certs as module
from tidemill.services.tools.certs import (
    COMMON_HOST,
    KEEP_DAYS,
    SERVICES,
    certs,
    make,
    make_services,
)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_each_service_gets_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """A server its certificate, key and digests, a client the CA and its token; all of it this user's alone."""
    make_services(tmp_path)
    server, client = {"server.pem", "server.key", "tokens.txt"}, {"ca.pem", "token"}
    for name, share in SERVICES.items():
        expected = (server if share.serves else set()) | (client if share.role else set())
        assert {path.name for path in (tmp_path / name).iterdir()} == expected, name
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}
    keys = {(tmp_path / name / "server.key").read_bytes() for name, share in SERVICES.items() if share.serves}
    assert len(keys) == sum(share.serves for share in SERVICES.values())


def test_server_knows_every_token_and_holds_none(tmp_path: Path) -> None:
    """Its file has their digests: who reads it cannot call anybody with it."""
    make_services(tmp_path)
    text = (tmp_path / "replay" / "tokens.txt").read_text()
    tokens = Tokens(str(tmp_path / "replay" / "tokens.txt"))
    for role in ROLES:
        own = (tmp_path / f"{role}.token").read_text().strip()
        assert own not in text
        assert tokens.role_of(own) == role
    assert all(tokens.role_of(word) is None for word in text.split())


def test_certificate_of_a_service_holds_its_names(tmp_path: Path) -> None:
    """Its own, that of all servers, the shards', and those that were asked for."""
    assert certs([str(tmp_path), "--services", "--shards", "2", "--host", "box1", "10.1.2.3"]) == 0
    names = _certificate(tmp_path / "replay" / "server.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    held = names.value.get_values_for_type(x509.DNSName)
    assert held == ["localhost", "replay", COMMON_HOST, "replay-0", "replay-1", "box1"]
    assert "10.1.2.3" in map(str, names.value.get_values_for_type(x509.IPAddress))


def test_renewed_certificate_keeps_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may call a server by them; those of a certificate of another CA are not taken over."""
    pem = tmp_path / "replay" / "server.pem"

    def held() -> set[str]:
        names = _certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return {str(name.value) for name in names}

    certs([str(tmp_path), "--services", "--shards", "3", "--host", "box1", "10.1.2.3"])
    names = held()
    monkeypatch.setattr(module, "KEEP_DAYS", module.CERTIFICATE_DAYS + 1)
    for words in ([], ["--shards", "2"], ["--keep", "--rotate", "actor"]):
        before = pem.read_bytes()
        certs([str(tmp_path), "--services", *words])
        assert pem.read_bytes() != before
        assert held() == names
    certs([str(tmp_path), "--services", "--host", "box2"])
    assert held() == names | {"box2"}
    make(tmp_path / "other", ["stranger"])
    pem.write_bytes((tmp_path / "other" / "server.pem").read_bytes())
    make_services(tmp_path)
    assert "stranger" not in held()


def test_good_certificates_are_kept_when_asked(tmp_path: Path) -> None:
    """Not a byte changes; without `keep` every certificate and key does, and nothing else."""
    make_services(tmp_path, ["replay-0"])
    first = _files(tmp_path)
    make_services(tmp_path, ["replay-0"], keep=True)
    assert _files(tmp_path) == first
    make_services(tmp_path, ["replay-0"])
    changed = {name for name, data in _files(tmp_path).items() if data != first[name]}
    assert changed == {
        f"{name}/{file}" for name, share in SERVICES.items() if share.serves for file in ("server.pem", "server.key")
    }


@pytest.mark.parametrize("days, is_kept", [(KEEP_DAYS + 1, True), (KEEP_DAYS - 1, False), (0, False)])
def test_certificate_that_expires_soon_is_not_kept(
    days: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that has expired; the new one lasts as long as usual."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "CERTIFICATE_DAYS", days)
        make(tmp_path)
    first = _files(tmp_path)
    make(tmp_path, keep=True)
    changed = {name for name, data in _files(tmp_path).items() if data != first[name]}
    assert changed == (set() if is_kept else {"server.pem", "server.key", "client.pem", "client.key"})
    if not is_kept:
        rest = _certificate(tmp_path / "server.pem").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert rest.days >= module.CERTIFICATE_DAYS - 1


def test_certificate_that_does_not_fit_is_not_kept(tmp_path: Path) -> None:
    """One that lacks a name, one of another CA, one without its own key, and anything but a certificate."""
    make(tmp_path / "other")
    for spoil in ("name", "ca", "key", "text"):
        folder = tmp_path / spoil
        make(folder)
        if spoil == "ca":
            for file in ("server.pem", "server.key"):
                (folder / file).write_bytes((tmp_path / "other" / file).read_bytes())
        elif spoil == "key":
            (folder / "server.key").write_bytes((folder / "client.key").read_bytes())
        elif spoil == "text":
            (folder / "server.pem").write_text("no certificate")
        before = (folder / "server.pem").read_bytes()
        make(folder, ["added"] if spoil == "name" else [], keep=True)
        assert (folder / "server.pem").read_bytes() != before, spoil
        _certificate(folder / "server.pem").verify_directly_issued_by(_certificate(folder / "ca.pem"))


def test_folder_is_written_by_one_command_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts between the CA's two files waits, and takes the same CA."""
    write, flock = module._write, fcntl.flock
    begun, waiting = threading.Event(), threading.Event()
    second: list[Future[None]] = []

    def write_and_begin(path: Path, data: bytes) -> None:
        write(path, data)
        if path.name == "ca.key" and not second:
            begun.set()
            second.append(pool.submit(make_services, tmp_path, keep=True))
            assert waiting.wait(10)

    def note_and_lock(descriptor: int, operation: int) -> None:
        if begun.is_set():
            waiting.set()
        flock(descriptor, operation)

    monkeypatch.setattr(module, "_write", write_and_begin)
    monkeypatch.setattr(fcntl, "flock", note_and_lock)
    with ThreadPoolExecutor(1) as pool:
        make_services(tmp_path)
        made = _files(tmp_path)
        second[0].result(10)
    assert _files(tmp_path) == made


def test_token_is_rotated_and_retired(tmp_path: Path) -> None:
    """Old and new are accepted until the old one is retired; other roles keep theirs, certificates theirs."""
    arguments = [str(tmp_path), "--services"]
    certs([*arguments, "--host", "box1"])
    first = _files(tmp_path)
    tokens, own = Tokens(str(tmp_path / "replay" / "tokens.txt")), tmp_path / "actor" / "token"
    old = own.read_text().strip()
    certs([*arguments, "--rotate", "actor"])
    new = own.read_text().strip()
    assert (tokens.role_of(old), tokens.role_of(new)) == ("actor", "actor")
    certs([*arguments, "--retire", "actor"])
    assert (tokens.role_of(old), tokens.role_of(new)) == (None, "actor")
    servers = {f"{name}/tokens.txt" for name, share in SERVICES.items() if share.serves}
    changed = {name for name, data in _files(tmp_path).items() if data != first[name]}
    clients = {f"{name}/token" for name, share in SERVICES.items() if share.role == "actor"}
    assert changed == servers | clients | {"tokens.txt", "actor.token"}


def test_token_cannot_be_rotated_before_it_is_made(tmp_path: Path) -> None:
    """The message says what to do first."""
    with pytest.raises(FatalError, match=naming("--rotate --retire")):
        certs([str(tmp_path / "none"), "--rotate", "actor"])


@pytest.mark.parametrize("host", ["10.1.2.3:7401", "https://box1", "[::1]:7401", "müller-box", "box 1", ""])
def test_host_that_is_not_a_name_or_an_address_is_refused(host: str, tmp_path: Path) -> None:
    """By its value, before anything is written."""
    with pytest.raises(ConfigError, match=naming(f"--host {host!r}")):
        certs([str(tmp_path / "none"), "--host", host])
    assert not (tmp_path / "none").exists()


def test_token_that_was_moved_away_cannot_be_retired(tmp_path: Path) -> None:
    """The message names its file, and nothing changes."""
    certs([str(tmp_path)])
    (tmp_path / "operator.token").unlink()
    first = _files(tmp_path)
    with pytest.raises(FatalError, match=naming("operator.token")):
        certs([str(tmp_path), "--retire", "operator"])
    assert _files(tmp_path) == first


def test_rotation_without_the_folders_of_services_is_refused(tmp_path: Path) -> None:
    """Servers would keep the digests of before, and accept a token that was retired."""
    certs([str(tmp_path), "--services"])
    first = _files(tmp_path)
    for option in ("--rotate", "--retire"):
        with pytest.raises(ConfigError, match=naming(tmp_path, option, "add --services")):
            certs([str(tmp_path), option, "actor"])
    assert _files(tmp_path) == first


def test_shards_without_services_are_refused(tmp_path: Path) -> None:
    """They would be missing in the certificate; nothing is written."""
    with pytest.raises(ConfigError, match=naming("--shards 4 --services")):
        certs([str(tmp_path / "none"), "--shards", "4"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("words", [[], ["--services"]])
def test_folder_that_cannot_be_used_is_named(tmp_path: Path, words: list[str]) -> None:
    """With the reason and what to do: a file in its place, or in that of one of its folders."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=naming(tmp_path / "file", "(File exists)", "choose another folder")):
        certs([str(tmp_path / "file"), *words])
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "replay").touch()
    if words:
        with pytest.raises(ConfigError, match=naming(tmp_path / "certs" / "replay", "(File exists)")):
            certs([str(tmp_path / "certs"), *words])


def test_full_disk_is_not_a_wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as for every command."""
    monkeypatch.setattr(module, "_write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        certs([str(tmp_path)])


def test_tokens_that_servers_would_refuse_are_named(tmp_path: Path) -> None:
    """A comment beyond ASCII; a role without a token is nothing to keep."""
    certs([str(tmp_path)])
    file = tmp_path / "tokens.txt"
    file.write_text("actor\n" + file.read_text())
    (tmp_path / "actor.token").unlink()
    certs([str(tmp_path), "--keep"])
    assert (tmp_path / "actor.token").read_text().split()[0] in file.read_text()
    file.write_text("# f\u00fcr Anna\n" + file.read_text())
    for words in ([], ["--services"], ["--rotate", "actor"]):
        with pytest.raises(ConfigError, match=naming(file, "ASCII")):
            certs([str(tmp_path), *words])


@pytest.mark.parametrize("words", [[], ["--keep"], ["--rotate", "actor"], ["--services"]])
@pytest.mark.parametrize("file", ["server.pem", "client.key", "replay/server.key"])
def test_certificate_without_its_ca_is_not_replaced(tmp_path: Path, words: list[str], file: str) -> None:
    """On a server's machine, where ca.key is not kept: clients trust no other CA. Nothing is written."""
    make(tmp_path / "made")
    make_services(tmp_path / "made")
    copied = tmp_path / "box1"
    for name in (file, "tokens.txt"):
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / name).write_bytes((tmp_path / "made" / name).read_bytes())
    first = _files(copied)
    with pytest.raises(ConfigError, match=naming(copied / file, "ca.key", "copy")):
        certs([str(copied), *words])
    assert _files(copied) == first


def test_lost_volume_of_the_ca_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all that the services have, as at `docker compose up`; if the tokens are there, the CA was moved away.

    All of it may have been moved away, so the command says that the CA is new, and takes the old one back.
    """
    words = [str(tmp_path), "--services", "--keep"]
    certs(words)
    assert "ca.key" not in capsys.readouterr().out
    kept = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    for file in tmp_path.iterdir():
        if file.is_file() and file.name != "tokens.txt":
            file.unlink()
    with pytest.raises(ConfigError, match=naming("ca.key", "copy")):
        certs(words)
    (tmp_path / "tokens.txt").unlink()
    assert certs(words) == 0
    assert re.search(naming(tmp_path, "new CA", "ca.pem", "token", "ca.key"), capsys.readouterr().out)
    _check_fits(tmp_path)
    for file, data in kept.items():
        file.write_bytes(data)
    assert certs(words) == 0
    assert "ca.key" not in capsys.readouterr().out
    _check_fits(tmp_path)


def _check_fits(folder: Path) -> None:
    authority = _certificate(folder / "ca.pem")
    for name, share in SERVICES.items():
        if share.serves:
            _certificate(folder / name / "server.pem").verify_directly_issued_by(authority)
        if share.role:
            assert (folder / name / "ca.pem").read_bytes() == (folder / "ca.pem").read_bytes()
            token = (folder / name / "token").read_text().strip()
            assert Tokens(str(folder / "replay" / "tokens.txt")).role_of(token) == share.role


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_damaged_ca_is_named(tmp_path: Path, name: str) -> None:
    """It is not replaced: every client knows it."""
    certs([str(tmp_path)])
    (tmp_path / name).write_text("no PEM")
    with pytest.raises(FatalError, match=naming(tmp_path / name, "put them back")):
        certs([str(tmp_path)])
    assert (tmp_path / name).read_text() == "no PEM"
