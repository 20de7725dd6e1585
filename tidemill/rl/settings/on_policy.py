"""Settings of the algorithms that learn from fresh rollouts: PPO, IMPALA and PQN. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tidemill.rl.checks import require, require_at_least, require_fractions, require_positive, require_sizes
from tidemill.rl.exploration import EpsilonSettings, check_epsilons
from tidemill.rl.settings.base import (
    ROLLOUTS,
    Actions,
    AgentSettings,
    MatmulSettings,
    RunDefaults,
    check_counted,
    earlier_return_column,
)
from tidemill.types import ColumnSpec, EnvSpec, Signature, WindowSpec

LOG_PROB = "log_prob"
"""The extra column: the log-probability, by the policy that acted, of the action that it took."""


@dataclass(frozen=True)
class RolloutSettings(MatmulSettings, AgentSettings):
    """Settings that PPO, IMPALA and PQN share."""

    run_defaults: ClassVar[RunDefaults] = ROLLOUTS

    batch_size: int = 4
    """Items per update. To learn from whole rollouts, set it to the number of environments of all actors."""
    unroll: int = 128
    """Transitions of one environment in an item, at least 1. `table.chunk_length` must divide `unroll` plus 1."""
    learning_rate: float = 2.5e-4
    """Learning rate of Adam."""
    learning_rate_decay_updates: int = 0
    """Updates over which the learning rate falls linearly to 0. 0 keeps it constant."""
    optimizer_epsilon: float = 1e-5
    """Epsilon of Adam, added to its denominator."""
    max_grad_norm: float = 0.5
    """Norm to which the whole gradient is clipped. 0: no clipping."""
    compile: Literal["auto", "none", "cuda-graphs"] = "auto"
    """Use of CUDA graphs, which give a GPU a whole update in a few launches. `auto`: if the update can be recorded. On
    a CPU there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "unroll")
        require_positive(self, "learning_rate", "optimizer_epsilon")
        require_at_least(0, self, "learning_rate_decay_updates", "max_grad_norm")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return the steps of a stream that an item covers, for the number of frames that the network sees."""
        # the row before the first tells whether that is a final observation step
        return WindowSpec(max(frame_stack - 1, 1), self.unroll, self.unroll + 1, keep_all=True)

    @property
    def rollout_rows(self) -> int:
        """Rows of a stream between the starts of two items: the transitions, and the row to bootstrap from."""
        return self.unroll + 1


@dataclass(frozen=True)
class ActorCriticSettings(RolloutSettings):
    """Settings that PPO and IMPALA share: a policy and a value, for actions of all kinds."""

    actions: ClassVar[Actions] = "any"

    encoder_sizes: tuple[int, ...] = ()
    """Units of each fully connected layer after the torso, shared by policy and value. Empty: none."""
    lstm_size: int = 0
    """Units of an LSTM after the encoder, which makes policy and value recurrent. 0: no LSTM."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each further fully connected layer, separate for policy and value. Empty: none."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the fully connected layers."""
    initial_log_std: float = 0.0
    """Initial log standard deviation of a Gaussian policy. Unused for discrete actions."""
    gaussian_std: Literal["shared", "observation"] = "shared"
    """Standard deviations of a Gaussian policy. `shared`: learned parameters, the same for all observations.
    `observation`: outputs of the network, between e**-20 and e**2."""
    normalize_observations: bool = False
    """Normalize observations by the mean and standard deviation of all transitions learned from. Only for `network`
    `mlp`."""
    normalize_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted returns seen so far. Reported scores stay raw."""
    value_coefficient: float = 0.5
    """Weight of the value loss, 0 or more."""
    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy, in units of advantage per nat. A larger weight makes the policy explore more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counted(self)
        require(min(self.hidden_sizes, default=1) > 0, "hidden_sizes", self.hidden_sizes, "positive sizes")
        require(min(self.encoder_sizes, default=1) > 0, "encoder_sizes", self.encoder_sizes, "positive sizes")
        require_at_least(0, self, "lstm_size", "value_coefficient", "entropy_coefficient")

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if the network does not take the observations; actions of all kinds are accepted."""
        super().validate_env(env_spec)
        check_counted(self, env_spec)

    def extra_columns(self, env_spec: EnvSpec) -> Signature:  # noqa: ARG002 - the same for every environment
        """Return the extra columns of each step, float32: `LOG_PROB`, and what normalized rewards need."""
        return (ColumnSpec(LOG_PROB, "float32", ()), *earlier_return_column(self))


@dataclass(frozen=True)
class PPOConfig(ActorCriticSettings):
    """Proximal policy optimisation (Schulman et al. 2017); defaults of CleanRL's ppo.py."""

    algorithm: Literal["ppo"] = "ppo"

    epochs: int = 4
    """Passes over a rollout, at least 1."""
    minibatches: int = 4
    """Gradient steps per pass, at least 1. With an LSTM a minibatch holds whole items, so there are at most
    `batch_size`."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation, 0 to 1. 1: Monte Carlo returns. 0: one-step errors."""
    clip: float = 0.2
    """Relative change of an action's probability at which its gradient stops."""
    clip_decay_updates: int = 0
    """Updates over which `clip` falls linearly to 0. 0 keeps it constant."""
    clip_value: bool = True
    """Stop a value's gradient, too, once the value has moved by `clip`."""
    normalize_advantage: bool = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    target_kl: float = 0.0
    """Kullback-Leibler divergence from the acting policy, in nats, above which no further pass starts. 0: no limit.
    With a limit the host decides after each pass, so updates are not recorded as CUDA graphs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "epochs", "minibatches")
        require_positive(self, "clip")
        require_at_least(0, self, "clip_decay_updates", "target_kl")
        require_fractions(self, "gae_lambda")
        decided = "auto or none with target_kl, by which the host decides after each pass"
        require(not self.target_kl or self.compile != "cuda-graphs", "compile", self.compile, decided)
        whole = f"at most batch_size ({self.batch_size}): with an LSTM a minibatch holds whole items"
        require(not self.lstm_size or self.minibatches <= self.batch_size, "minibatches", self.minibatches, whole)


@dataclass(frozen=True)
class IMPALAConfig(ActorCriticSettings):
    """Importance weighted actor-learner architecture, with V-trace (Espeholt et al. 2018)."""

    run_defaults: ClassVar[RunDefaults] = {
        **ROLLOUTS,
        "env": {"num_envs": 8},
        "learner": {**ROLLOUTS["learner"], "max_policy_lag": 2},
    }

    algorithm: Literal["impala"] = "impala"
    batch_size: int = 8
    """Items per update."""
    unroll: int = 20
    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0

    trace_decay: float = 1.0
    """Lambda of V-trace, 0 to 1: the fraction of a step's correction that reaches the step before it."""
    max_rho: float = 1.0
    """Upper bound of the importance ratios of the targets, rho-bar in the paper."""
    max_c: float = 1.0
    """Upper bound of the importance ratios of the traces, c-bar in the paper. At most `max_rho`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_rho", "max_c")
        require_fractions(self, "trace_decay")
        require(self.max_c <= self.max_rho, "max_c", self.max_c, f"at most max_rho ({self.max_rho:g})")


@dataclass(frozen=True)
class PQNConfig(EpsilonSettings, RolloutSettings):
    """Parallelised Q-network (Gallici et al. 2024): Q(lambda) on fresh rollouts, without replay or target network."""

    actions: ClassVar[Actions] = "discrete"

    algorithm: Literal["pqn"] = "pqn"
    max_grad_norm: float = 10.0
    exploration: Literal["ladder", "schedule", "none"] = "schedule"
    epsilon_final: float = 0.05
    evaluation_epsilon: float = 0.0

    hidden_sizes: tuple[int, ...] = (120, 84)
    """Units of each layer after the torso. A layer norm follows each."""
    epochs: int = 4
    """Passes over a rollout, at least 1."""
    minibatches: int = 4
    """Gradient steps per pass, at least 1."""
    trace_decay: float = 0.65
    """Lambda of the returns, 0 to 1. 1: Monte Carlo returns. 0: one-step targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilons(self)
        require_sizes(self, "hidden_sizes")
        require_at_least(1, self, "epochs", "minibatches")
        require_fractions(self, "trace_decay")
