"""The presets of continuous control are what their sources say, whatever the defaults become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.rl.action_noise import NoiseConfig

CONFIGS = Path(__file__).parents[3] / "configs"

ZOO: dict[str, Any] = {
    "agent.n_step": 1,
    "agent.batch_size": 256,
    "agent.start_steps": 10_000,
    "table.sampler": "uniform",
    "table.min_size": 10_000,
    "learner.updates_per_env_step": 1.0,
    "env.max_episode_steps": 0,
}
"""RL Baselines3 Zoo's settings of sac.yml, td3.yml and ddpg.yml for the lander, and defaults of its library."""

ZOO_SAC = ZOO | {
    "agent.hidden_sizes": (400, 300),
    "agent.learning_rate": 7.3e-4,
    "agent.learning_rate_final": 0.0,
    "agent.temperature": "learned",
    "agent.initial_temperature": 1.0,
    "agent.target_entropy": None,
    "agent.gamma": 0.99,
    "agent.tau": 0.01,
    "table.max_items": 1_000_000,
}
ZOO_MUJOCO = ZOO_SAC | {
    "agent.hidden_sizes": (256, 256),
    "agent.learning_rate": 3e-4,
    "agent.learning_rate_decay_updates": 0,
    "agent.tau": 0.005,
    "run.max_env_steps": 1_000_000,
}
ZOO_DETERMINISTIC = ZOO | {
    "agent.actor_learning_rate": 1e-3,
    "agent.critic_learning_rate": 1e-3,
    "agent.gamma": 0.98,
    "agent.tau": 0.005,
    "agent.noise": NoiseConfig(kind="gaussian", std=0.1),
    "table.max_items": 200_000,
}
ZOO_TD3 = ZOO_DETERMINISTIC | {
    "agent.hidden_sizes": (400, 300),
    "agent.policy_delay": 2,
    "agent.target_noise": 0.2,
    "agent.noise_clip": 0.5,
}
ZOO_DDPG = ZOO_DETERMINISTIC | {
    "agent.actor_sizes": (400, 300),
    "agent.actor_activation": "relu",
    "agent.critic_sizes": (400, 300),
    "agent.action_layer": 0,
    "agent.critic_weight_decay": 0.0,
    "agent.loss": "mse",
}
B_DDPG: dict[str, Any] = {
    "agent.actor_sizes": (300, 200),
    "agent.actor_activation": "tanh",
    "agent.critic_sizes": (400, 300),
    "agent.action_layer": 1,
    "agent.actor_learning_rate": 1e-4,
    "agent.critic_learning_rate": 1e-4,
    "agent.critic_weight_decay": 0.0,
    "agent.loss": "mse",
    "agent.batch_size": 64,
    "agent.gamma": 0.99,
    "agent.n_step": 5,
    "agent.tau": 1e-3,
    "agent.noise": NoiseConfig(kind="ou", theta=0.15, std=0.3),
    "agent.start_steps": 0,
    "table.sampler": "uniform",
    "table.max_items": 50_000,
    "table.min_size": 250,
}
D4PG: dict[str, Any] = {
    "agent.num_atoms": 51,
    "agent.actor_learning_rate": 1e-4,
    "agent.critic_learning_rate": 1e-4,
    "agent.batch_size": 256,
    "agent.gamma": 0.99,
    "agent.n_step": 5,
    "agent.target_update_period": 100,
    "agent.noise": NoiseConfig(kind="gaussian", std=0.3),
    "table.sampler": "prioritized",
    "table.max_items": 1_000_000,
}
PRESETS = {
    "lunarlander_continuous_sac_zoo": ZOO_SAC,
    "halfcheetah_sac_zoo": ZOO_MUJOCO,
    "hopper_sac_zoo": ZOO_MUJOCO,
    "lunarlander_continuous_td3_zoo": ZOO_TD3,
    "lunarlander_continuous_ddpg_zoo": ZOO_DDPG,
    "pendulum_td3": ZOO_TD3,
    "lunarlander_continuous_ddpg_pytorch_distributed": B_DDPG,
    "lunarlander_continuous_d4pg_acme": D4PG,
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_what_its_source_says(name: str) -> None:
    """Each setting by its value: of the file, or of the default it leaves alone."""
    config = from_document(RunConfig, read_document(CONFIGS / f"{name}.yaml"))
    for path, expected in PRESETS[name].items():
        section, setting = path.split(".")
        assert getattr(getattr(config, section), setting) == expected, path
