"""Messages about invalid settings: the value, what is allowed, and the name that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tidemill.errors import ConfigError

_SHORT = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
SAFE_NAME = "letters, digits, `_`, `-` and `.`, a letter or digit first; at most 128 characters"
"""Names that are safe as a file name and as an actor's name, in words."""


def check(is_valid: bool, field: str, value: object, allowed: str) -> None:
    """Raise a `ConfigError` that names the field, its value and what is allowed, unless `is_valid`."""
    if not is_valid:
        raise ConfigError(f"{field} is {value!r}, allowed: {allowed}")


def check_at_least(least: int, section: str, settings: object, *names: str) -> None:
    """Check that each of some settings of a section is at least a number."""
    allowed = f"at least {least}" if least > 0 else f"{least} or more"
    for name in names:
        check((value := getattr(settings, name)) >= least, f"{section}.{name}", value, allowed)


def check_positive(section: str, settings: object, *names: str) -> None:
    """Check that each of some settings of a section is more than 0."""
    for name in names:
        check((value := getattr(settings, name)) > 0, f"{section}.{name}", value, "more than 0")


def check_between(low: int, high: int, section: str, settings: object, *names: str) -> None:
    """Check that each of some settings of a section is in a range, both ends included."""
    for name in names:
        check(low <= (value := getattr(settings, name)) <= high, f"{section}.{name}", value, f"{low} to {high}")


def check_that(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with a message, unless a condition holds."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Add the lines of a ConfigError raised in the block to a list, so that all are told at once."""
    try:
        yield
    except ConfigError as error:
        problems += str(error).splitlines()


def refuse(problems: Iterable[str]) -> None:
    """Raise a ConfigError with a line for each problem, unless there is none."""
    if lines := list(dict.fromkeys(problems)):
        raise ConfigError("\n".join(lines))


def is_safe_name(name: str) -> bool:
    """True if a name is a `SAFE_NAME`."""
    return _NAME.fullmatch(name) is not None


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean 'X'?` for the known name closest to a mistyped one, or an empty string.

    Args:
        name: The name as written.
        known: Names that could have been meant.
        prefix: Put before the known name, e.g. `learner.`.
    """
    close = closest(name, known, cutoff=0.5)
    return f"; did you mean {prefix + close!r}?" if close else ""


def closest(name: str, known: Iterable[str], cutoff: float) -> str:
    """Return the known name that a mistyped one is closest to, at least a cutoff from 0 to 1; empty if there is none.

    Short names are alike by chance, as a2c and sac: one of up to four letters has to begin as what is meant.
    """
    short = len(name) <= _SHORT
    begin_alike = [each for each in known if not short or each[:1] == name[:1]]
    return next(iter(difflib.get_close_matches(name, begin_alike, 1, cutoff)), "")
