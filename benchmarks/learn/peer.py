"""Stable-Baselines3 on the environment of a config: its own training, measured by our protocol.

DQN, SAC or PPO with the hyperparameters that RL Baselines3 Zoo publishes for the environment (sb3_zoo.yaml), for as
many decisions as asked for. Every so often the very episodes that our evaluator plays are played, and afterwards the
same fresh ones. Time counts while it trains, not while it is evaluated. Started by `benchmarks.learn`
with the package's folder in PYTHONPATH; what it leaves in --output reads like the folder of a run.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from benchmarks.learn.atomic import write_json
from benchmarks.learn.peer_course import Course
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.envs.make import make_env
from tidemill.errors import ConfigError
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.services.evaluator.protocol import EvalPolicy, EvalProtocol

ZOO = Path(__file__).with_name("sb3_zoo.yaml")
_POINTS = 50
"""Evaluations of a run, unless something else is asked for."""


def main() -> None:
    """Train once and write what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="environment, algorithm and protocol")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seed", type=int, default=1, help="of networks, exploration and environment")
    parser.add_argument("--steps", type=int, default=0, help="agent decisions; 0: as many as the zoo has")
    parser.add_argument("--every", type=int, default=0, help="decisions between evaluations; 0: a fiftieth of all")
    parser.add_argument("--test-episodes", type=int, default=100, help="fresh episodes at the end; 0: none")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train(from_document(RunConfig, read_document(arguments.config)), arguments)


def train(config: RunConfig, arguments: argparse.Namespace) -> None:
    """Train, evaluate on the way, test at the end; the result is written last."""
    algorithm, env_id = config.agent.algorithm, config.env.id
    if config.env.observation_indices or config.env.kwargs:
        raise ConfigError(
            "env.observation_indices and env.kwargs are not for the peer: the zoo has no such environment"
        )
    settings = zoo_settings(algorithm, env_id)
    steps = arguments.steps or int(settings["n_timesteps"])
    every = arguments.every or max(steps // _POINTS, 1)
    model = _make(algorithm, env_id, settings, arguments.seed)
    protocol = EvalProtocol(lambda: make_env(config.env, 1, training=False), config.evaluator.num_envs)
    with closing(protocol):
        policy = EvalPolicy(lambda policy_input: _decide(model, policy_input))
        course = Course(config, arguments.output, lambda seeds: protocol.play(policy, seeds), every)

        def on_step(*_: object) -> bool:
            course.at(model.num_timesteps, updates_of(model), model.policy.state_dict)
            return True

        model.learn(steps, callback=on_step)
        course.end(model.num_timesteps, updates_of(model), model.policy.state_dict)
        for number, state in course.to_test():
            model.policy.load_state_dict(state)
            course.test(number, arguments.test_episodes)
    said = {
        "algorithm": algorithm,
        "network": network_of(algorithm, settings),
        "hyperparameters": settings | {"n_timesteps": steps},
        "source": f"RL Baselines3 Zoo, hyperparams/{algorithm}.yml",
        "version": f"stable-baselines3 {version('stable-baselines3')}",
        "threads": torch.get_num_threads(),
        "evaluated_every": every,
    }
    write_json(arguments.output / "result.json", course.result() | said)


def updates_of(model: Any) -> int:  # noqa: ANN401 - of an optional package
    """Return how many batches a model has learned from; PPO's own counter goes up with each pass over a rollout."""
    return int(model._n_updates) // int(getattr(model, "n_epochs", 1))


def zoo_settings(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the zoo's hyperparameters.

    Raises:
        ConfigError: it has none for this algorithm and environment, or they are not in our list.
    """
    zoo = yaml.safe_load(ZOO.read_text(encoding="utf-8"))
    try:
        return dict(zoo[algorithm][env_id])
    except KeyError:
        known = ", ".join(f"{name} on {env}" for name, envs in zoo.items() for env in envs)
        raise ConfigError(f"there are no settings for {algorithm} on {env_id}; there are for {known}") from None


def network_of(algorithm: str, settings: Mapping[str, Any]) -> str:
    """Return the hidden layers that the hyperparameters make, or else Stable-Baselines3's own, in words."""
    layers = settings.get("policy_kwargs", {}).get("net_arch")
    return ", ".join(map(str, layers or {"sac": (256, 256), "dqn": (64, 64), "ppo": (64, 64)}[algorithm]))


def schedule(value: float | str) -> Any:  # noqa: ANN401 - what Stable-Baselines3 takes
    """Return a learning rate or clip range as Stable-Baselines3 takes it; `lin_X` falls from X to 0 over the run."""
    if isinstance(value, str) and value.startswith("lin_"):
        initial = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * initial
    return float(value)


def _make(algorithm: str, env_id: str, settings: dict[str, Any], seed: int) -> Any:  # noqa: ANN401 - has no types
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import Logger

    own = {key: value for key, value in settings.items() if key not in ("n_timesteps", "n_envs", "policy")}
    own |= {key: schedule(own[key]) for key in ("learning_rate", "clip_range") if key in own}
    envs = make_vec_env(env_id, settings["n_envs"], seed=seed) if "n_envs" in settings else env_id
    model = getattr(stable_baselines3, algorithm.upper())(settings["policy"], envs, seed=seed, device="cpu", **own)
    model.set_logger(Logger(None, []))
    return model


def _decide(model: Any, policy_input: PolicyInput) -> PolicyOutput:  # noqa: ANN401 - has no types
    """Return the deterministic actions, continuous ones in [-1, 1] as our environments take them."""
    action: NDArray[Any] = model.predict(policy_input.observation, deterministic=True)[0]
    if action.dtype.kind == "f":
        action = np.asarray(model.policy.scale_action(action), np.float32)
    return PolicyOutput(action)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"benchmarks.learn.peer: {error}")
