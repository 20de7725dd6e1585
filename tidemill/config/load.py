"""Reads a process's settings: defaults, then `--config FILE.yaml`, then the command line."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tidemill.config.check import nearest
from tidemill.config.command_line import with_options
from tidemill.config.hindsight import check_hindsight
from tidemill.config.lock_step import check_lock_step
from tidemill.config.on_policy import check_on_policy
from tidemill.config.overlay import check_option_names, overlay, to_document
from tidemill.config.presets import find_config
from tidemill.config.section_help import describe_section
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.agents.registry import config_class

_T = TypeVar("_T")

# A tenth of the time of those in Python; not in every build of PyYAML.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_SECTIONS = {field.name for field in dataclasses.fields(RunConfig)}


def load(config: type[_T], arguments: Sequence[str], *, prog: str, description: str) -> _T:
    """Return the settings of one process.

    Args:
        config: The process's dataclass of sections, e.g. `LearnerConfig`.
        arguments: Command line without the program's name. `--config FILE` or `--config PRESET` may stand anywhere;
            sections in the file that this process does not read are checked for their names only.
        prog: Name in `--help`.
        description: First paragraph of `--help`.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown or out of range.
        SystemExit: `--help` was asked for, of all or of a section (0), or the command line is wrong (2).
    """
    check_option_names(arguments)
    path, rest = _take_option(list(arguments), "--config")
    document = read_document(find_config(path)) if path else {}
    algorithm, rest = _take_option(rest, "--agent.algorithm")
    settings = from_document(config, document, algorithm)
    if asked := _take_help(rest, config):
        sys.stdout.write(f"{describe_section(prog, asked, settings)}\n")
        raise SystemExit(0)
    settings = with_options(settings, rest, prog=prog, description=description)
    check_on_policy(settings)
    check_lock_step(settings)
    check_hindsight(settings)
    return settings


def load_config(settings: Mapping[str, Any] | str | Path) -> RunConfig:
    """Return the settings of a whole run, checked.

    Args:
        settings: A mapping of sections as a config file holds, e.g. `{"env": {"id": "CartPole-v1"}}`, or the path of a
            YAML file with one.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or out of range; the message names it.
    """
    document = settings if isinstance(settings, Mapping) else read_document(Path(settings))
    config = from_document(RunConfig, document)
    check_on_policy(config)
    check_lock_step(config)
    check_hindsight(config)
    return config


def from_document(config: type[_T], document: Mapping[str, Any], algorithm: str | None = None) -> _T:
    """Return a process's settings from a run's document; `algorithm` overrides the document's.

    Raises:
        ConfigError: a section or setting is unknown, or a value is wrong.
    """
    for section in document:
        if section not in _SECTIONS:
            raise ConfigError(f"unknown section {section!r}{nearest(str(section), _SECTIONS)}")
    sections = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    document = {name: value or {} for name, value in document.items() if name in sections}
    settings = config()
    if "agent" in sections:
        agent = dict(document.get("agent", {}))
        named = algorithm or agent.get("algorithm", "sac")
        document["agent"] = agent | {"algorithm": named}
        settings = dataclasses.replace(settings, agent=config_class(named)())  # type: ignore[type-var]
    return overlay(settings, document)


def read_document(path: Path, name: str = "--config") -> dict[str, Any]:
    """Return the mapping a YAML file holds.

    Args:
        path: The file.
        name: Of what the file is given as, for messages.

    Raises:
        ConfigError: the file is missing or is not a YAML mapping.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        hint = _nearest_config(path) if name == "--config" else ""
        raise ConfigError(f"cannot read {name} {str(path)!r}: {error.strerror}{hint}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} {str(path)!r} is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{name} {str(path)!r} must hold a mapping of sections, got {type(document).__name__}")
    return document


def write_document(settings: object, path: Path) -> None:
    """Write settings as YAML that `load` reads back."""
    path.write_text(yaml.dump(to_document(settings), Dumper=_Dumper, sort_keys=False), encoding="utf-8")


def _take_help(arguments: list[str], config: type[Any]) -> str:
    """Return the section, or the beginning of settings' names, that help is asked for; none if it is all."""
    names = {field.name for field in dataclasses.fields(config)}
    for first, second in pairwise(arguments):
        if first in ("--help", "-h") and second.partition(".")[0] in names:
            return second
    return ""


def _nearest_config(path: Path) -> str:
    """Return a hint at the config file that was probably meant; an empty string if there is none like it."""
    folders = dict.fromkeys((path.parent, Path("configs")))
    files = [str(file) for folder in folders for file in sorted(folder.glob("*.yaml"))]
    hint = nearest(str(path), files)
    return hint or nearest(str(Path("configs") / path.name), files)


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Return an option's value and the arguments without it; `--name VALUE` or `--name=VALUE`."""
    for i, argument in enumerate(arguments):
        if argument == name:
            if i + 1 == len(arguments):
                raise ConfigError(f"{name} needs a value")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2], arguments[:i] + arguments[i + 1 :]
    return None, arguments
