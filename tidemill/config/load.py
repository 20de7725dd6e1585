"""Reads a process's settings: defaults, then `--config FILE.yaml`, then the command line."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import tyro
import yaml

from tidemill.config.check import nearest
from tidemill.config.hindsight import check_hindsight
from tidemill.config.lock_step import check_lock_step
from tidemill.config.on_policy import check_on_policy
from tidemill.config.overlay import check_option_names, overlay, to_document
from tidemill.config.presets import find_config
from tidemill.config.section_help import describe_section
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.agents.registry import algorithms, config_class

_T = TypeVar("_T")

_NONE = ("none", "null")

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
    _check_algorithms_options(rest, settings)
    sources = (
        "Settings come from --config FILE.yaml, or --config NAME of `tidemill configs`, then from the options below. "
        f"{_list_sections(prog, config)}"
    )
    about = f"{description}\n\n{sources}"
    agent = getattr(settings, "agent", None)
    if agent is not None:
        about += f"\n\n{_describe_algorithms(prog, agent.algorithm)}"
    if asked := _take_help(rest, config):
        sys.stdout.write(f"{describe_section(prog, asked, settings)}\n")
        raise SystemExit(0)
    with _algorithm_choices():
        words = _as_tyro_has_them(rest, settings)
        settings = tyro.cli(config, prog=prog, description=about, default=settings, args=words)
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
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
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
    path.write_text(yaml.safe_dump(to_document(settings), sort_keys=False), encoding="utf-8")


def _list_sections(prog: str, config: type[Any]) -> str:
    """Return the sentence of `--help` that says how to see a part of it."""
    names = [field.name for field in dataclasses.fields(config)]
    return (
        f"`{prog} --help SECTION` shows those of one section on a screen: {', '.join(names)}; "
        f"`{prog} --help SECTION.NAME` says all of a setting, and of those that begin alike."
    )


def _take_help(arguments: list[str], config: type[Any]) -> str:
    """Return the section, or the beginning of settings' names, that help is asked for; none if it is all."""
    names = {field.name for field in dataclasses.fields(config)}
    for first, second in pairwise(arguments):
        if first in ("--help", "-h") and second.partition(".")[0] in names:
            return second
    return ""


def _describe_algorithms(prog: str, chosen: str) -> str:
    """Return the paragraph of `--help` that lists the algorithms and says how to see the settings of each."""
    width = max(map(len, algorithms()))
    lines = [f"  {name:{width}}  {(config_class(name).__doc__ or '').splitlines()[0]}" for name in algorithms()]
    other = next(name for name in ("dqn", "sac") if name != chosen)
    return "\n".join(
        [
            "Algorithms, chosen by --agent.algorithm NAME or by agent.algorithm in the file:",
            *lines,
            f"\nThe agent options below are those of {chosen}. To see those of another algorithm, name it:",
            f"  {prog} --agent.algorithm {other} --help agent",
        ]
    )


def _as_tyro_has_them(arguments: list[str], settings: object) -> list[str]:
    """Return a command line with values spelled as the parser wants them.

    A switch may have its value as a file says it: `--x true` or `--x=false` instead of `--x` and `--no-x`. A setting
    that may be none may say so as YAML does, `null`, or as the reference does, `none`.
    """
    words, rest = [], list(arguments)
    while rest:
        option, separator, value = rest.pop(0).partition("=")
        path = option.removeprefix("--").replace("-", "_").split(".")
        owner, name = _owner(settings, path[:-1]), path[-1]
        kinds = typing.get_type_hints(type(owner)).get(name) if option.startswith("--") and owner is not None else None
        if kinds is bool and not separator and rest and rest[0].lower() in ("true", "false"):
            separator, value = "=", rest.pop(0)
        if kinds is bool and value.lower() in ("true", "false"):
            words.append(f"--{'.'.join((*path[:-1], name if value.lower() == 'true' else f'no_{name}'))}")
            continue
        words.append(f"{option}{separator}{value}")
        if type(None) in typing.get_args(kinds):
            if separator and value.lower() in _NONE:
                words[-1] = f"{option}=None"
            elif not separator and rest and rest[0].lower() in _NONE:
                rest[0] = "None"
    return words


def _owner(settings: object, sections: Sequence[str]) -> object | None:
    """Return the dataclass in which the settings of a section are; None if there is none."""
    for name in sections:
        settings = getattr(settings, name, None)
    return settings if dataclasses.is_dataclass(settings) else None


def _algorithm_choices() -> tyro.constructors.ConstructorRegistry:
    """Return rules by which `--help` shows all algorithms as the choices of `agent.algorithm`."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _(kind: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[str] | None:
        values = typing.get_args(kind.type)
        if typing.get_origin(kind.type) is not typing.Literal or len(values) != 1 or values[0] not in algorithms():
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=f"{{{','.join(algorithms())}}}|PACKAGE",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda value: [value],
        )

    return registry


def _check_algorithms_options(arguments: Sequence[str], settings: object) -> None:
    """Raise ConfigError for an option of an algorithm that is not this run's, naming the algorithm it belongs to."""
    agent = getattr(settings, "agent", None)
    for argument in arguments:
        option = argument.partition("=")[0]
        if agent is None or not option.startswith("--agent."):
            continue
        name = option.removeprefix("--agent.").replace("-", "_").removeprefix("no_")
        owners = [each for each in algorithms() if _has_setting(config_class(each)(), name)]
        if owners and not _has_setting(agent, name):
            whose = " and ".join(owners)
            raise ConfigError(f"option {option} belongs to {whose}, and agent.algorithm is {agent.algorithm!r}")


def _has_setting(settings: object, name: str) -> bool:
    """Return whether a dataclass has a setting of this dotted name."""
    first, _, rest = name.partition(".")
    if first not in {field.name for field in dataclasses.fields(settings)}:  # type: ignore[arg-type]
        return False
    return not rest or _has_setting(getattr(settings, first), rest)


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
