"""Commands of `tidemill`, each run for real as a separate process, forked, and their answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.process.documented import ELSEWHERE
from tests.support.launched import BOUND_S, ROOT, launched, tidemill
from tests.support.shell_commands import PAGES, shell_commands
from tests.support.small_run import small_run
from tests.support.status_page import states
from tests.support.waiting import wait_until
from tidemill.services.launcher.cli import COMMANDS
from tidemill.services.launcher.run.paths import make_socket_folder, remove_socket_folder

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_LOGGER = """
import tidemill

class Recorder(tidemill.RunLogger):
    def __init__(self, run):
        self.id = "here"

    def log(self, step, scalars, time_s):
        pass
"""

_SERVICES = ("replay", "paramserver", "learner", "inference")


def _config(folder: Path, **sections: dict[str, Any]) -> str:
    """Write a small run's config.yaml below `folder`, with more settings; return its path."""
    file = folder / "small.yaml"
    run = {"run": {"name": "small", "root": str(folder)}}
    file.write_text(yaml.safe_dump(run | small_run(**sections)))
    return str(file)


def test_every_command_is_tried() -> None:
    """A command that is added to `tidemill --help` asks for its trial: as a document prints it, or here."""
    printed = [(page, command) for page in PAGES for command in shell_commands(page)]
    run = [command for page, command in printed if not any(each.matches(page, command) for each in ELSEWHERE)]
    documented = {found[1] for command in run if (found := re.search(r"(?:^|/)tidemill ([a-z]+)", command))}
    assert set(COMMANDS) == documented | {
        "page",
        "log",
        "check",
    }  # which have tests/process/test_log.py and test_check.py


def test_cluster_by_hand_is_looked_at_and_steered(tmp_path: Path) -> None:
    """`tidemill SERVICE` is a part of a cluster; `status`, `ctl` and `page` reach it; SIGTERM ends each with 0."""
    sockets = make_socket_folder()
    names = ("replay", "params", "learner", "inference")
    replay, params, learner, inference = (f"unix://{sockets}/{name}.sock" for name in names)
    config = _config(
        tmp_path,
        cluster={"replay": replay, "params": params, "learner": learner, "inference": [inference]},
        replay={"server": {"address": replay}},
        paramserver={"server": {"address": params}},
        learner={"server": {"address": learner}},
        inference={"server": {"address": inference}},
    )
    with ExitStack() as stack:
        stack.callback(remove_socket_folder, sockets)
        services = {name: stack.enter_context(launched(name, "--config", config)) for name in _SERVICES}
        for service in services.values():
            service.until("listening|serving")
        wait_until(lambda: "table items" in tidemill("status", "--learner", learner), "a learner that has started")
        for verb, said in (("checkpoint", "checkpoint of"), ("pause", "paused"), ("resume", "training continues")):
            assert said in tidemill("ctl", verb, "--learner", learner)
        page = stack.enter_context(launched("page", "--config", config))
        address = page.until(r"http://127\.0\.0\.1:").partition("#")[0].strip()
        serving = dict.fromkeys(_SERVICES, "serving")
        wait_until(lambda: states(address) == serving, "every process on the page")
        services["inference"].send(signal.SIGTERM)
        wait_until(lambda: states(address)["inference"] == "silent", "the page's notice of a service that has ended")
        page.send(signal.SIGTERM)
        assert page.wait() == 0, page.output
        for service in reversed(services.values()):
            service.send(signal.SIGTERM)
            assert service.wait() == 0, service.output


_SIGNALLED_AS_IT_WAITS = """
import os, signal, threading
from tidemill.services.launcher import cli

wait = threading.Event.wait

def signalled(event, timeout=None):
    if timeout == {every_s} and threading.current_thread() is threading.main_thread():
        with event._cond:  # as at the start and the end of the wait
            os.kill(os.getpid(), signal.SIGTERM)  # a handler runs before the next instruction
    return wait(event, timeout)

threading.Event.wait = signalled
raise SystemExit(cli.main())
"""


@pytest.mark.parametrize(
    "every_s, command",
    [
        (0.5, "sweep sweep.yaml"),
        (7.25, "page --launcher.view_every_s 7.25"),
        (7.25, "log . --to recorder:Recorder --follow --every-s 7.25"),
    ],
    ids=["sweep", "page", "log"],
)
def test_signal_at_the_start_of_a_wait_stops_a_command(every_s: float, command: str, tmp_path: Path) -> None:
    """In order, though its main thread holds the lock of the event just then."""
    (tmp_path / "sweep.yaml").write_text("{base: quickstart, space: {agent.n_step: [1, 2]}}")
    (tmp_path / "config.yaml").write_text("env: {id: CartPole-v1}")
    (tmp_path / "recorder.py").write_text(_LOGGER)
    script = _SIGNALLED_AS_IT_WAITS.format(every_s=every_s)
    ended = subprocess.run(
        [sys.executable, "-c", script, *command.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_doctor_finds_this_installation_ready(tmp_path: Path) -> None:
    """It looks at the port of every service that may be started by hand, the kernel, and the disk below --root."""
    said = tidemill("doctor", "--root", str(tmp_path))
    assert "the compiled kernel is" in said
    assert said.endswith("ready to train\n")
    assert all(f"{name}: port {port}" in said for name, port in (("replay", 7401), ("params", 7402), ("learner", 7403)))
