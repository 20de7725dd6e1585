"""A run without actors, trained by programs that play as clients: in Python, and in Node from the .proto alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launched import BOUND_S, ROOT, Launched, launched, learner_of
from tests.support.params_service import free_address
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_EXAMPLES = ROOT / "examples" / "simulators"
_SHORT = (
    *("--run.target-return", "none", "--table.min-size", "200", "--agent.batch-size", "16"),
    *("--evaluator.episodes", "2", "--evaluator.num-envs", "2", "--evaluator.no-video"),
    *("--evaluator.min-interval-s", "1000", "--launcher.view", "plain", "--launcher.restart-backoff-s", "0.1"),
)


def _train(tmp_path: Path, address: str) -> contextlib.AbstractContextManager[Launched]:
    config = ("--config", str(ROOT / "configs" / "cartpole_simulators.yaml"), "--run.root", str(tmp_path))
    return launched("train", *config, "--inference.server.address", address, *_SHORT)


@contextlib.contextmanager
def _playing(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside a block, and end it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_simulators_train_a_run_whose_service_is_killed(tmp_path: Path) -> None:
    """They wait for it and continue their episodes, and the learner goes on learning from them."""
    address, folder = free_address(), tmp_path / "cartpole_simulators"
    example = (sys.executable, str(_EXAMPLES / "cartpole.py"), address, "--envs", "3")
    with _train(tmp_path, address) as cluster, _playing(*example) as games:
        assert cluster.until("simulators: ").endswith(f"simulators: {address} (docs/tutorials/simulators.md)")
        cluster.until("learner is ready")
        with learner_of(folder) as learner:
            wait_until(lambda: learner.get_status().learner_steps > 40, "updates", failure=lambda: _ended(games))
            seen = len(cluster.lines)
            os.kill(cluster.children()["inference"], signal.SIGKILL)
            cluster.until("was killed by signal 9", since=seen)
            cluster.until("inference-0 is ready", since=seen)
            reached = learner.get_status().env_steps
            wait_until(lambda: learner.get_status().env_steps > reached + 500, "steps", failure=lambda: _ended(games))
        cluster.send(signal.SIGINT)
        assert cluster.wait() == 0, cluster.output
    log = (folder / "logs" / "inference-0.log").read_text()
    assert "resumed=True" in log


def _ended(games: subprocess.Popen[str]) -> str:
    """Return why the games have ended; empty while they play."""
    if games.poll() is None or games.stdout is None:
        return ""
    return f"the games have ended: {games.stdout.read()}"


def test_client_in_node_trains_a_run(tmp_path: Path) -> None:
    """It was written from the .proto alone."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node and npm (Debian: apt-get install nodejs npm)")
    folder = tmp_path / "examples" / "simulators"
    shutil.copytree(_EXAMPLES, folder, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"npm could not install @grpc/grpc-js: {installed.stderr.strip().splitlines()[-1:]}")
    address, run = free_address(), tmp_path / "runs" / "cartpole_simulators"
    with _train(tmp_path / "runs", address) as cluster:
        cluster.until("inference-0 is ready")
        with _playing(node, str(folder / "cartpole.mjs"), address, "2", "500") as games, learner_of(run) as learner:
            said, _ = games.communicate(timeout=BOUND_S)
            assert games.returncode == 0, said
            assert said.count("played") == 2
            wait_until(lambda: learner.get_status().learner_steps > 0, "updates")
        cluster.send(signal.SIGINT)
        assert cluster.wait() == 0, cluster.output
