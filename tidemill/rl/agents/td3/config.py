"""Settings of TD3. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.checks import require, require_actions
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class TD3Config:
    """Twin delayed deterministic policy gradient for continuous actions; defaults of Fujimoto et al. (2018)."""

    algorithm: Literal["td3"] = "td3"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of actor and critic, each its own: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor and of both critics."""
    actor_learning_rate: float = 3e-4
    """Step size of Adam for the actor."""
    critic_learning_rate: float = 3e-4
    """Step size of Adam for the critics."""
    learning_rate_decay_updates: int = 0
    """Updates over which both step sizes fall linearly to 0; 0 keeps them constant."""
    batch_size: int = 256
    """Items of one update."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Whether a GPU is given whole updates in a few launches, as CUDA graphs; `auto`: if they can be recorded."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    tau: float = 0.005
    """Share of actor and critics that their targets take over whenever the actor moves."""
    huber_delta: float = 0.0
    """Bound on the gradient of a critic's loss by its error (the threshold of a Huber loss); 0 is the squared loss."""
    policy_delay: int = 2
    """Updates of the critics for each one of the actor and the targets."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target actor's actions, which smooths the target."""
    noise_clip: float = 0.5
    """Largest such noise."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Noise added to actions while exploring."""
    start_steps: int = 10_000
    """Environment steps of the whole cluster for which actions are uniformly random."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        for name in ("actor_learning_rate", "critic_learning_rate"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(self.compile in ("auto", "none", "cuda-graphs"), "compile", self.compile, "auto, none or cuda-graphs")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        require(self.policy_delay >= 1, "policy_delay", self.policy_delay, "at least 1")
        at_least_zero = (
            "learning_rate_decay_updates",
            "huber_delta",
            "target_noise",
            "noise_clip",
            "start_steps",
        )
        for name in at_least_zero:
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not continuous, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=False)
        check_observations(self.network, env_spec)
