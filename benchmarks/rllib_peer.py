"""Environment steps per second of RLlib's own env runner on one core, networks and environment as asked for.

The runner is RLlib's `SingleAgentEnvRunner` in this process, without a Ray cluster, with the RLModule of its DQN or its
SAC exploring in float32. A step is an agent's decision. The figure holds stepping, inference and the episodes as arrays
that `sample()` returns, and nothing after: no replay buffer, no compression, no sending, no weights taken over. Started
by `benchmarks.actor`, in a separate environment (requirements/rllib.txt).

    taskset -c 0 .venv-rllib/bin/python -m benchmarks.rllib_peer --env ALE/Pong-v5 --emulator wrapper --seconds 10
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import gymnasium
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

_FRAMES = 4
_FRAME_SIZE = 84
_EPSILON = 0.1
_NATURE_CNN = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]]  # filters, kernel, stride, padding
_WARM_UP_S = 3.0


def main() -> None:
    """Measure and print one figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="ALE/Pong-v5", help="an Atari game, or a gymnasium id with continuous actions")
    emulator = "Atari: RLlib's Atari wrapper around each game, or ale-py's vector environment as vector entry point"
    parser.add_argument("--emulator", choices=["wrapper", "vector"], default="wrapper", help=emulator)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512], help="units of each hidden layer")
    parser.add_argument("--dueling", action="store_true", help="whether DQN's head is a dueling one")
    parser.add_argument("--num-envs", type=int, default=16, help="environments of the runner")
    parser.add_argument("--fragment", type=int, default=32, help="steps of each environment in one sample()")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    fastest_of = "measure each of these numbers of environments, print the fastest number instead of a rate"
    parser.add_argument("--fastest-of", type=int, nargs="+", help=fastest_of)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.fastest_of:
        print(max(options.fastest_of, key=lambda num_envs: _rate(options, num_envs)))
    else:
        print(_rate(options, options.num_envs))


def _rate(options: argparse.Namespace, num_envs: int) -> float:
    runner, steps, sampled = _runner(options, num_envs), options.fragment * num_envs, 0
    warm = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < warm:
        runner.sample(num_timesteps=steps)
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < options.seconds:
        sampled += sum(len(episode) for episode in runner.sample(num_timesteps=steps))
        runner.get_metrics()  # RLlib takes them after each sample, which lets the runner forget the episodes
    runner.stop()
    return sampled / elapsed


def _runner(options: argparse.Namespace, num_envs: int) -> SingleAgentEnvRunner:
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = _atari(options) if options.env.startswith("ALE/") else _continuous(options)
    return SingleAgentEnvRunner(
        config=config.debugging(seed=1).env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=num_envs,
            rollout_fragment_length=options.fragment,
            episode_lookback_horizon=_FRAMES,
        )
    )


def _atari(options: argparse.Namespace) -> AlgorithmConfig:
    """Return DQN's settings for a game, frames stacked by RLlib's connector."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune import register_env

    as_vector = options.emulator == "vector"
    make = _vector_of_games if as_vector else _game
    register_env("atari", lambda context: make(options.env, context))
    model = DefaultModelConfig(conv_filters=_NATURE_CNN, head_fcnet_hiddens=options.hidden)
    config = DQNConfig().environment("atari").rl_module(model_config=model)
    return config.training(dueling=options.dueling, epsilon=_EPSILON).env_runners(
        gym_env_vectorize_mode="vector_entry_point" if as_vector else "sync",
        env_to_module_connector=lambda *_, **__: FrameStackingEnvToModule(num_frames=_FRAMES),
    )


def _game(env_id: str, _: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return one game in RLlib's own wrapper: skip, gray and size frame by frame in Python, floats from -1 to 1."""
    import ale_py
    import gymnasium
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(env_id, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    wrapped: gymnasium.Env[Any, Any] = wrap_atari_for_new_api_stack(game, dim=_FRAME_SIZE)
    return wrapped


def _vector_of_games(env_id: str, context: dict[str, Any]) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Return games that ale-py preprocesses in C++, as Tidemill's do, turned into the images of RLlib's wrapper."""
    import ale_py
    import gymnasium
    import numpy as np
    from gymnasium.wrappers.vector import TransformObservation

    gymnasium.register_envs(ale_py)
    games = gymnasium.make_vec(
        env_id,
        context["num_envs"],
        vectorization_mode="vector_entry_point",
        num_threads=1,
        stack_num=1,
        episodic_life=True,
    )
    shape = (_FRAME_SIZE, _FRAME_SIZE, 1)
    return TransformObservation(
        games,
        lambda frames: frames.transpose(0, 2, 3, 1).astype(np.float32) / 128.0 - 1.0,
        observation_space=gymnasium.spaces.Box(-1.0, 1.0, (games.num_envs, *shape), np.float32),
        single_observation_space=gymnasium.spaces.Box(-1.0, 1.0, shape, np.float32),
    )


def _continuous(options: argparse.Namespace) -> AlgorithmConfig:
    """Return SAC's settings for a gymnasium environment."""
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    model = DefaultModelConfig(fcnet_hiddens=options.hidden, fcnet_activation="relu", head_fcnet_hiddens=[])
    return SACConfig().environment(options.env).rl_module(model_config=model)


if __name__ == "__main__":
    main()
