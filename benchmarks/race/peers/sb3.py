"""Stable-Baselines3 as a contender: its own algorithms on its own vector environment, in one process."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from benchmarks.race.evaluation import Act
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import DQN, PPO, SAC, Task


def train(task: Task, seed: int, course: Course) -> None:
    """Train, evaluate on the way, and save the model."""
    torch.set_num_threads(task.threads)
    policy = "CnnPolicy" if task.is_atari else "MlpPolicy"
    model = _algorithm(task)(policy, _make_envs(task, seed), seed=seed, device="cpu", **_settings(task))
    model.set_logger(Logger(None, []))

    def on_step(*_: object) -> bool:
        course.at(model.num_timesteps, _updates(model, task), _act(model))
        return True

    model.learn(task.decisions, callback=on_step)
    versions = {name: version(name) for name in ("stable-baselines3", "torch", "gymnasium")}
    course.end(model.num_timesteps, _updates(model, task), _act(model), versions)
    model.save(course.folder / "model")


def load(task: Task, folder: Path) -> Act:
    """Return the policy of a model that was saved."""
    return _act(_algorithm(task).load(folder / "model", device="cpu"))


def _make_envs(task: Task, seed: int) -> VecEnv:
    if not task.is_atari:
        return make_vec_env(task.env_id, task.num_envs, seed=seed)
    import ale_py

    gymnasium.register_envs(ale_py)
    every_frame = {"frameskip": 1, "repeat_action_probability": 0.0}  # its wrapper skips them
    return VecFrameStack(make_atari_env(task.env_id, task.num_envs, seed=seed, env_kwargs=every_frame), n_stack=4)


def _algorithm(task: Task) -> Any:  # noqa: ANN401 - has no types
    return getattr(stable_baselines3, task.algorithm.upper())


def _act(model: Any) -> Act:  # noqa: ANN401 - likewise
    return lambda observation: model.predict(observation, deterministic=True)[0]


def _updates(model: Any, task: Task) -> int:  # noqa: ANN401 - likewise
    """Return the gradient steps; PPO's own counter counts passes."""
    return int(model._n_updates) * (task.settings.minibatches if isinstance(task.settings, PPO) else 1)


def _settings(task: Task) -> dict[str, Any]:
    settings = task.settings
    common: dict[str, Any] = {"gamma": settings.gamma, "learning_rate": settings.learning_rate}
    common["policy_kwargs"] = _network(task)
    if isinstance(settings, PPO):
        return common | _ppo(settings, task.num_envs)
    common |= {
        "batch_size": settings.batch_size,
        "buffer_size": settings.replay_size,
        "learning_starts": settings.learning_starts,
        "train_freq": 1,
        "gradient_steps": round(settings.updates_per_decision * task.num_envs),
    }
    if isinstance(settings, SAC):
        return common | {"tau": settings.tau}
    return common | _dqn(settings, task.decisions)


def _network(task: Task) -> dict[str, Any]:
    hidden = list(task.settings.hidden)
    if not task.is_atari:
        return {"net_arch": hidden}
    return {"net_arch": [], "features_extractor_kwargs": {"features_dim": hidden[0]}}  # behind its convolutions


def _ppo(settings: PPO, num_envs: int) -> dict[str, Any]:
    initial = settings.learning_rate
    return {
        "learning_rate": lambda remaining: remaining * initial,
        "n_steps": settings.rollout,
        "batch_size": settings.rollout * num_envs // settings.minibatches,
        "n_epochs": settings.epochs,
        "gae_lambda": settings.gae_lambda,
        "clip_range": settings.clip,
        "ent_coef": settings.entropy_coefficient,
        "vf_coef": settings.value_coefficient,
        "max_grad_norm": settings.max_grad_norm,
    }


def _dqn(settings: DQN, decisions: int) -> dict[str, Any]:
    return {
        "target_update_interval": round(settings.target_period / settings.updates_per_decision),  # in decisions
        "exploration_fraction": settings.epsilon_decisions / decisions,
        "exploration_final_eps": settings.epsilon_final,
        "max_grad_norm": settings.max_grad_norm,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    run(train, load)
