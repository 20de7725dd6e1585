"""Creation of the environments that the settings describe."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import gymnasium
from gymnasium.envs.registration import load_env_creator

from tidemill.envs.action_mask import MaskFromObservation
from tidemill.envs.atari_env import game_ids, make_atari
from tidemill.envs.batched_env import make_batched, purpose
from tidemill.envs.declared import declared_spec
from tidemill.envs.failures import Restarts
from tidemill.envs.gymnasium_env import PICTURE_MODES, GymnasiumEnv, GymnasiumVectorEnv
from tidemill.envs.interface import VectorEnv
from tidemill.envs.isolated import IsolatedEnv, WorkerPart
from tidemill.envs.observations import flattened, select
from tidemill.envs.parts import BatchPart, GymnasiumPart, Part
from tidemill.envs.settings import OBSERVATION, EnvSettings
from tidemill.envs.surviving_env import SurvivingEnv
from tidemill.errors import ConfigError, FailedPrecondition
from tidemill.installation import how_to_install
from tidemill.replay.argument_types import check_type
from tidemill.settings.check import closest, nearest
from tidemill.settings.user_code import import_user_module
from tidemill.types import EnvSpec

_ATARI_VERSION = re.compile(r"(-ram)?(NoFrameskip|Deterministic)?-v\d+$|^ALE/")
_INSTEAD = (
    "; give an id that gymnasium has registered, module:function for your own (docs/tutorials/own-environment.md), or "
    "env.spaces if only simulators have it (docs/tutorials/simulators.md)"
)
_EXTRAS = ("mujoco", "box2d")  # of gymnasium's own environments, as its errors name what is missing


class Timed(Protocol):
    """A function that returns the result of its argument, which it calls."""

    def __call__(self, make: Callable[[], Any], envs: int = 1, /) -> Any:  # noqa: ANN401 - whatever `make` returns
        """Call `make`, which makes so many environments."""


def _untimed(make: Callable[[], Any], _: int = 1) -> Any:  # noqa: ANN401
    return make()


def make_env(settings: EnvSettings, num_envs: int, *, training: bool, render: bool = False) -> VectorEnv:
    """Make a batch of environments.

    Args:
        settings: Which environment, and how.
        num_envs: Environments in the batch; `settings.num_envs` is only an actor's number.
        training: Whether what is meant for training only applies: shorter episodes, life losses
            as ends, clipped rewards.
        render: Whether `VectorEnv.render` must return pictures.

    Raises:
        ConfigError: No such environment (the message names the nearest), a package it needs is
            missing (the message names it), or its spaces are not supported.
        TypeError: `settings` is of another type, such as an id.
    """
    check_type("settings", settings, EnvSettings, 'an EnvSettings, such as EnvSettings(id="CartPole-v1")')
    return make_timed(settings, num_envs, _untimed, training=training, render=render)


def make_timed(
    settings: EnvSettings, num_envs: int, timed: Timed, *, training: bool, render: bool = False
) -> VectorEnv:
    """Make a batch as `make_env` does: each environment by `timed`, or all that their own code steps together."""
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}, allowed: at least 1")
    if settings.spaces:
        raise ConfigError(
            f"env.spaces is set, so only simulators can play env.id {settings.id!r}: set launcher.actors to 0 and "
            "evaluator.source to 'simulators'; play the policy in your program with tidemill.load_policy"
        )
    with _named(settings):
        if settings.vector or settings.is_atari:
            make = make_batched if settings.vector else make_atari
            batch: VectorEnv = timed(partial(make, settings, num_envs, training=training, render=render), num_envs)
            return batch
        return _make_gymnasium(settings, num_envs, training=training, render=render, timed=timed)


def make_surviving(
    settings: EnvSettings, num_envs: int, *, waits: bool, stop: threading.Event, timed: Timed = _untimed
) -> SurvivingEnv:
    """Make a batch of environments to train in, each of which may fail as `env.on_failure` says.

    Args:
        settings: Which environment, and how; with `isolate` in separate processes.
        num_envs: Environments in the batch.
        waits: Whether a step waits for what is being restarted, instead of leaving its rows out.
        stop: Ends every wait.
        timed: As in `make_timed`; not called for environments in separate processes.

    Raises:
        ConfigError: As `make_env`.
        EnvFailed: A process could not make its environment.
    """
    parts: list[Part]
    if settings.isolate:
        together = num_envs if settings.vector else 1
        parts = [WorkerPart(settings, together, stop, training=True) for _ in range(num_envs // together)]
    elif settings.vector or settings.is_atari:
        parts = [BatchPart(partial(make_timed, settings, num_envs, timed, training=True), keeps=settings.keeps_failed)]
    else:
        with _named(settings):
            made = _make_gymnasium(settings, num_envs, training=True, render=False, timed=timed, tolerates=True)
            parts = [GymnasiumPart(made, keeps=settings.keeps_failed)]
    # a step that waits is timed, unless the environments have separate processes, which are timed instead
    longest_pause_s = settings.longest_call_s / 4 if waits and not settings.isolate else 0.0
    units = sum(part.units for part in parts)
    restarts = Restarts(settings, units, longest_pause_s=longest_pause_s or math.inf)
    env = SurvivingEnv(parts, restarts, waits=waits, stop=stop)
    try:
        assert all(part.spec for part in parts)  # waits for processes, which start side by side
    except BaseException:
        env.close()
        raise
    return env


def make_isolated(settings: EnvSettings, *, render: bool = False) -> VectorEnv:
    """Make one environment for evaluation, in a separate process; raises as `make_surviving`."""
    part = WorkerPart(settings, 1, threading.Event(), training=False, render=render)
    try:
        return IsolatedEnv(part)
    except BaseException:
        part.close()
        raise


@contextlib.contextmanager
def _named(settings: EnvSettings) -> Iterator[None]:
    """Have a ConfigError say which environment it is about."""
    try:
        yield
    except ConfigError as error:
        if str(error).startswith("env."):
            raise
        which = f"env.vector is {settings.vector!r}" if settings.vector else f"env.id is {settings.id!r}"
        raise ConfigError(f"{which}, but {error}") from error


def _make_gymnasium(
    settings: EnvSettings, num_envs: int, *, training: bool, render: bool, timed: Timed, tolerates: bool = False
) -> GymnasiumVectorEnv:
    return GymnasiumVectorEnv(
        partial(timed, partial(make_one, settings, training=training, render=render)),
        num_envs,
        action_mask=settings.action_mask,
        joint_actions=settings.joint_actions,
        observation_stack=settings.observation_stack,
        tolerates=tolerates,
    )


def spec_of(settings: EnvSettings) -> EnvSpec:
    """Return the specification of an environment, which agents need: that of `env.spaces`, or of one that it makes.

    Raises:
        ConfigError: As `make_env`.
    """
    if settings.spaces:
        return declared_spec(settings.spaces, settings.observation_stack, setting="env.spaces")
    env = make_env(settings, 1, training=False)
    env.close()
    return env.spec


def make_one(settings: EnvSettings, *, training: bool, render: bool) -> GymnasiumEnv:
    """Make one environment that is neither a batch's nor an `ALE/` game, with the wrappers that the settings ask for.

    Raises:
        ConfigError: As `make_env`.
    """
    env = _construct(settings, training=training, render_mode=None)
    if render and env.render_mode not in PICTURE_MODES and _takes_render_mode(settings.id, env):
        env.close()
        env = _construct(settings, training=training, render_mode="rgb_array")
    source, _, key = settings.action_mask.partition(".")
    if source == OBSERVATION:
        env = MaskFromObservation(env, key)
    if settings.flatten:
        env = flattened(env)
    return select(env, settings.observation_indices) if settings.observation_indices else env


def _takes_render_mode(env_id: str, env: GymnasiumEnv) -> bool:
    """True if what made an environment makes one that draws when it is given `render_mode`."""
    maker: Any = _function(env_id) or (env.spec and env.spec.entry_point)
    if "rgb_array" not in env.metadata.get("render_modes", ()) or maker is None:
        return False
    parameters = inspect.signature(load_env_creator(maker) if isinstance(maker, str) else maker).parameters
    return any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters.values())


def _construct(settings: EnvSettings, *, training: bool, render_mode: str | None) -> GymnasiumEnv:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame would greet in the log of whatever draws
    limit = settings.max_steps(training=training) or None
    arguments = dict(settings.kwargs) | ({"render_mode": render_mode} if render_mode else {})
    function = _function(settings.id)
    if function is None:
        return _make_registered(settings.id, limit, arguments)
    env = _call(function, settings.id, purpose(function, training=training) | arguments)
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)


def _function(env_id: str) -> Callable[..., Any] | None:
    """Return the function that `module:function` names, or None if the id is in gymnasium's registry."""
    module_name, colon, name = env_id.partition(":")
    if not colon:
        return None
    try:
        module = import_user_module(module_name)
    except (ImportError, FailedPrecondition) as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        advice = f": install it, or put it into {os.getcwd()}" if is_absent else ""
        raise ConfigError(f"env.id is {env_id!r}, but importing {module_name} failed: {error}{advice}") from error
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if name in gymnasium.registry:
        return None
    callables = [key for key, value in vars(module).items() if callable(value)]
    hint = f"; put {name} into a file" if module_name == "__main__" else nearest(name, callables)
    raise ConfigError(f"env.id is {env_id!r}, but {module_name} neither defines nor registers {name!r}{hint}")


def _call(function: Callable[..., Any], env_id: str, arguments: dict[str, Any]) -> GymnasiumEnv:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"env.kwargs are {arguments}, which {env_id} refuses: {error}") from error
    env = function(**arguments)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"env.id is {env_id!r}, which made {type(env).__name__}, allowed: a gymnasium.Env")
    return env


def _refuse_raw_atari(env_id: str) -> None:
    """Raise ConfigError for an id by which gymnasium plays a game's raw frames, without the Atari settings."""
    name = env_id.rpartition(":")[2]
    spec = gymnasium.registry.get(name)
    if spec is not None and str(spec.entry_point).startswith("ale_py"):
        raise ConfigError(
            f"env.id is {env_id!r}, whose frames are raw (210x160x3), without the preprocessing of the Atari settings; "
            f"use 'ALE/{_ATARI_VERSION.sub('', name)}-v5', which has it"
        )


def _alike(env_id: str, known: Iterable[str]) -> str:
    """Return a hint at an environment of a similar name; a version that is the same makes no names similar."""
    newest = {_ATARI_VERSION.sub("", each): each for each in known}
    close = closest(_ATARI_VERSION.sub("", env_id), newest, 0.7)
    return f"; did you mean {newest[close]!r}?" if close else ""


def _make_registered(env_id: str, limit: int | None, arguments: dict[str, Any]) -> GymnasiumEnv:
    """Make an environment of gymnasium's registry, without the checker that would slow each of its steps."""
    _refuse_raw_atari(env_id)
    try:
        return gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True, **arguments)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        extra = next((each for each in _EXTRAS if each in str(error).lower()), None)
        advice = f" ({error}): {how_to_install(extra)}" if extra else f": {error}"
        raise ConfigError(f"env.id is {env_id!r}, which needs a missing package{advice}") from error
    except gymnasium.error.Error as error:
        if env_id in gymnasium.registry:
            raise ConfigError(f"env.id is {env_id!r}, which cannot be made: {error}") from error
        known = _known_ids()
        _refuse_raw_atari(env_id)  # now that its names are registered
        hint = _alike(env_id, known)
        raise ConfigError(f"env.id is {env_id!r}, which is not a known environment{hint}{_INSTEAD}") from error
    except TypeError as error:
        raise ConfigError(f"env.kwargs are {arguments}, which {env_id} refuses: {error}") from error


def _known_ids() -> list[str]:
    """Return every id to suggest; an Atari game only by the name under which it is preprocessed here."""
    others = [key for key, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]
    return others + game_ids()
