"""The settings that a user gives, whose values may be the defaults; a file that Tidemill wrote lists all settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.config.load import WRITER, by_names, take_option
from tidemill.config.presets import find_config
from tidemill.config.sections import RunConfig
from tidemill.config.yaml_text import parse
from tidemill.errors import ConfigError
from tidemill.settings.check import refuse

_SERVERS = ("replay", "paramserver", "learner")


def given_by(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a command line gives, by dotted name: its options and those of its file, both valid."""
    path, rest = take_option(list(arguments), "--config")
    given = given_in(find_config(path)) if path is not None else {}
    for word, following in zip_longest(rest, rest[1:], fillvalue=""):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given[name] = value if equals else following
    return given


def given_in(file: Path) -> dict[str, Any]:
    """Return the settings that a valid file of a user's gives, by dotted name; none if Tidemill wrote the file."""
    text = file.read_text(encoding="utf-8")
    document = parse(text)
    return {} if formats.KEY in document or WRITER.search(text) else by_names(document)


def check_given_addresses(given: Mapping[str, Any], config: RunConfig) -> None:
    """Check the addresses that a user gives of a run whose services one command starts.

    Raises:
        ConfigError: One is the default, which would count as not given. With the other addresses of `cluster`, that of
            the replay service may be one that the launcher asked for.
    """
    default = RunConfig()
    is_alone = "cluster.replay" in given and given.keys().isdisjoint(("cluster.params", "cluster.learner"))
    is_unused = config.launcher.replay and config.replay.server.address == default.replay.server.address
    if is_alone and is_unused and config.cluster.replay == default.cluster.replay:
        raise ConfigError(
            f"cluster.replay is {config.cluster.replay[0]!r}, but this command starts its own replay service: add "
            "--launcher.replay false to use the one at that address, or leave cluster.replay out"
        )
    names = {f"{name}.server.address": getattr(default, name).server.address for name in _SERVERS}
    refuse(
        f"{name} is {address!r}, the default, which this command replaces by a socket: give another port"
        for name, address in names.items()
        if given.get(name) == address
    )
