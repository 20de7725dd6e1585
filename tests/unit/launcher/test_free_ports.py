"""Addresses that another process has, found before a run starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.addresses import check_addresses
from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.launcher.run.free_ports import check_free_ports


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which something listens, as the service of another run does."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _simulators(address: str) -> dict[str, Any]:
    return {
        "agent": {"algorithm": "dqn"},
        "launcher": {"actors": 0, "inference": 1},
        "inference": {"simulators": 2, "server": {"address": address}},
    }


def test_port_of_simulators_that_another_run_has_is_refused(taken: str) -> None:
    """The message names the setting as a user writes it, and no port 0, which simulators could not know."""
    with pytest.raises(ConfigError, match=naming(f"inference.server.address '{taken}' another process")) as refused:
        check_free_ports(load_config(_simulators(taken)))
    assert "port 0" not in str(refused.value)


@pytest.mark.parametrize("section", ["replay", "paramserver", "learner", "evaluator", "actor"])
def test_every_address_of_a_started_service_is_checked(taken: str, section: str) -> None:
    """That of its gRPC server and that of its metrics, each by its name; those of a service started elsewhere not."""
    names = ["metrics_address"] if section == "actor" else ["address", "metrics_address"]
    for name in names:
        config = load_config({section: {"server": {name: taken}}})
        with pytest.raises(ConfigError, match=naming(f"{section}.server.{name} '{taken}' 0")):
            check_free_ports(config)
    check_free_ports(load_config({"replay": {"server": {"address": taken}}, "launcher": {"replay": False}}))
    check_free_ports(load_config({"inference": {"server": {"metrics_address": taken}}}))


@pytest.mark.parametrize("section, setting", [("actor", "actors"), ("inference", "inference")])
def test_metrics_address_that_several_services_would_share_is_refused(section: str, setting: str) -> None:
    """One service may have it; with port 0 each takes a free one."""

    def config(count: int, address: str) -> RunConfig:
        return load_config({"launcher": {setting: count}, section: {"server": {"metrics_address": address}}})

    with pytest.raises(
        ConfigError, match=naming(f"{section}.server.metrics_address '127.0.0.1:9' launcher.{setting} 2")
    ):
        check_addresses(config(2, "127.0.0.1:9"), {})
    for count, address in ((1, "127.0.0.1:9"), (2, "127.0.0.1:0"), (2, "")):
        check_addresses(config(count, address), {})


def test_free_ports_and_sockets_are_not_refused() -> None:
    """Nor is one whose server has ended a moment ago, while its connections are not forgotten yet."""
    check_free_ports(load_config({}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0]:
            pass
    check_free_ports(load_config(_simulators(f"127.0.0.1:{address[1]}")))


def test_unix_socket_that_another_process_has_is_refused(tmp_path: Path) -> None:
    """It names the setting; a socket that a killed process has left is taken over, as by the service."""
    address = f"unix://{tmp_path}/l.sock"
    config = load_config({"learner": {"server": {"address": address}}})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address.removeprefix("unix://"))
        listener.listen()
        with pytest.raises(ConfigError, match=naming(f"learner.server.address '{address}' another process")):
            check_free_ports(config)
    check_free_ports(config)


def test_port_of_the_status_page_is_checked_before_anything_is_changed(taken: str) -> None:
    """Otherwise `resume` had set the result aside, and `--fresh` the earlier run."""
    _, _, port = taken.rpartition(":")
    launcher = {"status_page": True, "status_page_port": int(port)}
    with pytest.raises(ConfigError, match=naming("launcher.status_page_port", port)):
        check_free_ports(load_config({"launcher": launcher}))
    check_free_ports(load_config({"launcher": launcher | {"status_page": False}}))
