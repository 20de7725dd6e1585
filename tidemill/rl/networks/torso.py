"""The part of a network between an observation and its features, found by name.

A torso is a module of `tidemill/rl/networks/torsos` by its file's name, or your own by `module:name`: a function or
class that is called with the environment's shapes, a generator and its own settings.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.errors import ConfigError, described
from tidemill.rl.networks import torsos
from tidemill.rl.networks.torsos import NetworkSetting, chosen_torso, is_ours
from tidemill.settings.user_code import import_user_module, user_object
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def build_torso(
    name: str,
    env_spec: EnvSpec,
    rng: torch.Generator,
    settings: Mapping[str, NetworkSetting] | None = None,
    *,
    standardized: bool = False,
) -> nn.Module:
    """Return a torso whose parameters come from `rng`, on the CPU.

    It takes observations [B, ...], or [B, frame_stack, ...] with a stack, of the environment's dtype, and returns
    features [B, outputs], where `outputs` is its attribute, in the dtype of its parameters. Of observations of several
    parts each image has such a torso, or all vectors together; see `tidemill.rl.networks.parts`.

    Args:
        name: Of a file in `torsos`, or `module:name`; a dotted path without a colon is a module with a `build`.
        env_spec: Shapes of the environment.
        rng: Draws the initial parameters. Layers that draw from torch's default generator, as torch's own do, get
            theirs from `rng` too.
        settings: Its own, by name.
        standardized: Whether a `StandardizedTorso` is wanted: of vectors.

    Raises:
        ConfigError: The torso does not take such observations or settings, or what it makes of them has not the
            shape that it says.
    """
    settings = settings or {}
    if standardized:
        from tidemill.rl.normalization import StandardizedTorso

        return StandardizedTorso(build_torso(name, env_spec, rng, settings))
    if env_spec.observation_parts:
        from tidemill.rl.networks.parts import PartsTorso

        return PartsTorso(env_spec, rng, lambda part: build_torso(name, part, rng, settings))
    name = chosen_torso(name, env_spec)
    if is_ours(name):
        build = import_user_module(f"{torsos.__name__}.{name}").build
        _check_settings(name, build, (env_spec, rng), settings)
        ours: nn.Module = build(env_spec, rng, **settings)
        return ours
    build = user_object("agent.network", name if ":" in name else f"{name}:build")
    if not callable(build):
        raise ConfigError(f"agent.network is {name!r}, which is not a function or class")
    _check_settings(name, build, (env_spec, rng), settings)
    torso = _built(name, build, env_spec, rng, settings)
    _check_features(name, torso, env_spec)
    return torso


def _check_settings(
    name: str, build: Callable[..., Any], arguments: tuple[Any, ...], settings: Mapping[str, NetworkSetting]
) -> None:
    try:
        inspect.signature(build).bind(*arguments, **settings)
    except TypeError as error:
        raise ConfigError(f"agent.network_settings are {dict(settings)}, which {name!r} refuses: {error}") from error


def _built(
    name: str,
    build: Callable[..., Any],
    env_spec: EnvSpec,
    rng: torch.Generator,
    settings: Mapping[str, NetworkSetting],
) -> nn.Module:
    """Call what the user wrote, with torch's default generator seeded from `rng` and left as it was."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        try:
            torso = build(env_spec, rng, **settings)
        except (TypeError, ValueError) as error:
            reason = described(error)
            raise ConfigError(f"agent.network {name!r} with settings {dict(settings)} failed: {reason}") from error
    if not isinstance(torso, nn.Module):
        made = type(torso).__name__
        raise ConfigError(f"agent.network is {name!r}, which made {made}, allowed: a torch.nn.Module")
    return torso


def _check_features(name: str, torso: nn.Module, env_spec: EnvSpec) -> None:
    """Raise ConfigError unless its state is finite and two observations become float32 features [2, outputs]."""
    import torch

    outputs = getattr(torso, "outputs", None)
    if not isinstance(outputs, int) or outputs < 1:
        raise ConfigError(
            f"agent.network is {name!r}, whose attribute `outputs` is {outputs!r}, must be the number of its features"
        )
    if other := sorted(key for key, value in torso.named_parameters() if value.dtype != torch.float32):
        raise ConfigError(f"agent.network is {name!r}, whose parameter {other[0]} is not float32")
    state = torso.state_dict()
    if other := [key for key, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ConfigError(
            f"agent.network is {name!r}, whose {other[0]} cannot be sent: make it a tensor, as a buffer is"
        )
    if other := [key for key, value in state.items() if value.isfinite().logical_not().any()]:
        raise ConfigError(
            f"agent.network is {name!r}, whose {other[0]} is not finite, which ends training: register a mask as bool, "
            "or with persistent=False"
        )
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    shape = (2, *stack, *env_spec.observation_shape)
    observation = torch.zeros(shape, dtype=getattr(torch, env_spec.observation_dtype))
    seen = f"observations {env_spec.observation_dtype} {shape}"
    try:
        with torch.inference_mode():
            features: Tensor | Any = copy.deepcopy(torso).eval()(observation)
    except Exception as error:  # whatever the user's module raises
        reason = described(error)
        raise ConfigError(f"agent.network is {name!r}, which fails on {seen}: {reason}") from error
    made = (
        f"{features.dtype} {tuple(features.shape)}" if isinstance(features, torch.Tensor) else type(features).__name__
    )
    if made != f"torch.float32 (2, {outputs})":
        raise ConfigError(
            f"agent.network is {name!r}, which makes {made} of {seen}, must be torch.float32 (2, {outputs}): "
            f"[B, outputs], and its `outputs` is {outputs}"
        )
