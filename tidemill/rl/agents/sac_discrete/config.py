"""Settings of SAC for discrete actions. Imports no torch, so that any process can read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.checks import require, require_actions
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class SACDiscreteConfig:
    """Soft actor-critic for discrete actions (Christodoulou 2019): expectations over actions are sums, not samples."""

    algorithm: Literal["sac_discrete"] = "sac_discrete"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of actor and critics, each its own: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each layer after the torso, of the actor and of each critic."""
    learning_rate: float = 3e-4
    """Step size of Adam, for actor, critics and temperature."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to 0; 0 keeps it constant."""
    optimizer_epsilon: float = 1e-4
    """Added to Adam's denominator."""
    max_grad_norm: float = 0.0
    """Largest norm of the actor's gradient and of the critics', each; 0 does not clip."""
    batch_size: int = 64
    """Items of one update."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Whether a GPU is given whole updates in a few launches, as CUDA graphs; `auto`: if they can be recorded."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    target_update_period: int = 0
    """Updates between two copies to the target critics; 0 moves them by `tau` at each update instead."""
    tau: float = 0.005
    """Share of the critics that their targets take over at each update; only if `target_update_period` is 0."""
    temperature: Literal["learned", "fixed"] = "learned"
    """Whether the entropy's weight is learned, to meet the target entropy, or stays as it starts."""
    initial_temperature: float = 1.0
    """Entropy's weight, in units of reward: where learning starts, or the fixed value."""
    target_entropy_share: float = 0.89
    """Entropy a learned temperature aims at, as a share of log A, that of A legal actions alike; the paper has 0.98."""
    start_steps: int = 1_000
    """Environment steps of the whole cluster for which actions are uniformly random."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        for name in ("learning_rate", "optimizer_epsilon"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("learning_rate_decay_updates", "max_grad_norm", "target_update_period", "start_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(self.compile in ("auto", "none", "cuda-graphs"), "compile", self.compile, "auto, none or cuda-graphs")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        require(self.temperature in ("learned", "fixed"), "temperature", self.temperature, "'learned' or 'fixed'")
        start = self.initial_temperature
        require(math.isfinite(start) and start > 0, "initial_temperature", start, "positive and finite")
        share = self.target_entropy_share
        require(0 <= share <= 1, "target_entropy_share", share, "between 0 and 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the networks see."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not discrete, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=True)
        check_observations(self.network, env_spec)
