"""The settings that a user gives, whose values may be the defaults; a file that Tidemill wrote lists all settings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.config.load import WRITER, by_names, take_option
from tidemill.config.presets import find_config
from tidemill.config.yaml_text import parse


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
