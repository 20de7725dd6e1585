"""Settings of PQN. Imports no torch, so that any process can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.rl.checks import require, require_actions
from tidemill.rl.exploration import check_epsilons
from tidemill.rl.networks.torsos import NetworkSetting, check_observations, check_torso
from tidemill.types import EnvSpec, WindowSpec


@dataclass(frozen=True)
class PQNConfig:
    """Parallelised Q-network (Gallici et al. 2024): Q(lambda) on fresh rollouts, without replay or target network."""

    algorithm: Literal["pqn"] = "pqn"
    """Algorithm; decides which other `agent` settings there are."""
    network: str = "auto"
    """Torso: `mlp` (none) for vectors; `nature`, `nature_group_norm` or `impala` for
    images; or your own by `module:name`. `auto`: `mlp` for vectors, `nature` for images if they are large enough."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: a user-defined one's own, and `width`, `spectral_norm` and `pool` of `impala`."""
    hidden_sizes: tuple[int, ...] = (120, 84)
    """Units of each layer after the torso; a layer norm follows each."""
    exploration: Literal["schedule", "ladder", "none"] = "schedule"
    """`schedule`: an epsilon that falls with the cluster's steps; `ladder`: one of each environment; `none`."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start; only `schedule`."""
    epsilon_final: float = 0.05
    """Probability at the end; only `schedule`."""
    epsilon_decay_steps: int = 250_000
    """Environment steps of the whole cluster over which it falls linearly; only `schedule`."""
    ladder_base: float = 0.4
    """Epsilon of the first environment; only `ladder`."""
    ladder_alpha: float = 7.0
    """How steeply the others' fall: the last one has base ** (1 + alpha); only `ladder`."""
    evaluation_epsilon: float = 0.0
    """Probability of a random action in evaluation."""
    unroll: int = 128
    """Transitions of an item, in a row of one environment; `table.chunk_length` must divide it plus 1."""
    batch_size: int = 4
    """Items of one update: of a rollout, as many as there are environments of all actors."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 4
    """Gradient steps of each pass."""
    learning_rate: float = 2.5e-4
    """Step size of Adam."""
    learning_rate_decay_updates: int = 0
    """Updates over which the step size falls linearly to 0; 0 keeps it constant."""
    optimizer_epsilon: float = 1e-5
    """Added to Adam's denominator."""
    max_grad_norm: float = 10.0
    """Largest norm of the whole gradient; 0 does not clip."""
    gamma: float = 0.99
    """Discount of one environment step."""
    trace_decay: float = 0.65
    """Lambda of the returns: 1 for Monte Carlo returns, 0 for one-step targets."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        check_epsilons(self)
        sizes = self.hidden_sizes
        require(len(sizes) > 0 and min(sizes) > 0, "hidden_sizes", sizes, "at least one size, each positive")
        for name in ("unroll", "batch_size", "epochs", "minibatches"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("learning_rate", "optimizer_epsilon"):
            require(getattr(self, name) > 0, name, getattr(self, name), "positive")
        for name in ("learning_rate_decay_updates", "max_grad_norm"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("gamma", "trace_decay"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return which steps of a stream an item covers, given how many frames the network sees."""
        # the row before the first tells whether that is a final observation step
        return WindowSpec(max(frame_stack - 1, 1), self.unroll, self.unroll + 1, keep_all=True)

    @property
    def rollout_rows(self) -> int:
        """Rows of a stream between the starts of two items: the transitions, and the row to bootstrap from."""
        return self.unroll + 1

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are not discrete, or the network does not take the observations."""
        require_actions(self.algorithm, env_spec, discrete=True)
        check_observations(self.network, env_spec)
