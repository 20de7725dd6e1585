"""Parser of a command line's options into a document for `overlay`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import yaml

from tidemill.config.algorithm_defaults import merged
from tidemill.config.presets import preset_names
from tidemill.config.yaml_text import described_error, parse
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.settings.check import collecting, refuse
from tidemill.settings.other_names import meant
from tidemill.settings.overlay import LISTS

_ENVIRONMENT = re.compile(r"[\w./-]+-v\d+")
"""An environment of Gymnasium, whose name ends in its version."""
_NONE = ("none", "null")
_SWITCH = {"true": True, "false": False}
_TEXT = re.compile(r"unix:[^,]*?(?=\s*(?:,|\sunix:|$))|[^\s,]+")
"""A text of a list; only the path of a socket may have blanks, and ends before the next socket."""


def document_of(words: Sequence[str], settings: object, notes: list[str] | None = None) -> dict[str, Any]:
    """Return a command line as a document for `overlay`, which converts its values.

    An option is `--section.name VALUE` or `--section.name=VALUE`, with dashes or underscores. A mapping that is given
    twice adds up; of any other option the last one counts, and a list that is replaced gets a note. Where there are no
    sections it is `--name VALUE`. A switch is `--section.name` or `--section.no-name`, or has true or false as its
    value. A setting that may be none takes none and null. A list has several values, `64 64` or `64,64`. A mapping has
    names and values in turn, values as in YAML; one of its values is `--section.mapping.name VALUE`.

    Args:
        words: The command line without the program's name, `--config` and `--agent.algorithm`.
        settings: The process's dataclass of sections, or one without sections.
        notes: Gets a line for each list that a later one replaces.

    Raises:
        ConfigError: Options are unknown or lack their value; a line for each.
    """
    document: dict[str, Any] = {}
    problems: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, has_value, text = word.partition("=")
        if not option.startswith("--"):
            problems.append(f"{word!r} is not an option; {_option_for(word, settings)}")
            continue
        source = [text] if has_value else rest
        path = option.removeprefix("--").replace("-", "_").split(".")
        entry: list[str] = []
        if depth := _depth_of_mapping(settings, path):
            path, entry = path[:depth], option.removeprefix("--").split(".")[depth:]  # its names are the user's
        owner = _owner(settings, path[:-1])
        kinds = typing.get_type_hints(type(owner)) if owner is not None else {}
        name = path[-1]
        is_negated = name not in kinds and kinds.get(name.removeprefix("no_")) is bool
        name = name.removeprefix("no_") if is_negated else name
        if name not in kinds or dataclasses.is_dataclass(getattr(owner, name)):
            words_of_value = _values(source)
            del source[: len(words_of_value)]
            problems.append(f"unknown option {option}{_hint(path, settings, words_of_value)}")
            continue
        with collecting(problems):
            value = _entry(option, entry, source) if entry else _value(option, kinds[name], source)
            if has_value and source:
                raise ConfigError(f"option {option} has the value {text!r}, allowed: true or false")
            place = document
            for section in path[:-1]:
                place = place.setdefault(section, {})
            earlier = place.get(name)
            if isinstance(value, dict) and isinstance(earlier, dict):
                value = merged(earlier, value)
            elif isinstance(value, list) and earlier not in (None, value) and notes is not None:
                now, before = " ".join(value), " ".join(earlier)
                notes.append(f"{option} {now} replaces {before}: a list takes all values at once")
            place[name] = not value if is_negated else value
    refuse(problems)
    return document


def _option_for(word: str, settings: object) -> str:
    """Return a hint at the option that a word without one was probably meant for."""
    if word in preset_names() or word.endswith((".yaml", ".yml")):
        return f"did you mean --config {word}?"
    has_sections = hasattr(settings, "run")
    if _ENVIRONMENT.fullmatch(word):
        return f"did you mean --env{'.id' if has_sections else ''} {word}?"
    return f"options are --{'section.' if has_sections else ''}name VALUE"


def _value(option: str, kind: Any, source: list[str]) -> Any:  # noqa: ANN401 - a type, or what typing has for one
    """Take the words of an option's value from those that follow it; raises ConfigError if they are missing."""
    origin = typing.get_origin(kind)
    if kind is bool:
        return _SWITCH[source.pop(0).lower()] if source and source[0].lower() in _SWITCH else True
    words = _values(source)
    if origin in LISTS:
        del source[: len(words)]
        return _listed(words, has_texts=typing.get_args(kind)[:1] == (str,))
    if _is_mapping(kind):
        del source[: len(words)]
        return _mapping(option, words)
    if not words:
        raise ConfigError(f"option {option} needs a value")
    text = source.pop(0)
    allowed = typing.get_args(kind)
    if _SWITCH.get(text.lower()) in allowed:
        return _SWITCH[text.lower()]
    return None if type(None) in allowed and text.lower() in _NONE else text


def _values(source: Sequence[str]) -> list[str]:
    """Return the words up to the next option."""
    return list(takewhile(lambda word: not word.startswith("--"), source))


def _listed(words: Sequence[str], *, has_texts: bool) -> list[str]:
    """Return the values of a list; brackets around all of it are left out, those of an IPv6 address are not."""
    text = ",".join(words).strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    return _TEXT.findall(text) if has_texts else text.replace(",", " ").split()


def _mapping(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Return names and values in turn, or one YAML mapping."""
    if len(words) == 1 and isinstance(whole := _parsed(option, words[0]), dict):
        return whole
    if len(words) % 2:
        raise ConfigError(f"option {option} needs names and values in turn, as in {option} continuous true")
    return {name: _parsed(option, value) for name, value in zip(words[::2], words[1::2], strict=True)}


def _is_mapping(kind: Any) -> bool:  # noqa: ANN401 - a type, or what typing has for one
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _depth_of_mapping(settings: object, path: Sequence[str]) -> int:
    """Return how many names of a path lead to a mapping, whose entries the rest names; 0 if none does."""
    for depth in range(1, len(path)):
        owner = _owner(settings, path[: depth - 1])
        if owner is not None and _is_mapping(typing.get_type_hints(type(owner)).get(path[depth - 1])):
            return depth
    return 0


def _entry(option: str, names: Sequence[str], source: list[str]) -> dict[str, Any]:
    """Take the words of the value that a mapping has under some names; several words are a list."""
    words = _values(source)
    del source[: len(words)]
    if not words:
        raise ConfigError(f"option {option} needs a value")
    values = [_parsed(option, word) for word in words]
    value: Any = values[0] if len(values) == 1 else values
    for name in reversed(names):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _parsed(option: str, word: str) -> Any:  # noqa: ANN401 - what YAML has
    try:
        return parse(word)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"option {option} has a value that is not YAML: {' '.join(described_error(error, 'it').split())}"
        ) from error


def _owner(settings: object, sections: Sequence[str]) -> object | None:
    """Return the dataclass in which the settings of a section are; None if there is none."""
    for name in sections:
        settings = getattr(settings, name, None)
    return settings if dataclasses.is_dataclass(settings) else None


def _hint(path: Sequence[str], settings: object, words: Sequence[str]) -> str:
    """Return a hint at the option that was probably meant by an unknown one with these words as its value."""
    agent = getattr(settings, "agent", None)
    if agent is not None and path[0] == "agent":
        name = ".".join(path[1:]).removeprefix("no_")
        owners = [each for each in algorithms() if _has_setting(config_class(each)(), name)]
        if owners:
            return f": it belongs to {' and '.join(owners)}, and agent.algorithm is {agent.algorithm!r}"
    text = words[0] if words and words[0].lower() not in _NONE else None
    return meant(path, settings, text if len(words) < 2 else list(words), option=True)


def _has_setting(settings: object, name: str) -> bool:
    first, _, rest = name.partition(".")
    if first not in {field.name for field in dataclasses.fields(settings)}:  # type: ignore[arg-type]
        return False
    return not rest or _has_setting(getattr(settings, first), rest)
