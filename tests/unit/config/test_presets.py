"""The presets are the published settings, whatever the defaults become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig

CONFIGS = Path(__file__).parents[3] / "configs"

A_DOUBLE: dict[str, Any] = {
    "agent.network": "nature_group_norm",
    "agent.initialisation": "xavier",
    "agent.hidden_sizes": (512,),
    "agent.double": True,
    "agent.dueling": False,
    "agent.noisy": False,
    "agent.distribution": "none",
    "agent.n_step": 1,
    "agent.gamma": 0.99,
    "agent.loss": "huber",
    "agent.optimizer": "adam",
    "agent.learning_rate": 6.25e-5,
    "agent.optimizer_epsilon": 1.5e-4,
    "agent.weight_decay": 5e-5,
    "agent.batch_size": 256,
    "agent.target_update_period": 10_000,
    "agent.exploration": "schedule",
    "agent.epsilon_start": 1.0,
    "agent.epsilon_final": 0.1,
    "agent.epsilon_decay_steps": 4_000_000,
    "table.max_items": 1_000_000,
    "table.min_size": 100_000,
    "table.sampler": "uniform",
    "env.episodic_life": True,
    "env.noop_max": 30,
    "env.fire_reset": True,
    "env.frame_stack": 4,
    "env.frame_skip": 4,
    "env.clip_rewards": True,
    "evaluator.policy": "epsilon",
    "evaluator.epsilon": 0.05,
    "evaluator.episodes": 30,
    "evaluator.test_episodes": 200,
}
A_PRIORITIZED = A_DOUBLE | {
    "agent.learning_rate": 1.5e-5,
    "table.sampler": "prioritized",
    "table.priority_exponent": 0.5,
    "table.importance_sampling_exponent": 0.4,
    "table.importance_sampling_exponent_final": 1.0,
}
B: dict[str, Any] = {
    "env.id": "ALE/Pong-v5",
    "env.num_envs": 1,
    "env.clip_rewards": False,
    "agent.exploration": "ladder",
    "agent.ladder_base": 0.4,
    "agent.ladder_alpha": 7.0,
    "agent.optimizer": "adam",
    "agent.learning_rate": 1e-4,
    "agent.loss": "mse",
    "agent.batch_size": 128,
    "agent.target_update_period": 250,
    "table.max_items": 50_000,
    "table.min_size": 5_000,
    "table.sampler": "uniform",
}
RAINBOW: dict[str, Any] = {
    "agent.double": True,
    "agent.dueling": True,
    "agent.noisy": True,
    "agent.distribution": "c51",
    "agent.n_step": 3,
    "table.sampler": "prioritized",
    "table.priority_exponent": 0.5,
    "table.importance_sampling_exponent": 0.4,
    "table.importance_sampling_exponent_final": 1.0,
    "agent.exploration": "none",
}
RAINBOW_ATARI = RAINBOW | {
    "agent.network": "nature",
    "agent.atoms": 51,
    "agent.value_min": -10.0,
    "agent.value_max": 10.0,
    "agent.learning_rate": 6.25e-5,
    "agent.optimizer_epsilon": 1.5e-4,
    "agent.batch_size": 32,
    "agent.target_update_period": 2_000,  # updates of 4 decisions of 4 frames: 32,000 frames
    "learner.updates_per_env_step": 0.25,
    "table.min_size": 20_000,  # 80,000 frames
    "table.max_items": 1_000_000,
}
APEX: dict[str, Any] = {
    "agent.double": True,
    "agent.dueling": True,
    "agent.distribution": "none",
    "agent.n_step": 3,
    "agent.gamma": 0.99,
    "agent.exploration": "ladder",
    "agent.ladder_base": 0.4,
    "agent.ladder_alpha": 7.0,
    "agent.optimizer": "rmsprop",
    "agent.rmsprop_decay": 0.95,
    "agent.learning_rate": 0.00025 / 4,
    "agent.optimizer_epsilon": 1.5e-7,
    "agent.max_grad_norm": 40.0,
    "agent.batch_size": 512,
    "agent.target_update_period": 2_500,
    "table.sampler": "prioritized",
    "table.priority_exponent": 0.6,
    "table.importance_sampling_exponent": 0.4,
    "table.importance_sampling_steps": 0,
    "table.max_items": 2_000_000,
    "table.min_size": 50_000,
}
R2D2: dict[str, Any] = {
    "agent.burn_in": 40,
    "agent.unroll": 80,
    "agent.period": 40,
    "agent.n_step": 5,
    "agent.gamma": 0.997,
    "agent.lstm_size": 512,
    "agent.value_rescaling": True,
    "agent.priority_mix": 0.9,
    "agent.batch_size": 64,
    "agent.optimizer": "adam",
    "agent.learning_rate": 1e-4,
    "agent.optimizer_epsilon": 1e-3,
    "agent.target_update_period": 2_500,
    "table.sampler": "prioritized",
    "table.priority_exponent": 0.9,
    "table.importance_sampling_exponent": 0.6,
    "table.importance_sampling_steps": 0,
    "table.max_items": 4_000_000 // 40,
    "env.full_action_space": True,
    "env.clip_rewards": False,
    "env.episodic_life": False,
}
PRESETS = {
    "asterix_double_dqn": A_DOUBLE | {"env.id": "ALE/Asterix-v5"},
    "wizard_of_wor_double_dqn": A_DOUBLE | {"env.id": "ALE/WizardOfWor-v5"},
    "zaxxon_double_dqn": A_DOUBLE | {"env.id": "ALE/Zaxxon-v5"},
    "asterix_prioritized_double_dqn": A_PRIORITIZED | {"env.id": "ALE/Asterix-v5"},
    "wizard_of_wor_prioritized_double_dqn": A_PRIORITIZED | {"env.id": "ALE/WizardOfWor-v5"},
    "zaxxon_prioritized_double_dqn": A_PRIORITIZED | {"env.id": "ALE/Zaxxon-v5"},
    "pong_apex_pytorch_distributed": B | {"launcher.actors": 8, "agent.n_step": 5},
    "pong_apex_pytorch_distributed_8_actors_1_step": B | {"launcher.actors": 8, "agent.n_step": 1},
    "pong_apex_pytorch_distributed_2_actors_1_step": B | {"launcher.actors": 2, "agent.n_step": 1},
    "rainbow_pong": RAINBOW_ATARI,
    "rainbow_asterix": RAINBOW_ATARI,
    "lunarlander_rainbow": RAINBOW  # the rest is ours, said in the file
    | {"agent.n_step": 5, "agent.exploration": "ladder", "agent.noisy_target": False},
    "apex_pong": APEX,
    "apex_asterix": APEX,
    "r2d2_pong": R2D2,
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_what_was_published(name: str) -> None:
    """Each setting by its value: of the file, or of the default it leaves alone."""
    config = from_document(RunConfig, read_document(CONFIGS / f"{name}.yaml"))
    for path, expected in PRESETS[name].items():
        section, setting = path.split(".")
        assert getattr(getattr(config, section), setting) == pytest.approx(expected), path
