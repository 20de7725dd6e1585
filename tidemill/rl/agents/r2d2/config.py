"""Settings of R2D2. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.checks import require, require_actions
from tidemill.rl.exploration import check_epsilons
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.rl.sequences import SequenceShape
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class R2D2Config:
    """Recurrent replay distributed DQN for discrete actions (Kapturowski et al. 2019); defaults of the paper."""

    algorithm: Literal["r2d2"] = "r2d2"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer between the torso and the LSTM."""
    lstm_size: int = 512
    """Units of the LSTM, which also sees the last action and reward."""
    head_sizes: tuple[int, ...] = (512,)
    """Units of each fully connected layer after the LSTM; a dueling head has the last one twice."""
    dueling: bool = True
    """Whether the head has a stream for the state and one for the actions."""
    double: bool = True
    """Whether the online network chooses the action that the target network values."""
    burn_in: int = 40
    """Steps of a sequence that only warm the stored recurrent_state up."""
    unroll: int = 80
    """Steps of a sequence that are trained on."""
    period: int = 40
    """Steps from the start of one sequence to the next; fewer than `unroll` makes them overlap."""
    n_step: int = 5
    """Rewards summed before bootstrapping."""
    gamma: float = 0.997
    """Discount of one environment step."""
    value_rescaling: bool = True
    """Whether the network predicts h(value), which grows like a square root, so that rewards need no clipping."""
    priority_mix: float = 0.9
    """Share eta of the largest error in a sequence's priority; the rest is the mean of its errors."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Adam, or centered RMSProp."""
    learning_rate: float = 1e-4
    """Step size of the optimizer."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to 0; 0 keeps it constant."""
    optimizer_epsilon: float = 1e-3
    """Added to Adam's denominator, or under the root of RMSProp's."""
    rmsprop_decay: float = 0.95
    """Share of the old that each step leaves in RMSProp's averages."""
    weight_decay: float = 0.0
    """L2 penalty that the optimizer adds to the gradient, per unit of weight."""
    max_grad_norm: float = 40.0
    """Largest norm of the whole gradient; 0 does not clip."""
    batch_size: int = 64
    """Sequences of one update."""
    update_precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Format of the products before the LSTM in an update; `auto`: bfloat16 for images where it is faster."""
    channels_last: bool = False
    """Whether images lie channels last in memory during an update; on a CPU faster in float32, not in bfloat16."""
    compile: Literal["auto", "none", "default", "cuda-graphs"] = "auto"
    """See the same setting of `dqn`; with `default` every step of a sequence is compiled apart, which takes minutes."""
    target_update_period: int = 2_500
    """Updates between two copies to the target network; 0 moves it by `tau` at each update instead."""
    tau: float = 0.005
    """Share of the network that the target takes over at each update; only if `target_update_period` is 0."""
    exploration: Literal["ladder", "schedule", "none"] = "ladder"
    """Each environment its own constant epsilon; one for all that falls with time; or 0."""
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
        for name, least in (("hidden_sizes", 0), ("head_sizes", 1)):
            sizes = getattr(self, name)
            require(
                len(sizes) >= least and all(size > 0 for size in sizes), name, sizes, f"{least} or more positive sizes"
            )
        for name in ("lstm_size", "unroll", "period", "n_step", "batch_size"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in (
            "burn_in",
            "learning_rate_decay_updates",
            "target_update_period",
            "weight_decay",
            "max_grad_norm",
        ):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("gamma", "priority_mix"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        ways = ("auto", "none", "default", "cuda-graphs")
        require(self.compile in ways, "compile", self.compile, f"one of {', '.join(ways)}")
        require(self.optimizer in ("adam", "rmsprop"), "optimizer", self.optimizer, "'adam' or 'rmsprop'")
        for name in ("learning_rate", "optimizer_epsilon"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        require(0 <= self.rmsprop_decay < 1, "rmsprop_decay", self.rmsprop_decay, "at least 0 and below 1")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")
        check_epsilons(self)

    def shape(self, frame_stack: int) -> SequenceShape:
        """Return how an item is divided, given how many frames the network sees."""
        return SequenceShape(frame_stack, self.burn_in, self.unroll, self.n_step)

    @property
    def recurrent_state_size(self) -> int:
        """Numbers that the network remembers of each environment: its cell and its output."""
        return 2 * self.lstm_size

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        return self.shape(frame_stack).window(self.period)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not discrete, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=True)
        check_observations(self.network, env_spec)
