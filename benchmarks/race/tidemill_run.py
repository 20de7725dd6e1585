"""Tidemill as a contender: the config of a task, and what a run's folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.race.tasks import DQN, EVALUATION_SEED, PPO, SAC, Task
from tidemill.scores import read_scores

Document = dict[str, Any]
RUN = "run"
"""Name of the run's folder below the contender's."""


def config_of(task: Task) -> Document:
    """Return the settings of a run, as a document of `tidemill train`."""
    settings = task.settings
    if isinstance(settings, PPO):
        sections = _ppo(settings, task)
    else:
        sections = _dqn(settings) if isinstance(settings, DQN) else _sac(settings)
    if task.is_atari:
        sections["agent"] |= {"update_precision": "float32"} | _images(settings)
        sections["actor"] = {"precision": "float32"}
    env = {"id": task.env_id, "num_envs": task.num_envs}
    if task.is_atari and isinstance(settings, PPO):  # its actor and its learner take turns
        env["threads"] = sections["actor"]["threads"] = task.threads
    evaluator = {
        "episodes": task.evaluation_episodes,
        "num_envs": task.evaluation_episodes,
        "seed": EVALUATION_SEED,
        "every_env_steps": task.every,
        "start_env_steps": task.every,
        "min_interval_s": 0.1,
        "video": False,
    }
    return {
        "run": {"name": RUN, "max_env_steps": task.decisions},
        "env": env,
        "evaluator": evaluator,
        "launcher": {"view": "plain"},
        **sections,
    }


def _ppo(settings: PPO, task: Task) -> dict[str, Document]:
    updates = task.decisions // (task.num_envs * (settings.rollout + 1))
    agent = {
        "algorithm": "ppo",
        "unroll": settings.rollout,
        "batch_size": task.num_envs,
        "epochs": settings.epochs,
        "minibatches": settings.minibatches,
        "learning_rate": settings.learning_rate,
        "learning_rate_decay_updates": updates,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "clip": settings.clip,
        "clip_value": False,
        "value_coefficient": settings.value_coefficient,
        "entropy_coefficient": settings.entropy_coefficient,
        "max_grad_norm": settings.max_grad_norm,
        "hidden_sizes": list(settings.hidden),
    }
    table = {
        "sampler": "fifo",
        "min_size": task.num_envs,
        "max_items": 64 * task.num_envs,
        "chunk_length": _chunk_length(settings.rollout + 1),
    }
    learner = {"updates_per_env_step": 0, "publish_every": 1, "publish_half": False, "max_policy_lag": 0}
    return {"agent": agent, "table": table, "learner": learner}


def _images(settings: PPO | DQN | SAC) -> Document:
    """Return the network of a game: the Nature convolutions, and the layer that follows them."""
    if isinstance(settings, PPO):
        layers = {"encoder_sizes": list(settings.hidden), "hidden_sizes": [], "activation": "relu"}
        return {"network": "nature", **layers}
    return {"network": "nature"}


def _chunk_length(window: int) -> int:
    """Return the longest length of a chunk that divides a window and is at most 256."""
    return max(length for length in range(1, 257) if window % length == 0)


def _dqn(settings: DQN) -> dict[str, Document]:
    agent = {
        "algorithm": "dqn",
        "network": "mlp",
        "hidden_sizes": list(settings.hidden),
        "dueling": False,
        "double": False,
        "n_step": 1,
        "gamma": settings.gamma,
        "learning_rate": settings.learning_rate,
        "optimizer_epsilon": 1e-8,
        "max_grad_norm": settings.max_grad_norm,
        "batch_size": settings.batch_size,
        "target_update_period": settings.target_period,
        "exploration": "schedule",
        "epsilon_final": settings.epsilon_final,
        "epsilon_decay_steps": settings.epsilon_decisions,
        "evaluation_epsilon": 0.0,
    }
    return {"agent": agent, **_replay(settings)}


def _sac(settings: SAC) -> dict[str, Document]:
    agent = {
        "algorithm": "sac",
        "hidden_sizes": list(settings.hidden),
        "gamma": settings.gamma,
        "learning_rate": settings.learning_rate,
        "batch_size": settings.batch_size,
        "tau": settings.tau,
        "start_steps": settings.learning_starts,
    }
    return {"agent": agent, **_replay(settings)}


def _replay(settings: DQN | SAC) -> dict[str, Document]:
    table = {"max_items": settings.replay_size, "min_size": settings.learning_starts}
    return {"table": table, "learner": {"updates_per_env_step": settings.updates_per_decision, "publish_every": 50}}


def curve_of(folder: Path, task: Task, started_s: float) -> list[Document]:
    """Return the evaluations of a run as the peers write theirs.

    Args:
        folder: The run's folder.
        task: Its task.
        started_s: Start of the command, on the monotonic clock.
    """
    clock = json.loads((folder / "wall_clock.json").read_text(encoding="utf-8"))
    before_s = float(clock["session_start_s"]) - started_s
    return [
        {
            "decisions": score.env_steps,
            "updates": score.learner_steps * _steps_per_update(task),
            "seconds": round(before_s + score.wall_s, 3),
            "mean": score.mean,
        }
        for score in read_scores(folder / "scores.csv")
    ]


def _steps_per_update(task: Task) -> int:
    """Return the gradient steps of an update, of which PPO makes several."""
    return task.settings.epochs * task.settings.minibatches if isinstance(task.settings, PPO) else 1
