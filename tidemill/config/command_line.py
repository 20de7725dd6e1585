"""Puts a command line's options over settings; mostly without tyro, whose parser takes longer than all the rest."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.config.overlay import overlay
from tidemill.errors import ConfigError
from tidemill.rl.agents.registry import algorithms, config_class

if TYPE_CHECKING:
    import tyro

_T = TypeVar("_T")

_NONE = ("none", "null")


def with_options(settings: _T, arguments: Sequence[str], *, prog: str, description: str) -> _T:
    """Return the settings of one process with the options of its command line.

    Args:
        settings: The process's dataclass of sections, as its file has it.
        arguments: The command line without the program's name, `--config` and `--agent.algorithm`.
        prog: Name in `--help`.
        description: First paragraph of `--help`.

    Raises:
        ConfigError: a setting is of another algorithm, or out of range.
        SystemExit: `--help` was asked for (0), or the command line is wrong (2).
    """
    _check_algorithms_options(arguments, settings)
    words = _as_tyro_has_them(list(arguments), settings)
    document = document_of_words(words, settings)
    return read_by_tyro(settings, words, prog, description) if document is None else overlay(settings, document)


def document_of_words(words: Sequence[str], settings: object) -> dict[str, Any] | None:
    """Return a command line as a document for `overlay`; None if it takes tyro to read it, or to say what is wrong.

    A process would else build a parser of several hundred options at its start, mostly for a few numbers and names.

    Args:
        words: As tyro has them: `--section.name VALUE`, `--section.name=VALUE`, and for a switch `--section.name` or
            `--section.no_name`.
        settings: The dataclass of sections.
    """
    document: dict[str, Any] = {}
    rest = list(words)
    while rest:
        option, separator, text = rest.pop(0).partition("=")
        *sections, name = option.removeprefix("--").replace("-", "_").split(".")
        owner = _owner(settings, sections)
        if not option.startswith("--") or not sections or owner is None:
            return None
        kinds = typing.get_type_hints(type(owner))
        value: object = None
        if name not in kinds and name.startswith("no_"):
            name, value = name.removeprefix("no_"), False
        if kinds.get(name) is bool:
            if separator:
                return None
            value = value is None
        else:
            if value is False or not (separator or rest):
                return None
            try:
                value = _read_word(text if separator else rest.pop(0), kinds.get(name))
            except ValueError:
                return None
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        if name in place:
            return None
        place[name] = value
    return document


def _read_word(text: str, kind: Any) -> object:  # noqa: ANN401 - a type, or what typing has for one
    """Return the value of a setting of a kind. ValueError: it is not one that is read here."""
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal and text in choices:
        return text
    if len(choices) == 2 and choices[1] is type(None):
        if text == "None":
            return None
        kind = choices[0]
    if kind not in (int, float, str) or (kind is str and (not text or text.startswith("-"))):
        raise ValueError(kind)
    value: object = kind(text)
    return value


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


def read_by_tyro(settings: _T, words: Sequence[str], prog: str, description: str) -> _T:
    """Return settings with a command line put over them; SystemExit as of `load`."""
    import tyro  # takes longer than all that is read without it

    sources = (
        "Settings come from --config FILE.yaml, or --config NAME of `tidemill configs`, then from the options below. "
        f"{_list_sections(prog, type(settings))}"
    )
    about = f"{description}\n\n{sources}"
    agent = getattr(settings, "agent", None)
    if agent is not None:
        about += f"\n\n{_describe_algorithms(prog, agent.algorithm)}"
    with _algorithm_choices():
        return tyro.cli(type(settings), prog=prog, description=about, default=settings, args=words)


def _list_sections(prog: str, config: type[Any]) -> str:
    """Return the sentence of `--help` that says how to see a part of it."""
    names = [field.name for field in dataclasses.fields(config)]
    return (
        f"`{prog} --help SECTION` shows those of one section on a screen: {', '.join(names)}; "
        f"`{prog} --help SECTION.NAME` says all of a setting, and of those that begin alike."
    )


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


def _algorithm_choices() -> tyro.constructors.ConstructorRegistry:
    """Return rules by which `--help` shows all algorithms as the choices of `agent.algorithm`."""
    import tyro

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
