"""A command that a test has launched, and the processes that it leaves."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support import launched as module
from tests.support.launched import launched


def test_close_does_not_wait_for_a_process_that_still_has_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the thread that reads the output closes it, when the last one who could write there has ended."""
    left = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True)
    monkeypatch.setattr(module, "fork_read", lambda *_, **__: left)
    with launched("train") as command:
        pid = int(command.until(r"^\d+$"))
        monkeypatch.setattr(module, "BOUND_S", 0.01)
    os.kill(pid, signal.SIGKILL)
    command._reader.join()
    assert command.process.stdout.closed
