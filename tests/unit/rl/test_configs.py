"""Settings of the agents: what is refused, and that the published presets can be said."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tidemill.errors import ConfigError
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig, SACDiscreteConfig


@pytest.mark.parametrize(
    "config,field,value",
    [
        (DQNConfig, "network", "resnet"),
        (DQNConfig, "network", "my_project.torso"),
        (DQNConfig, "initialisation", "zero"),
        (DQNConfig, "distribution", "fqf"),
        (DQNConfig, "cosines", 0),
        (DQNConfig, "munchausen_scale", 1.1),
        (DQNConfig, "munchausen_temperature", 0.0),
        (DQNConfig, "munchausen_lowest", 0.5),
        (DQNConfig, "atoms", 1),
        (DQNConfig, "value_min", 10.0),
        (DQNConfig, "optimizer", "sgd"),
        (DQNConfig, "rmsprop_decay", 1.0),
        (DQNConfig, "hidden_sizes", ()),
        (DQNConfig, "hidden_sizes", (0,)),
        (DQNConfig, "learning_rate", 0.0),
        (DQNConfig, "learning_rate_decay_updates", -1),
        (DQNConfig, "optimizer_epsilon", 0.0),
        (DQNConfig, "weight_decay", -1.0),
        (DQNConfig, "loss", "l1"),
        (DQNConfig, "max_grad_norm", -1.0),
        (DQNConfig, "batch_size", 0),
        (DQNConfig, "gamma", 1.5),
        (DQNConfig, "n_step", 0),
        (DQNConfig, "target_update_period", -1),
        (DQNConfig, "tau", 0.0),
        (DQNConfig, "exploration", "boltzmann"),
        (DQNConfig, "ladder_base", 0.0),
        (DQNConfig, "ladder_alpha", -1.0),
        (DQNConfig, "epsilon_start", 1.1),
        (DQNConfig, "epsilon_decay_steps", 0),
        (DQNConfig, "evaluation_epsilon", float("nan")),
        (DDPGConfig, "learning_rate_decay_updates", -1),
        (TD3Config, "learning_rate_decay_updates", -1),
        (D4PGConfig, "learning_rate_decay_updates", -1),
        (DDPGConfig, "actor_sizes", ()),
        (DDPGConfig, "critic_sizes", (8, 0)),
        (DDPGConfig, "actor_activation", "elu"),
        (DDPGConfig, "action_layer", 2),
        (DDPGConfig, "actor_learning_rate", 0.0),
        (DDPGConfig, "critic_weight_decay", -1.0),
        (DDPGConfig, "gamma", 1.1),
        (DDPGConfig, "n_step", 0),
        (DDPGConfig, "tau", 0.0),
        (DDPGConfig, "loss", "l1"),
        (TD3Config, "huber_delta", -1.0),
        (TD3Config, "hidden_sizes", (0,)),
        (TD3Config, "critic_learning_rate", float("nan")),
        (TD3Config, "policy_delay", 0),
        (TD3Config, "target_noise", -0.1),
        (TD3Config, "start_steps", -1),
        (D4PGConfig, "num_atoms", 1),
        (D4PGConfig, "value_max", -150.0),
        (D4PGConfig, "target_update_period", -1),
        (D4PGConfig, "action_layer", -1),
        (D4PGConfig, "batch_size", 0),
        (SACConfig, "hidden_sizes", (256, -1)),
        (SACConfig, "learning_rate", float("nan")),
        (SACConfig, "learning_rate_final", -1.0),
        (SACConfig, "learning_rate_decay_updates", -1),
        (SACConfig, "batch_size", 0),
        (SACConfig, "gamma", -0.1),
        (SACConfig, "n_step", 0),
        (SACConfig, "tau", 1.1),
        (SACConfig, "temperature", "auto"),
        (SACConfig, "initial_temperature", float("inf")),
        (SACConfig, "policy_delay", 0),
        (SACConfig, "actor_ema_decay", 1.0),
        (SACConfig, "greedy_fraction", 1.5),
        (SACConfig, "noise_correlation", 1.0),
        (SACConfig, "start_steps", -1),
        (SACDiscreteConfig, "target_entropy_share", 1.1),
        (SACDiscreteConfig, "initial_temperature", 0.0),
        (SACDiscreteConfig, "start_steps", -1),
        (SACDiscreteConfig, "optimizer_epsilon", 0.0),
    ],
)
def test_setting_out_of_range_is_refused_by_name_and_value(config: type[Any], field: str, value: object) -> None:
    """The message says which field, which value and what it must be."""
    with pytest.raises(ConfigError) as refused:
        config(**{field: value})
    assert str(refused.value).startswith(f"agent.{field} is {value!r}, but ")


def test_published_presets_can_be_expressed() -> None:
    """The three earlier systems' settings, as their authors gave them."""
    group_norm_atari = DQNConfig(
        network="nature_group_norm",
        dueling=False,
        n_step=1,
        learning_rate=1.5e-5,
        optimizer_epsilon=1.5e-4,
        weight_decay=5e-5,
        max_grad_norm=0.0,
        target_update_period=10_000,
        batch_size=256,
        exploration="schedule",
        epsilon_final=0.1,
        epsilon_decay_steps=4_000_000,
        evaluation_epsilon=0.05,
    )
    ladder_pong = DQNConfig(n_step=5, loss="mse", batch_size=128, target_update_period=250, learning_rate=1e-4)
    fixed_temperature_sac = SACConfig(
        hidden_sizes=(400, 300),
        temperature="fixed",
        initial_temperature=0.1,
        learning_rate=1e-3,
        tau=0.005,
        batch_size=100,
        start_steps=10_000,
    )
    assert group_norm_atari.loss == "huber"
    assert (ladder_pong.ladder_base, ladder_pong.ladder_alpha) == (0.4, 7.0)
    assert fixed_temperature_sac.gamma == 0.99


def test_settings_and_windows_import_no_torch() -> None:
    """Processes without torch read the settings; decoder threads of any process cut windows."""
    settings = ("deterministic", "on_policy", "q_learning", "soft_actor_critic")
    modules = ("settings.registry", "transitions", "policy_io", "exploration", "action_noise", "sequences")
    names = (*modules, *(f"settings.{name}" for name in settings))
    imports = "; ".join(f"import tidemill.rl.{name}" for name in names)
    script = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=300).returncode == 0
