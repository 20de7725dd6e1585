"""Conversion of settings dataclasses from and to plain documents, as YAML holds them, strictly typed."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tidemill.errors import ConfigError, described
from tidemill.settings.check import collecting, refuse
from tidemill.settings.other_names import meant

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
    values, problems = {}, list[str]()
    for key, value in document.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in names:
            hint = meant(here.split("."), settings, value, option=False, section=path)
            if value is None and ":" in str(key):
                hint = f"; put a space behind the colon: {str(key).replace(':', ': ', 1)}"
            problems.append(f"unknown setting {here!r}{hint or '; known: ' + ', '.join(sorted(names))}")
            continue
        with collecting(problems):
            values[key] = _convert(value, kinds[key], getattr(settings, key), here)
    result = _replaced(settings, values, problems, path)
    refuse(problems)
    return result


def _replaced(settings: _T, values: Mapping[str, Any], problems: list[str], path: str) -> _T:
    """Return settings with other values; what they refuse is added to the problems, one after the other is left out."""
    section, _, part = path.rpartition(".")
    given = dict(values)

    def attempt(left: Mapping[str, Any]) -> _T | str:
        try:
            result: _T = dataclasses.replace(typing.cast(Any, settings), **left)
        except ConfigError as error:  # names its settings from its part on, such as `server.address`
            return f"{section}.{error}" if section and str(error).startswith(f"{part}.") else str(error)
        except Exception as error:  # whatever a user's class raises
            return f"{path or 'the config'} is {given}, which {type(settings).__name__} refuses: {described(error)}"
        return result

    while isinstance(refusal := attempt(values), str):
        problems.append(refusal)
        refused_first = sorted(values, key=lambda name: f"{name} is " not in refusal)
        others = ({name: each for name, each in values.items() if name != left_out} for left_out in refused_first)
        values = next((each for each in others if attempt(each) != refusal), {})
        if not values:
            return settings
    return refusal


def to_document(settings: object) -> Any:  # noqa: ANN401 - a tree of YAML's own types
    """Return a settings dataclass as mappings, lists and scalars; the inverse of `overlay`."""
    if dataclasses.is_dataclass(settings):
        return {field.name: to_document(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    if isinstance(settings, Mapping):
        return {key: to_document(value) for key, value in settings.items()}
    if isinstance(settings, tuple | list):
        return [to_document(value) for value in settings]
    return settings


LISTS = (tuple, list, Sequence)
"""Origins of the types of a setting that is a list, whose first argument, if any, is the type of its values."""

_TYPES = "bool, int, float, str, Any, Literal, and tuple, list, Sequence, Mapping and unions of these"
_DECIMAL = re.compile(r"-?\d+\.\d+")
_PLAIN = (type(None), bool, int, float, str)
_PLAIN_WORDS = "numbers, texts, true, false, none, and lists and mappings of them"
_KINDS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _convert(value: Any, kind: Any, default: Any, path: str) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(default):
        return overlay(default, value, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, path)
    if origin is typing.Literal:
        return _expect(value in arguments, value, path, "one of " + ", ".join(map(repr, arguments)))
    if origin in LISTS:
        kind_of_items = (*arguments, Any)[0]  # `typing.List` names none
        if kind_of_items is str and isinstance(value, str):
            value = [value]  # one alone needs no list
        _expect(isinstance(value, list | tuple), value, path, f"a list, such as [{str(value).strip('()[]')}]")
        items = (_convert(item, kind_of_items, None, f"{path}[{i}]") for i, item in enumerate(value))
        return list(items) if origin is list else tuple(items)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, Mapping), value, path, "a mapping")
        each = arguments[1] if arguments else Any
        below = typing.cast(Any, each)() if dataclasses.is_dataclass(each) else None
        return {str(key): _convert(item, each, below, f"{path}.{key}") for key, item in value.items()}
    if not isinstance(kind, type):
        raise ConfigError(f"{path} is declared as {kind}, which no setting can be; allowed: {_TYPES}")
    return _convert_scalar(value, kind, path)


def _convert_union(value: Any, kinds: tuple[Any, ...], path: str) -> Any:  # noqa: ANN401
    if value is None and type(None) in kinds:
        return None
    if type(value) in kinds and not isinstance(value, float):  # which has to be finite
        return value
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(value, kind, None, path)
            except ConfigError:
                continue
    if type(None) in kinds and str(value).lower() in ("none", "null"):  # as on a command line
        return None
    names = (_KINDS.get(kind, "none" if kind is type(None) else str(kind)) for kind in kinds)
    return _expect(False, value, path, " or ".join(names))


def _convert_scalar(value: Any, kind: Any, path: str) -> Any:  # noqa: ANN401
    if kind is Any:
        return plain(value, path)
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-4 as text
        except OverflowError:
            return _expect(False, value, path, "a finite number")
        except ValueError:
            point = str(value).replace(",", ".")
            _expect(not _DECIMAL.fullmatch(point), value, path, f"a number, with a point: {point}")
        else:
            return _expect(math.isfinite(number), number, path, "a finite number")
    if kind is int:
        value = whole(value)
    exact = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if kind is str and isinstance(value, int | float | datetime.date):
        return _expect(exact, str(value), path, _quoted(value))
    if kind is str and isinstance(value, type | types.FunctionType):  # which the processes of a run import by name
        module = value.__module__.replace("__main__", "MODULE")
        return _expect(False, value, path, f"a text, such as '{module}:{value.__qualname__}'")
    return _expect(exact, value, path, _KINDS.get(kind, f"a value of type {kind.__name__}"))


def plain(value: Any, path: str) -> Any:  # noqa: ANN401 - what JSON has
    """Return a value of a setting that may be of any kind.

    Raises:
        ConfigError: It holds something else than JSON does, such as a date: digests, a sweep's journal and the
            processes of isolated environments have it as JSON.
    """
    try:
        _check_plain(value, path)
    except RecursionError:  # YAML can say a list that holds itself
        _expect(False, value, path, _PLAIN_WORDS)
    return value


def _check_plain(value: Any, path: str) -> None:  # noqa: ANN401
    if isinstance(value, Mapping):
        for key, each in value.items():
            _expect(isinstance(key, str), key, f"a key of {path}", _quoted(key))
            _check_plain(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            _check_plain(each, f"{path}[{i}]")
    elif isinstance(value, datetime.date):
        _expect(False, str(value), path, f"{_quoted(value)} (on a command line \"'{value}'\")")
    else:
        _expect(type(value) in _PLAIN, value, path, _PLAIN_WORDS)


def _quoted(value: object) -> str:
    return f"a text: put it in quotes, '{value}'"


def whole(value: Any) -> Any:  # noqa: ANN401
    """Return the whole number that a text or a float stands for, as 1e5 does; anything else as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)  # of any length
    if isinstance(value, str | float):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
    return value


def _expect(is_valid: bool, value: Any, path: str, allowed: str) -> Any:  # noqa: ANN401
    if not is_valid:
        raise ConfigError(f"{path} is {value!r}, allowed: {allowed}")
    return value
