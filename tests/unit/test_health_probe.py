"""`/healthz` of a process, and the probe that a container's healthcheck asks it with."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import tidemill.health_probe
from tests.support.waiting import wait_until
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.server import Health
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import serve_metrics, start_http_endpoint


def probe(target: str) -> tuple[int, str]:
    """Run the probe as a container does; return its exit code and what it says."""
    script = str(Path(tidemill.health_probe.__file__))
    ended = subprocess.run(
        [sys.executable, "-I", "-S", script, target], capture_output=True, text=True, check=False, timeout=60
    )
    return ended.returncode, ended.stderr


def test_probe_follows_the_health_of_the_service() -> None:
    """It fails while the service prepares, succeeds once it serves, and fails again when it stops."""
    with BackgroundServer("test", ServerSettings(grace_s=0.1)) as server:
        server.start()
        target = f"{serve_metrics(ServerSettings(), server.health)}/healthz"
        assert probe(target) == (1, f"{target}: HTTP/1.0 503 Service Unavailable\n")
        server.set_serving(True)
        assert probe(target) == (0, "")
    assert probe(target)[0] == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("listens, asked", [("[::1]", ["[::1]"]), ("0.0.0.0", ["[::1]", "127.0.0.1"])])
def test_probe_and_endpoint_speak_ipv6(listens: str, asked: list[str]) -> None:
    """An address of IPv6 stands in brackets; every address means those of both."""
    settings = ServerSettings(metrics_address=f"{listens}:0", metrics_insecure=True)
    host, _, port = serve_metrics(settings).rpartition(":")
    assert host == listens
    for each in asked:
        assert probe(f"{each}:{port}/healthz") == (0, "")


def test_probe_of_a_service_that_is_not_there_says_why() -> None:
    """Nobody listens: the probe fails and says why."""
    assert probe("127.0.0.1:1/healthz") == (1, "127.0.0.1:1/healthz: [Errno 111] Connection refused\n")


def test_probe_loads_no_package() -> None:
    """It is run every few seconds in every container, so it loads the socket and nothing else."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"exec(open({tidemill.health_probe.__file__!r}).read(), {{'__name__': 'probe'}})\n"
        "print(sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout in ("['_socket']\n", "[]\n")  # some builds of Python have it built in


def test_health_of_a_loop_that_stands_still_is_bad() -> None:
    """A server whose event loop hangs answers no call, though its thread for /healthz still runs."""
    now_s = 0.0
    health = Health(clock=lambda: now_s)
    health.serving = True
    assert health.complaint() == ""
    health.beat()
    now_s = 5.0
    assert health.complaint() == ""
    now_s = 7.0
    assert health.complaint() == "the event loop has not turned for 7 s"
    health.beat()
    assert health.complaint() == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_endpoint_listens_on_either_kind_of_address(host: str) -> None:
    """IPv4, IPv6, or a name for one of them; port 0 takes a free one."""
    assert start_http_endpoint(host, 0, None) > 0


def test_endpoint_bounds_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent and slow ones are let go after a while, and no more are taken than so many; then it answers again."""
    monkeypatch.setattr("tidemill.rpc.telemetry._REQUEST_S", 0.5)
    port, before = start_http_endpoint("127.0.0.1", 0, None), threading.active_count()
    with ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        time.sleep(0.2)
        assert threading.active_count() - before <= 32

        def are_let_go() -> bool:
            for caller in callers:
                with suppress(OSError):
                    caller.send(b"G")  # within any bound of a single read
            return threading.active_count() <= before

        wait_until(are_let_go, "the slow ones to be let go")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200


def test_endpoint_without_threads_for_a_while_answers_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that got none leaves its place to others."""
    port = start_http_endpoint("127.0.0.1", 0, None)
    with monkeypatch.context() as out_of_threads:

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        out_of_threads.setattr(threading.Thread, "start", refuse)
        for _ in range(40):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as caller, suppress(ConnectionResetError):
                assert caller.recv(1) == b""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert answer.status == 200
