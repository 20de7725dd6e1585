"""Settings of soft actor-critic: SAC with TQC and CrossQ, and SAC for discrete actions. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from tidemill.rl.checks import require, require_at_least, require_fractions, require_positive, require_sizes
from tidemill.rl.settings.base import (
    EVERY_FOURTH,
    Actions,
    MatmulSettings,
    NormalizingSettings,
    RunDefaults,
    SequenceSettings,
)


@dataclass(frozen=True)
class SoftSettings(MatmulSettings, NormalizingSettings):
    """Settings that SAC and discrete SAC share."""

    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Use of CUDA graphs, which give a GPU a whole update in a few launches. `auto`: if the update can be recorded. On
    a CPU there are none."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each layer after the torso, of the actor and of each critic."""
    learning_rate: float = 3e-4
    """Learning rate of Adam, for actor, critics and temperature."""
    learning_rate_decay_updates: int = 0
    """Updates over which the learning rate falls linearly to 0. 0 keeps it constant."""
    temperature: Literal["learned", "fixed"] = "learned"
    """Weight of the entropy. `learned`: adjusted until the policy has its target entropy. `fixed`: constant."""
    initial_temperature: float = 1.0
    """Initial weight of the entropy, in units of reward. With `temperature` `fixed` it stays."""
    start_steps: int = 10_000
    """Environment steps at the start, over all actors, with uniformly random actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, "hidden_sizes")
        require_positive(self, "learning_rate")
        require_at_least(0, self, "learning_rate_decay_updates", "start_steps")
        start = self.initial_temperature
        require(math.isfinite(start) and start > 0, "initial_temperature", start, "positive and finite")

    @property
    def priority_uses_params(self) -> bool:
        """Whether an actor needs loaded parameters for the initial priority of an item: the mean of recent ones."""
        return True


@dataclass(frozen=True)
class SACConfig(SoftSettings, SequenceSettings):
    """Soft actor-critic for continuous actions (Haarnoja et al. 2018).

    With `quantiles` it is TQC (Kuznetsov et al. 2020), with `crossq` CrossQ (Bhatt et al. 2024); both go together. With
    `lstm_size` it is recurrent.
    """

    actions: ClassVar[Actions] = "continuous"

    algorithm: Literal["sac"] = "sac"
    batch_size: int = 256
    tau: float = 0.005
    """Fraction by which the target critics move to the critics at each update. Unused with `crossq`."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor, and of each critic unless `critic_sizes` is set."""
    learning_rate_decay_updates: int = 0
    """Updates over which the learning rate falls linearly to `learning_rate_final`. 0 keeps it constant."""

    critic_sizes: tuple[int, ...] = ()
    """Units of each hidden layer of each critic. Empty: `hidden_sizes`. CrossQ's paper uses (2048, 2048)."""
    critics: int = 2
    """Number of critics, at least 1. The smallest of their values is used; with `quantiles`, all quantiles except the
    largest."""
    quantiles: int = 0
    """Number of quantiles of the return that each critic predicts (TQC, 25 in its paper). 0: critics predict the
    mean."""
    dropped_quantiles_per_critic: int = 2
    """Largest quantiles that the target leaves out, per critic. They are taken from the quantiles of all critics
    together."""
    crossq: bool = False
    """CrossQ: batch renormalisation of every layer's inputs in actor and critics, without target critics. Both ends of
    a transition pass through the critics together, so that they share a batch's statistics."""
    crossq_warmup_updates: int = 100_000
    """Updates with plain batch normalisation at the start. Afterwards running statistics correct those of the batch
    (Ioffe 2017)."""
    critic_layer_norm: bool = False
    """Layer norm after each hidden layer of the critics."""
    adam_beta1: float = 0.9
    """Decay of Adam's mean of gradients, at least 0 and below 1. CrossQ's paper uses 0.5."""
    learning_rate_final: float = 0.0
    """Learning rate at the end of the decay. Unused without a decay."""
    huber_delta: float = 0.0
    """Threshold of the critics' Huber loss. 0: squared loss. A Huber loss bounds the gradient: rare large rewards, such
    as that of a crash, pull no harder than others, but the critics lean to the median. With `quantiles` the loss is
    always Huber, with threshold 1."""
    target_entropy: float | None = None
    """Entropy that a learned temperature aims at, in nats. None: minus the number of action dimensions."""
    policy_delay: int = 1
    """Critic updates per update of the actor and the temperature, at least 1."""
    actor_ema_decay: float = 0.0
    """Decay per update of a moving average of the actor, which is evaluated in its place; 0.999 is usual. 0: no
    average."""
    noise_correlation: float = 0.0
    """Correlation of an environment's exploration noise between consecutive steps, at least 0 and below 1. 0: white
    noise. Set it for a heavy body, which white noise does not move because it averages out."""
    greedy_fraction: float = 0.0
    """Fraction of all actors' environments that act without noise after the random start, 0 to 1. It is rounded down:
    below 1, an environment that is alone has noise. Set it if the reward needs quiet actions: a lander must rest with
    its engines off, which a noisy policy never shows to the critics."""
    hold_probability: float = 0.0
    """Probability per step that an environment with noise starts to hold one uniformly random action. 0: never."""
    hold_steps: int = 60
    """Longest hold, in steps, at least 1. The shortest is a third of it (Dabney et al. 2021). A hold ends with its
    episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_critics()
        require_at_least(0, self, "learning_rate_final", "huber_delta")
        require_at_least(1, self, "policy_delay", "hold_steps")
        for name in ("adam_beta1", "actor_ema_decay", "noise_correlation"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "at least 0 and below 1")
        require_fractions(self, "greedy_fraction", "hold_probability")

    def _check_critics(self) -> None:
        quantiles, dropped = self.quantiles, self.dropped_quantiles_per_critic
        require(min(self.critic_sizes, default=1) > 0, "critic_sizes", self.critic_sizes, "positive sizes, or empty")
        require_at_least(1, self, "critics")
        require_at_least(0, self, "quantiles", "crossq_warmup_updates")
        rule = "0 or more, and less than quantiles"
        require(0 <= dropped < (quantiles or dropped + 1), "dropped_quantiles_per_critic", dropped, rule)
        require(not quantiles or self.huber_delta == 0, "huber_delta", self.huber_delta, "0 with quantiles")
        rule = "0 with crossq: an average of parameters has no running statistics"
        require(not self.crossq or self.actor_ema_decay == 0, "actor_ema_decay", self.actor_ema_decay, rule)
        rule = "0 with crossq: batch normalisation needs rows that do not depend on each other"
        require(not self.crossq or self.lstm_size == 0, "lstm_size", self.lstm_size, rule)


@dataclass(frozen=True)
class SACDiscreteConfig(SoftSettings):
    """Soft actor-critic for discrete actions (Christodoulou 2019): expectations over actions are sums, not samples."""

    actions: ClassVar[Actions] = "discrete"
    run_defaults: ClassVar[RunDefaults] = EVERY_FOURTH

    algorithm: Literal["sac_discrete"] = "sac_discrete"
    batch_size: int = 64
    tau: float = 0.005
    """Fraction by which the target critics move to the critics at each update, if `target_update_period` is 0."""
    start_steps: int = 1_000

    target_update_period: int = 0
    """Updates between copies to the target critics. 0 moves them by `tau` at each update instead."""
    optimizer_epsilon: float = 1e-4
    """Epsilon of Adam, added to its denominator."""
    max_grad_norm: float = 0.0
    """Norm to which the actor's gradient and the critics' gradient are clipped, separately. 0: no clipping."""
    target_entropy_share: float = 0.89
    """Target entropy of a learned temperature, as a fraction of log A, the entropy of A equally likely actions. The
    paper uses 0.98."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "optimizer_epsilon")
        require_at_least(0, self, "max_grad_norm", "target_update_period")
        require_fractions(self, "target_entropy_share")
