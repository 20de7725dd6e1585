"""Moments as an operator writes them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest

from tests.support.naming import naming
from tidemill.services.replay.commands.options import moment

_NOW_S = 1_700_000_000.0


@pytest.mark.parametrize("text, ago", [("30s", 30), ("90m", 5400), ("1.5h", 5400), ("7d", 604_800)])
def test_how_long_ago_is_counted_from_now(text: str, ago: int) -> None:
    """Seconds, minutes, hours or days."""
    assert moment(text, clock=lambda: _NOW_S) == _NOW_S - ago


def test_iso_times_are_local_unless_they_name_a_zone() -> None:
    """A date is its first moment."""
    assert moment("2026-11-23T14:30+01:00") == datetime(2026, 11, 23, 13, 30, tzinfo=UTC).timestamp()
    assert moment("2026-11-23T14:30") == datetime(2026, 11, 23, 14, 30).timestamp()
    assert moment("2026-11-23") == datetime(2026, 11, 23).timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "5w", "-3h", "12"])
def test_anything_else_is_refused_with_what_may_be_written(text: str) -> None:
    """A number alone is not a time."""
    with pytest.raises(argparse.ArgumentTypeError, match=naming(repr(text), "2026-11-23T14:30 7d")):
        moment(text)
