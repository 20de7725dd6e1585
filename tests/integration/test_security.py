"""Real servers on loopback with TLS and tokens: every RPC by every role, without a token, and by strangers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.naming import naming
from tests.support.rpc_methods import METHODS
from tests.support.security import become, guarded
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.run import ClusterSettings
from tidemill.errors import ConfigError, PermissionDenied, Unauthenticated, Unavailable
from tidemill.inference.v1 import inference_pb2_grpc
from tidemill.learner.client import LearnerClient
from tidemill.learner.v1 import learner_pb2_grpc
from tidemill.params.v1 import params_pb2_grpc
from tidemill.replay.client import ReplayClient
from tidemill.replay.v1 import replay_pb2, replay_pb2_grpc
from tidemill.rpc import client_security
from tidemill.rpc.access import ALLOWED, ROLES, Tokens
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import open_channel
from tidemill.rpc.reloaded import Reloaded
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.tls import server_credentials
from tidemill.services.launcher.supervise.health import silences, until_serving
from tidemill.services.launcher.view.processes import AskedServices
from tidemill.services.tools import certs
from tidemill.services.tools.certs import make
from tidemill.simulator.v1 import simulator_pb2_grpc


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tidemill certs` writes."""
    folder = tmp_path_factory.mktemp("certs")
    make(folder, ["replay"])
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of another cluster."""
    folder = tmp_path_factory.mktemp("strangers")
    make(folder)
    return folder


class _Replay(replay_pb2_grpc.ReplayServiceServicer):
    """Answers one call; the others fail in the handler, once they are let in."""

    async def ListTables(self, request: replay_pb2.ListTablesRequest, context: object) -> replay_pb2.ListTablesResponse:
        """Answer that there is none."""
        return replay_pb2.ListTablesResponse()


def _serve(folder: Path, *, client_ca: bool = False) -> BackgroundServer:
    """Return a server with every service; a call that is let in answers neither of the two refusals."""
    background = BackgroundServer("test", guarded(folder, client_ca=client_ca))
    server = background.server
    replay_pb2_grpc.add_ReplayServiceServicer_to_server(_Replay(), server.grpc)
    params_pb2_grpc.add_ParamServiceServicer_to_server(params_pb2_grpc.ParamServiceServicer(), server.grpc)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        inference_pb2_grpc.InferenceServiceServicer(), server.grpc
    )
    simulator_pb2_grpc.add_SimulatorServiceServicer_to_server(
        simulator_pb2_grpc.SimulatorServiceServicer(), server.grpc
    )
    learner_pb2_grpc.add_LearnerServiceServicer_to_server(learner_pb2_grpc.LearnerServiceServicer(), server.grpc)
    return background


_REMOVED = "r" * 64


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A server with TLS and tokens, one of an operator among them that was good and has been removed."""
    tokens = folder / "tokens.txt"
    kept = tokens.read_text()
    tokens.write_text(f"{kept}operator {_REMOVED}\n")
    path = "/tidemill.replay.v1.ReplayService/ListTables"
    with _serve(folder) as background, pytest.MonkeyPatch.context() as patch:
        address = background.start()
        become(patch, ca=folder / "ca.pem")
        assert _code(address, path, metadata=[("authorization", f"Bearer {_REMOVED}")]) is grpc.StatusCode.OK
        tokens.write_text(kept)
        yield address


def _expired(folder: Path, original: Path) -> Path:
    """Copy a folder of certificates, with new ones of the same CA that have expired."""
    shutil.copytree(original, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certs, "CERTIFICATE_DAYS", 0)
        make(folder, ["replay"])
    return folder


def _code(address: str, path: str, **options: Any) -> grpc.StatusCode:  # noqa: ANN401
    """Call a method with one empty message; return the status."""
    method = METHODS[path]
    with open_channel(address) as channel:
        if method.client_streaming:
            opened: Any = channel.stream_stream if method.server_streaming else channel.stream_unary
            request: Any = iter([b""])
        else:
            opened = channel.unary_stream if method.server_streaming else channel.unary_unary
            request = b""
        try:
            answer = opened(path)(request, timeout=10, **options)
            if method.server_streaming:
                list(answer)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_every_method_is_in_the_table() -> None:
    """Those of protos/, of health and of reflection; a method that is added has to say who may call it."""
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    health = descriptor_pool.Default().FindServiceByName("grpc.health.v1.Health")
    assert ALLOWED.keys() >= METHODS.keys() | {reflection} | {f"/{health.full_name}/{m.name}" for m in health.methods}
    assert {path for path in ALLOWED if path.startswith("/tidemill.")} == METHODS.keys()
    assert {path.split("/")[1] for path, roles in ALLOWED.items() if roles is None} == {"grpc.health.v1.Health"}


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_long_name_is_not_looked_up_without_a_token(
    method: str, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that stays open would keep it; one of a service's length is looked up."""
    become(monkeypatch, ca=folder / "ca.pem")
    request = health_pb2.HealthCheckRequest(service="a" * 1000)
    with open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=WAIT_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()
        request.service *= 2
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.unary_stream(f"/grpc.health.v1.Health/{method}")(request.SerializeToString(), timeout=WAIT_S))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", sorted(METHODS))
def test_role_makes_its_calls_and_no_others(
    path: str, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are PERMISSION_DENIED."""
    allowed = ALLOWED[path] or frozenset()
    for role in ROLES:
        become(monkeypatch, ca=folder / "ca.pem", token=folder / f"{role}.token")
        code = _code(address, path)
        assert (code is grpc.StatusCode.PERMISSION_DENIED) == (role not in allowed), (role, code)
        assert code is not grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("path", sorted(METHODS))
def test_stranger_makes_no_call(
    path: str, address: str, folder: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token, a wrong one, one that was removed, and the token of another cluster."""
    become(monkeypatch, ca=folder / "ca.pem")
    assert _code(address, path) is grpc.StatusCode.UNAUTHENTICATED
    for odd in ("", "Bearer ", "Bearer x", f"Bearer {_REMOVED}", (folder / "operator.token").read_text().strip()):
        assert _code(address, path, metadata=[("authorization", odd)]) is grpc.StatusCode.UNAUTHENTICATED
    become(monkeypatch, ca=folder / "ca.pem", token=strangers / "operator.token")
    assert _code(address, path) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("ca", [None, "ca.pem"], ids=["plaintext", "unknown CA"])
def test_connection_that_is_not_trusted_makes_no_call(
    ca: str | None, address: str, folder: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the best of tokens; the message says what was wrong with the certificate."""
    become(monkeypatch, ca=strangers / ca if ca else None, token=folder / "operator.token")
    credentials = client_security.channel_credentials(address)
    retries = [("grpc.enable_retries", 0)]  # of the clients; they would take seconds for each method
    plain = grpc.insecure_channel(address, retries)
    with plain if credentials is None else grpc.secure_channel(address, credentials, retries) as channel:
        for path in METHODS:
            call: Any = channel.stream_stream(path)
            metadata = [("authorization", f"Bearer {(folder / 'operator.token').read_text().strip()}")]
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([b""]), timeout=10, metadata=metadata))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with open_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        replay_pb2_grpc.ReplayServiceStub(channel).ListTables(replay_pb2.ListTablesRequest(), timeout=10)
    assert ca is None or "unable to get local issuer certificate" in str(caught.value.details())


@pytest.mark.parametrize("whose", ["server", "client"])
def test_expired_certificate_makes_no_call(
    whose: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's or, where it asks for one, the client's; with the best of tokens. The message says so."""
    old = _expired(tmp_path / "expired", folder)
    become(monkeypatch, ca=folder / "ca.pem", token=folder / "operator.token")
    own = old if whose == "client" else folder
    monkeypatch.setenv(client_security.CERT, str(own / "client.pem"))
    monkeypatch.setenv(client_security.KEY, str(own / "client.key"))
    with _serve(old if whose == "server" else folder, client_ca=whose == "client") as background:
        address = background.start()
        credentials = client_security.channel_credentials(address)
        assert credentials is not None
        with grpc.secure_channel(address, credentials, [("grpc.enable_retries", 0)]) as channel:
            for path in METHODS:
                with pytest.raises(grpc.RpcError) as caught:
                    list(_stream(channel, path))
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with ReplayClient(address) as client, pytest.raises(Unavailable, match=naming("TLS expired")):
            client.list_tables()


async def test_launcher_does_not_take_an_expired_certificate_for_silence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a CA that it cannot read: it names the cause, and that the service answers plays no part in it."""
    become(monkeypatch, ca=folder / "ca.pem")
    with _serve(_expired(tmp_path / "expired", folder)) as background:
        address = background.start()
        for why in ("has expired; `tidemill certs`", "cannot read"):
            seen = await asyncio.wait_for(anext(silences(address, check_s=5.0)), WAIT_S)
            assert seen.seconds == 0.0
            assert why in seen.unknown
            become(monkeypatch, ca=tmp_path / "absent.pem")


async def test_launcher_does_not_wait_for_a_service_that_tls_keeps_it_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the cause, though the service serves."""
    become(monkeypatch, ca=folder / "ca.pem")
    with BackgroundServer("test", ServerSettings(grace_s=0.2)) as plain:
        address = plain.start()
        plain.set_serving(True)
        with pytest.raises(Unavailable, match=naming("plaintext TIDEMILL_TLS_CA")):
            await asyncio.wait_for(until_serving(address), WAIT_S)
        cluster = ClusterSettings(replay=(address,), params=address, learner=address)
        with contextlib.closing(AskedServices(cluster)) as asked:
            assert "the server speaks plaintext; unset TIDEMILL_TLS_CA" in asked()[0].reason


def test_failed_handshake_says_why(
    address: str, folder: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to do: for each of the mistakes that a setup has."""

    def why(at: str, *, ca: Path | None, name: str = "") -> str:
        become(monkeypatch, ca=ca)
        monkeypatch.setenv(client_security.NAME, name)
        with ReplayClient(at) as client, pytest.raises(Unavailable) as caught:
            client.list_tables()
        return str(caught.value)

    assert "is not of the CA that TIDEMILL_TLS_CA names" in why(address, ca=strangers / "ca.pem")
    assert "does not hold its name; `tidemill certs --host NAME`" in why(
        address, ca=folder / "ca.pem", name="elsewhere"
    )
    assert "if it speaks TLS, set TIDEMILL_TLS_CA" in why(address, ca=None)
    with BackgroundServer("test", ServerSettings(grace_s=0.2)) as plain:
        assert "the server speaks plaintext; unset TIDEMILL_TLS_CA" in why(plain.start(), ca=folder / "ca.pem")
    assert "TLS" not in why("127.0.0.1:1", ca=folder / "ca.pem")


def test_refused_call_is_counted_as_refused(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its method and its code, whatever kind of call it was."""
    labels = {"grpc_service": "tidemill.replay.v1.ReplayService", "grpc_method": "Sample", "grpc_type": "refused"}
    name, code = "grpc_server_handled_total", {"grpc_code": "PERMISSION_DENIED"}
    before = REGISTRY.get_sample_value(name, labels | code) or 0.0
    become(monkeypatch, ca=folder / "ca.pem", token=folder / "actor.token")
    assert _code(address, f"/{labels['grpc_service']}/Sample") is grpc.StatusCode.PERMISSION_DENIED
    wait_until(lambda: REGISTRY.get_sample_value(name, labels | code) == before + 1, "the call is counted")


def test_refusal_says_what_to_do_and_shows_no_token(
    address: str, folder: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients raise it as a separate error."""
    become(monkeypatch, ca=folder / "ca.pem")
    with ReplayClient(address) as client, pytest.raises(Unauthenticated, match=naming("TIDEMILL_TOKEN_FILE")):
        client.list_tables()
    wrong = strangers / "actor.token"
    become(monkeypatch, ca=folder / "ca.pem", token=wrong)
    with ReplayClient(address) as client, pytest.raises(Unauthenticated, match=naming("TIDEMILL_TOKEN_FILE")) as caught:
        client.list_tables()
    assert wrong.read_text().strip() not in str(caught.value)
    become(monkeypatch, ca=folder / "ca.pem", token=folder / "actor.token")
    with LearnerClient(address) as learner, pytest.raises(PermissionDenied, match=naming("actor operator")):
        learner.stop("no reason")


def _stream(channel: grpc.Channel, path: str) -> Any:  # noqa: ANN401
    call: Any = channel.stream_stream(path)
    return call(iter([b""]), timeout=10)


def test_health_is_open_and_reflection_is_not(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher asks for health before it could know a token; the list of methods is for operators."""
    become(monkeypatch, ca=folder / "ca.pem")
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with open_channel(address) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        with pytest.raises(grpc.RpcError) as caught:
            list(_stream(channel, reflection))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    become(monkeypatch, ca=folder / "ca.pem", token=folder / "operator.token")
    with open_channel(address) as channel:
        assert list(_stream(channel, reflection)) != []


def test_server_may_ask_for_a_certificate_too(folder: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `tls_client_ca` a token alone is not enough, nor is a certificate of another CA."""
    path = "/tidemill.replay.v1.ReplayService/ListTables"
    with _serve(folder, client_ca=True) as background:
        address = background.start()
        become(monkeypatch, ca=folder / "ca.pem", token=folder / "actor.token")
        assert _code(address, path) is grpc.StatusCode.UNAVAILABLE
        for place, code in ((strangers, grpc.StatusCode.UNAVAILABLE), (folder, grpc.StatusCode.OK)):
            monkeypatch.setenv(client_security.CERT, str(place / "client.pem"))
            monkeypatch.setenv(client_security.KEY, str(place / "client.key"))
            assert _code(address, path) is code


def test_name_to_look_for_may_be_given(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the one in the address; a certificate that does not hold it is refused."""
    become(monkeypatch, ca=folder / "ca.pem", token=folder / "actor.token")
    for name, code in (("replay", grpc.StatusCode.OK), ("elsewhere", grpc.StatusCode.UNAVAILABLE)):
        monkeypatch.setenv(client_security.NAME, name)
        assert _code(address, "/tidemill.replay.v1.ReplayService/ListTables") is code


def _sent(client: client_security.TokenInterceptor) -> str:
    """Return the value of the header that a call is given."""
    details: Any = client.intercept_unary_unary(lambda details, _: details, Mock(metadata=()), b"")
    return str(details.metadata[-1][1])


def test_client_that_reconnects_while_a_file_is_bad_keeps_what_it_had(
    folder: Path, strangers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new channel logs which file; a process that begins with a bad file is refused."""
    own, ca, cert, key = files = [tmp_path / name for name in ("operator.token", "ca.pem", "client.pem", "client.key")]
    for file in files:
        shutil.copy(folder / file.name, file)
    become(monkeypatch, ca=ca, token=own)
    monkeypatch.setenv(client_security.CERT, str(cert))
    monkeypatch.setenv(client_security.KEY, str(key))
    list_tables = "/tidemill.replay.v1.ReplayService/ListTables"
    with _serve(folder, client_ca=True) as background:
        address = background.start()
        assert _code(address, list_tables) is grpc.StatusCode.OK
        for file in files:
            for content in (b"", None, *([(strangers / file.name).read_bytes()] if file in (cert, key) else [])):
                with capture_logs() as lines:
                    file.unlink() if content is None else file.write_bytes(content)
                    assert _code(address, list_tables) is grpc.StatusCode.OK
                named = file if content in (b"", None) else key  # of two pairs
                assert any(str(named) in line["reason"] for line in lines)
                shutil.copy(folder / file.name, file)
        own.write_text("")
        own.chmod(0o644)
        assert _code(address, list_tables) is grpc.StatusCode.OK
    monkeypatch.setenv(client_security.TOKEN_FILE, str(tmp_path / "never.token"))
    with pytest.raises(ConfigError, match=naming("TIDEMILL_TOKEN_FILE never.token")):
        open_channel(address)


def test_files_that_cannot_be_read_for_a_moment_are_reloaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files at the first attempt: the next call or handshake tries again, without a change of the file.

    The log has the reason once in ten seconds.
    """
    make(tmp_path)
    file, own, new = tmp_path / "tokens.txt", tmp_path / "actor.token", "n" * 64
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _, changed, **__: changed)
    certificate: Any = server_credentials(guarded(tmp_path))
    tokens, client = Tokens(str(file)), client_security.TokenInterceptor(str(own))

    old = _sent(client)
    make(tmp_path)
    file.write_text(f"{file.read_text()}actor {new}\n")
    own.write_text(new)
    with monkeypatch.context() as patched:
        for name in ("read_text", "read_bytes"):
            patched.setattr(Path, name, Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        assert (tokens.role_of(new), _sent(client), certificate()) == (None, old, None)
    assert (tokens.role_of(new), _sent(client)) == ("actor", f"Bearer {new}")
    assert certificate() is not None
    now_s, log, read = [0.0], Mock(), Mock(side_effect=["", *[OSError()] * 3])
    contents = Reloaded([str(tmp_path / "none")], read, log, "", clock=lambda: now_s[0])
    own.rename(tmp_path / "none")
    for now_s[0] in (0.0, 9.0, 11.0):
        assert not contents.refresh()
    assert log.call_count == 2


def test_missing_tokens_are_told_and_the_old_ones_kept(tmp_path: Path) -> None:
    """One line for many calls: without the file the next start of the server would fail."""
    make(tmp_path)
    file, token = tmp_path / "tokens.txt", (tmp_path / "actor.token").read_text().strip()
    tokens = Tokens(str(file))
    with capture_logs() as lines:
        away = file.rename(tmp_path / "away")
        assert [tokens.role_of(token) for _ in range(3)] == ["actor"] * 3
        away.rename(file)
        assert tokens.role_of(token) == "actor"
    assert [line["event"] for line in lines] == ["cannot reload tokens, keeping the old ones", "tokens reloaded"]
    assert str(file) in lines[0]["reason"]


def test_tokens_change_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new are good together, a removed one is refused, a broken file changes nothing; clients reread theirs."""
    make(tmp_path)
    file, own = tmp_path / "tokens.txt", tmp_path / "actor.token"
    old, new, before = own.read_text().strip(), "n" * 64, file.read_text()
    become(monkeypatch, ca=tmp_path / "ca.pem", token=own)
    with _serve(tmp_path) as background, open_channel(background.start()) as channel:
        call: Any = channel.unary_unary("/tidemill.replay.v1.ReplayService/ListTables")

        def code(token: str) -> grpc.StatusCode:
            own.write_text(token)
            try:
                call(b"", timeout=10)
            except grpc.RpcError as error:
                found: grpc.StatusCode = error.code()
                return found
            return grpc.StatusCode.OK

        let_in, refused = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
        assert (code(old), code(new)) == (let_in, refused)
        file.write_text(f"{before}actor {new}\n")
        assert (code(old), code(new)) == (let_in, let_in)
        file.write_text(before.replace(old, new))
        assert (code(old), code(new)) == (refused, let_in)
        file.write_text("actor")
        assert (code(old), code(new)) == (refused, let_in)
        file.unlink()
        assert (code(old), code(new)) == (refused, let_in)
        file.write_text(before)
        file.chmod(0o644)
        assert (code(old), code(new)) == (refused, let_in)
        file.chmod(0o600)  # as the log says
        assert (code(old), code(new)) == (let_in, refused)


def test_certificate_is_renewed_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is shown the new one, also one of another CA; a connection that is open stays."""
    path = "/tidemill.replay.v1.ReplayService/ListTables"
    make(tmp_path)
    with _serve(tmp_path) as background:
        address = background.start()
        become(monkeypatch, ca=tmp_path / "ca.pem", token=tmp_path / "actor.token")
        with open_channel(address) as channel:
            call: Any = channel.unary_unary(path)
            assert call(b"", timeout=10) == b""
            former = (tmp_path / "ca.pem").rename(tmp_path / "former.pem")
            (tmp_path / "ca.key").unlink()
            make(tmp_path)
            assert call(b"", timeout=10) == b""
        assert _code(address, path) is grpc.StatusCode.OK
        become(monkeypatch, ca=former, token=tmp_path / "actor.token")
        assert _code(address, path) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("whose", ["server", "client"])
@pytest.mark.parametrize("what", ["another key", "passphrase", "broken certificate"])
def test_files_that_grpc_cannot_use_are_refused(
    whose: str, what: str, folder: Path, strangers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the setting and the file: gRPC would only say that it cannot bind, or connect."""
    own = shutil.copytree(folder, tmp_path / "own")
    cert, key = own / f"{whose}.pem", own / f"{whose}.key"
    if what == "another key":
        key.write_bytes((strangers / f"{whose}.key").read_bytes())
    elif what == "passphrase":
        locked = serialization.BestAvailableEncryption(b"secret")
        held = serialization.load_pem_private_key(key.read_bytes(), None)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(held.private_bytes(pem, form, locked))
    else:
        cert.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n")
    wrong = cert if what == "broken certificate" else key
    become(monkeypatch, ca=folder / "ca.pem")
    monkeypatch.setenv(client_security.CERT, str(own / "client.pem"))
    monkeypatch.setenv(client_security.KEY, str(own / "client.key"))
    with pytest.raises(ConfigError, match=naming(wrong)) as caught:
        server_credentials(guarded(own)) if whose == "server" else open_channel("127.0.0.1:1")
    setting = f"tls_{wrong.suffix[1:]}".replace("pem", "cert")
    assert setting in str(caught.value).lower()


def test_renewed_certificate_without_its_key_is_told_and_the_old_one_kept(
    tmp_path: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the key comes, too."""
    path = "/tidemill.replay.v1.ReplayService/ListTables"
    make(tmp_path)
    with _serve(tmp_path) as background, capture_logs() as lines:
        address = background.start()
        for name in ("server.pem", "server.key"):
            shutil.copyfile(strangers / name, tmp_path / name)
            is_whole = name == "server.key"
            become(monkeypatch, ca=(strangers if is_whole else tmp_path) / "ca.pem", token=tmp_path / "actor.token")
            assert _code(address, path) is grpc.StatusCode.OK
    told = [line for line in lines if "certificate" in line["event"]]
    assert [line["event"] for line in told] == [
        "cannot reload the certificate, keeping the old one",
        "certificate reloaded",
    ]
    assert str(tmp_path / "server.key") in told[0]["reason"]


def test_excepted_server_is_called_in_plaintext_without_the_token(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one with TLS, which still gets the token."""
    seen: list[str] = []

    class Plain(_Replay):
        async def ListTables(
            self,
            request: replay_pb2.ListTablesRequest,
            context: Any,  # noqa: ANN401
        ) -> replay_pb2.ListTablesResponse:
            """Note the names of the metadata."""
            seen.extend(name for name, _ in context.invocation_metadata())
            return await super().ListTables(request, context)

    with BackgroundServer("test", ServerSettings(grace_s=0.2)) as background:
        replay_pb2_grpc.add_ReplayServiceServicer_to_server(Plain(), background.server.grpc)
        plain = background.start()
        become(monkeypatch, ca=folder / "ca.pem", token=folder / "operator.token")
        monkeypatch.setenv(client_security.EXCEPT, f"elsewhere:1 {plain}")
        for server in (plain, address):
            with ReplayClient(server) as client:
                assert list(client.list_tables()) == []
    assert seen
    assert "authorization" not in seen


def test_token_is_not_sent_in_plaintext(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client refuses before it connects; within the machine it may."""
    become(monkeypatch, token=folder / "actor.token")
    for far in ("10.1.2.3:7401", "dns:///replay:7401", "replay:7401", "ipv4:10.1.2.3:7401"):
        with pytest.raises(ConfigError, match=naming("plaintext TIDEMILL_TLS_CA")):
            open_channel(far)
    for near in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:///tmp/none.sock"):
        open_channel(near).close()


def test_rerun_keeps_ca_and_tokens_and_renews_certificates(tmp_path: Path) -> None:
    """So clients stay as they are. Every file is this user's alone."""
    make(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (tmp_path / "tokens.txt").write_bytes(first["tokens.txt"] + b"actor " + b"x" * 64 + b"\n")
    os.remove(tmp_path / "learner.token")
    make(tmp_path, ["replay"])
    second = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    changed = {name for name, data in second.items() if data != first[name]}
    assert changed == {"server.pem", "server.key", "client.pem", "client.key", "tokens.txt"}
    assert second["tokens.txt"].startswith(first["tokens.txt"])
