"""Processes that end when the one that started them does, however that ends and whatever they are doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.process

_PARENT = """
import os, subprocess, sys, time
from tidemill.parent import PARENT_VARIABLE
os.environ[PARENT_VARIABLE] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-m", "tidemill.programs.child", *sys.argv[1:]], stdout=subprocess.PIPE,
                         stdin=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(3600)
"""


def test_child_ends_with_its_parent_even_when_frozen() -> None:
    """Killed, the parent asks for nothing any more: the kernel ends a child that could not act on a signal."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, "tests.process.speaks", "hello"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, said = parent.stdout.readline().split()
    assert said == "hello"
    child = os.pidfd_open(int(pid))
    try:
        os.kill(int(pid), signal.SIGSTOP)
        parent.kill()
        parent.wait()
        assert select.select([child], [], [], WAIT_S)[0] == [child]  # readable when the process has ended
    finally:
        os.close(child)
        parent.stdout.close()


def test_child_of_a_parent_that_is_gone_ends_before_it_does_anything() -> None:
    """The parent died between the start and the request to the kernel."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    said = _run("tests.process.speaks", "hello", TIDEMILL_PARENT_PID=str(gone.pid))
    assert (said.returncode, said.stdout) == (0, "")


def test_child_runs_a_module_as_python_does() -> None:
    """Arguments and the exit code are the module's own; the mark of the parent is not handed on."""
    said = _run("tests.process.speaks", "{environment}", TIDEMILL_PARENT_PID=str(os.getpid()))
    assert (said.returncode, said.stdout) == (7, "None\n")


def test_child_that_is_asked_to_finish_while_it_imports_finishes(tmp_path: Path) -> None:
    """The request waits for the service that will act on it; it does not end the process."""
    (tmp_path / "late.py").write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGUSR1)  # comes while it imports\n"
        "from tidemill.process import signal_event\n"
        f"print(signal_event(signal.SIGUSR1).wait({WAIT_S}), flush=True)\n"
    )
    said = _run("late", PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    assert (said.returncode, said.stdout) == (0, "True\n"), said.stderr


def _run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemill.programs.child", *words],
        input="",
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=WAIT_S,
        check=False,
    )
