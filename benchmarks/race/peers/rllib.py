"""RLlib as a contender: env runner and learner in the driver's process, beside Ray's own processes."""

from __future__ import annotations

import logging
import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from benchmarks.race.evaluation import Act
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import PPO, SAC, Task

_SAMPLED = "num_env_steps_sampled_lifetime"
_MODULE = "default_policy"


def train(task: Task, seed: int, course: Course) -> None:
    """Train, evaluate on the way, and save the module."""
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    config = _config(task)
    config.environment(task.env_id, normalize_actions=True, clip_actions=False).framework("torch")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=task.num_envs).learners(num_learners=0)
    config.debugging(seed=seed, log_level="ERROR").reporting(
        min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0 if isinstance(task.settings, PPO) else 1000
    )
    algorithm = config.build_algo()
    decisions = updates = 0
    module = algorithm.get_module(_MODULE)
    while decisions < task.decisions:
        result = algorithm.train()
        decisions = int(result["env_runners"][_SAMPLED])
        updates = _updates(result, task, decisions)
        course.at(decisions, updates, _act(module, task))
    course.end(decisions, updates, _act(module, task), {name: version(name) for name in ("ray", "torch", "gymnasium")})
    module.save_to_path(course.folder.resolve() / "module")
    algorithm.stop()
    ray.shutdown()


def load(task: Task, folder: Path) -> Act:
    """Return the policy of a module that was saved."""
    return _act(RLModule.from_checkpoint(folder.resolve() / "module"), task)


def _config(task: Task) -> Any:  # noqa: ANN401 - has no types
    settings = task.settings
    model = {"fcnet_hiddens": list(settings.hidden)}
    if isinstance(settings, PPO):
        frames = settings.rollout * task.num_envs
        rates = [[0, settings.learning_rate], [task.decisions, 0.0]]
        return (
            PPOConfig()
            .training(
                lr=rates,
                gamma=settings.gamma,
                lambda_=settings.gae_lambda,
                train_batch_size_per_learner=frames,
                minibatch_size=frames // settings.minibatches,
                num_epochs=settings.epochs,
                clip_param=settings.clip,
                vf_clip_param=float("inf"),
                vf_loss_coeff=settings.value_coefficient / 2.0,  # half the squared error, as the others have it
                entropy_coeff=settings.entropy_coefficient,
                use_kl_loss=False,
                grad_clip=settings.max_grad_norm,
            )
            .env_runners(rollout_fragment_length=settings.rollout)
            .rl_module(model_config=DefaultModelConfig(**model, fcnet_activation="tanh", vf_share_layers=False))
        )
    common = {
        "gamma": settings.gamma,
        "train_batch_size_per_learner": settings.batch_size,
        "num_steps_sampled_before_learning_starts": settings.learning_starts,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": settings.replay_size},
        "training_intensity": settings.updates_per_decision * settings.batch_size,
        "n_step": 1,
    }
    model_config = DefaultModelConfig(**model, fcnet_activation="relu", head_fcnet_hiddens=[])
    if isinstance(settings, SAC):
        config: Any = SACConfig().training(
            **common,
            lr=None,
            actor_lr=settings.learning_rate,
            critic_lr=settings.learning_rate,
            alpha_lr=settings.learning_rate,
            tau=settings.tau,
            twin_q=True,
            initial_alpha=1.0,
        )
    else:
        config = DQNConfig().training(
            **common,
            lr=settings.learning_rate,
            double_q=False,
            dueling=False,
            num_atoms=1,
            epsilon=[[0, 1.0], [settings.epsilon_decisions, settings.epsilon_final]],
            target_network_update_freq=round(settings.target_period / settings.updates_per_decision),
            grad_clip=settings.max_grad_norm,
        )
    return config.env_runners(rollout_fragment_length=1).rl_module(model_config=model_config)


def _updates(result: dict[str, Any], task: Task, decisions: int) -> int:
    """Return the gradient steps so far."""
    settings = task.settings
    if isinstance(settings, PPO):
        return decisions // (settings.rollout * task.num_envs) * settings.epochs * settings.minibatches
    trained = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
    return int(trained) // settings.batch_size


def _act(module: Any, task: Task) -> Act:  # noqa: ANN401 - has no types
    """Return the deterministic policy of a module."""
    import gymnasium

    with gymnasium.make(task.env_id) as env:
        space = env.action_space

    @torch.no_grad()
    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        output = module.forward_inference({"obs": torch.from_numpy(observation)})
        if "actions" in output:
            return output["actions"].numpy()  # type: ignore[no-any-return]
        inputs = output["action_dist_inputs"]
        chosen = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample()
        if isinstance(space, gymnasium.spaces.Box):  # from -1 to 1, as it is trained
            return np.asarray(space.low + (chosen.numpy() + 1.0) * (space.high - space.low) / 2.0, np.float32)
        return chosen.numpy()  # type: ignore[no-any-return]

    return act


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    run(train, load)
