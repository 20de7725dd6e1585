"""Texts of `--help`: the overview of a command, the settings of a section, and options without sections."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import textwrap
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.config.documented import Setting, fields_of, settings, summary
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.rpc.settings import ServerSettings
from tidemill.settings.check import nearest
from tidemill.settings.overlay import LISTS

ALL = "all"
ALGORITHMS = "algorithms"
_WIDEST = 120
SCREEN_LINES = 40
"""What is longer has a line for each setting, cut to the width; all of one setting is a command away."""
_INDENT = 2
_SENTENCE_END = re.compile(r"(?<!\bal)\. ")
""""et al." ends no sentence."""


def overview(values: Any, prog: str, description: str) -> str:  # noqa: ANN401 - any dataclass of sections
    """Return the text of `--help`: the command's purpose and its sections, for a terminal of 24 lines."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    sections = [(field.name, summary(type(getattr(values, field.name)))) for field in dataclasses.fields(values)]
    has_agent = any(name == "agent" for name, _ in sections)
    rows = [(name, ", ".join(algorithms()) if name == "agent" else text) for name, text in sections]
    further = "`--help SECTION` lists settings, `--help SECTION.NAME` explains one, `--help all` explains all."
    if has_agent:
        further += f" `--help {ALGORITHMS}` lists algorithms, `--agent.algorithm NAME --help agent` settings of one."
    return "\n".join(
        [
            f"usage: {prog} [--config FILE_OR_PRESET] [--SECTION.NAME VALUE ...]",
            "",
            *_filled(description, width),
            "",
            *_in_columns(rows, width),
            "",
            *_wrap(further, width),
        ]
    )


def describe_algorithms() -> str:
    """Return the text of `--help algorithms`: a line for each algorithm."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    described = [(name, (config_class(name).__doc__ or "").splitlines()[0]) for name in algorithms()]
    head = "Choose one with --agent.algorithm NAME. It also sets defaults of table, learner and env:"
    return "\n".join([*_wrap(head, width), *_in_columns(described, width)])


def _filled(description: str, width: int) -> list[str]:
    """Return a description wrapped paragraph by paragraph; one that is indented explains an option."""
    lines: list[str] = []
    for paragraph in description.split("\n\n"):
        indent = "  " if paragraph.startswith("  ") else ""
        text = re.sub(r"\s*\n\s*", " ", paragraph.strip())
        lines += ["", *_wrap(text, width, initial_indent=indent, subsequent_indent=2 * indent)]
    return lines[1:]


def _in_columns(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and the first sentence of their texts, each on one line."""
    column = max(len(name) for name, _ in rows) + 4
    return [
        f"  {name:{column - 2}}{textwrap.shorten(text, max(width - column, 20), placeholder=' ...')}"
        for name, text in rows
    ]


def describe_options(prog: str, description: str, options: Any) -> str:  # noqa: ANN401 - any flat dataclass
    """Return the text of `--help` for a command whose options are one dataclass: each in full."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    found = [field._replace(value=getattr(options, field.name)) for field in fields_of(type(options))]
    usage = f"usage: {prog} [--config FILE_OR_PRESET] [--name VALUE ...]"
    return "\n".join([*_filled(description, width), "", usage, "", *_in_full(found, width)])


def describe_section(prog: str, asked: str, values: Any) -> str:  # noqa: ANN401 - any dataclass of sections
    """Return the text of `--help SECTION` or `--help SECTION.BEGINNING`.

    Args:
        prog: The command, for the commands that the text suggests.
        asked: A section, `agent`, or the beginning of settings' names, `agent.noisy`: those are described in full, and
            so is everything by `all`.
        values: The dataclass of sections, with the values of a config file if there is one.

    Raises:
        ConfigError: No setting begins so.
    """
    width = shutil.get_terminal_size().columns
    if asked == ALL:
        names = [field.name for field in dataclasses.fields(values)]
        found = [each for name in names for each in settings(name, getattr(values, name), with_servers=True)]
        return "\n".join(_in_full(found, width))
    section = asked.partition(".")[0]
    own = getattr(values, section)
    found = list(settings(section, own, with_servers=True))
    wanted = asked.replace("-", "_")
    chosen = [setting for setting in found if asked == section or setting.name.startswith(wanted)]
    if not chosen:
        hint = nearest(wanted, [setting.name for setting in found])
        raise ConfigError(f"no setting starts with {asked!r}{hint}")
    if asked != section:
        return "\n".join(_in_full(chosen, width))
    chosen = [_as_one(setting) for setting in settings(section, own)]
    other = f"Settings of another algorithm: `{prog} --agent.algorithm NAME --help agent`."
    notes = [other] if section == "agent" else []
    head, foot = _wrap(f"{asked}: {summary(type(own))}", width), _wrap(" ".join(notes), width)
    room = SCREEN_LINES - len(head) - len(foot)
    body = _in_full(chosen, width)
    if len(body) > room:
        longest = max(chosen, key=lambda setting: len(setting.text)).name
        notes.append(f"`{prog} --help {longest}` explains a setting in full, or all settings with that prefix.")
        foot = _wrap(" ".join(notes), width)
        body = _shortened(chosen, width, SCREEN_LINES - len(head) - len(foot))
    return "\n".join([*head, *body, *foot])


def _as_one(setting: Setting) -> Setting:
    """Return a setting as a section's list shows it: those of a server share a line, whose value is the address."""
    if not isinstance(setting.value, ServerSettings):
        return setting
    text = f"{setting.text} `--help {setting.name}` lists them."
    return Setting(f"{setting.name}.NAME", setting.value.address, str, text)


def _shortened(chosen: Sequence[Setting], width: int, room: int) -> list[str]:
    """Return each setting with so many lines of its first sentence that all have room, at least one."""
    return next(
        (lines for most in (4, 3, 2) if len(lines := _in_lines(chosen, width, most)) <= room),
        _in_lines(chosen, width, 1),
    )


def _in_full(chosen: Sequence[Setting], width: int) -> list[str]:
    """Return each setting with its type, all of its text, and its value."""
    heads = [f"{_option(setting)} {_kind(setting.kind)}".rstrip() for setting in chosen]
    column = min(max(map(len, heads)) + 2, width // 2 - _INDENT)
    lines = []
    for head, setting in zip(heads, chosen, strict=True):
        wrapped = _wrap(f"{setting.text} (default: {_written(setting.value)})", width - _INDENT - column)
        beside = head if len(head) <= column - 2 else ""
        if not beside:
            lines += _wrap(head, width, initial_indent=" " * _INDENT, subsequent_indent=" " * 2 * _INDENT)
        lines += _beside(beside, column, wrapped)
    return lines


def _in_lines(chosen: Sequence[Setting], width: int, most: int) -> list[str]:
    """Return for each setting its name, its value, and at most so many lines of its first sentence."""
    options = [_option(setting) for setting in chosen]
    values = [textwrap.shorten(_written(setting.value), 16, placeholder="…") for setting in chosen]
    first, second = max(map(len, options)) + 2, max(map(len, values)) + 2
    lines = []
    for option, value, setting in zip(options, values, chosen, strict=True):
        sentence = _SENTENCE_END.split(setting.text, 1)[0].removesuffix(".")
        room = max(width - _INDENT - first - second, 20)
        wrapped = _wrap(sentence, room, max_lines=most, placeholder=" …")
        lines += _beside(f"{option:{first}}{value}", first + second, wrapped)
    return lines


def _beside(left: str, column: int, wrapped: Sequence[str]) -> list[str]:
    """Return wrapped lines with a text in front of the first."""
    return [f"{'':{_INDENT}}{left if i == 0 else '':{column}}{line}" for i, line in enumerate(wrapped)]


def _wrap(text: str, width: int, **options: Any) -> list[str]:  # noqa: ANN401 - those of TextWrapper
    return textwrap.wrap(text, width, break_on_hyphens=False, **options)


def _option(setting: Setting) -> str:
    return f"--{setting.name.replace('_', '-')}"


def _kind(kind: Any) -> str:  # noqa: ANN401 - what get_type_hints gives
    """Return the kind of value that an option takes, as a command line has it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return "|".join(map(_written, arguments))
    if type(None) in arguments:
        return f"{_kind(next(each for each in arguments if each is not type(None)))}|none"
    if origin in LISTS:
        return f"{_kind((*arguments, Any)[0])} ..."
    if origin is not None and issubclass(origin, Mapping):
        return "NAME VALUE ..."
    return {bool: "true|false", int: "INTEGER", float: "NUMBER", str: "TEXT"}.get(kind, "VALUE")


def _written(value: Any) -> str:  # noqa: ANN401 - any setting's
    """Return a value as a command line has it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return " ".join(f"{name} {each}" for name, each in value.items()) or "empty"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "empty"
    return json.dumps(value)
