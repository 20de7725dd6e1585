"""Settings of D4PG. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.checks import require, require_actions
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class D4PGConfig:
    """Distributed distributional deterministic policy gradient for continuous actions (Barth-Maron et al. 2018)."""

    algorithm: Literal["d4pg"] = "d4pg"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of actor and critic, each its own: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    actor_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the actor."""
    critic_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the critic."""
    action_layer: int = 1
    """Number of the critic's hidden layer that takes the action: 0, beside the observation, up to the last."""
    num_atoms: int = 51
    """Values over which the critic's distribution of returns is spread, at least 2."""
    value_min: float = -150.0
    """Lowest of them, a discounted return in units of reward; what lies below counts as this."""
    value_max: float = 150.0
    """Highest of them."""
    actor_learning_rate: float = 1e-4
    """Step size of Adam for the actor."""
    critic_learning_rate: float = 1e-4
    """Step size of Adam for the critic."""
    learning_rate_decay_updates: int = 0
    """Updates over which both step sizes fall linearly to 0; 0 keeps them constant."""
    batch_size: int = 256
    """Items of one update."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Whether a GPU is given whole updates in a few launches, as CUDA graphs; `auto`: if they can be recorded."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 5
    """Rewards summed before bootstrapping."""
    target_update_period: int = 100
    """Updates between two copies to the targets; 0 moves them by `tau` at each update instead."""
    tau: float = 0.005
    """Fraction of actor and critic copied to their targets at each update; only if `target_update_period` is 0."""
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(std=0.3))
    """Noise added to actions while exploring."""
    start_steps: int = 1_000
    """Environment steps of the whole cluster for which actions are uniformly random."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        for name in ("actor_sizes", "critic_sizes"):
            sizes = getattr(self, name)
            require(len(sizes) > 0 and min(sizes) > 0, name, sizes, "at least one size, each positive")
        last = len(self.critic_sizes) - 1
        require(0 <= self.action_layer <= last, "action_layer", self.action_layer, f"0 to {last}")
        require(self.num_atoms >= 2, "num_atoms", self.num_atoms, "at least 2")
        above = self.value_max > self.value_min
        require(above, "value_max", self.value_max, f"above value_min ({self.value_min})")
        for name in ("actor_learning_rate", "critic_learning_rate"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("batch_size", "n_step"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("learning_rate_decay_updates", "target_update_period", "start_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.compile in ("auto", "none", "cuda-graphs"), "compile", self.compile, "auto, none or cuda-graphs")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not continuous, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=False)
        check_observations(self.network, env_spec)
