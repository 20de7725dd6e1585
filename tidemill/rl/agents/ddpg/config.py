"""Settings of DDPG. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.checks import require, require_actions
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class DDPGConfig:
    """Deep deterministic policy gradient for continuous actions; defaults of Lillicrap et al. (2016), section 7."""

    algorithm: Literal["ddpg"] = "ddpg"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of actor and critic, each its own: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    actor_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the actor."""
    actor_activation: Literal["relu", "tanh"] = "relu"
    """Activation after each hidden layer of the actor; the critic's have a ReLU."""
    critic_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the critic."""
    action_layer: int = 1
    """Number of the critic's hidden layer that takes the action: 0, beside the observation, up to the last."""
    actor_learning_rate: float = 1e-4
    """Step size of Adam for the actor."""
    critic_learning_rate: float = 1e-3
    """Step size of Adam for the critic."""
    learning_rate_decay_updates: int = 0
    """Updates over which both step sizes fall linearly to 0; 0 keeps them constant."""
    critic_weight_decay: float = 0.0
    """L2 penalty that Adam adds to the critic's gradient, per unit of weight; the paper's is 0.01."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of the critic's TD error: half the square, or Huber with threshold 1."""
    batch_size: int = 64
    """Items of one update."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Whether a GPU is given whole updates in a few launches, as CUDA graphs; `auto`: if they can be recorded."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    tau: float = 0.001
    """Fraction of actor and critic copied to their targets at each update."""
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(kind="ou", std=0.2))
    """Noise added to actions while exploring."""
    start_steps: int = 1_000
    """Environment steps of the whole cluster for which actions are uniformly random."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        for name in ("actor_sizes", "critic_sizes"):
            sizes = getattr(self, name)
            require(len(sizes) > 0 and min(sizes) > 0, name, sizes, "at least one size, each positive")
        activation, last = self.actor_activation, len(self.critic_sizes) - 1
        require(activation in ("relu", "tanh"), "actor_activation", activation, "'relu' or 'tanh'")
        require(0 <= self.action_layer <= last, "action_layer", self.action_layer, f"0 to {last}")
        for name in ("actor_learning_rate", "critic_learning_rate"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("learning_rate_decay_updates", "critic_weight_decay", "start_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.loss in ("mse", "huber"), "loss", self.loss, "'mse' or 'huber'")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(self.compile in ("auto", "none", "cuda-graphs"), "compile", self.compile, "auto, none or cuda-graphs")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not continuous, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=False)
        check_observations(self.network, env_spec)
