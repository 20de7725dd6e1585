"""Settings of SAC. Imports no torch, so that any process can read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.checks import require, require_actions
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic for continuous actions (Haarnoja et al. 2018).

    With `quantiles` it is TQC (Kuznetsov et al. 2020), with `crossq` CrossQ (Bhatt et al. 2024); both go together.
    """

    algorithm: Literal["sac"] = "sac"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of actor and critic, each its own: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor, and of each critic unless `critic_sizes` says otherwise."""
    critic_sizes: tuple[int, ...] = ()
    """Units of each hidden layer of each critic; empty: `hidden_sizes`. CrossQ's paper has (2048, 2048)."""
    critics: int = 2
    """How many critics there are, of which the smallest value counts, or, with `quantiles`, all quantiles but the
    largest."""
    quantiles: int = 0
    """Quantiles of the return that each critic predicts instead of its mean (TQC, whose paper has 25); 0: the mean."""
    dropped_quantiles_per_critic: int = 2
    """How many of the largest quantiles the target leaves out for each critic, of those of all critics together."""
    crossq: bool = False
    """Whether actor and critics renormalise every layer's inputs by their batch, and there are no target critics.

    Both ends of a transition then pass the critics together, so that one batch's statistics hold for both.
    """
    crossq_warmup_updates: int = 100_000
    """Updates for which the batch's own statistics are used as they are (batch normalisation); from then on the running
    ones correct them (Ioffe 2017)."""
    critic_layer_norm: bool = False
    """Whether a layer norm follows each hidden layer of the critics."""
    learning_rate: float = 3e-4
    """Step size of Adam, for actor, critics and temperature."""
    adam_beta1: float = 0.9
    """Share of the old in Adam's mean of gradients; CrossQ's paper has .5."""
    learning_rate_final: float = 0.0
    """Step size at the end of the decay; unused without a decay."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to its final value; 0 keeps it constant."""
    batch_size: int = 256
    """Items of one update."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Whether a GPU is given whole updates in a few launches, as CUDA graphs; `auto`: if they can be recorded."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    update_precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Format of the products between hidden layers in an update, all else being float32; `auto`: float32."""
    tau: float = 0.005
    """Share of the critics that the target critics take over at each update; with `crossq` there are none."""
    huber_delta: float = 0.0
    """Bound on the gradient of a critic's loss by its error (a Huber loss with this threshold); 0 is the squared loss.
    Quantiles always have their Huber loss, of threshold 1.

    Rare large rewards, such as those of a crash, then pull no harder than others, and the critics lean to the median.
    """
    temperature: Literal["learned", "fixed"] = "learned"
    """Whether the entropy's weight is learned, to meet the target entropy, or stays as it starts."""
    initial_temperature: float = 1.0
    """Entropy's weight, in units of reward: where learning starts, or the fixed value."""
    target_entropy: float | None = None
    """Entropy a learned temperature aims at, in nats; None is minus the number of action dimensions."""
    policy_delay: int = 1
    """Updates of the critics for each one of the actor and the temperature."""
    actor_ema_decay: float = 0.0
    """Decay per update of the averaged actor that is evaluated, e.g. 0.999; 0 evaluates the actor itself."""
    noise_correlation: float = 0.0
    """Correlation of an environment's exploration noise from one step to the next; 0 is white noise.

    Noise that lasts carries a heavy body somewhere, where white noise averages out.
    """
    greedy_fraction: float = 0.0
    """Share of each actor's environments that act by the actor's mean, without noise, after random steps.

    Where the reward needs a quiet end, a policy that is always noisy never shows it to the critics: a lander
    must rest on the ground with its engines off.
    """
    hold_probability: float = 0.0
    """Probability at each step that a noisy environment begins to hold one uniformly random action; 0 never does."""
    hold_steps: int = 60
    """Longest such hold, in steps; the shortest is a third of it (Dabney et al. 2021)."""
    start_steps: int = 10_000
    """Environment steps of the whole cluster for which actions are uniformly random."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        self._check_critics()
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "positive")
        require(0 <= self.adam_beta1 < 1, "adam_beta1", self.adam_beta1, "at least 0 and below 1")
        require(self.learning_rate_final >= 0, "learning_rate_final", self.learning_rate_final, "0 or more")
        decay = self.learning_rate_decay_updates
        require(decay >= 0, "learning_rate_decay_updates", decay, "0 or more")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(self.compile in ("auto", "none", "cuda-graphs"), "compile", self.compile, "auto, none or cuda-graphs")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        require(self.huber_delta >= 0, "huber_delta", self.huber_delta, "0 or more")
        require(self.temperature in ("learned", "fixed"), "temperature", self.temperature, "'learned' or 'fixed'")
        start = self.initial_temperature
        require(math.isfinite(start) and start > 0, "initial_temperature", start, "positive and finite")
        require(self.policy_delay >= 1, "policy_delay", self.policy_delay, "at least 1")
        require(0 <= self.actor_ema_decay < 1, "actor_ema_decay", self.actor_ema_decay, "at least 0 and below 1")
        correlation = self.noise_correlation
        require(0 <= correlation < 1, "noise_correlation", correlation, "at least 0 and below 1")
        require(0 <= self.greedy_fraction <= 1, "greedy_fraction", self.greedy_fraction, "between 0 and 1")
        require(0 <= self.hold_probability <= 1, "hold_probability", self.hold_probability, "between 0 and 1")
        require(self.hold_steps >= 1, "hold_steps", self.hold_steps, "at least 1")
        require(self.start_steps >= 0, "start_steps", self.start_steps, "0 or more")

    def _check_critics(self) -> None:
        sizes, quantiles, dropped = self.critic_sizes, self.quantiles, self.dropped_quantiles_per_critic
        require(min(sizes, default=1) > 0, "critic_sizes", sizes, "positive sizes, or empty")
        require(self.critics >= 1, "critics", self.critics, "at least 1")
        require(quantiles >= 0, "quantiles", quantiles, "0 or more")
        rule = "0 or more, and less than quantiles"
        require(0 <= dropped < (quantiles or dropped + 1), "dropped_quantiles_per_critic", dropped, rule)
        require(not quantiles or self.huber_delta == 0, "huber_delta", self.huber_delta, "0 with quantiles")
        require(self.crossq_warmup_updates >= 0, "crossq_warmup_updates", self.crossq_warmup_updates, "0 or more")
        rule = "0 with crossq: an average of parameters has no running statistics"
        require(not self.crossq or self.actor_ema_decay == 0, "actor_ema_decay", self.actor_ema_decay, rule)

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not continuous, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=False)
        check_observations(self.network, env_spec)
