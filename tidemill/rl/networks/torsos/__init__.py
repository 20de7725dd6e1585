"""The torsos that come with the project, a file each, and how settings name one. Imports no torch."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping

from tidemill.errors import ConfigError
from tidemill.settings.check import nearest
from tidemill.settings.user_code import check_user_module
from tidemill.types import EnvSpec

AUTO, MLP = "auto", "mlp"

MIN_SIZES = {"nature": 36, "nature_group_norm": 36, "data_efficient": 25, "impala": 8}
"""Pixels of the smallest side of an image that a torso takes."""

_MAX_CHANNELS = 16
"""Axis in front of two longer ones that is still taken for the channels."""

NetworkSetting = bool | int | float | str | tuple[int, ...]
"""Values that a user-defined network may get from a config file or the command line."""


def torso_names() -> tuple[str, ...]:
    """Return the names of the torsos that come with the project, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def check_torso(name: str) -> None:
    """Raise ConfigError unless there is such a torso; a user's module must exist."""
    if is_ours(name):
        if name not in (AUTO, *torso_names()):
            allowed = f"auto, one of {', '.join(torso_names())}, or module:name"
            raise ConfigError(f"agent.network is {name!r}, but must be {allowed}{nearest(name, torso_names())}")
        return
    check_user_module("agent.network", name)


def chosen_torso(name: str, env_spec: EnvSpec) -> str:
    """Return the torso of observations of one part: `auto` is the largest of the usual ones that takes them."""
    if name != AUTO:
        return name
    if not env_spec.is_image or len(env_spec.observation_shape) == 1:
        return MLP
    sides = env_spec.observation_shape[:2]
    return next((each for each in ("nature", "impala") if min(sides) >= MIN_SIZES[each]), MLP)


def check_observations(name: str, env_spec: EnvSpec) -> None:
    """Raise ConfigError unless a torso of ours takes the observations of an environment.

    `mlp` has no convolutions: of an image it would learn next to nothing, slowly. It takes one whose axes are in
    another order.
    """
    parts, images = _parts(env_spec), _images(env_spec)
    if name == MLP and images and min(images[0][:2]) >= MIN_SIZES["impala"] and not _is_turned(images[0]):
        raise ConfigError(
            f"agent.network is 'mlp', which takes vectors, but the environment observes images {images[0]}: "
            "leave it at auto, set it to nature, impala or your own (module:name), or encode them in the environment"
        )
    if name not in MIN_SIZES:
        return
    size, shaped = MIN_SIZES[name], [shape for shape, _ in parts if len(shape) in (2, 3)]
    too_small = [shape for shape in shaped if min(shape[:2]) < size]
    if not shaped or too_small:
        found = f"images {too_small[0]}" if too_small else f"numbers of shape {parts[0][0]}"
        raise ConfigError(
            f"agent.network is {name!r}, which takes images [H, W] or [H, W, C] of at least {size}x{size}, but the "
            f"environment observes {found}: leave it at auto, or set it to mlp"
        )


def check_axes(name: str, env_spec: EnvSpec) -> None:
    """Raise ConfigError if a torso of ours would see images with their channels first, or another axis in front.

    Only a new run is asked: the torso that `auto` chose for such images, or whose sizes they have, can be built, and a
    run or a bundle that has trained with it continues.
    """
    seen = _images(env_spec) if name == AUTO else [shape for shape, _ in _parts(env_spec) if name in MIN_SIZES]
    if turned := [shape for shape in seen if _is_turned(shape)]:
        raise ConfigError(
            f"agent.network is {name!r}, which takes images [H, W] or [H, W, C], but the environment observes images "
            f"{turned[0]}: move the channels to the end, or use env.observation_stack in place of a frame-stack "
            "wrapper; if they are the last axis already, set it to mlp or your own (module:name), which take any order"
        )


def check_settings(name: str, settings: Mapping[str, NetworkSetting], env_spec: EnvSpec) -> None:
    """Raise ConfigError if the torso is `mlp` and is given settings, of which it has none.

    Only a new run is asked: some algorithms leave this torso out, with its settings, and a run or a bundle that has
    trained with them continues.
    """
    if settings and not env_spec.observation_parts and chosen_torso(name, env_spec) == MLP:
        raise ConfigError(
            f"agent.network_settings are {dict(settings)}, but the torso is 'mlp', which has none: leave them out, or "
            "set agent.network to your own (module:name)"
        )


def _parts(env_spec: EnvSpec) -> list[tuple[tuple[int, ...], bool]]:
    """Return the shape of each part of an observation, and whether it is bytes."""
    parts = [(part.shape, part.is_image) for part in env_spec.observation_parts]
    return parts or [(env_spec.observation_shape, env_spec.is_image)]


def _images(env_spec: EnvSpec) -> list[tuple[int, ...]]:
    return [shape for shape, is_image in _parts(env_spec) if is_image and len(shape) > 1]


def _is_turned(shape: tuple[int, ...]) -> bool:
    """True if an image has its channels first, by its sides, or axes besides height, width and channels."""
    least = MIN_SIZES["impala"]
    if len(shape) != 3:
        return len(shape) > 3 and sum(side >= least for side in shape) > 1
    first, middle, last = shape
    if first < least:
        is_grid = middle < 4 * first and last >= 2 * middle  # of few rows, whose cells have many codes
        return min(middle, last) >= least and not is_grid
    return first <= _MAX_CHANNELS and min(middle, last) >= 3 * first


def image_channels(network: str, env_spec: EnvSpec) -> tuple[int, int, int]:
    """Return channels, height and width of what the network sees: a stack's frames and colours are channels.

    Raises:
        ConfigError: Observations are not images [H, W] or [H, W, C], or too small.
    """
    check_observations(network, env_spec)
    shape = env_spec.observation_shape
    colours = shape[2] if len(shape) == 3 else 1
    return env_spec.frame_stack * colours, shape[0], shape[1]


def is_ours(name: str) -> bool:
    """True if a name is that of a torso in this folder, not of a user's module."""
    return "." not in name and ":" not in name
