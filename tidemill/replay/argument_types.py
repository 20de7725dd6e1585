"""Types of what a program gives to replay clients: a mistake ends in a TypeError that says what to give instead."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import numpy as np

from tidemill.errors import InvalidArgument
from tidemill.rpc.addresses import is_client_address


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
    """Raise TypeError unless a value is an integer, of Python or NumPy; a bool is none."""
    if not isinstance(value, bool):
        with suppress(TypeError):
            operator.index(value)
            return
    raise TypeError(f"{name} is {_shown(value)}, must be an integer")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise TypeError unless a value is an integer, InvalidArgument unless it is `low` .. `high`."""
    check_integer(name, value)
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}, must be {low} .. {high}")


def check_at_least_1(name: str, value: int) -> None:
    """Raise TypeError unless a value is an integer, InvalidArgument unless it is at least 1."""
    check_integer(name, value)
    if value < 1:
        raise InvalidArgument(f"{name} is {value}, must be at least 1")


def check_number(name: str, value: object, *, or_none: bool = False) -> None:
    """Raise TypeError unless a value is a number, of Python or NumPy, or None where that is allowed."""
    if not (or_none and value is None):
        check_type(name, value, (int, float, np.number), "a number or None" if or_none else "a number")


def check_deadline(name: str, value: float) -> None:
    """Raise TypeError unless a deadline is a number, InvalidArgument unless it is above 0, as infinity is."""
    check_number(name, value)
    if not value > 0:
        raise InvalidArgument(f"{name} is {value}, must be above 0")


def check_address(address: str) -> None:
    """Raise TypeError unless an address is a string, InvalidArgument unless it is one of a server."""
    check_type("address", address, str, "'HOST:PORT' or 'unix:///path', as Server.address")
    if not is_client_address(address):
        raise InvalidArgument(f"address is {address!r}, must be 'HOST:PORT' or 'unix:///path'")


def _shown(value: object) -> str:
    return repr(value)[:80] if isinstance(value, str | bytes | int | float) else f"a {type(value).__name__}"
