"""Runs, servers and clients without calls that only Linux has: all, as on macOS, or those that a Python may lack."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.launched import BOUND_S, ROOT, services_of
from tests.support.processes import children_of
from tests.support.replay_service import ServerProcess
from tests.support.waiting import WAIT_S, wait_until
from tidemill import linux
from tidemill.config.load import read_document

_PORTABLE = os.environ | {linux.VARIABLE: "1"}
_OLD_PYTHON = "import os, signal; del os.pidfd_open, os.memfd_create, signal.pidfd_send_signal"
_SERVICES = {"replay", "paramserver", "learner", "actor", "evaluator"}
_LONGEST_SOCKET = 103  # of macOS
_MAKE = "from tidemill.services.launcher.run import paths; print(paths.make_socket_folder())"


@contextmanager
def _train(
    config_file: Path, *settings: str, environment: Mapping[str, str] = _PORTABLE
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a `tidemill train` that is a program; a fork server would have imported everything before the variable."""
    command = [sys.executable, "-m", "tidemill.services.launcher", "train", "--config", str(config_file), *settings]
    output = config_file.with_name("output")
    with output.open("wb") as file:
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield launcher
    except AssertionError as error:
        error.add_note(output.read_text(errors="replace"))
        raise
    finally:
        launcher.kill()
        launcher.wait()
        for pid in services_of(launcher.pid).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _addresses(folder: Path) -> list[str]:
    return re.findall(r"unix://(/[^\s'\"]+)", json.dumps(read_document(folder / "cluster.yaml")))


def _until_all_run(launcher: subprocess.Popen[bytes], folder: Path) -> None:
    wait_until(
        lambda: services_of(launcher.pid).keys() >= _SERVICES and (folder / "scores.csv").exists(),
        "all services run, and an evaluation",
        BOUND_S,
    )


@pytest.fixture(params=["all calls", "those of newer Pythons"])
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, str]:
    """The environment of processes that lack calls of Linux."""
    if request.param == "all calls":
        return _PORTABLE
    (tmp_path / "sitecustomize.py").write_text(_OLD_PYTHON)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


@pytest.mark.timeout(900)
def test_run_of_several_learners_is_trained_to_its_end(
    config_file: Path, tmp_path: Path, without: Mapping[str, str]
) -> None:
    """By processes that were each started as a program, over sockets whose paths every system takes.

    No memory can be shared, so each learner has a mirror; torchrun and its ranks end with the launcher.
    """
    folder = tmp_path / "runs" / "small"
    services = _SERVICES - {"learner"} | {"learner.torchrun"}
    settings = ("--launcher.learners", "2", "--run.max_learner_steps", "300")
    with _train(config_file, *settings, environment=without) as launcher:
        wait_until(lambda: services_of(launcher.pid).keys() >= services, "all services run", BOUND_S)
        assert services_of(launcher.pid).keys() == services
        sockets = _addresses(folder)
        assert launcher.wait(BOUND_S) == 0
        assert services_of(launcher.pid) == {}
    assert len(sockets) >= 4
    assert max(map(len, map(os.fsencode, sockets))) <= _LONGEST_SOCKET
    result = json.loads((folder / "result.json").read_text())
    assert result["reason"] == "run.max_learner_steps (300) reached"
    assert "each learner keeps a separate mirror" in (folder / "logs" / "learner.log").read_text()


def test_folder_whose_sockets_linux_alone_could_bind_is_passed_over(tmp_path: Path) -> None:
    """A folder for temporary files may be four bytes longer there."""
    name = len("/tidemill-12345678/inference-12345.sock")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = Path(short) / ("t" * (_LONGEST_SOCKET + 1 - name - len(short) - 1))
        place.mkdir()
        made = {}
        for value in ("", "1"):
            environment = os.environ | {"TMPDIR": str(place), linux.VARIABLE: value}
            said = subprocess.run([sys.executable, "-c", _MAKE], env=environment, capture_output=True, check=True)
            made[value] = Path(said.stdout.decode().strip())
    assert made[""].parent == place
    assert made["1"].parent == Path("/tmp")
    made["1"].rmdir()


def test_killed_launcher_leaves_nothing_not_even_what_is_frozen(config_file: Path, tmp_path: Path) -> None:
    """Services see that their parent has ended; the guard kills one that cannot."""
    with _train(config_file) as launcher:
        _until_all_run(launcher, tmp_path / "runs" / "small")
        os.kill(services_of(launcher.pid)["actor"], signal.SIGSTOP)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not services_of(launcher.pid), "every service has ended", BOUND_S)


def test_services_end_with_their_launcher_without_its_guard(config_file: Path, tmp_path: Path) -> None:
    """Each asks for itself who its parent is, whatever it does: one that still imports torch, too."""
    with _train(config_file) as launcher:
        wait_until(lambda: services_of(launcher.pid).keys() >= {"replay", "actor"}, "services are started", BOUND_S)
        guards = [
            pid for pid in children_of(launcher.pid) if b"group_guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(guards) == 1
        os.kill(guards[0], signal.SIGKILL)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not services_of(launcher.pid), "every service has ended", BOUND_S)


_WRITE_AND_READ = """
import sys
import numpy as np
from tidemill import linux
from tidemill.replay import ItemWindow, ReplayDataset, ReplayWriter, SelectorConfig, SelectorKind, TableConfig
from tidemill.replay import signature_like

assert not linux.AVAILABLE
address, first, last = sys.argv[1], *map(int, sys.argv[2:])
step = {"number": 0, "picture": np.zeros((8, 8), np.uint8)}
table = TableConfig("t", signature_like(step), SelectorConfig(SelectorKind.UNIFORM), max_items=1000, max_item_steps=1)
with ReplayWriter(address, table, windows=ItemWindow(length=1)) as writer:
    for number in range(first, last):
        writer.append({"number": number, "picture": np.full((8, 8), number % 251)})
seen = set()
with ReplayDataset(address, "t", batch_size=64, timeout_s=60) as dataset:
    while len(seen) < last:
        batch = next(dataset)
        pictures = batch["picture"][:, 0].reshape(64, -1)
        np.testing.assert_array_equal(pictures, np.broadcast_to(batch["number"] % 251, pictures.shape))
        seen |= set(batch["number"].ravel().tolist())
print(sorted(seen) == list(range(last)))
"""


def _write_and_read(address: str, first: int, last: int) -> str:
    command = [sys.executable, "-c", _WRITE_AND_READ, address, str(first), str(last)]
    done = subprocess.run(command, env=_PORTABLE, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.stdout + done.stderr


def test_replay_server_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """Written, read, killed by signal 9, started again: everything is there, from a log that every system can write."""
    options = ("--folder", str(tmp_path / "data"), "--ack", "fsync")
    before = ("env", f"{linux.VARIABLE}=1")
    first = ServerProcess("127.0.0.1:0", *options, before=before)
    with contextlib.closing(first):
        assert _write_and_read(first.address, 0, 200) == "True\n"
        os.kill(first.pid, signal.SIGKILL)
    with contextlib.closing(ServerProcess("127.0.0.1:0", *options, before=before)) as second:
        assert _write_and_read(second.address, 200, 250) == "True\n"
        assert second.stop()[0] == 0
