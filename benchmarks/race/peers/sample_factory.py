"""Sample Factory as a contender: its synchronous PPO with a process each for sampling, inference, batches and learning.

It has no hook for evaluations in another process, so that its only evaluation is that of the policy it ends with.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from sample_factory.algo.learning.learner import Learner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import run_rl

from benchmarks.race.evaluation import Act
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import PPO, Task

_NUMBERS: list[Any] = [np.float64(0).__reduce__()[0], np.dtype, *(type(np.dtype(name)) for name in ("f4", "f8", "i8"))]
"""NumPy's numbers, which its checkpoints hold and torch reads only if it is told so."""


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:  # noqa: ANN401, ARG001 - as it is called
    """Return an environment."""
    return gymnasium.make(name, render_mode=render_mode)


def train(task: Task, seed: int, course: Course) -> None:
    """Train, and evaluate the policy at the end."""
    settings = task.settings
    assert isinstance(settings, PPO)
    cfg = _cfg(task, settings, course.folder, seed)
    status = run_rl(cfg)
    if status:
        sys.exit(f"Sample Factory ended with status {status}")
    versions = {name: version(name) for name in ("sample-factory", "torch", "gymnasium", "numpy")}
    last = _checkpoint(cfg)
    course.end(int(last["env_steps"]), int(last["train_step"]), load(task, course.folder), versions)


def _checkpoint(cfg: Any) -> Any:  # noqa: ANN401 - has no types
    checkpoints = Learner.get_checkpoints(Learner.checkpoint_dir(cfg, 0), "checkpoint_*")
    with torch.serialization.safe_globals(_NUMBERS):
        return Learner.load_checkpoint(checkpoints, torch.device("cpu"))


def load(task: Task, folder: Path) -> Act:
    """Return the policy of the last checkpoint."""
    settings = task.settings
    assert isinstance(settings, PPO)
    cfg = _cfg(task, settings, folder, seed=1)
    with gymnasium.make(task.env_id) as env:
        observations = gymnasium.spaces.Dict({"obs": env.observation_space})
        network = create_actor_critic(cfg, observations, env.action_space)
    network.load_state_dict(_checkpoint(cfg)["model"])
    network.eval()

    @torch.no_grad()
    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        seen = network.normalize_obs({"obs": torch.from_numpy(observation)})
        head = network(seen, torch.zeros(len(observation), 1))["action_logits"]
        if network.action_distribution().__class__.__name__.startswith("Continuous"):
            return network.action_distribution().means.numpy()  # type: ignore[no-any-return]
        return head.argmax(-1).numpy()  # type: ignore[no-any-return]

    return act


def _cfg(task: Task, settings: PPO, folder: Path, seed: int) -> Any:  # noqa: ANN401 - has no types
    frames = settings.rollout * task.num_envs
    options = {
        "algo": "APPO",
        "env": task.env_id,
        "experiment": "model",
        "train_dir": folder.resolve(),
        "device": "cpu",
        "seed": seed,
        "serial_mode": False,
        "async_rl": False,
        "num_workers": 1,
        "num_envs_per_worker": task.num_envs,
        "worker_num_splits": 1,
        "policy_workers_per_policy": 1,
        "rollout": settings.rollout,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": frames // settings.minibatches,
        "num_batches_per_epoch": settings.minibatches,
        "num_epochs": settings.epochs,
        "shuffle_minibatches": True,
        "learning_rate": settings.learning_rate,
        "lr_schedule": "constant",  # it has no linear one
        "adam_eps": 1e-5,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "ppo_clip_ratio": settings.clip,
        "ppo_clip_value": 1e9,
        "value_loss_coeff": settings.value_coefficient,
        "exploration_loss_coeff": settings.entropy_coefficient,
        "max_grad_norm": settings.max_grad_norm,
        "normalize_input": False,
        "normalize_returns": False,
        "actor_critic_share_weights": False,
        "nonlinearity": "tanh",
        "train_for_env_steps": task.decisions,
        "set_workers_cpu_affinity": False,
        "log_to_file": False,
        "save_best_every_sec": 1_000_000,
        "decorrelate_envs_on_one_worker": False,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    words += ["--encoder_mlp_layers", *map(str, settings.hidden)]
    register_env(task.env_id, make_env)
    parser, _ = parse_sf_args(words)
    return parse_full_cfg(parser, words)


if __name__ == "__main__":
    run(train, load)
