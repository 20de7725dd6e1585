"""Settings of the deterministic policy gradients: DDPG, TD3 and D4PG. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.checks import require, require_at_least, require_positive, require_sizes
from tidemill.rl.settings.base import EVERY_FOURTH, Actions, NormalizingSettings, RunDefaults, SequenceSettings


@dataclass(frozen=True)
class DeterministicSettings(NormalizingSettings):
    """Settings that DDPG, TD3 and D4PG share."""

    actions: ClassVar[Actions] = "continuous"

    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Use of CUDA graphs, which give a GPU a whole update in a few launches. `auto`: if the update can be recorded. On
    a CPU there are none."""
    actor_learning_rate: float = 1e-4
    """Learning rate of the actor (Adam)."""
    critic_learning_rate: float = 1e-3
    """Learning rate of the critic (Adam)."""
    learning_rate_decay_updates: int = 0
    """Updates over which both learning rates fall linearly to 0. 0 keeps them constant."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Noise added to actions while exploring."""
    start_steps: int = 1_000
    """Environment steps at the start, over all actors, with uniformly random actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "actor_learning_rate", "critic_learning_rate")
        require_at_least(0, self, "learning_rate_decay_updates", "start_steps")

    @property
    def priority_uses_params(self) -> bool:
        """Whether an actor needs loaded parameters for the initial priority of an item: the mean of recent ones."""
        return True


@dataclass(frozen=True)
class DDPGConfig(DeterministicSettings):
    """Deep deterministic policy gradient for continuous actions; defaults of Lillicrap et al. (2016), section 7."""

    algorithm: Literal["ddpg"] = "ddpg"
    tau: float = 0.001
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(kind="ou", std=0.2))

    actor_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the actor."""
    actor_activation: Literal["relu", "tanh"] = "relu"
    """Activation after each hidden layer of the actor. The critic uses ReLU."""
    critic_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the critic."""
    action_layer: int = 1
    """Index, from 0, of the critic's hidden layer that takes the action. 0 takes it together with the observation."""
    critic_weight_decay: float = 0.0
    """Weight decay of the critic: L2 penalty added to the gradient, per unit of weight. The paper uses 0.01."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of the critic's TD error. `mse`: half its square. `huber`: Huber with threshold 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, "actor_sizes", "critic_sizes")
        _require_layer(self.action_layer, self.critic_sizes)
        require_at_least(0, self, "critic_weight_decay")


@dataclass(frozen=True)
class TD3Config(DeterministicSettings, SequenceSettings):
    """Twin delayed deterministic policy gradient for continuous actions; defaults of Fujimoto et al. (2018).

    With `lstm_size` it is recurrent.
    """

    algorithm: Literal["td3"] = "td3"
    batch_size: int = 256
    tau: float = 0.005
    """Fraction by which the targets move to actor and critics at each update of the actor."""
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    start_steps: int = 10_000

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor and of both critics."""
    huber_delta: float = 0.0
    """Threshold of the critic's Huber loss, which bounds its gradient. 0: squared loss."""
    policy_delay: int = 2
    """Critic updates per update of the actor and the targets, at least 1."""
    target_noise: float = 0.2
    """Standard deviation of the noise added to the target actor's actions. It smooths the target."""
    noise_clip: float = 0.5
    """Largest absolute value of the target noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, "hidden_sizes")
        require_at_least(1, self, "policy_delay")
        require_at_least(0, self, "huber_delta", "target_noise", "noise_clip")


@dataclass(frozen=True)
class D4PGConfig(DeterministicSettings):
    """Distributed distributional deterministic policy gradient for continuous actions (Barth-Maron et al. 2018)."""

    run_defaults: ClassVar[RunDefaults] = EVERY_FOURTH

    algorithm: Literal["d4pg"] = "d4pg"
    batch_size: int = 256
    n_step: int = 5
    tau: float = 0.005
    """Fraction by which the targets move to actor and critic at each update, if `target_update_period` is 0."""
    critic_learning_rate: float = 1e-4
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(std=0.3))

    actor_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the actor."""
    critic_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of the critic."""
    action_layer: int = 1
    """Index, from 0, of the critic's hidden layer that takes the action. 0 takes it together with the observation."""
    num_atoms: int = 51
    """Number of atoms of the critic's distribution of returns, at least 2."""
    value_min: float = -150.0
    """Lowest atom: a discounted return, in units of reward. Lower returns count as this one."""
    value_max: float = 150.0
    """Highest atom. Higher returns count as this one. Set both to the range of returns of your task."""
    target_update_period: int = 100
    """Updates between copies to the target networks. 0 moves them by `tau` at each update instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, "actor_sizes", "critic_sizes")
        _require_layer(self.action_layer, self.critic_sizes)
        require_at_least(2, self, "num_atoms")
        above = self.value_max > self.value_min
        require(above, "value_max", self.value_max, f"above value_min ({self.value_min})")
        require_at_least(0, self, "target_update_period")


def _require_layer(action_layer: int, critic_sizes: tuple[int, ...]) -> None:
    last = len(critic_sizes) - 1
    require(0 <= action_layer <= last, "action_layer", action_layer, f"0 to {last}")
