"""Settings of the agents: what is refused, and that the published presets can be said."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tidemill.errors import ConfigError
from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.agents.ddpg.config import DDPGConfig
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.agents.td3.config import TD3Config


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
    modules = ("agents.registry", "transitions", "policy_io", "exploration", "action_noise", "sequences")
    imports = "; ".join(f"import tidemill.rl.{module}" for module in modules)
    script = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=300).returncode == 0
