"""What every process shows Prometheus."""

from __future__ import annotations

import platform
import shutil
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tidemill.errors import ConfigError
from tidemill.rpc.settings import ServerSettings
from tidemill.telemetry import serve_metrics, watch_disk


def test_disk_of_a_folder_that_is_made_later_is_its_parents(tmp_path: Path) -> None:
    """The run's folder need not exist when the process starts."""
    watch_disk(tmp_path / "runs" / "later")
    assert REGISTRY.get_sample_value("tidemill_disk_size_bytes") == shutil.disk_usage(tmp_path).total
    free = REGISTRY.get_sample_value("tidemill_disk_free_bytes")
    assert free is not None
    assert 0 < free < shutil.disk_usage(tmp_path).total


def test_metrics_are_served_without_creation_times() -> None:
    """A counter is one series: `_created` would double what Prometheus stores."""
    address = serve_metrics(ServerSettings())
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "grpc_server_started_total" in text
    assert "_created" not in text


def test_metrics_beyond_this_machine_are_refused_unless_told_otherwise() -> None:
    """Metrics have no authentication either."""
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        serve_metrics(ServerSettings(metrics_address="0.0.0.0:0"))


def test_metrics_say_which_build_runs() -> None:
    """A dashboard can show what runs where, and whether all of a cluster is of one version."""
    serve_metrics(ServerSettings())
    labels = {"version": version("tidemill"), "python": platform.python_version()}
    assert REGISTRY.get_sample_value("tidemill_build_info", labels) == 1
