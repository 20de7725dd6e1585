"""Settings of the Q family. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.config.user_code import check_user_module
from tidemill.rl.checks import require, require_actions
from tidemill.rl.exploration import check_epsilons
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning for discrete actions (Mnih et al. 2015); each of Rainbow's improvements is a switch."""

    algorithm: Literal["dqn"] = "dqn"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer after the torso; a dueling head has the last one twice."""
    initialisation: Literal["torch", "xavier"] = "torch"
    """How weights start: as torch's layers do, or Xavier uniform (not the noisy ones)."""
    dueling: bool = True
    """Whether the head has a stream for the state and one for the actions (Wang et al. 2016)."""
    noisy: bool = False
    """Whether the fully connected layers explore by learned noise (Fortunato et al. 2018)."""
    noisy_std: float = 0.5
    """How strong their noise starts, before it is divided by the square root of a layer's inputs."""
    noisy_target: bool = True
    """Whether targets have noise too, in the choice of the action and in its value, as in the papers.

    They then estimate the noisy policy's value; without, the greedy one's (docs/performance.md has a lander
    that needs the latter).
    """
    double: bool = True
    """Whether the online network chooses the action that the target network values (van Hasselt et al. 2016)."""
    distribution: Literal["none", "c51", "qr", "iqn"] = "none"
    """Prediction of the network: values, or their distribution over fixed atoms, by fixed quantiles (`qr`), or by those
    of levels that each pass of an update draws (`iqn`, Dabney et al. 2018b).

    Prioritized replay goes by the TD error, with `c51` by the KL divergence, with quantiles by the error of the mean.
    """
    atoms: int = 51
    """Atoms of `c51`, quantiles of `qr` (whose paper has 200), or levels of `iqn` for prediction and target each (64 in
    its paper, 8 in BTR); actions are chosen by the mean of as many even levels."""
    cosines: int = 64
    """Cosines that a level of `iqn` is described by."""
    munchausen_scale: float = 0.0
    """Share of its own log-probability that the reward of an action grows by (Vieillard et al. 2020: 0.9); 0 is off.

    Targets are then those of a soft policy of the target network, so that `double` must be off, and the distribution
    must not be `c51`. Of `n_step` rewards the first one grows.
    """
    munchausen_temperature: float = 0.03
    """Temperature of that soft policy, in units of value."""
    munchausen_lowest: float = -1.0
    """Bound from below of temperature times log-probability, before it is scaled."""
    value_min: float = -10.0
    """Lowest atom of `c51`, in discounted reward."""
    value_max: float = 10.0
    """Highest atom of `c51`, in discounted reward."""
    loss: str = "huber"
    """Loss of a value's TD error: `huber` with threshold 1, or `mse`, half the square; a distribution has its own.
    Or instead a user-defined function as `module:name`, see docs/extending.md."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Adam, or centered RMSProp."""
    learning_rate: float = 1e-4
    """Step size of the optimizer."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to 0; 0 keeps it constant."""
    optimizer_epsilon: float = 1.5e-4
    """Added to Adam's denominator, or under the root of RMSProp's."""
    rmsprop_decay: float = 0.95
    """Share of the old that each step leaves in RMSProp's averages."""
    weight_decay: float = 0.0
    """L2 penalty that the optimizer adds to the gradient, per unit of weight."""
    max_grad_norm: float = 10.0
    """Largest norm of the whole gradient; 0 does not clip."""
    batch_size: int = 32
    """Items of one update."""
    gamma: float = 0.99
    """Discount of one environment step."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    update_precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Format of the products in an update, all else being float32; `auto`: bfloat16 for images where it is faster."""
    channels_last: bool = False
    """Whether images lie channels last in memory during an update; on a CPU faster in float32, not in bfloat16."""
    compile: Literal["auto", "none", "default", "cuda-graphs"] = "auto"
    """`default`: torch compiles passes and loss of an update, for which it needs a C++ compiler; not of noisy networks.

    `cuda-graphs`: a GPU is given whole updates in a few launches; `auto`: the same if they can be recorded.
    docs/performance.md says where either pays.
    """
    target_update_period: int = 2_500
    """Updates between two copies to the target network; 0 moves it by `tau` at each update instead."""
    tau: float = 0.005
    """Share of the network that the target takes over at each update; only if `target_update_period` is 0."""
    exploration: Literal["ladder", "schedule", "none"] = "ladder"
    """Each environment its own constant epsilon; one for all that falls with time; or 0, for noisy networks."""
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
        check_torso(self.network)
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        kinds = ("none", "c51", "qr", "iqn")
        for name, allowed in (("initialisation", ("torch", "xavier")), ("distribution", kinds)):
            require(getattr(self, name) in allowed, name, getattr(self, name), f"one of {', '.join(allowed)}")
        require(0 < self.noisy_std < float("inf"), "noisy_std", self.noisy_std, "positive and finite")
        require(self.atoms >= 2, "atoms", self.atoms, "at least 2")
        require(self.cosines >= 1, "cosines", self.cosines, "at least 1")
        require(self.value_min < self.value_max, "value_min", self.value_min, f"below value_max, {self.value_max}")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "between 0 and 1")
        require(self.n_step >= 1, "n_step", self.n_step, "at least 1")
        require(self.target_update_period >= 0, "target_update_period", self.target_update_period, "0 or more")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        self._check_munchausen()
        self._check_compile()
        self._check_optimizer()
        check_epsilons(self)

    def _check_munchausen(self) -> None:
        scale, temperature = self.munchausen_scale, self.munchausen_temperature
        require(0 <= scale <= 1, "munchausen_scale", scale, "between 0 and 1")
        require(0 < temperature < float("inf"), "munchausen_temperature", temperature, "positive and finite")
        require(self.munchausen_lowest <= 0, "munchausen_lowest", self.munchausen_lowest, "0 or less")
        if scale:
            require(not self.double, "double", self.double, "false with munchausen_scale, whose targets are soft")
            distribution, allowed = self.distribution, "none, qr or iqn with munchausen_scale"
            require(distribution != "c51", "distribution", distribution, allowed)

    def _check_compile(self) -> None:
        draws = self.noisy or self.distribution == "iqn"
        allowed = ("auto", "none", *(() if draws else ("default",)), "cuda-graphs")
        reason = " with noisy layers or iqn, which draw between the passes" if draws else ""
        require(self.compile in allowed, "compile", self.compile, f"one of {', '.join(allowed)}{reason}")

    def _check_optimizer(self) -> None:
        own = ":" in self.loss
        if own:
            check_user_module("agent.loss", self.loss)
        require(self.loss in ("huber", "mse") or own, "loss", self.loss, "'huber', 'mse' or module:name")
        fits = not (own and self.distribution == "iqn")
        require(fits, "loss", self.loss, "'huber' or 'mse' with iqn, whose loss needs the levels that were drawn")
        require(self.optimizer in ("adam", "rmsprop"), "optimizer", self.optimizer, "'adam' or 'rmsprop'")
        for name in ("learning_rate", "optimizer_epsilon"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        require(0 <= self.rmsprop_decay < 1, "rmsprop_decay", self.rmsprop_decay, "at least 0 and below 1")
        for name in ("learning_rate_decay_updates", "weight_decay", "max_grad_norm"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")

    @property
    def values_per_action(self) -> int:
        """How many numbers the network gives for each action."""
        return 1 if self.distribution == "none" else self.atoms

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not discrete, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=True)
        check_observations(self.network, env_spec)
