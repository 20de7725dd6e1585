"""Loading of a process's settings: defaults, then `--config FILE.yaml`, then the command line."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tidemill import formats
from tidemill.config.actors import check_actors
from tidemill.config.algorithm_defaults import DEFAULT_ALGORITHM, adapted, merged, with_defaults
from tidemill.config.command_line import document_of
from tidemill.config.help_text import ALGORITHMS, ALL, describe_algorithms, describe_section, overview
from tidemill.config.hindsight import check_hindsight
from tidemill.config.inference import check_inference
from tidemill.config.learners import check_learners
from tidemill.config.lock_step import check_lock_step
from tidemill.config.noops import check_noops
from tidemill.config.on_policy import check_on_policy
from tidemill.config.presets import FOLDER, find_config, preset_names
from tidemill.config.sections import RunConfig
from tidemill.config.simulated_env import check_simulated_env
from tidemill.config.sources import check_sources
from tidemill.config.traces import check_traces
from tidemill.config.yaml_text import described_error, parse, written
from tidemill.errors import ConfigError, NewerSettings, described
from tidemill.rl.settings.registry import config_class
from tidemill.settings.check import collecting, nearest, refuse
from tidemill.settings.overlay import overlay, to_document

_T = TypeVar("_T")

_SECTIONS = {field.name for field in dataclasses.fields(RunConfig)}
_FIRST = {"agent": "algorithm", "env": "id", "run": "name"}
"""The setting that is meant where a section has a single value."""
_UNKNOWN = ("unknown ", "agent.algorithm is ")
"""Beginnings of what is said of names that a newer Tidemill may know."""
WRITER = re.compile(r"^# tidemill (\S+)$", re.MULTILINE)
"""The line of a file of settings that names the version of Tidemill that wrote it."""


def load(config: type[_T], arguments: Sequence[str], *, prog: str, description: str, file: Path | None = None) -> _T:
    """Return the settings of one process.

    Args:
        config: The process's dataclass of sections, e.g. `LearnerConfig`.
        arguments: Command line without the program's name. `--config FILE` or `--config PRESET` may stand anywhere;
            sections in the file that this process does not read are checked for their names only.
        prog: Name in `--help`.
        description: First paragraph of `--help`.
        file: Settings of a run that has begun, in place of `--config`, which is refused.

    Raises:
        ConfigError: the file cannot be read, or settings are unknown or out of range; a line for each.
        SystemExit: `--help` was asked for, of all or of a section.
    """
    path, rest = take_option(list(arguments), "--config")
    if sum(word.partition("=")[0] == "--config" for word in arguments) > 1:
        raise ConfigError("--config is given more than once, allowed: one file or preset, and options over it")
    if file is not None and path is not None:
        raise ConfigError(f"--config is {path!r}, but the settings are in {file}; change single ones by options")
    if path is not None:
        file = find_config(path)
    document = read_document(file) if file else {}
    algorithm, rest = take_option(rest, "--agent.algorithm")
    asked = _take_help(rest, config)
    if asked is not None:
        settings = from_document(config, document, algorithm)
        if asked == ALGORITHMS:
            text = describe_algorithms()
        else:
            text = describe_section(prog, asked, settings) if asked else overview(settings, prog, description)
        sys.stdout.write(f"{text}\n")
        raise SystemExit(0)
    replaced: list[str] = []
    options = document_of(rest, _skeleton(config, _algorithm_of(document, algorithm)), replaced)
    try:
        settings, notes = _combined(config, file, document, options, algorithm)
    except ConfigError:
        if file is not None and newer_writer(file):
            read_settings(config, file)  # raises if it is not an option that is wrong
        raise
    for note in (*replaced, *notes):
        sys.stderr.write(f"note: {note}\n")
    return settings if config is RunConfig else _with_absolute_paths(settings)


def load_run(config: str | Path | None, options: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the settings of a run from a file or preset and options put over it, as a command line gives them.

    Args:
        config: Path of a YAML file or name of a preset; None for the defaults.
        options: Settings by their dotted names, `{"agent.algorithm": "dqn"}`, or by sections, as a file holds them.

    Returns:
        The settings, and a note for each group of settings of the file that does not apply to the options' algorithm
        or environment.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or out of range; a line for each.
    """
    file = find_config(str(config)) if config is not None else None
    document = read_document(file) if file else {}
    given = by_sections(options)
    refuse(_no_sections(given))
    algorithm = (given.get("agent") or {}).get("algorithm")
    return _combined(RunConfig, file, document, given, None if algorithm is None else str(algorithm))


def _combined(
    config: type[_T], file: Path | None, document: dict[str, Any], options: Mapping[str, Any], algorithm: str | None
) -> tuple[_T, list[str]]:
    """Return a file's settings with options put over them, and notes on settings that were left out; see `adapted`."""
    document, notes = adapted(document, options, algorithm, is_preset=file is not None and file.parent == FOLDER)
    settings = from_document(config, merged(document, options), algorithm)
    check_together(settings)
    return settings, notes


def by_sections(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as sections: `{"run.seed": 3}` as `{"run": {"seed": 3}}`."""
    document: dict[str, Any] = {}
    for name, value in options.items():
        *sections, last = str(name).split(".")
        nested: dict[str, Any] = {last: value}
        for section in reversed(sections):
            nested = {section: nested}
        document = merged(document, nested)
    return document


def by_names(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a document by dotted name: `{"run": {"seed": 3}}` as `{"run.seed": 3}`."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= by_names(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


_SERVER_FILES = ("tls_cert", "tls_key", "tls_client_ca", "tokens")


def _with_absolute_paths(settings: _T) -> _T:
    """Return a service's settings with paths from the root: what it runs may change the working directory."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        section = getattr(settings, field.name)
        if field.name == "run":
            changed["run"] = dataclasses.replace(section, root=_absolute(section.root))
        elif server := getattr(section, "server", None):
            files = {name: _absolute(path) for name in _SERVER_FILES if (path := getattr(server, name))}
            changed[field.name] = dataclasses.replace(section, server=dataclasses.replace(server, **files))
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]


def _absolute(path: str) -> str:
    return str(Path(os.path.expanduser(path)).absolute())


def load_config(settings: Mapping[str, Any] | str | Path) -> RunConfig:
    """Return the settings of a whole run, checked.

    Args:
        settings: A mapping of sections as a config file holds, e.g. `{"env": {"id": "CartPole-v1"}}`, or the path of a
            YAML file with one.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or out of range; the message names it.
    """
    document = settings if isinstance(settings, Mapping) else read_document(Path(os.path.expanduser(settings)))
    config = from_document(RunConfig, document)
    check_together(config)
    return config


def from_document(config: type[_T], document: Mapping[str, Any], algorithm: str | None = None) -> _T:
    """Return a process's settings from a run's document; `algorithm` overrides the document's.

    Raises:
        ConfigError: a section or setting is unknown, or a value is wrong.
    """
    unknown = [section for section in document if section not in _SECTIONS]
    known = "; known: " + ", ".join(sorted(_SECTIONS))
    refuse(f"unknown section {name!r}{nearest(str(name).lower(), _SECTIONS) or known}" for name in unknown)
    document = {name: {} if value is None else value for name, value in document.items()}
    algorithm = _algorithm_of(document, algorithm)
    if isinstance(agent := document.get("agent", {}), Mapping):
        document["agent"] = {**agent, "algorithm": algorithm}
    settings = _skeleton(config, algorithm)
    sections = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    if "agent" in sections:  # others need not have the algorithm's module
        document = with_defaults(document, algorithm)
    return overlay(settings, {name: value for name, value in document.items() if name in sections})


def read_settings(config: type[_T], file: Path) -> _T:
    """Return a process's settings from the file of a run or bundle.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or out of range. If a newer Tidemill wrote the
            file, one line says so of all that are unknown, and the error is a `NewerSettings` if no other is wrong.
        FatalError: It has a format that this version does not know.
    """
    document = read_document(file)
    try:
        return from_document(config, document)
    except ConfigError as error:
        if not (writer := newer_writer(file)):
            raise
        if {".", ":"} & {*(algorithm := _algorithm_of(document, None))}:
            config_class(algorithm)  # raises if it is code of the user's that is missing
        lines = str(error).splitlines()
        unknown = [line.partition(";")[0] for line in lines if line.startswith(_UNKNOWN)]
        wrong = [line for line in lines if not line.startswith(_UNKNOWN)]
        if not unknown:
            raise
        versions = f"{file} was written by Tidemill {writer}, this is {version('tidemill')}"
        newer = f"{versions}: {', '.join(unknown)}; use a newer Tidemill"
        raise (ConfigError if wrong else NewerSettings)("\n".join((newer, *wrong))) from error


def newer_writer(file: Path) -> str:
    """Return the version of Tidemill that wrote a file of settings, if it is newer than this one; empty otherwise.

    It is empty, too, for a file that cannot be read.
    """
    text = ""
    with suppress(OSError):
        text = file.read_text(encoding="utf-8", errors="replace")
    found = WRITER.search(text)
    return found[1] if found and _numbers(found[1]) > _numbers(version("tidemill")) else ""


def _numbers(of_version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", of_version)[:3]]


def _no_sections(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each section that is not a mapping: an option would take the place of all of it."""
    for name, value in document.items():
        if name in _SECTIONS and not (value is None or isinstance(value, Mapping)):
            example = f", such as {{{_FIRST[name]}: {value}}}" if name in _FIRST and isinstance(value, str) else ""
            yield f"{name} is {value!r}, must be a mapping of settings{example}"


def _algorithm_of(document: Mapping[str, Any], option: str | None) -> str:
    """Return the algorithm that an option or else a document names, or the one that is trained if none is named."""
    if option is not None:
        return option
    agent = document.get("agent") or {}
    if not isinstance(agent, Mapping):
        raise ConfigError(f"agent is {agent!r}, must be a mapping of settings, such as {{algorithm: {agent}}}")
    algorithm = agent.get("algorithm", DEFAULT_ALGORITHM)
    if not isinstance(algorithm, str):  # `named_code` looks at text: 1.5 would import 1/5/config.py
        raise ConfigError(f"agent.algorithm is {algorithm!r}, allowed: a text: put it in quotes")
    return algorithm


def _skeleton(config: type[_T], algorithm: str) -> _T:
    """Return a process's default settings, those of the agent of an algorithm."""
    settings = config()
    if not hasattr(settings, "agent"):
        return settings
    own_class = config_class(algorithm)
    try:
        agent = own_class()
        typing.get_type_hints(own_class)  # what `overlay` asks for
    except Exception as error:  # whatever a user's class raises
        raise ConfigError(
            f"agent.algorithm is {algorithm!r}, whose settings cannot be read: {described(error)}; every field needs a "
            "default that the class accepts"
        ) from error
    return dataclasses.replace(settings, agent=agent)  # type: ignore[type-var]


_CHECKS = (
    check_on_policy,
    check_lock_step,
    check_hindsight,
    check_sources,
    check_learners,
    check_actors,
    check_inference,
    check_noops,
    check_simulated_env,
    check_traces,
)


def check_together(settings: object) -> None:
    """Raise ConfigError, with a line for each, for settings of several sections that exclude each other."""
    problems: list[str] = []
    for check in _CHECKS:
        with collecting(problems):
            check(settings)
    refuse(problems)


def read_document(path: Path, name: str = "--config") -> dict[str, Any]:
    """Return the mapping a YAML file holds, without the number of its format.

    Args:
        path: The file.
        name: Of what the file is given as, for messages.

    Raises:
        ConfigError: the file is missing, is not a YAML mapping or has a section that is none.
        FatalError: it has a format that this version does not know.
    """
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = _nearest_config(path) if name == "--config" else ""
        raise ConfigError(f"cannot read {name} {str(path)!r}: {error.strerror}{hint}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} {str(path)!r} is not valid YAML: {described_error(error, path)}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} {str(path)!r} is not a text of settings: {error}") from error
    if document is None:
        raise ConfigError(f"{name} {str(path)!r} is empty; expected sections, such as `env: {{id: CartPole-v1}}`")
    if not isinstance(document, dict):
        raise ConfigError(f"{name} {str(path)!r} must hold a mapping of sections, got {type(document).__name__}")
    formats.check_format(formats.CONFIG, document.pop(formats.KEY, None), path)
    refuse(_no_sections(document))
    return document


def write_document(settings: object, path: Path) -> None:
    """Write settings as YAML that `load` reads back."""
    document = {formats.KEY: formats.NEWEST[formats.CONFIG], **to_document(settings)}
    path.write_text(written(document), encoding="utf-8")


def _take_help(arguments: list[str], config: type[Any]) -> str | None:
    """Return the topic that help is asked for: a section, the beginning of settings' names, all of them or algorithms.

    Empty without a topic; None if no help is asked for.
    """
    names = {field.name for field in dataclasses.fields(config)}
    for first, second in zip_longest(arguments, arguments[1:], fillvalue=""):
        if first in ("--help", "-h"):
            known = second.partition(".")[0] in names or second == ALL or (second == ALGORITHMS and "agent" in names)
            return second if known else ""
    return None


def _nearest_config(path: Path) -> str:
    """Return a hint at the config file or preset that was probably meant; an empty string if there is none like it."""
    if path.name == "cluster.yaml" and path.with_name("config.yaml").exists():
        return f": {path.parent} is not running, and only a running run has this file"
    folders = dict.fromkeys((path.parent, Path("configs")))
    files = [str(file) for folder in folders for file in sorted(folder.glob("*.yaml"))]
    hint = nearest(str(path), files)
    if hint := hint or nearest(str(Path("configs") / path.name), files):
        return hint
    return f"; did you mean the preset --config {path.stem}?" if path.stem in preset_names() else ""


def take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Return an option's value and the arguments without it; `--name VALUE` or `--name=VALUE`, of several the last."""
    value, rest, words = None, [], iter(arguments)
    for word in words:
        if word == name:
            value = next(words, None)
            if value is None:
                raise ConfigError(f"{name} needs a value")
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest
