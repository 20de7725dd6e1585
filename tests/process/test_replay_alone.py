"""Replay on its own: the tutorial in a fresh environment of the newest Python there is, and the examples."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.release_rehearsal import rehearse_base
from tests.support.launched import BOUND_S, ROOT
from tests.support.replay_service import ServerProcess, server_process
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay import ReplayClient

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples" / "replay"
JAX = ROOT / ".venv-jax"


def _pythons() -> dict[str, str]:
    """Return the interpreters on this machine that the base install is for, by version; always the running one."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("3.1*/bin"))
    found = {
        version: str(folder / f"python{version}")
        for version in ("3.11", "3.12", "3.13", "3.14")
        for folder in folders
        if "shims" not in folder.parts and os.access(folder / f"python{version}", os.X_OK)
    }
    return found | {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}


def test_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    """In a fresh environment without torch, gymnasium and matplotlib; and again after SIGKILL of the server.

    Of the newest Python there is; `make release-rehearsal` takes the one that runs it.
    """
    pythons = _pythons()
    newest = max(pythons, key=lambda version: int(version.partition(".")[2]))
    assert "the tutorial works" in rehearse_base(pythons[newest], tmp_path)


def _run(program: str, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / program), "--replay", address, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)


@pytest.mark.parametrize("program, table, steps", [("dqn", "cartpole", 4000), ("sac", "pendulum", 2400)])
def test_example_outlives_its_server(program: str, table: str, steps: int, tmp_path: Path) -> None:
    """Killed in the middle and started again: the program ends as it should, and every transition is there, once."""
    _outlive(f"{program}.py", table, steps, tmp_path / "data")


@pytest.mark.parametrize("program, table", [("dqn", "cartpole"), ("sac", "pendulum")])
def test_example_draws_no_batch_before_learning_starts(program: str, table: str, server: ServerProcess) -> None:
    """Its dataset draws batches ahead, but none from the first few steps alone."""
    done = _run(f"{program}.py", server.address, "--steps", "999")
    assert done.returncode == 0, done.stderr
    with ReplayClient(server.address) as client:
        described = client.describe_table(table)
    assert (described.inserts, described.samples) == (999, 0)


@pytest.mark.skipif(not (JAX / ".installed").exists(), reason="JAX is 360 MB: `make jax` first")
def test_jax_example_outlives_its_server(tmp_path: Path) -> None:
    """As the others, with its packages beside the project's own."""
    _outlive("dqn_jax.py", "cartpole", 4000, tmp_path / "data", PYTHONPATH=str(JAX), JAX_PLATFORMS="cpu")


def _outlive(program: str, table: str, steps: int, folder: Path, **environment: str) -> None:
    """Kill the server behind a program when it has half of its steps; the table must end with all of them."""
    options = ("--folder", str(folder))
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        command = [sys.executable, str(EXAMPLES / program), "--replay", address, "--steps", str(steps)]
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
        try:
            with ReplayClient(address) as client:
                wait_until(lambda: _inserted(client) > steps // 2, "half of the transitions")
            os.kill(first.pid, signal.SIGKILL)
            first.process.wait(WAIT_S)
            time.sleep(1.0)
            assert running.poll() is None
            with server_process(address, *options), ReplayClient(address) as client:
                output, errors = running.communicate(timeout=BOUND_S)
                assert running.returncode == 0, errors
                assert f"step {steps}: mean return" in output
                assert client.describe_table(table).items == steps
                assert client.describe_table(table).env_steps == steps
        finally:
            running.kill()
            running.communicate()


def _inserted(client: ReplayClient) -> int:
    return sum(table.inserts for table in client.list_tables())


def test_example_needs_no_server() -> None:
    """Without an address it starts one in its process, learns from it, and ends."""
    command = [sys.executable, str(EXAMPLES / "dqn.py"), "--steps", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 1500: mean return" in done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with a folder."""
    with server_process("127.0.0.1:0", "--folder", str(tmp_path / "data")) as running:
        yield running


def test_offline_run_reads_what_another_run_wrote(tmp_path: Path) -> None:
    """Written by one process, read by another after a restart of the server: the policy learns from the table alone."""
    options = ("--folder", str(tmp_path / "data"))
    with server_process("127.0.0.1:0", *options) as first:
        written = _run("offline.py", first.address, "write", "--steps", "3000")
        assert written.returncode == 0, written.stderr
    with server_process("127.0.0.1:0", *options) as second:
        learned = _run("offline.py", second.address, "learn", "--updates", "600")
        assert learned.returncode == 0, learned.stderr
        found = re.search(r"mean return (\d+) from 3000 transitions", learned.stdout)
        assert found, learned.stdout
        assert int(found[1]) > 60  # random play has 22


def test_token_queue_hands_each_trajectory_out_once(server: ServerProcess) -> None:
    """In order, whole, and none older than the bound on its staleness; as well beside what an earlier run left."""
    for batches in (20, 5):
        done = _run("token_queue.py", server.address, "--batches", str(batches))
        assert done.returncode == 0, done.stderr
        assert f"{32 * batches} trajectories, each once" in done.stdout
        staleness = re.search(r"at most (\d+) versions old", done.stdout)
        assert staleness, done.stdout
        assert int(staleness[1]) <= 4


def test_two_learners_share_one_table(server: ServerProcess) -> None:
    """Both get batches of it, and the priorities that one sets are those that the other samples by."""
    done = _run("two_learners.py", server.address)
    assert done.returncode == 0, done.stderr
    assert re.search(r"learner 0: 200 batches\nlearner 1: 200 batches\n", done.stdout), done.stdout
    assert "the best of 1000 items was sampled" in done.stdout


def _with_stable_baselines(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with Stable-Baselines3, and the folder of the examples, on its path."""
    subprocess.run(["make", "--silent", ".venv-sb3/.installed"], cwd=ROOT, check=True, timeout=BOUND_S)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / ".venv-sb3"), str(EXAMPLES)))}
    words = [sys.executable, *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=BOUND_S, check=False, env=environment)


def test_stable_baselines_trains_from_the_server(server: ServerProcess) -> None:
    """Its DQN with `replay_buffer_class` replaced: every transition is in the table, every update came from there."""
    done = _with_stable_baselines(str(EXAMPLES / "sb3_dqn.py"), "--replay", server.address, "--steps", "1200")
    assert done.returncode == 0, done.stderr
    assert "1200 steps, 250 updates" in done.stdout
    with ReplayClient(server.address) as client:
        assert client.describe_table("sb3").items == 1200


_BUFFERS = """
import sys
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from sb3_dqn import ServedReplayBuffer

rng, folder = np.random.default_rng(0), sys.argv[2]
pairs = {
    "discrete": (spaces.Discrete(5), spaces.Discrete(3)),
    "float64": (spaces.Box(-1, 1, (2,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
    "multi": (spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3)),
}

def transitions(buffer):
    samples = buffer.sample(64)
    arrays = samples.observations, samples.actions, samples.next_observations, samples.dones, samples.rewards
    rows = {tuple(value for array in arrays for value in array[i].flatten().tolist()) for i in range(64)}
    return [(array.dtype, tuple(array.shape)) for array in arrays], rows

for name, (observations, actions) in pairs.items():
    usual = ReplayBuffer(100, observations, actions, "cpu", n_envs=2)
    served = ServedReplayBuffer(100, observations, actions, "cpu", n_envs=2, address=sys.argv[1], table=name)
    for number in range(3):
        seen, then = (np.stack([observations.sample() for _ in range(2)]) for _ in range(2))
        ends, infos = np.array([False, number == 2]), [{}, {"TimeLimit.truncated": True}]
        step = seen, then, np.stack([actions.sample() for _ in range(2)]), rng.normal(size=2), ends, infos
        usual.add(*step)
        served.add(*step)
    assert served.size() == usual.size() == 3, served.size()
    assert transitions(served) == transitions(usual), (transitions(served), transitions(usual))
    save_to_pkl(f"{folder}/{name}", served)
    served.close()
    loaded = load_from_pkl(f"{folder}/{name}")
    assert isinstance(loaded, ReplayBuffer) and loaded.size() == 3
    loaded.add(*step)
    assert loaded.size() == 4
    assert transitions(loaded)[0] == transitions(usual)[0]
    loaded.close()

def model():
    kwargs = {"address": sys.argv[1], "table": "model", "handle_timeout_termination": True}
    return DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_starts=20,
        replay_buffer_class=ServedReplayBuffer,
        replay_buffer_kwargs=kwargs,
        device="cpu",
    )

first, second = model(), model()
first.learn(40)
first.save_replay_buffer(f"{folder}/model")
first.replay_buffer.close()
second.replay_buffer.close()
second.load_replay_buffer(f"{folder}/model")
second.learn(40)
earlier = second.replay_buffer._dataset
second.replay_buffer.sample(8)
assert next(earlier, None) is None  # closed, as a batch of another size has replaced it
assert second.replay_buffer.size() == 80
second.replay_buffer.close()
print("equal")
"""


def test_buffer_of_stable_baselines_does_what_its_own_does(server: ServerProcess, tmp_path: Path) -> None:
    """Discrete spaces, float64 actions, `size`, saved and loaded: the same transitions, dtypes and shapes."""
    done = _with_stable_baselines("-c", _BUFFERS, server.address, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n"
