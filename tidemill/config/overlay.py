"""Settings dataclasses from and to plain documents (what YAML holds), strictly typed; those renamed name the new."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tidemill.config.check import nearest
from tidemill.errors import ConfigError

RENAMED = {
    "actor.max_unacknowledged_chunks": "actor.max_in_flight_chunks",
    "agent.actor_every": "agent.policy_delay",
    "agent.greedy_share": "agent.greedy_fraction",
    "agent.max_td_error": "agent.huber_delta",
    "agent.noise.greedy_share": "agent.noise.greedy_fraction",
    "agent.policy_average": "agent.actor_ema_decay",
    "agent.random_steps": "agent.start_steps",
    "agent.target_every": "agent.target_update_period",
    "agent.target_noise_limit": "agent.noise_clip",
    "env.observed": "env.observation_indices",
    "launcher.learner_reserve": "launcher.fork_services",
    "launcher.learner_standby": "launcher.fork_services",
    "table.importance_exponent": "table.importance_sampling_exponent",
    "table.importance_exponent_final": "table.importance_sampling_exponent_final",
    "table.importance_steps": "table.importance_sampling_steps",
}
"""Former name to present name, both with their section."""


def check_setting_name(name: str) -> None:
    """Raise ConfigError that gives the present name of a setting, e.g. `agent.target_every`, if it was renamed."""
    if name in RENAMED:
        raise ConfigError(f"setting {name!r} is called {RENAMED[name]!r} now")


def check_option_names(arguments: Sequence[str]) -> None:
    """Raise ConfigError that gives the present name of a renamed setting among command-line options."""
    for argument in arguments:
        option, _, _ = argument.partition("=")
        former = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and former in RENAMED:
            present = RENAMED[former].replace("_", "-")
            raise ConfigError(f"option {option} is called --{present} now")


_T = TypeVar("_T")


def overlay(settings: _T, document: object, path: str = "") -> _T:
    """Return a settings dataclass with the values of a document put over its own.

    Args:
        settings: Instance of a frozen dataclass; keeps every value the document does not name.
        document: Mapping from field names to values; a nested dataclass takes a nested mapping.
        path: Where the document stands in its file, for messages, e.g. `learner.server`.

    Raises:
        ConfigError: an unknown key (the nearest known one is named) or a value of the wrong type.
    """
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path or 'the config'} must be a mapping of settings, got {document!r}")
    names = {field.name for field in dataclasses.fields(typing.cast(Any, settings))}
    kinds = typing.get_type_hints(type(settings))
    values = {}
    for key, value in document.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in names:
            check_setting_name(here)
            hint = nearest(str(key), names, f"{path}." if path else "") or f"; known: {', '.join(sorted(names))}"
            raise ConfigError(f"unknown setting {here!r}{hint}")
        values[key] = _convert(value, kinds[key], getattr(settings, key), here)
    result: _T = dataclasses.replace(typing.cast(Any, settings), **values)
    return result


def to_document(settings: object) -> Any:  # noqa: ANN401 - a tree of YAML's own types
    """Return a settings dataclass as mappings, lists and scalars; the inverse of `overlay`."""
    if dataclasses.is_dataclass(settings):
        return {field.name: to_document(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    if isinstance(settings, Mapping):
        return {key: to_document(value) for key, value in settings.items()}
    if isinstance(settings, tuple | list):
        return [to_document(value) for value in settings]
    return settings


def _convert(value: Any, kind: Any, default: Any, path: str) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(default):
        return overlay(default, value, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, path)
    if origin is typing.Literal:
        return _expect(value in arguments, value, path, "one of " + ", ".join(map(repr, arguments)))
    if origin is tuple:
        if arguments[0] is str and isinstance(value, str):
            value = [value]  # one alone needs no list
        _expect(isinstance(value, list | tuple), value, path, "a list")
        return tuple(_convert(item, arguments[0], None, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, Mapping), value, path, "a mapping")
        return {str(key): _convert(item, arguments[1], None, f"{path}.{key}") for key, item in value.items()}
    return _convert_scalar(value, kind, path)


def _convert_union(value: Any, kinds: tuple[Any, ...], path: str) -> Any:  # noqa: ANN401
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(value, kind, None, path)
            except ConfigError:
                continue
    return _expect(False, value, path, " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds))


def _convert_scalar(value: Any, kind: Any, path: str) -> Any:  # noqa: ANN401
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-4 as text
        except ValueError:
            pass
    exact = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return _expect(exact, value, path, f"a value of type {kind.__name__}")


def _expect(is_valid: bool, value: Any, path: str, allowed: str) -> Any:  # noqa: ANN401
    if not is_valid:
        raise ConfigError(f"{path} is {value!r}, allowed: {allowed}")
    return value
