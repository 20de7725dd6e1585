"""`python -I -S group_guard.py PROC`: kills what services have started when standard input ends, as with the launcher.

The kernel then ends the services (`tidemill.programs.child`), but not what those have started: simulators, or the
workers of an asynchronous vector environment. A line `+N MARK` of the input adds a service, by its process group and
the value of `MARK_VARIABLE` in its environment; `-N` takes it away. PROC is where the kernel describes processes.
"""

import contextlib
import os
import signal
import sys

MARK_VARIABLE = "TIDEMILL_STARTED_BY"
"""Environment variable inherited by all that a service starts, also in a new session, which some simulators open."""


def main(processes: str) -> None:
    """Read until the input ends, then kill what is left."""
    marks: dict[int, str] = {}
    for line in sys.stdin:
        group, _, mark = line[1:].strip().partition(" ")
        if line[0] == "+":
            marks[int(group)] = mark
        else:
            marks.pop(int(group), None)
    for each, mark in marks.items():
        kill_started(each, mark, processes)


def kill_started(group: int, mark: str, processes: str) -> None:
    """Send SIGKILL to every process of a group, and to every other with a mark where the kernel describes processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    variable = f"{MARK_VARIABLE}={mark}".encode()
    for pid in filter(str.isdigit, os.listdir(processes) if os.path.isdir(processes) else ()):
        # It may have ended, or be another user's.
        with contextlib.suppress(OSError), open(f"{processes}/{pid}/environ", "rb") as file:
            if variable in file.read().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
