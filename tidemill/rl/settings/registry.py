"""The algorithms by name, and what the settings of all have in common. Imports no torch.

An algorithm of the project is a page, `tidemill/rl/agents/NAME.py`, its settings in `tidemill/rl/settings`, and a line
here. A user's is a package (docs/tutorials/own-algorithm.md), or a class named by `module:Class` whose methods build
both sides (docs/extending.md).
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Protocol, cast, runtime_checkable

from tidemill.errors import ConfigError, described
from tidemill.rl.networks.torsos import AUTO, MLP, chosen_torso
from tidemill.settings.check import nearest
from tidemill.settings.user_code import import_user_module, user_object
from tidemill.types import EnvSpec, Signature, WindowSpec, column_names, signature_of

ALGORITHMS = {
    "dqn": "q_learning:DQNConfig",
    "r2d2": "q_learning:R2D2Config",
    "sac_discrete": "soft_actor_critic:SACDiscreteConfig",
    "sac": "soft_actor_critic:SACConfig",
    "td3": "deterministic:TD3Config",
    "ddpg": "deterministic:DDPGConfig",
    "d4pg": "deterministic:D4PGConfig",
    "ppo": "on_policy:PPOConfig",
    "impala": "on_policy:IMPALAConfig",
    "pqn": "on_policy:PQNConfig",
}
"""The algorithms of the project, in the order messages name them, and where in `tidemill.rl.settings` theirs are."""

_KIN = {
    "a2c": "'ppo' is the closest",
    "a3c": "'impala' is the closest",
    "apex": "it is 'dqn' with a prioritized table and several actors",
    "apex_dqn": "it is 'dqn' with a prioritized table and several actors",
    "appo": "'impala' is the closest",
    "c51": "it is 'dqn' with --agent.distribution c51",
    "ddqn": "it is 'dqn' with --agent.double",
    "double_dqn": "it is 'dqn' with --agent.double",
    "dueling_dqn": "it is 'dqn' with --agent.dueling",
    "iqn": "it is 'dqn' with --agent.distribution iqn",
    "qr_dqn": "it is 'dqn' with --agent.distribution qr",
    "qrdqn": "it is 'dqn' with --agent.distribution qr",
    "rainbow": "it is 'dqn' with other settings: see `tidemill configs`",
}
"""Where to find an algorithm under the name that others give it."""


class AgentConfig(Protocol):
    """A frozen dataclass of one algorithm's settings."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm: of a page in `tidemill/rl/agents`, a package's dotted path, or `module:Class`."""

    @property
    def batch_size(self) -> int:
        """Items of one update."""

    def window(self, frame_stack: int) -> WindowSpec:
        """Return the steps of a stream that an item covers, for the number of frames that the network sees."""

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError if the algorithm cannot act in such an environment."""


@runtime_checkable
class HasColumns(Protocol):
    """Settings of an algorithm that stores more of each step than what every environment brings."""

    def extra_columns(self, env_spec: EnvSpec) -> Signature:
        """Return the columns that `PolicyOutput.extras` fills at each step, e.g. the action's log-probability."""


@runtime_checkable
class LearnsOnPolicy(Protocol):
    """Settings of an algorithm that learns from each item once, soon after it was acted."""

    @property
    def rollout_rows(self) -> int:
        """Rows of a stream from the start of one item to that of the next, of which no two share one."""


def extra_columns_of(config: AgentConfig, env_spec: EnvSpec) -> Signature:
    """Return the columns that an algorithm stores besides those of every environment; most have none."""
    return tuple(config.extra_columns(env_spec)) if isinstance(config, HasColumns) else ()


def stored_columns(config: AgentConfig, env_spec: EnvSpec) -> Signature:
    """Return the columns of an algorithm's streams: those of every environment, then its own.

    Raises:
        ConfigError: The name of an extra column is taken.
    """
    common, own = signature_of(env_spec), extra_columns_of(config, env_spec)
    names = column_names((*common, *own))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"algorithm {config.algorithm!r} adds a column {twice[0]!r}, a name that is taken: "
            f"every environment has {', '.join(column_names(common))}"
        )
    return (*common, *own)


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms that come with the project, sorted."""
    return tuple(sorted(ALGORITHMS))


def config_class(algorithm: str) -> type[AgentConfig]:
    """Return the settings' class of an algorithm.

    Args:
        algorithm: One of `algorithms()`; or your own: the dotted path of a package, such as `my_project.my_agent`,
            whose `config.py` has a dataclass with this path as its `algorithm`;
            or `module:Class`, such as `my_agent:MyConfig`.

    Raises:
        ConfigError: There is no such algorithm; the message names the nearest one.
    """
    if algorithm in ALGORITHMS:
        module_name, _, class_name = ALGORITHMS[algorithm].partition(":")
        settings = importlib.import_module(f"tidemill.rl.settings.{module_name}")
        return cast(type[AgentConfig], getattr(settings, class_name))
    if ":" in algorithm:
        return _named_class(algorithm)
    if "." not in algorithm:
        kin = _KIN.get(algorithm.lower().replace("-", "_"))
        hint = f"; here {kin}" if kin else nearest(algorithm, algorithms())
        raise ConfigError(f"agent.algorithm is {algorithm!r}, allowed: {', '.join(algorithms())}, or a package{hint}")
    name = f"{algorithm}.config"
    try:
        module = import_user_module(name)
    except Exception as error:  # whatever the module does when it is imported
        reason = f"importing {name} failed: {described(error)}"
        raise ConfigError(f"agent.algorithm is {algorithm!r}, but {reason}") from error
    for value in vars(module).values():
        is_settings = isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name
        if is_settings and getattr(value, "algorithm", None) == algorithm:
            return cast(type[AgentConfig], value)
    raise ConfigError(f"agent.algorithm is {algorithm!r}, but {name} has no dataclass whose `algorithm` it is")


def _named_class(algorithm: str) -> type[AgentConfig]:
    found = user_object("agent.algorithm", algorithm)
    builds = all(callable(getattr(found, name, None)) for name in ("build_agent", "build_policy"))
    if not (isinstance(found, type) and dataclasses.is_dataclass(found) and builds):
        raise ConfigError(
            f"agent.algorithm is {algorithm!r}, which is not a dataclass with the methods build_agent and build_policy"
        )
    if (own := getattr(found, "algorithm", None)) != algorithm:
        raise ConfigError(f"agent.algorithm is {algorithm!r}, but the field `algorithm` of that class is {own!r}")
    return cast(type[AgentConfig], found)


def require_actions(algorithm: str, env_spec: EnvSpec, *, discrete: bool) -> None:
    """Raise ConfigError unless the environment's actions are of the kind that the algorithm chooses.

    Several discrete choices at once are refused: an algorithm that makes them does not ask here.
    """
    if env_spec.action_sizes:
        count = len(env_spec.action_sizes)
        joint = ", or env.joint_actions to true, which makes every combination one action" if discrete else ""
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {count} discrete choices at once: "
            f"set agent.algorithm to {_choosing('any')}{joint}"
        )
    if env_spec.is_discrete != discrete:
        kind = "discrete" if env_spec.is_discrete else "continuous"
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {kind}: "
            f"set agent.algorithm to {_choosing(kind, 'any')}"
        )


def require_bfloat16(setting: str, config: AgentConfig, env_spec: EnvSpec) -> None:
    """Raise ConfigError unless an algorithm acts in bfloat16 in such an environment; a user's own decides by itself.

    Args:
        setting: What asks for it, for the message.
        config: The algorithm's settings.
        env_spec: Shapes of the environment.
    """
    if config.algorithm not in ALGORITHMS:
        return
    if not getattr(config, "acts_in_bfloat16", False):
        able = " and ".join(name for name in ALGORITHMS if getattr(config_class(name), "acts_in_bfloat16", False))
        raise ConfigError(
            f"{setting} is 'bfloat16', but agent.algorithm {config.algorithm!r} acts in float32, unlike {able}: set it "
            "to auto or float32"
        )
    network = chosen_torso(getattr(config, "network", AUTO), env_spec)
    if not env_spec.is_image or network == MLP:
        raise ConfigError(
            f"{setting} is 'bfloat16', but the environment observes no images for agent.network "
            f"{network!r}, which acts in float32: set it to auto or float32"
        )


def _choosing(*kinds: str) -> str:
    """Return the names of the project's algorithms that choose such actions, with `or` between them."""
    return " or ".join(name for name in ALGORITHMS if getattr(config_class(name), "actions", "") in kinds)
