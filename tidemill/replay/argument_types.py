"""Types of what a program gives to replay clients: a mistake ends in a TypeError that says what to give instead."""

from __future__ import annotations

import operator
from typing import Any


def check_type(name: str, value: object, kinds: type | tuple[type, ...], instead: str) -> None:
    """Raise TypeError unless a value is of one of some types.

    Args:
        name: Of the argument.
        value: What was given for it.
        kinds: Its types.
        instead: What it must be, with an example, for the message.
    """
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is {_shown(value)}, must be {instead}")


def check_integer(name: str, value: Any) -> None:  # noqa: ANN401 - what is checked
    """Raise TypeError unless a value is an integer, of Python or NumPy."""
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {_shown(value)}, must be an integer") from None


def _shown(value: object) -> str:
    return repr(value)[:80] if isinstance(value, str | bytes | int | float) else f"a {type(value).__name__}"
