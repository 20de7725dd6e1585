"""The calls that only Linux has, each with what other systems do instead; no other file of the package makes them.

`TIDEMILL_PORTABLE=1` has Linux do as the other systems do, so that the second way of each is tested there. It is read
once, when this module is imported.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

VARIABLE = "TIDEMILL_PORTABLE"
"""The environment variable that turns the calls off with the value 1."""

AVAILABLE = sys.platform == "linux" and os.environ.get(VARIABLE, "") in ("", "0")
"""Whether the calls are in use."""

_NOWHERE = Path(os.devnull)  # no folder: nothing is found below it
PROC = Path("/proc") if AVAILABLE else _NOWHERE
"""Where the kernel describes processes and the machine; elsewhere a path below which nothing can be read."""
CGROUPS = Path("/sys/fs/cgroup") if AVAILABLE else _NOWHERE
"""Where control groups state their limits; elsewhere a path below which nothing can be read."""
PCI_DEVICES = Path("/sys/bus/pci/devices") if AVAILABLE else _NOWHERE
"""A folder for each device of the PCI bus; elsewhere a path below which nothing can be read."""
SHM = Path("/dev/shm")
"""The memory that NCCL shares between processes. NCCL is for Linux alone."""

LONGEST_SOCKET = 107 if AVAILABLE else 103
"""Bytes of the longest path of a Unix socket: `sun_path` of unix(7), or of macOS and the BSDs."""

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""Name of the loopback interface."""

MAP_NORESERVE = 0x4000 if AVAILABLE else 0
"""Flag of mmap: memory is not promised before it is written. `mmap` names it from Python 3.13 on. macOS never does."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CREDENTIALS = struct.Struct("3i")  # process, user and group of a Unix socket's other side
_PARENT_POLL_S = 0.2
_END_POLL_S = 0.01


def _has_process_descriptors() -> bool:
    """True if Python and the kernel have pidfds; uv's older Pythons and Linux before 5.3 lack them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


CAN_FORK = AVAILABLE and _has_process_descriptors()
"""Whether there can be a fork server. Where there is none, services are started as programs."""


def end_with_parent(number: int) -> None:
    """Have this process get a signal when its parent ends.

    The kernel sends it, also to a process that is frozen. Elsewhere a thread asks five times a second who the parent
    is; the launcher's guard kills services that are frozen (`tidemill.programs.group_guard`). A parent that has ended
    before the call is the caller's to notice.
    """
    if AVAILABLE:
        _prctl(_PR_SET_PDEATHSIG, number)
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def adopt_orphans(wanted: bool) -> None:
    """Make this process the parent of those below it whose own parent ends, or no longer; see `AVAILABLE`.

    The fork server needs it.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


def open_process(pid: int) -> int:
    """Return a descriptor that is readable once a child process has ended; see `CAN_FORK`."""
    return os.pidfd_open(pid)


def signal_process(descriptor: int, number: int) -> None:
    """Send a signal to the process of a descriptor; raises ProcessLookupError if it has ended. See `CAN_FORK`."""
    signal.pidfd_send_signal(descriptor, number)


def wait_for_end(pid: int, timeout_s: float | None) -> None:
    """Wait until a child process has ended, or the time is over, and leave its exit code to `os.waitpid`."""
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    if CAN_FORK:
        descriptor, poll = os.pidfd_open(pid), select.poll()
        try:
            poll.register(descriptor, select.POLLIN)
            poll.poll(None if timeout_s is None else 1000 * timeout_s)
        finally:
            os.close(descriptor)
    # Of a traced process, as with py-spy or strace, the kernel says first that it has ended, and then to its tracer
    # with which code.
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # macOS has these from Python 3.13 on, and no fork server to call this
    while os.waitid(os.P_PID, pid, how) is None and time.monotonic() < deadline_s:
        time.sleep(_END_POLL_S)


def has_children() -> bool:
    """True if this process has child processes, including ended ones that were not waited for."""
    if AVAILABLE:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True
    return subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, check=False).returncode == 0


def memory_file(name: str) -> int:
    """Return the descriptor of a new file in memory that is in no folder and can be sealed.

    Raises:
        OSError: The system has no such files: then nothing is shared.
    """
    if not AVAILABLE or not hasattr(os, "memfd_create"):  # as uv's older Pythons
        raise OSError(errno.ENOTSUP, "this system or Python has no memfd (anonymous memory files)")
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int) -> None:
    """Let no process change the size of a `memory_file` any more."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def abstract_address(name: str) -> bytes:
    """Return the address of a Unix socket that is in no folder and goes with its process; see `memory_file`."""
    return b"\0" + name.encode()


def peer_user(connection: socket.socket) -> int:
    """Return the user of the process at the other side of a Unix socket; see `memory_file`."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def reserve_space(descriptor: int, size_bytes: int) -> None:
    """Lengthen a file to a size whose blocks the disk has then set aside; what is in the file stays.

    Raises:
        OSError: The disk refused.
    """
    if AVAILABLE:
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    end = os.fstat(descriptor).st_size
    while end < size_bytes:
        end += os.pwrite(descriptor, bytes(size_bytes - end), end)


def sync(descriptor: int) -> None:
    """Wait until the disk has a file or folder. On macOS `fsync` returns before, and F_FULLFSYNC does not."""
    if (flush := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(descriptor, flush)
        except OSError:  # a file system without it
            pass
        else:
            return
    os.fsync(descriptor)


def begin_sync(descriptor: int) -> None:
    """Have the disk start to write what was written to a file; a `sync` that follows waits for less. Never waits."""
    if AVAILABLE:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_data(descriptor: int) -> None:
    """Wait until the disk has what was written to a file, and as much of its description as it takes to read it."""
    if AVAILABLE:
        os.fdatasync(descriptor)
    else:
        sync(descriptor)


def allowed_processors() -> set[int]:
    """Return the numbers of the processors that this process may use; elsewhere, of all that there are."""
    return os.sched_getaffinity(0) if AVAILABLE else set(range(os.cpu_count() or 1))


def pin_threads(processors: Collection[int]) -> None:
    """Keep all threads of this process, and those that they start, on some processors; elsewhere they stay free."""
    if not AVAILABLE:
        return
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread), processors)


def available_memory_bytes(meminfo: Path = PROC / "meminfo") -> int | None:
    """Return the memory that can be taken without swapping, files counted that are only cached; None if unknown."""
    try:
        lines = meminfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def resident_bytes() -> int:
    """Return the memory that this process occupies; elsewhere `ps` is asked, which takes some milliseconds."""
    if AVAILABLE:
        pages = (PROC / "self" / "statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()
    # not ru_maxrss: a process that was started by a larger one inherits its peak
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


def mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function that sets how memory is allocated; None where there is another C library."""
    if not AVAILABLE:
        return None
    try:
        function: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except AttributeError:
        return None
    return function


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
