"""Options of the commands on a running server: its address, the wait for it, and moments as an operator writes them."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from datetime import datetime

from tidemill.settings.argument_parser import ArgumentParser

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def command_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return the parser of `tidemill replay NAME`, whose first argument is the server's `address`."""
    parser = ArgumentParser(prog=f"tidemill replay {name}", description=about)
    parser.add_argument(
        "address", help="address of the server, such as 127.0.0.1:7401 (`tidemill status` shows those of a run)"
    )
    return parser


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option `--timeout-s`."""
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds to wait for a response from the server (default: 60)",
    )


def moment(text: str, clock: Callable[[], float] = time.time) -> float:
    """Return the Unix time, in seconds, that `text` says: ISO 8601, or how long ago, such as `90m`.

    A time without a time zone is local. argparse shows the error.
    """
    if match := _AGO.fullmatch(text):
        return clock() - float(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-11-23, 2026-11-23T14:30 or 2026-11-23T14:30+01:00, or how long ago: "
            "30s, 90m, 12h, 7d"
        ) from None


def add_times(parser: argparse.ArgumentParser) -> None:
    """Add the options `--since` and `--until`, whose values are `since` and `until`."""
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="only items inserted then or later: 2026-11-23T14:30, or 2h for two hours ago",
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="only items inserted before then")


def times_of(options: argparse.Namespace) -> dict[str, float | None]:
    """Return the values of the options of `add_times`."""
    return {"since_s": options.since, "until_s": options.until}
