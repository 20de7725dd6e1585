"""Ctrl-C in the first moments of a command, while it imports its modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill import interrupts

_INTERRUPTS_ITSELF = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def _run(folder: Path, module: str, *arguments: str, is_held: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program that gets SIGINT when it first imports a module."""
    (folder / "sitecustomize.py").write_text(_INTERRUPTS_ITSELF)
    environment = os.environ | {"PYTHONPATH": str(folder), "INTERRUPTED_AT": module}
    how = signal.SIG_BLOCK if is_held else signal.SIG_UNBLOCK
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    "module, command",
    [
        ("tidemill.process", "status"),  # of the command itself
        ("tidemill.services.launcher.commands.train", "train"),  # of the subcommand
        ("tidemill.services.paramserver.catalog", "paramserver"),  # of a service, which takes the process's place
    ],
)
def test_command_that_is_interrupted_while_it_imports_ends_silently(tmp_path: Path, module: str, command: str) -> None:
    """SIGINT ends it, which a shell shows as 130; there is no traceback."""
    ended = _run(tmp_path, module, "tidemill.services.launcher", command)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_interrupt_between_two_programs_of_a_process_waits(tmp_path: Path) -> None:
    """What is held across `exec` ends the next program at its first line, without a traceback of Python's start."""
    ended = _run(tmp_path, "tidemill", "tidemill.interrupts", "this", is_held=True)
    assert (ended.returncode, ended.stderr, ended.stdout) == (-signal.SIGINT, "", "")


def test_interrupt_raises_again_once_the_command_runs() -> None:
    """A command cleans up after KeyboardInterrupt as before; an ignored SIGINT stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    try:
        for first, then in ((signal.default_int_handler, signal.SIG_DFL), (signal.SIG_IGN, signal.SIG_IGN)):
            signal.signal(signal.SIGINT, first)
            interrupts.end_silently()
            assert signal.getsignal(signal.SIGINT) is then
            interrupts.raise_again()
            assert signal.getsignal(signal.SIGINT) is first
    finally:
        signal.signal(signal.SIGINT, before)
