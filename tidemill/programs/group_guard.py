"""`python -I -S group_guard.py`: kills process groups when standard input ends, as it does when a launcher is killed.

The kernel then ends the services (`tidemill.programs.child`), but not what those have started: simulators, or the
workers of an asynchronous vector environment. A line `+N` of the input adds a group, `-N` takes it away.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the input ends, then kill the groups that are left."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group)


def kill_group(group: int) -> None:
    """Send SIGKILL to every process of a group; nothing happens if there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
