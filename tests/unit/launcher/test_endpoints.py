"""Processes that an engine started, told apart and watched at their metrics endpoints."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.free_ports import free_port
from tidemill.services.launcher.view.endpoints import AskedEndpoints


class _Process:
    """One process at a separate address on this machine's loopback."""

    def __init__(self, address: str, port: int, host: str) -> None:
        """Serve what the test sets."""
        self.health, self.start, self.host, self.cpu_s = "SERVING", "1.5e+09", host, 1.0
        self.process = "actor"
        owner = self

        class _Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Answer as a service does."""
                texts = {
                    "/healthz": owner.health,
                    "/logs": f"a line of {owner.host}\nanother\n",
                    "/metrics": f'tidemill_start_time_seconds{{host="{owner.host}",process="{owner.process}",run="r"}} '
                    f"{owner.start}\n"
                    f"process_cpu_seconds_total {owner.cpu_s}\nprocess_resident_memory_bytes 2e+06\n",
                }
                self.send_response(200 if owner.health == "SERVING" or self.path != "/healthz" else 503)
                self.end_headers()
                self.wfile.write(texts[self.path].encode())

            def log_message(self, *_: Any) -> None:  # noqa: ANN401
                """Say nothing."""

        server = type("Server", (ThreadingHTTPServer,), {"address_family": socket.AF_INET6 if ":" in address else 2})
        self.server: ThreadingHTTPServer = server((address, port), _Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Be gone."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Process, _Process]]:
    """Two actors behind one name, at once asked again."""
    port = free_port()
    real = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        if host != "actor":
            return real(host, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in (2, 1)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with closing(_Process("127.0.0.1", port, "one")) as one, closing(_Process("127.0.0.2", port, "two")) as other:
        yield one, other


def test_name_stands_for_as_many_processes_as_it_has_addresses(two: tuple[_Process, _Process]) -> None:
    """Each has a row, its state, its memory and its log lines."""
    two[1].health = "no parameters yet"
    port = two[0].server.server_port
    with closing(AskedEndpoints([f"actor:{port}", "127.0.0.1:1"], every_s=0.0)) as asked:
        rows = {row.name: row for row in asked()}
    assert {name: row.phase.value for name, row in rows.items()} == {
        "127.0.0.1": "silent",
        "actor-0": "serving",
        "actor-1": "starting",
    }
    assert rows["actor-1"].reason == "no parameters yet"
    assert rows["127.0.0.1"].reason == "no answer from 127.0.0.1:1"
    assert rows["actor-0"].usage is not None
    assert rows["actor-0"].usage.memory_bytes == 2_000_000
    assert asked.lines("actor-1") == ["a line of two", "another"]
    assert asked.lines("nobody") == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_process_at_an_ipv6_address_is_asked() -> None:
    """Listed with brackets, as everywhere."""
    with closing(_Process("::1", 0, "one")) as process:
        port = process.server.server_port
        with closing(AskedEndpoints([f"[::1]:{port}"], every_s=0.0)) as asked:
            (row,) = asked()
            assert row.phase.value == "serving", row.reason
            assert asked.lines(row.name) == ["a line of one", "another"]


def test_restart_and_silence_are_events(two: tuple[_Process, _Process]) -> None:
    """A host that says another start time was restarted, as often as that happens."""
    told: list[str] = []
    with closing(AskedEndpoints([f"actor:{two[0].server.server_port}"], told.append, every_s=0.0)) as asked:
        asked()
        for start in ("1.6e+09", "1.7e+09"):
            two[0].start = start
            restarts = {row.name: row.restarts for row in asked()}
        two[1].close()
        phases = {row.name: row.phase.value for row in asked()}
    assert restarts == {"actor-0": 2, "actor-1": 0}
    assert phases == {"actor-0": "serving", "actor-1": "silent"}
    assert told == ["actor-0 was restarted", "actor-0 was restarted", "actor-1 does not answer"]


@pytest.mark.parametrize("cpu_s", [0.5, 5_000.0])
def test_host_that_takes_over_an_address_has_no_cpu_share_yet(two: tuple[_Process, _Process], cpu_s: float) -> None:
    """Its CPU time, shorter or longer, is not compared with that of the process before it."""
    with closing(AskedEndpoints([f"actor:{two[0].server.server_port}"], every_s=0.0)) as asked:
        asked()
        two[0].host, two[0].start, two[0].cpu_s = "three", "1.8e+09", cpu_s
        usages = {row.name: row.usage for row in asked()}
    assert usages["actor-0"] is not None
    assert usages["actor-0"].cpu_fraction == 0.0


def test_services_that_swap_their_addresses_keep_their_names(
    two: tuple[_Process, _Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine does that starts both again: a row is named by who is asked for, not by who was there before."""
    port, ends = two[0].server.server_port, {"actor": "127.0.0.1", "learner": "127.0.0.2"}
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ends.get(host, host), port))],
    )
    with closing(AskedEndpoints([f"actor:{port}", f"learner:{port}"], every_s=0.0)) as asked:
        asked()
        assert asked.lines("actor")[0] == "a line of one"
        ends = {"actor": "127.0.0.2", "learner": "127.0.0.1"}
        assert [row.name for row in asked()] == ["actor", "learner"]
        assert asked.lines("actor")[0] == "a line of two"
        assert asked.lines("learner")[0] == "a line of one"


def test_processes_of_one_host_are_told_apart() -> None:
    """As services started by hand on one machine, which have its name and may share their own, or change it."""
    told: list[str] = []
    with closing(_Process("127.0.0.1", 0, "box")) as one, closing(_Process("127.0.0.1", 0, "box")) as other:
        one.process, other.process, other.start = "inference", "inference", "2.5e+09"
        ports = [each.server.server_address[1] for each in (one, other)]
        with closing(AskedEndpoints([f"127.0.0.1:{port}" for port in ports], told.append, every_s=0.0)) as asked:
            rows = asked()
            assert sorted(row.name for row in rows) == sorted(f"127.0.0.1:{port}" for port in ports)
            assert [row.restarts for row in rows] == [0, 0]
            one.process, one.start = "actor-3", "2.6e+09"
            assert {row.name: row.restarts for row in asked()} == {
                f"127.0.0.1:{port}": restarts for port, restarts in zip(ports, (1, 0), strict=True)
            }
    assert told == [f"127.0.0.1:{ports[0]} was restarted"]


def test_too_many_processes_share_a_row_but_every_kind_is_asked(
    two: tuple[_Process, _Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner is asked before the second actor, though its name comes later."""
    resolved = socket.getaddrinfo

    def with_learner(host: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        return resolved("127.0.0.1" if host == "learner" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", with_learner)
    monkeypatch.setattr("tidemill.services.launcher.view.endpoints._MOST", 2)
    with closing(_Process("127.0.0.1", 0, "three")) as learner:
        endpoints = [f"actor:{two[0].server.server_port}", f"learner:{learner.server.server_port}"]
        with closing(AskedEndpoints(endpoints, every_s=0.0)) as asked:
            rows = {row.name: (row.phase.value, row.reason, row.is_process) for row in asked()}
            assert asked.lines("learner") == ["a line of three", "another"]
    assert rows == {
        "actor-0": ("serving", "", True),
        "learner": ("serving", "", True),
        "1 more": ("pending", "not asked: 2 processes are asked at most", False),
    }


def _both_kinds(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let the name `box` have addresses of IPv4 and IPv6, as a machine's own in /etc/hosts."""
    real = socket.getaddrinfo

    def resolved(host: str, port: int, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        if host != "box":
            return real(host, port, *rest, **more)
        kinds = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [(kind, socket.SOCK_STREAM, 6, "", (each, port)) for kind, each in zip(kinds, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.parametrize("addresses", [("::1", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_process_behind_one_of_two_kinds_of_address_has_one_row(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """Also if it starts after it was first asked for, or ends."""
    _both_kinds(monkeypatch, *addresses)
    port = free_port()
    with closing(AskedEndpoints([f"box:{port}"], every_s=0.0)) as asked:
        seen = [[(row.name, row.phase.value) for row in asked()]]
        with closing(_Process("127.0.0.1", port, "one")):
            seen += [[(row.name, row.phase.value) for row in asked()] for _ in range(2)]
        seen += [[(row.name, row.phase.value) for row in asked()]]
    assert seen == [[("box", phase)] for phase in ("silent", "serving", "serving", "silent")]


def test_all_endpoints_of_a_silent_machine_are_tried_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address may take seconds until it is given up."""
    _both_kinds(monkeypatch, "127.0.0.1", "::1")
    together = threading.Barrier(2 * 8)

    def accepts(_: str) -> bool:
        together.wait(5.0)
        return False

    monkeypatch.setattr("tidemill.services.launcher.view.endpoints._accepts", accepts)
    with closing(AskedEndpoints([f"box:{port}" for port in range(1, 9)])) as asked:
        assert [row.phase.value for row in asked()] == ["silent"] * 8


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_process_behind_two_kinds_of_address_has_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that listens on every address of its machine."""
    _both_kinds(monkeypatch, "127.0.0.1", "::1")
    with closing(_Process("127.0.0.1", 0, "one")) as one:
        port = one.server.server_address[1]
        with closing(_Process("::1", port, "one")), closing(AskedEndpoints([f"box:{port}"], every_s=0.0)) as asked:
            assert [(row.name, row.phase.value) for row in asked()] == [("box", "serving")]
