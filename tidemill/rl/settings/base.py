"""Settings that several algorithms share, and their checks. Imports no torch, so that any process can read them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from tidemill.rl.checks import require, require_at_least, require_fractions
from tidemill.rl.networks.torsos import AUTO, MLP, NetworkSetting, check_observations, check_torso, chosen_torso
from tidemill.rl.sequences import SequenceShape
from tidemill.rl.settings.registry import require_actions
from tidemill.types import ColumnSpec, EnvSpec, Signature, WindowSpec

Actions = Literal["discrete", "continuous", "any"]

RunDefaults = Mapping[str, Mapping[str, Any]]
"""Settings of other sections, by section and setting."""

EARLIER_RETURN = "earlier_return"
"""The extra column of a run with normalized rewards: the discounted sum of its episode's rewards before the step."""


@dataclass(frozen=True)
class AgentSettings:
    """Settings that all algorithms of the project share."""

    actions: ClassVar[Actions]
    """Actions that the algorithm chooses; `any` includes several discrete choices at once."""
    acts_in_bfloat16: ClassVar[bool] = False
    """Whether its policy follows `actor.precision` where the environment observes images."""
    run_defaults: ClassVar[RunDefaults] = {}
    """Defaults of other sections for a run of the algorithm, by section and setting."""

    algorithm: str = ""
    """Algorithm, which decides the other `agent` settings. `--help algorithms` lists all."""
    network: str = "auto"
    """Torso of each network: the layers that read observations. `mlp` has none and takes vectors. `nature`,
    `nature_group_norm`, `data_efficient` and `impala` take images. `module:name` is your own. `auto`: `mlp` for
    vectors; `nature` for images, or a smaller torso if they are too small for it."""
    network_settings: Mapping[str, NetworkSetting] = field(default_factory=dict)
    """Settings of the torso, by name: those of your own torso, or `width`, `spectral_norm` and `pool` of `impala`."""
    batch_size: int = 64
    """Items per update."""
    gamma: float = 0.99
    """Discount factor per environment step, 0 to 1."""

    def __post_init__(self) -> None:
        check_torso(self.network)
        for name, allowed in _choices(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, name)
            require(value in allowed, name, value, f"one of {', '.join(map(str, allowed))}")
        require_at_least(1, self, "batch_size")
        require_fractions(self, "gamma")

    @property
    def priority_uses_params(self) -> bool:
        """Whether an actor needs loaded parameters for the initial priority of an item."""
        return False

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are of another kind, or the network does not take the observations."""
        if self.actions != "any":
            require_actions(self.algorithm, env_spec, discrete=self.actions == "discrete")
        check_observations(self.network, env_spec)


@functools.cache
def _choices(kind: type[AgentSettings]) -> dict[str, tuple[str, ...]]:
    """Return the allowed values of each setting that has a list of them."""
    kinds = typing.get_type_hints(kind)
    literals = (each.name for each in dataclasses.fields(kind) if typing.get_origin(kinds[each.name]) is Literal)
    return {name: typing.get_args(kinds[name]) for name in literals}


@dataclass(frozen=True)
class MatmulSettings:
    """Settings of an agent whose updates may multiply in a shorter format."""

    update_precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of matrix products in an update. Everything else is float32. `auto`: bfloat16 for images where it
    is faster. In `float32` a GPU convolves in TF32, unless `NVIDIA_TF32_OVERRIDE=0` is in the environment."""
    channels_last: Literal["auto", True, False] = "auto"
    """Channels-last layout of images during an update. `auto`: on a GPU, and on a CPU in float32, where it is faster.
    In bfloat16 a CPU gains nothing."""


@dataclass(frozen=True)
class OffPolicySettings(AgentSettings):
    """Settings of the algorithms that learn from replayed n-step transitions or sequences."""

    n_step: int = 1
    """Number of rewards summed before bootstrapping, at least 1."""
    tau: float = 0.005
    """Fraction by which a target network moves to its network at each update, above 0 and at most 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "n_step")
        require(0 < self.tau <= 1, "tau", self.tau, "above 0 and at most 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """Return the steps of a stream that an item covers, for the number of frames that the network sees."""
        return WindowSpec(history=frame_stack - 1, steps=self.n_step)


class Normalizes(Protocol):
    """Settings of an algorithm whose learner counts what observations and rewards are normalized by."""

    @property
    def normalize_observations(self) -> bool:
        """Whether the network sees observations less their mean, by their standard deviation."""

    @property
    def normalize_rewards(self) -> bool:
        """Whether rewards are divided by the standard deviation of discounted returns."""

    @property
    def network(self) -> str:
        """Torso of each network."""

    @property
    def gamma(self) -> float:
        """Discount per environment step."""


def check_counted(settings: Normalizes, env_spec: EnvSpec | None = None) -> None:
    """Raise ConfigError if observations are to be normalized and are anything else than vectors."""
    if not settings.normalize_observations:
        return
    network = settings.network if env_spec is None else chosen_torso(settings.network, env_spec)
    counted = "mlp, where normalize_observations is on: it counts numbers of vectors"
    require(network in (AUTO, MLP), "network", network, counted)
    images = [part.name for part in env_spec.observation_parts if part.is_image] if env_spec else []
    alone = f"false: the environment observes images ({', '.join(images)})"
    require(not images, "normalize_observations", settings.normalize_observations, alone)


def earlier_return_column(settings: Normalizes) -> Signature:
    """Return the extra column of each step that normalized rewards need, float32; () if they are not normalized."""
    return (ColumnSpec(EARLIER_RETURN, "float32", ()),) if settings.normalize_rewards else ()


@dataclass(frozen=True)
class NormalizingSettings(OffPolicySettings):
    """Settings of the algorithms that learn from replay and may normalize what they learn from."""

    normalize_observations: bool = False
    """Normalize observations by the mean and standard deviation of all transitions learned from. Only for `network`
    `mlp`."""
    normalize_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted returns seen so far. Values are then in this unit;
    reported scores stay raw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counted(self)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if actions are of another kind, or the network does not take the observations."""
        super().validate_env(env_spec)
        check_counted(self, env_spec)

    def extra_columns(self, env_spec: EnvSpec) -> Signature:  # noqa: ARG002 - the same for every environment
        """Return the extra columns of each step: what normalized rewards need."""
        return earlier_return_column(self)


@dataclass(frozen=True)
class SequenceSettings(NormalizingSettings):
    """Settings of the algorithms that may learn from replayed sequences, with an LSTM."""

    lstm_size: int = 0
    """Units of an LSTM in the actor and of one in the critics. Both also see the last action and reward, and an item is
    a sequence. 0: no LSTM; an item is a single transition."""
    burn_in: int = 16
    """Steps at the start of a sequence that only warm up the stored recurrent state. Unused without an LSTM."""
    unroll: int = 48
    """Steps of a sequence that are trained on. Unused without an LSTM."""
    period: int = 24
    """Steps from the start of one sequence to the start of the next. Less than `unroll` makes sequences overlap. Unused
    without an LSTM."""
    priority_mix: float = 0.9
    """Weight eta of the largest error in a sequence's priority, 0 to 1. The mean error has the rest. Unused without an
    LSTM."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "unroll", "period")
        require_at_least(0, self, "lstm_size", "burn_in")
        require_fractions(self, "priority_mix")

    def shape(self, frame_stack: int) -> SequenceShape:
        """Return how a sequence is divided, given how many frames the network sees."""
        return SequenceShape(frame_stack, self.burn_in, self.unroll, self.n_step)

    @property
    def recurrent_state_size(self) -> int:
        """Numbers that the network that acts remembers of each environment: the LSTM's cell and its output."""
        return 2 * self.lstm_size

    def window(self, frame_stack: int) -> WindowSpec:
        """Return the steps of a stream that an item covers, for the number of frames that the network sees."""
        return self.shape(frame_stack).window(self.period) if self.lstm_size else super().window(frame_stack)


EVERY_FOURTH: RunDefaults = {"learner": {"updates_per_env_step": 0.25}}
"""An update for every fourth decision, as in the papers of DQN and of SAC for discrete actions."""

ROLLOUTS: RunDefaults = {
    "env": {"num_envs": 4},
    "table": {"sampler": "fifo"},
    "learner": {"updates_per_env_step": 0.0, "publish_every": 1, "publish_half": False, "max_policy_lag": 0},
}
"""Each rollout is played by the newest parameters, in full precision, and learned from once."""
