"""An address that cannot be served is answered with the reason and the remedy."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.run import ClusterSettings
from tidemill.errors import ConfigError, FatalError
from tidemill.rpc.access import Tokens
from tidemill.rpc.addresses import caller_of, host_and_port, is_client_address, is_server_address, joined
from tidemill.rpc.server import why_not_bound
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import serve_metrics
from tidemill.rpc.tls import check_exposure, check_server


def test_port_beyond_the_last_is_refused() -> None:
    """GRPC would listen on the remainder by 65,536."""
    with pytest.raises(ConfigError, match=naming("'127.0.0.1:99999' 65535")):
        check_exposure("127.0.0.1:99999", insecure=False)
    check_exposure("127.0.0.1:65535", insecure=False)


@pytest.mark.parametrize(
    "peer, caller",
    [
        ("ipv4:10.0.0.1:4321", "10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:4321", "2001:db8::1"),
        ("unix:", "unix"),
        ("unix:/run/x:1", "unix"),
    ],
)
def test_caller_is_the_address_without_the_port(peer: str, caller: str) -> None:
    """A program may call from any number of ports."""
    assert caller_of(peer) == caller


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:0", "[::]:7401", "[fe80::1%eth0]:1", "localhost:7401", "replay_0.example.org.:7401", "unix:///a/b"],
)
def test_address_that_a_server_may_have_is_taken(address: str) -> None:
    """Names with an underscore, as services of Docker Compose have, too."""
    assert is_server_address(address)
    assert is_client_address(address)
    assert ServerSettings(address=address).address == address


@pytest.mark.parametrize(
    "address",
    ["", "nohost", "1.2.3.4.5:70", "1.2.3:70", "::1:70", ":7401", "a b:1", "a..b:1", "host:x", "unix:", "h:-1"],
)
def test_address_that_no_server_has_is_refused(address: str) -> None:
    """When settings are read."""
    with pytest.raises(ConfigError, match=naming("server.address", repr(address), "host:port")):
        ServerSettings(address=address)
    for name in ("params", "learner", "replay", "inference"):
        value = address if name in ("params", "learner") else (address,)
        with pytest.raises(ConfigError, match=naming(f"cluster.{name}", repr(address), "host:port")):
            ClusterSettings(**{name: value})  # type: ignore[arg-type]
    if address:
        with pytest.raises(ConfigError, match=naming("server.metrics_address")):
            ServerSettings(metrics_address=address)


def test_clients_resolve_names_by_dns() -> None:
    """What gRPC's schemes name may be connected to, and not listened at."""
    for address in ("dns:///replay:7401", "ipv4:10.0.0.1:7401", "ipv6:[::1]:7401"):
        assert is_client_address(address)
        assert not is_server_address(address)


def test_host_and_port_are_parted_and_joined() -> None:
    """Brackets are for the text alone."""
    for address, parts in (
        ("[::1]:70", ("::1", 70)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("replay:7401", ("replay", 7401)),
    ):
        assert host_and_port(address) == parts
        assert joined(*parts) == address


def test_reason_is_told_apart() -> None:
    """A host that is not known, an address of another machine, a port that is taken."""
    assert "'no.such.host.invalid' is not known" in why_not_bound("no.such.host.invalid:7000")
    # TEST-NET-1 belongs to nobody
    assert "192.0.2.1 is not an address of this machine" in why_not_bound("192.0.2.1:7000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "another process listens there" in why_not_bound(f"127.0.0.1:{taken.getsockname()[1]}")


def test_metrics_on_a_taken_port_say_what_to_do() -> None:
    """The setting is named, and that it can be empty."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = ServerSettings(metrics_address=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(FatalError, match=naming("server.metrics_address")):
            serve_metrics(settings)


def test_process_on_a_taken_port_ends_with_one_line() -> None:
    """Its name once, no class of the error, and no line of gRPC's own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "tidemill.services.replay", "--replay.server.address", address]
        ended = subprocess.run(
            [*command, "--replay.server.metrics-address", ""], capture_output=True, text=True, check=False, timeout=120
        )
    lines = [line for line in ended.stderr.splitlines() if "[info" not in line]
    assert ended.returncode == 1
    assert len(lines) == 1
    assert lines[0].startswith(
        f"replay: cannot listen on {address}: another process listens there; choose another replay.server.address"
    )


def test_exposed_server_needs_tls_and_tokens() -> None:
    """One of the two is not enough, and the message names the settings and the command that makes the files."""
    with_tls = ServerSettings("0.0.0.0:0", tls_cert="server.pem", tls_key="server.key")
    check_server(dataclasses.replace(with_tls, tokens="tokens.txt"))
    for half in (with_tls, ServerSettings("0.0.0.0:0", tokens="tokens.txt"), ServerSettings("0.0.0.0:0")):
        with pytest.raises(ConfigError, match=naming("server.tls_cert tidemill certs server.insecure")):
            check_server(half)
    check_server(ServerSettings("0.0.0.0:0", insecure=True))


def test_half_of_a_pair_is_refused() -> None:
    """A certificate without its key, and a CA of clients on a server without TLS."""
    with pytest.raises(ConfigError, match=naming("server.tls_cert server.tls_key")):
        check_server(ServerSettings(tls_cert="server.pem"))
    with pytest.raises(ConfigError, match=naming("server.tls_cert")):
        check_server(ServerSettings(tls_client_ca="ca.pem"))


@pytest.mark.parametrize(
    "text, mode, message",
    [
        ("actor " + "x" * 40, 0o644, "600"),
        ("actor sha256:" + "x" * 64, 0o600, "SHA-256"),
        ("actor short", 0o600, "1 ROLE TOKEN"),
        ("nobody " + "x" * 40, 0o600, "ROLE actor learner evaluator operator"),
        ("# none\n", 0o600, "server.tokens"),
        (f"actor {'x' * 40}\nlearner {'x' * 40}", 0o600, "2"),
        ("actor \xe9" + "x" * 40, 0o600, "ASCII"),
    ],
)
def test_wrong_tokens_are_refused_without_showing_them(tmp_path: Path, text: str, mode: int, message: str) -> None:
    """At the start of a server, with the line's number at most."""
    file = tmp_path / "tokens.txt"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=naming(message)) as caught:
        Tokens(str(file))
    assert "xxx" not in str(caught.value)


def test_tokens_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    """The setting is named."""
    with pytest.raises(ConfigError, match=naming("server.tokens")):
        Tokens(str(tmp_path / "none"))
