"""Agent steps per second of one actor process against its environment stepping alone, on one core.

The actor is the real process, pinned to one core; the replay service and the parameter server are real processes on
another. Random parameters are published once. Rounds alternate (environment alone, actor, RLlib where it is
installed), so that a drift of the machine meets all. Also reports what the replay process holds in memory for each
observation.

    python -m benchmarks.actor [--config configs/pong_dqn.yaml ...] [--rounds 3] [--seconds 20] [--rllib PYTHON]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.learner_feed import cores, process, publish
from benchmarks.rllib_turns import rllib_turns
from benchmarks.rows import Row, row, write
from tidemill.config.load import from_document, read_document, write_document
from tidemill.config.sections import RunConfig
from tidemill.envs.make import make_env
from tidemill.replay.client import ReplayClient
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.learner.data.table import table_config
from tidemill.types import EnvSpec

_START_S = 60.0
_WARM_UP_S = 3.0


def main() -> None:
    """Measure and print; write benchmarks/results/actor.json, or actor_N_envs.json with --num-envs N."""
    arguments = _arguments()
    name = f"actor_{arguments.num_envs}_envs" if arguments.num_envs else "actor"
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        write(name, [each for path in _paths(arguments, Path(folder)) for each in _measure(path, arguments)])


def _paths(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Write the settings of every run that is asked for; return the files' paths."""
    paths: list[Path] = []
    runs = [(run, "") for run in arguments.config] + [(arguments.config[0], game) for game in arguments.games]
    for run, game in runs:
        config = from_document(RunConfig, read_document(Path(run)))
        env = dataclasses.replace(config.env, num_envs=arguments.num_envs or config.env.num_envs)
        env = dataclasses.replace(env, id=f"ALE/{game}-v5") if game else env
        paths.append(folder / f"{len(paths)}.yaml")
        write_document(dataclasses.replace(config, env=env), paths[-1])
    return [str(path) for path in paths]


def _measure(path: str, arguments: argparse.Namespace) -> list[Row]:
    config = from_document(RunConfig, read_document(Path(path)))
    turns = rllib_turns(arguments.rllib, config, arguments.seconds) if arguments.rllib else []
    alone, acting, bytes_per_step = [], [], []
    for _ in range(arguments.rounds):
        alone.append(_alone(path, arguments.seconds))
        rate, memory = _actor(config, path, arguments.seconds)
        acting.append(rate)
        bytes_per_step.append(memory)
        for turn in turns:
            turn.measure(arguments.seconds)
    of_env = f"env steps/s on one core, {config.env.id}, actor against"
    return [
        row(f"{of_env} environment alone", "1/s", acting, alone),
        *(row(f"{of_env} {turn.name}", "1/s", acting, turn.rates) for turn in turns),
        row(f"replay process, growth for each stored step, {config.env.id}", "bytes", bytes_per_step),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    runs = ["configs/pong_dqn.yaml", "configs/quickstart.yaml"]
    parser.add_argument("--config", nargs="+", default=runs, help="runs to take environment and agent from")
    games = ["Breakout", "Seaquest", "Qbert", "BeamRider"]
    parser.add_argument("--games", nargs="*", default=games, help="Atari games played as the first run besides")
    parser.add_argument("--num-envs", type=int, default=0, help="environments of the actor; as the runs have it if 0")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    parser.add_argument("--rllib", metavar="PYTHON", help="the interpreter of an environment with RLlib, measured too")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        _step_alone(from_document(RunConfig, read_document(Path(arguments.config[0]))), arguments.seconds)
        sys.exit(0)
    return arguments


def _alone(config: str, seconds: float) -> float:
    """Return steps/s of the environments alone, in a process pinned to one core."""
    command = [
        "taskset",
        "-c",
        cores()[0],
        sys.executable,
        "-m",
        "benchmarks.actor",
        "--alone",
        "--config",
        config,
        "--seconds",
        str(seconds),
    ]
    return float(subprocess.check_output(command, text=True, timeout=seconds + _START_S))


def _step_alone(config: RunConfig, seconds: float) -> None:
    env = make_env(config.env, config.env.num_envs, training=True)
    rng = np.random.default_rng(0)
    env.reset(100_000_000)
    started, ticks = time.perf_counter() + _WARM_UP_S, 0
    while (now := time.perf_counter()) < started + seconds:
        ticks = 0 if now < started else ticks + 1
        env.step(_random_action(env.spec, env.num_envs, rng))
    print(ticks * env.num_envs / seconds)


def _random_action(spec: EnvSpec, num_envs: int, rng: np.random.Generator) -> np.ndarray:
    if spec.is_discrete:
        return rng.integers(spec.num_actions, size=num_envs)
    if spec.action_sizes:
        return rng.integers(spec.action_sizes, size=(num_envs, *spec.action_shape))
    return rng.uniform(-1, 1, (num_envs, *spec.action_shape)).astype(np.float32)


def _actor(config: RunConfig, path: str, seconds: float) -> tuple[float, float]:
    """Return steps/s of a real actor and the replay process's growth in bytes for each step."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-")))
        replay, params = f"unix://{folder}/r", f"unix://{folder}/p"
        places = ["--cluster.replay", replay, "--cluster.params", params]
        own, other = cores()
        server = stack.enter_context(
            process(other, "tidemill.services.replay", path, "--replay.server.address", replay)
        )
        address = ["--paramserver.server.address", params, "--run.root", str(folder)]
        stack.enter_context(process(other, "tidemill.services.paramserver", path, *address))
        client = stack.enter_context(ReplayClient(replay))
        client.wait_for_ready(_START_S)
        prepare(config, client, params)
        before = _resident_bytes(server)
        stack.enter_context(process(own, "tidemill.services.actor", path, "--actor.log-every-s", "5", *places))
        _wait_for_steps(client, config.table.name)
        time.sleep(_WARM_UP_S)
        first, started = client.describe_table(config.table.name).env_steps, time.monotonic()
        time.sleep(seconds)
        last, elapsed = client.describe_table(config.table.name).env_steps, time.monotonic() - started
        return (last - first) / elapsed, (_resident_bytes(server) - before) / last


def prepare(config: RunConfig, client: ReplayClient, params: str) -> None:
    """Create the table and publish random parameters, as the learner would."""
    env = make_env(config.env, 1, training=True)
    agent = build_agent(config.agent, env.spec, seed=1)
    learner = dataclasses.replace(config.learner, updates_per_env_step=0.0)  # nobody samples: nobody is waited for
    client.create_table(
        table_config(config.table, learner, agent, stored_columns(config.agent, env.spec), config.agent.batch_size)
    )
    publish(agent, params)


def _wait_for_steps(client: ReplayClient, table: str) -> None:
    deadline = time.monotonic() + _START_S
    while not client.describe_table(table).env_steps:
        if time.monotonic() > deadline:
            raise SystemExit("the actor stored nothing within a minute")
        time.sleep(0.1)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
