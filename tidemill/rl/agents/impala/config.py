"""Settings of IMPALA. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.checks import require
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso, chosen_torso
from tidemill.types import ColumnSpec, EnvSpec, Signature, WindowSpec


@dataclass(frozen=True)
class IMPALAConfig:
    """Importance weighted actor-learner architecture, with V-trace (Espeholt et al. 2018)."""

    algorithm: Literal["impala"] = "impala"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso of policy and value: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    encoder_sizes: tuple[int, ...] = ()
    """Units of each fully connected layer after the torso that policy and value share."""
    lstm_size: int = 0
    """Units of an LSTM behind these, which makes policy and value recurrent; 0: none."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each fully connected layer after those, of the policy and of the value apart; may be empty."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Function between these layers."""
    initial_log_std: float = 0.0
    """Log standard deviation that a Gaussian policy starts with; continuous actions only."""
    gaussian_std: Literal["shared", "observation"] = "shared"
    """Whether a Gaussian's standard deviations are parameters or outputs of the network, within e**-20 and e**2."""
    normalize_observations: bool = False
    """Whether the network sees observations less their mean, by their standard deviation, of all transitions that were
    learned from; `mlp` only."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the standard deviation of discounted returns so far. Scores stay as they are."""
    unroll: int = 20
    """Transitions of an item, in a row of one environment; `table.chunk_length` must divide it plus 1."""
    batch_size: int = 8
    """Items of one update."""
    learning_rate: float = 6e-4
    """Step size of Adam."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to 0; 0 keeps it constant."""
    optimizer_epsilon: float = 1e-5
    """Added to Adam's denominator."""
    max_grad_norm: float = 40.0
    """Largest norm of the whole gradient; 0 does not clip."""
    gamma: float = 0.99
    """Discount of one environment step."""
    value_coefficient: float = 0.5
    """Weight of the values' loss."""
    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy, in units of advantage per nat."""
    trace_decay: float = 1.0
    """Lambda of V-trace: how much of a step's correction reaches the step before it."""
    max_rho: float = 1.0
    """Bound of the importance ratios of the targets, rho-bar of the paper."""
    max_c: float = 1.0
    """Bound of the ratios of the traces, c-bar of the paper; at most `max_rho`."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        self._check_counted(self.network)
        require(min(self.hidden_sizes, default=1) > 0, "hidden_sizes", self.hidden_sizes, "positive sizes")
        require(min(self.encoder_sizes, default=1) > 0, "encoder_sizes", self.encoder_sizes, "positive sizes")
        require(self.lstm_size >= 0, "lstm_size", self.lstm_size, "0 or more")
        require(self.activation in ("tanh", "relu"), "activation", self.activation, "'tanh' or 'relu'")
        kinds = ("shared", "observation")
        require(self.gaussian_std in kinds, "gaussian_std", self.gaussian_std, "'shared' or 'observation'")
        for name in ("unroll", "batch_size"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("learning_rate", "optimizer_epsilon", "max_rho", "max_c"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("learning_rate_decay_updates", "max_grad_norm", "value_coefficient", "entropy_coefficient"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("gamma", "trace_decay"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        require(self.max_c <= self.max_rho, "max_c", self.max_c, f"at most max_rho ({self.max_rho:g})")

    def _check_counted(self, network: str) -> None:
        counted = "mlp, where normalize_observations is on: it counts numbers of vectors"
        require(not self.normalize_observations or network in ("auto", "mlp"), "network", network, counted)

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        # the row before the first tells whether that is a final observation step
        return WindowSpec(max(frame_stack - 1, 1), self.unroll, self.unroll + 1, keep_all=True)

    @property
    def rollout_rows(self) -> int:
        """Rows of a stream between the starts of two items: the transitions, and the row to bootstrap from."""
        return self.unroll + 1

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if the network does not take the observations; actions of all kinds are accepted."""
        check_observations(self.network, env_spec)
        self._check_counted(chosen_torso(self.network, env_spec))

    def extra_columns(self, env_spec: EnvSpec) -> Signature:  # noqa: ARG002 - the same for every environment
        """Return what is stored of each step besides: the log-probability of its action, float32."""
        return (ColumnSpec("log_prob", "float32", ()),)
