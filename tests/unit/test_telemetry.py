"""Metrics that every process has."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.support.free_ports import free_port
from tests.support.naming import naming
from tidemill import kernel
from tidemill.errors import ConfigError, FatalError
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import identify, serve_metrics, watch_disk


def test_disk_of_a_folder_that_is_made_later_is_its_parents(tmp_path: Path) -> None:
    """The run's folder need not exist when the process starts."""
    watch_disk(tmp_path / "runs" / "later")
    assert REGISTRY.get_sample_value("tidemill_disk_size_bytes") == shutil.disk_usage(tmp_path).total
    free = REGISTRY.get_sample_value("tidemill_disk_free_bytes")
    assert free is not None
    assert 0 < free < shutil.disk_usage(tmp_path).total


def test_log_on_a_full_disk_costs_lines_not_the_process() -> None:
    """The run's disk holds its logs too: who logs that it is full must survive to see room again."""
    code = (
        "import structlog; from tidemill.rpc.telemetry import configure_logging; configure_logging('test');"
        "[structlog.get_logger().warning('the disk is full') for _ in range(1_000)]; print('alive')"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert done.stdout == "alive\n"


@pytest.mark.parametrize(
    "variables, coloured",
    [
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "NO_COLOR": ""}, False),
    ],
)
def test_log_on_a_terminal_has_colours_unless_they_are_off(variables: dict[str, str], coloured: bool) -> None:
    """By NO_COLOR, or by a terminal such as an editor's, which shows their codes as text."""
    code = (
        "import structlog; from tidemill.rpc.telemetry import configure_logging; configure_logging('test');"
        "structlog.get_logger().info('said')"
    )
    terminal, side = os.openpty()
    try:
        command = [sys.executable, "-c", code]
        subprocess.run(command, env=os.environ | variables, stderr=side, timeout=60, check=True)
        said = os.read(terminal, 4096)
    finally:
        os.close(side)
        os.close(terminal)
    assert b"said" in said
    assert (b"\x1b[" in said) == coloured


def test_metrics_are_served_without_creation_times() -> None:
    """A counter is one series: `_created` would double what Prometheus stores."""
    address = serve_metrics(ServerSettings())
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "grpc_server_started_total" in text
    assert "_created" not in text


def test_processes_of_one_machine_have_a_port_each() -> None:
    """They follow the one in the settings; of free ones each takes its own."""
    port = free_port()
    settings = ServerSettings(metrics_address=f"127.0.0.1:{port - 1}")
    assert serve_metrics(settings, place=1) == f"127.0.0.1:{port}"
    with pytest.raises(FatalError, match=naming(f"127.0.0.1:{port}")):
        serve_metrics(settings, place=1)
    assert serve_metrics(ServerSettings(), place=1) != serve_metrics(ServerSettings(), place=1)


def test_metrics_beyond_this_machine_are_refused_unless_told_otherwise() -> None:
    """Metrics have no authentication either."""
    with pytest.raises(ConfigError, match=naming("127.0.0.1")):
        serve_metrics(ServerSettings(metrics_address="0.0.0.0:0"))


def test_metrics_say_which_build_runs() -> None:
    """A dashboard can show what runs where, and whether all of a cluster is of one version."""
    serve_metrics(ServerSettings())
    labels = {"version": version("tidemill"), "python": platform.python_version()}
    assert REGISTRY.get_sample_value("tidemill_build_info", labels) == 1
    assert REGISTRY.get_sample_value("tidemill_kernel_in_use") == float(kernel.available)


def test_last_lines_of_the_log_are_served() -> None:
    """Twelve, each cut where it is very long, also of a process whose standard error goes nowhere."""
    code = (
        "import structlog, urllib.request; from tidemill.rpc.telemetry import *; configure_logging('test');"
        "address = serve_metrics(ServerSettings(metrics_address='127.0.0.1:0'));"
        "log = structlog.get_logger(); [log.info('x' * 1000, number=n) for n in range(20)]; log.info('last one');"
        "print(urllib.request.urlopen(f'http://{address}/logs', timeout=20).read().decode())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=True)
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 12
    assert "last one" in lines[-1]
    assert len(lines[0]) == 400


def test_every_metric_has_the_run_and_the_process() -> None:
    """Those of prometheus_client and of gRPC as well as ours, and as they are called when they are asked."""
    identify("one", "actor")
    address = serve_metrics(ServerSettings(metrics_address="127.0.0.1:0"))
    identify("one", "actor-3")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        samples = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    assert len(samples) > 20
    unlabelled = [line for line in samples if 'process="actor-3"' not in line or 'run="one"' not in line]
    assert unlabelled == []
