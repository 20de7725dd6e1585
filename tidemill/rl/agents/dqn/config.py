"""Settings of DQN. Imports no torch, so that any process can read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemill.errors import ConfigError
from tidemill.rl.agents.checks import require, require_actions
from tidemill.types import EnvSpec, WindowSpec

MIN_IMAGE_SIZE = 36
"""Pixels of the smallest side that the three convolutions of `nature` can take."""


@dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning for discrete actions (Mnih et al. 2015) and its usual improvements."""

    algorithm: Literal["dqn"] = "dqn"
    """Names these settings; always `dqn`."""
    network: Literal["nature", "nature_group_norm", "mlp"] = "nature"
    """Torso: three convolutions; the same with group norm and Xavier weights; none, for vectors."""
    hidden_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer before the head."""
    dueling: bool = True
    """Whether the head splits into value and advantage."""
    double: bool = True
    """Whether the online network chooses the action that the target network values."""
    learning_rate: float = 1e-4
    """Step size of Adam."""
    adam_epsilon: float = 1.5e-4
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """L2 penalty that Adam adds to the gradient, per unit of weight."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error: Huber with threshold 1, or half the square."""
    max_grad_norm: float = 10.0
    """Largest norm of the whole gradient; 0 does not clip."""
    batch_size: int = 32
    """Items of one update."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    target_every: int = 2_500
    """Updates between two copies to the target network; 0 moves it by `tau` at each update instead."""
    tau: float = 0.005
    """Share of the network that the target takes over at each update; only if `target_every` is 0."""
    exploration: Literal["ladder", "schedule"] = "ladder"
    """Each environment its own constant epsilon, or one epsilon for all that falls with time."""
    ladder_base: float = 0.4
    """Epsilon of the most exploring environment of a ladder."""
    ladder_alpha: float = 7.0
    """The least exploring environment of a ladder has epsilon base**(1 + alpha)."""
    epsilon_start: float = 1.0
    """Epsilon of a schedule at environment step 0."""
    epsilon_final: float = 0.01
    """Epsilon of a schedule at its end and after."""
    epsilon_decay_steps: int = 250_000
    """Environment steps of the whole cluster over which a schedule falls."""
    evaluation_epsilon: float = 0.001
    """Share of random actions in evaluation."""

    def __post_init__(self) -> None:
        networks = ("nature", "nature_group_norm", "mlp")
        require(self.network in networks, "network", self.network, f"one of {', '.join(networks)}")
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "positive")
        require(self.adam_epsilon > 0, "adam_epsilon", self.adam_epsilon, "positive")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.loss in ("huber", "mse"), "loss", self.loss, "'huber' or 'mse'")
        require(self.max_grad_norm >= 0, "max_grad_norm", self.max_grad_norm, "0 or more")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(self.target_every >= 0, "target_every", self.target_every, "0 or more")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        self._check_exploration()

    def _check_exploration(self) -> None:
        kinds = ("ladder", "schedule")
        require(self.exploration in kinds, "exploration", self.exploration, "'ladder' or 'schedule'")
        require(0 < self.ladder_base <= 1, "ladder_base", self.ladder_base, "above 0 and at most 1")
        require(self.ladder_alpha >= 0, "ladder_alpha", self.ladder_alpha, "0 or more")
        for field in ("epsilon_start", "epsilon_final", "evaluation_epsilon"):
            require(0 <= getattr(self, field) <= 1, field, getattr(self, field), "between 0 and 1")
        require(self.epsilon_decay_steps >= 1, "epsilon_decay_steps", self.epsilon_decay_steps, "at least 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def check_fit(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if the environment's actions are not discrete, or its observations not for the network."""
        require_actions(self.algorithm, env_spec, discrete=True)
        shape = env_spec.observation_shape
        if self.network != "mlp" and (len(shape) != 2 or min(shape) < MIN_IMAGE_SIZE):
            raise ConfigError(
                f"network is {self.network!r}, which takes gray images [H, W] of at least "
                f"{MIN_IMAGE_SIZE}x{MIN_IMAGE_SIZE}, but observations have shape {shape}; use 'mlp'"
            )
