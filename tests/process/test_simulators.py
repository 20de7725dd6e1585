"""A run without actors, trained by programs that play as clients: Python, and Node and C++ from the .proto alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.free_ports import free_address
from tests.support.launched import BOUND_S, ROOT, TRAINED_S, Launched, launched, learner_of
from tests.support.replay_service import local_server
from tests.support.simulator_service import create_table, local_simulators
from tests.support.waiting import wait_until
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec

pytestmark = [pytest.mark.process, pytest.mark.timeout(TRAINED_S + 600)]

_EXAMPLES = ROOT / "examples" / "simulators"
_SHORT = (
    *("--run.target-return", "none", "--table.min-size", "200", "--agent.batch-size", "16"),
    *("--evaluator.episodes", "2", "--evaluator.num-envs", "2", "--evaluator.no-video"),
    *("--evaluator.min-interval-s", "1000", "--launcher.view", "plain", "--launcher.restart-backoff-s", "0.1"),
)


@pytest.fixture(autouse=True)
def _proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a proxy for gRPC alone, at which nothing listens: no client asks it."""
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")


def _train(tmp_path: Path, address: str, *more: str) -> contextlib.AbstractContextManager[Launched]:
    config = ("--config", str(ROOT / "configs" / "cartpole_simulators.yaml"), "--run.root", str(tmp_path))
    return launched("train", *config, "--inference.server.address", address, *_SHORT, *more)


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
    """They wait for it and continue their episodes, and the learner keeps learning from them."""
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


def test_example_ends_in_order_when_it_is_interrupted() -> None:
    """Ctrl-C ends its games and their calls, without a traceback."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), dueling=False, n_step=1)
    spec = EnvSpec((4,), "float32", num_actions=2)
    with local_server() as replay:
        create_table(replay.address, config, spec)
        with local_simulators(replay.address, config, spec) as service:
            command = (sys.executable, str(_EXAMPLES / "cartpole.py"), service.address, "--envs", "3")
            with _playing(*command) as games:
                wait_until(lambda: replay.replay.env_steps > 20, "steps", failure=lambda: _ended(games))
                games.send_signal(signal.SIGINT)
                output, _ = games.communicate(timeout=BOUND_S)
    assert (games.returncode, output) == (0, "")


_CLIENTS_ONLY = (
    *("--env.id", "my-cartpole", "--env.spaces", "{observation: [float32, 4], num_actions: 2}"),
    *("--evaluator.source", "simulators"),
)


def test_run_whose_environment_only_clients_have_is_scored_by_their_episodes(tmp_path: Path) -> None:
    """It keeps the best policy and ends, although the learner that paced the clients is gone by the last evaluation."""
    address, folder = free_address(), tmp_path / "cartpole_simulators"
    example = (sys.executable, str(_EXAMPLES / "cartpole.py"), address, "--envs", "3")
    config = ("--config", str(ROOT / "configs" / "cartpole_simulators.yaml"), "--run.root", str(tmp_path))
    options = (
        *(*_CLIENTS_ONLY, *_SHORT, "--inference.server.address", address, "--run.target-return", "5"),
        *("--run.max-learner-steps", "60", "--evaluator.start-env-steps", "1000000"),
        *("--evaluator.confirm-episodes", "3"),
    )
    with launched("train", *config, *options) as cluster, _playing(*example):
        assert cluster.wait(BOUND_S) == 0, cluster.output
    result = json.loads((folder / "result.json").read_text())
    assert result["solved"], result
    assert (result["env_id"], result["episodes"], result["confirm_episodes"]) == ("my-cartpole", 2, 3)
    assert result["best_version"] == result["params_version"] > 0
    assert len((folder / "episodes.csv").read_text().splitlines()) == 1 + 2 + 3


def _ended(games: subprocess.Popen[str]) -> str:
    """Return why the games have ended; empty while they play."""
    if games.poll() is None or games.stdout is None:
        return ""
    return f"the games have ended: {games.stdout.read()}"


def _node(folder: Path) -> tuple[str, ...]:
    """Return the command of the client in Node, installed in a folder."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node and npm (Debian: apt-get install nodejs npm)")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"npm could not install @grpc/grpc-js: {installed.stderr.strip().splitlines()[-1:]}")
    return node, str(folder / "cartpole.mjs")


def _cpp(folder: Path) -> tuple[str, ...]:
    """Return the command of the client in C++, built in a folder."""
    missing = [
        tool for tool in ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin") if shutil.which(tool) is None
    ]
    if missing or subprocess.run(["pkg-config", "--exists", "grpc++"], check=False).returncode:
        packages = "g++ make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc"
        pytest.skip(f"needs {', '.join(missing) or 'gRPC for C++'} (Debian: apt-get install {packages})")
    make, unoptimised = ["make", "-C", str(folder / "cpp")], os.environ | {"CXXFLAGS": "-O0"}
    built = subprocess.run(make, env=unoptimised, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    return (str(folder / "cpp" / "cartpole"),)


def test_client_in_node_prints_the_reason_of_a_refusal(tmp_path: Path) -> None:
    """It knows the name from the .proto, and reads no message."""
    folder = tmp_path / "examples" / "simulators"
    shutil.copytree(_EXAMPLES, folder, ignore=shutil.ignore_patterns("node_modules", "cpp"))
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    command, spec = _node(folder), EnvSpec((3,), "float32", num_actions=2)  # CartPole has 4
    config = DQNConfig(network="mlp", hidden_sizes=(8,), dueling=False, n_step=1)
    with local_server() as replay:
        create_table(replay.address, config, spec)
        with local_simulators(replay.address, config, spec) as service:
            played = subprocess.run(
                [*command, service.address, "1"], capture_output=True, text=True, timeout=BOUND_S, check=False
            )
    assert played.returncode == 1
    assert "(REASON_SPACES_DIFFER)" in played.stdout


@pytest.mark.learning
@pytest.mark.parametrize("client", [_node, _cpp], ids=["node", "cpp"])
def test_client_from_the_proto_alone_trains_a_run_to_its_target(
    client: Callable[[Path], tuple[str, ...]], tmp_path: Path
) -> None:
    """It has its own physics; what learns from them reaches 475, confirmed on fresh episodes.

    Those are the evaluator's for the client in Node, and the client's own in C++.
    """
    folder = tmp_path / "examples" / "simulators"
    built = shutil.ignore_patterns("node_modules", "build", "cartpole")
    shutil.copytree(_EXAMPLES, folder, ignore=built)
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    command, address = client(folder), free_address()
    config = ("--config", str(ROOT / "configs" / "cartpole_simulators.yaml"), "--run.root", str(tmp_path / "runs"))
    shown = ("--inference.server.address", address, "--evaluator.no-video", "--launcher.view", "plain")
    limits = ("--run.max-env-steps", "500000", "--run.max-wall-s", "0")
    options = (*shown, *limits, *(_CLIENTS_ONLY if client is _cpp else ()))
    with launched("train", *config, *options) as cluster:
        cluster.until("simulators: ")  # the client waits for the service
        with _playing(*command, address, "2", "100") as games:
            said, _ = games.communicate(timeout=BOUND_S)
            assert games.returncode == 0, said
            assert said.count("played") == 2
        with _playing(*command, address, "8") as games:
            assert cluster.wait(TRAINED_S) == 0, cluster.output
            said, _ = games.communicate(timeout=BOUND_S)
            assert said.count("ended: ") == 8
    result = json.loads((tmp_path / "runs" / "cartpole_simulators" / "result.json").read_text())
    assert result["solved"], result
    assert result["confirmed_mean"] >= 475
