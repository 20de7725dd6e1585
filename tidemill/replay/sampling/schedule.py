"""Draws that are the same in each run: which seed each has, and when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.replay.client import ReplayClient


@dataclass(frozen=True, slots=True)
class SeededDraw:
    """Parameters that make a draw repeatable.

    Attributes:
        seed: Of the draw, 0 to 2**64 - 1.
        at_step_count: Steps that the streams of all actors have together when it is drawn.
    """

    seed: int
    at_step_count: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of the samples of a run in lock-step.

    Attributes:
        draw_of: Returns how a sample is drawn, given its number.
        first: Number of the first sample.
        prepare: Called in a thread after each connection, before anything is drawn.
    """

    draw_of: Callable[[int], SeededDraw]
    first: int = 0
    prepare: Callable[[ReplayClient], None] = lambda _: None
