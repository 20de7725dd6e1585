"""A clock for limits that leaves out the time in which the process stood still."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from tests.support.clock import Clock
from tests.support.processes import stop_beyond
from tests.support.waiting import WAIT_S, crowd
from tidemill.awake_clock import AwakeClock, AwakeTimer

_TIMED = """
import os, sys, threading
from tidemill.awake_clock import AwakeTimer
timer = AwakeTimer(float(sys.argv[1]), lambda: os._exit(3))
timer.start()
print(flush=True)
input()
threading.Event().wait(0.5)
timer.cancel()
"""
"""Program that ends with 3 if its timer comes before it is cancelled."""


def test_time_without_readings_counts_once_up_to_the_longest_wait() -> None:
    """Readings in time count in full; an hour between two of them counts as one wait."""
    now = Clock(100.0)
    clock = AwakeClock(1.0, now)
    seen = []
    for step_s in (0.0, 0.25, 1.0, 3600.0, 0.5):
        now.now_s += step_s
        seen.append(clock())
    assert seen == [0.0, 0.25, 1.25, 2.25, 2.75]


def test_timer_of_a_process_that_is_stopped_beyond_its_interval_does_not_come() -> None:
    """It has its time again once the process continues."""
    interval_s = 3.0 * min(crowd(), 3.0)
    command = [sys.executable, "-c", _TIMED, str(interval_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        stop_beyond(program, interval_s + 1.0)
        program.communicate(b"\n", WAIT_S)
    assert program.returncode == 0


def test_timer_comes_after_its_interval() -> None:
    """Once, and not before."""
    came, began_s = threading.Event(), time.monotonic()
    AwakeTimer(0.05, came.set).start()
    assert came.wait(WAIT_S)
    assert time.monotonic() - began_s >= 0.05
