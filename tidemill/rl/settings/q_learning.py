"""Settings of the algorithms that learn Q by replay: DQN and its variants, and R2D2. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidemill.rl.checks import require, require_at_least, require_fractions, require_positive, require_sizes
from tidemill.rl.exploration import EpsilonSettings, check_epsilons
from tidemill.rl.settings.base import (
    EVERY_FOURTH,
    Actions,
    MatmulSettings,
    NormalizingSettings,
    RunDefaults,
    SequenceSettings,
)
from tidemill.settings.user_code import check_user_module


@dataclass(frozen=True)
class QLearningSettings(EpsilonSettings, MatmulSettings, NormalizingSettings):
    """Settings that DQN and R2D2 share."""

    actions: ClassVar[Actions] = "discrete"
    acts_in_bfloat16: ClassVar[bool] = True
    run_defaults: ClassVar[RunDefaults] = EVERY_FOURTH

    target_update_period: int = 2_500
    """Updates between copies to the target network. 0 moves it by `tau` at each update instead."""
    tau: float = 0.005
    """Fraction by which the target network moves to the network at each update, if `target_update_period` is 0."""
    dueling: bool = True
    """Dueling network: a head for the state's value and one for the actions' advantages (Wang et al. 2016)."""
    double: bool = True
    """Double Q-learning: the online network chooses the action of a target (van Hasselt et al. 2016). Off: the target
    network chooses."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer: Adam, or centered RMSProp."""
    learning_rate: float = 1e-4
    """Learning rate of the optimizer."""
    learning_rate_decay_updates: int = 0
    """Updates over which the learning rate falls linearly to 0. 0 keeps it constant."""
    optimizer_epsilon: float = 1.5e-4
    """Epsilon of the optimizer, added to Adam's denominator or under RMSProp's root."""
    rmsprop_decay: float = 0.95
    """Decay of RMSProp's averages, at least 0 and below 1. Unused with `adam`."""
    weight_decay: float = 0.0
    """Weight decay: L2 penalty added to the gradient, per unit of weight. 0: none."""
    max_grad_norm: float = 10.0
    """Norm to which the whole gradient is clipped. 0: no clipping."""
    compile: Literal["auto", "none", "default", "cuda-graphs"] = "auto"
    """Acceleration of updates. `none`: off. `default`: torch compiles forward passes and loss, which needs a C++
    compiler and excludes noisy networks. `cuda-graphs`: a GPU gets whole updates in a few launches. `auto`: CUDA graphs
    if the update can be recorded. docs/performance.md has measurements."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "learning_rate", "optimizer_epsilon")
        require(0 <= self.rmsprop_decay < 1, "rmsprop_decay", self.rmsprop_decay, "at least 0 and below 1")
        require_at_least(
            0, self, "learning_rate_decay_updates", "target_update_period", "weight_decay", "max_grad_norm"
        )
        check_epsilons(self)

    @property
    def priority_uses_params(self) -> bool:
        """Whether an actor needs loaded parameters for the initial priority of an item: the scale of rewards."""
        return self.normalize_rewards


@dataclass(frozen=True)
class DQNConfig(QLearningSettings):
    """Deep Q-learning for discrete actions (Mnih et al. 2015); each of Rainbow's improvements is a switch."""

    algorithm: Literal["dqn"] = "dqn"
    batch_size: int = 32
    n_step: int = 3

    hidden_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer after the torso. A dueling network has the last layer twice."""
    initialisation: Literal["torch", "xavier"] = "torch"
    """Initial weights. `torch`: those of torch's layers. `xavier`: Xavier uniform. Noisy layers always have their
    own."""
    noisy: bool = False
    """Noisy networks: explore by learned noise in the fully connected layers (Fortunato et al. 2018). Set `exploration`
    to `none` with it."""
    noisy_std: float = 0.5
    """Initial scale of the learned noise, before division by the square root of a layer's inputs."""
    noisy_target: bool = True
    """Noise in the targets too, for the choice of the action and for its value, as in the papers. Targets then estimate
    the value of the noisy policy; without it, of the greedy policy. docs/performance.md shows a lander that lands only
    without it."""
    distribution: Literal["none", "c51", "qr", "iqn"] = "none"
    """Output of the network for each action. `none`: its value. `c51`: a distribution over fixed atoms. `qr`: fixed
    quantiles. `iqn`: quantiles at levels drawn in each pass (Dabney et al. 2018b). Priorities are the TD error; with
    `c51` the KL divergence, with quantiles the error of their mean."""
    atoms: int = 51
    """Number of atoms of `c51`, of quantiles of `qr` (200 in its paper), or of levels of `iqn` (64 in its paper, 8 in
    BTR). `iqn` draws them for the prediction and again for the target, and acts by the mean over as many evenly spaced
    levels."""
    cosines: int = 64
    """Number of cosines that encode a level of `iqn`."""
    munchausen_scale: float = 0.0
    """Munchausen factor, 0 to 1, of an action's log-probability that is added to its reward (0.9 in Vieillard et al.
    2020). 0 disables it. Targets are then those of a soft policy of the target network: `double` must be off, and
    `distribution` must not be `c51`. With `n_step` above 1 it is added to the first reward only."""
    munchausen_temperature: float = 0.03
    """Temperature of the soft policy of Munchausen targets, in units of value."""
    munchausen_lowest: float = -1.0
    """Lower bound, 0 or less, of temperature times log-probability, before `munchausen_scale` is applied."""
    value_min: float = -10.0
    """Lowest atom of `c51`: a discounted return, in units of reward. Lower returns count as this one."""
    value_max: float = 10.0
    """Highest atom of `c51`. Higher returns count as this one."""
    loss: str = "huber"
    """Loss of a value's TD error. `huber`: Huber with threshold 1. `mse`: half the square. `module:name`: your own
    function (docs/extending.md). A distribution has its own loss, unless you give yours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, "hidden_sizes")
        require(0 < self.noisy_std < float("inf"), "noisy_std", self.noisy_std, "positive and finite")
        require_at_least(2, self, "atoms")
        require_at_least(1, self, "cosines")
        require(self.value_min < self.value_max, "value_min", self.value_min, f"below value_max, {self.value_max}")
        self._check_munchausen()
        draws = self.noisy or self.distribution == "iqn"
        reason = "one of auto, none, cuda-graphs with noisy layers or iqn, which draw between the passes"
        require(not draws or self.compile != "default", "compile", self.compile, reason)
        self._check_loss()

    def _check_munchausen(self) -> None:
        require_fractions(self, "munchausen_scale")
        temperature = self.munchausen_temperature
        require(0 < temperature < float("inf"), "munchausen_temperature", temperature, "positive and finite")
        require(self.munchausen_lowest <= 0, "munchausen_lowest", self.munchausen_lowest, "0 or less")
        if self.munchausen_scale:
            require(not self.double, "double", self.double, "false with munchausen_scale, whose targets are soft")
            allowed = "none, qr or iqn with munchausen_scale"
            require(self.distribution != "c51", "distribution", self.distribution, allowed)

    def _check_loss(self) -> None:
        is_own = ":" in self.loss
        if is_own:
            check_user_module("agent.loss", self.loss)
        require(self.loss in ("huber", "mse") or is_own, "loss", self.loss, "'huber', 'mse' or module:name")
        fits = not (is_own and self.distribution == "iqn")
        require(fits, "loss", self.loss, "'huber' or 'mse' with iqn, whose loss needs the levels that were drawn")

    @property
    def values_per_action(self) -> int:
        """How many numbers the network gives for each action."""
        return 1 if self.distribution == "none" else self.atoms


@dataclass(frozen=True)
class R2D2Config(QLearningSettings, SequenceSettings):
    """Recurrent replay distributed DQN for discrete actions (Kapturowski et al. 2019); defaults of the paper."""

    algorithm: Literal["r2d2"] = "r2d2"
    batch_size: int = 64
    """Sequences per update."""
    gamma: float = 0.997
    n_step: int = 5
    optimizer_epsilon: float = 1e-3
    max_grad_norm: float = 40.0
    update_precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of matrix products before the LSTM in an update. `auto`: bfloat16 for images where it is faster. In
    `float32` a GPU convolves in TF32, unless `NVIDIA_TF32_OVERRIDE=0` is in the environment."""
    compile: Literal["auto", "none", "default", "cuda-graphs"] = "auto"
    """Acceleration of updates. `none`: off. `default`: torch compiles every step of a sequence separately, which takes
    minutes. `cuda-graphs`: a GPU gets whole updates in a few launches. `auto`: CUDA graphs if the update can be
    recorded."""

    hidden_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer between the torso and the LSTM."""
    lstm_size: int = 512
    """Units of the LSTM, which also sees the last action and reward."""
    head_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer after the LSTM. A dueling network has the last layer twice."""
    burn_in: int = 40
    unroll: int = 80
    period: int = 40
    value_rescaling: bool = True
    """Value rescaling: predict h(value), which grows like a square root, so that large rewards need no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(min(self.hidden_sizes, default=1) > 0, "hidden_sizes", self.hidden_sizes, "0 or more positive sizes")
        require_sizes(self, "head_sizes")
        require_at_least(1, self, "lstm_size")
        rule = "false with r2d2, which bounds values by value_rescaling instead"
        require(not self.normalize_rewards, "normalize_rewards", self.normalize_rewards, rule)
