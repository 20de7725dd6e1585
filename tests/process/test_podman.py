"""Services in Podman's containers, on a network without IPv4. Skipped where Podman cannot start any.

The containers need no image: their root is this machine's, under a layer that takes what they write.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.replay_service import ServerProcess
from tests.support.waiting import WAIT_S

_COMMAND = str(Path(sys.executable).with_name("tidemill"))
_PROBE = (sys.executable, "-I", "-S", str(Path(__file__).resolve().parents[2] / "tidemill" / "health_probe.py"))
# as in docker-compose.yml; the capability is for an interpreter in a folder of root's
_CONFINED = [
    "--rm",
    "--read-only",
    "--read-only-tmpfs=false",
    "--tmpfs",
    "/tmp:mode=1777,notmpcopyup",
    "--user",
    "54321:54321",
    "--network",
    "cluster",
    "--cap-drop",
    "ALL",
    "--cap-add",
    "DAC_READ_SEARCH",
    "--security-opt",
    "no-new-privileges",
]


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """Podman with all that it keeps in a folder, and a network whose addresses are of IPv6 alone."""
    if os.geteuid() != 0 or not shutil.which("podman"):
        pytest.skip("takes root and podman")
    with tempfile.TemporaryDirectory(prefix="tidemill-podman-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        command = ["podman", "--root", f"{folder}/data", "--runroot", f"{folder}/run", "--cgroup-manager", "cgroupfs"]
        command += ["--network-config-dir", f"{folder}/networks"]
        try:
            try:
                _done([*command, "run", "--rm", "--rootfs", "/:O", "true"])
            except AssertionError as reason:
                pytest.skip(f"Podman starts no container: {reason}")
            _done([*command, "network", "create", "--subnet", "fd00:36::/64", "cluster"])
            yield command
        finally:
            _done([*command, "rm", "--all", "--force", "--time", "0"])
            subprocess.run([*command, "network", "rm", "--force", "cluster"], capture_output=True, check=False)
            subprocess.run(["umount", f"{folder}/data/overlay"], capture_output=True, check=False)


def _done(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_shard_is_called_by_name_on_a_network_without_ipv4(podman: list[str]) -> None:
    """The bind of the shipped files, 0.0.0.0, takes calls and the health probe; the user has no entry in passwd."""
    run, rooted = [*podman, "run", *_CONFINED], ["--rootfs", "/:O"]
    settings = ["--replay.server.insecure", "--replay.server.metrics-insecure"]
    settings += ["--replay.server.metrics-address", "0.0.0.0:9400"]
    with closing(ServerProcess("0.0.0.0:7401", *settings, before=[*run, "--name", "replay", *rooted])):
        assert " inet " not in _done([*run, *rooted, "ip", "address", "show", "eth0"])
        _done([*run, *rooted, _COMMAND, "replay", "tables", "replay:7401"])
        _done([*podman, "exec", "replay", *_PROBE, "127.0.0.1:9400/healthz"])
