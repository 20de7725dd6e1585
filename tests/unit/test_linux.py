"""The calls that only Linux has: one module makes them, and each has a second way that does the same."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill import linux

ROOT = Path(__file__).resolve().parents[2]
_BOUND_S = 60.0

_NAMES = {
    *("copy_file_range", "epoll", "eventfd", "fdatasync", "fsync", "memfd_create", "pidfd_open", "pidfd_send_signal"),
    *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "sendfile", "setns", "splice"),
    *("timerfd_create", "unshare", "waitid", "CLOCK_BOOTTIME", "F_ADD_SEALS", "F_SETPIPE_SZ", "MADV_DONTNEED"),
    *("MAP_NORESERVE", "MAP_POPULATE", "MSG_NOSIGNAL", "O_DIRECT", "O_PATH", "O_TMPFILE", "P_ALL", "P_PID"),
    *("SO_BINDTODEVICE", "SO_PEERCRED", "TCP_USER_TIMEOUT", "WNOWAIT"),
}
"""Names of Python's modules of the system that macOS lacks, or where they do something else."""
_MODULES = {"fcntl", "mmap", "os", "select", "signal", "socket", "time"}
_FILES = ("/proc", "/sys/", "/dev/shm")
_FORK_SERVER = {"tidemill/programs/fork_client.py", "tidemill/programs/fork_server.py"}
"""Where there is a fork server, there is Linux: its sockets keep the borders of messages."""


def _linux_only(path: Path) -> Iterator[str]:
    """Yield what a file uses of Linux alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    is_fork_server = str(path.relative_to(ROOT)) in _FORK_SERVER
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=module)) if name in _NAMES and module in _MODULES:
                yield f"line {node.lineno}: {name}"
            case ast.Attribute(attr="ru_maxrss"):  # KiB on Linux, bytes on macOS
                yield f"line {node.lineno}: ru_maxrss"
            case ast.Attribute(attr="SOCK_SEQPACKET") if not is_fork_server:
                yield f"line {node.lineno}: SOCK_SEQPACKET"
            case ast.ImportFrom(module=str(module), names=names) if module in _MODULES:
                yield from (f"line {node.lineno}: {each.name}" for each in names if each.name in _NAMES)
            case ast.Call(func=ast.Attribute(attr="CDLL" | "PyDLL"), args=[ast.Constant(value=None)]):
                yield f"line {node.lineno}: the C library"
            case ast.Constant(value=str(text)) if text.startswith(_FILES) and id(node) not in prose:
                yield f"line {node.lineno}: {text}"


def test_one_file_makes_the_calls_that_only_linux_has() -> None:
    """Every other file of the package takes them from `tidemill.linux`, where each has a second way."""
    files = [*(ROOT / "tidemill").rglob("*.py"), *(ROOT / "services").rglob("*.py")]
    own = ROOT / "tidemill" / "linux.py"
    found = {str(path.relative_to(ROOT)): list(_linux_only(path)) for path in files if path != own}
    assert len(found) > 300
    assert {path: uses for path, uses in found.items() if uses} == {}
    assert list(_linux_only(own))


@pytest.mark.parametrize(
    "line",
    [
        "os.memfd_create('a')",
        "from os import pidfd_open",
        "ctypes.CDLL(None).getpid()",
        "open('/proc/self/stat')",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "resource.getrusage(0).ru_maxrss",
    ],
)
def test_call_that_only_linux_has_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, its file, or the library that it is taken from."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "file.py").write_text(line)
    assert len(list(_linux_only(tmp_path / "file.py"))) == 1


@pytest.fixture(params=[True, False], ids=["linux", "portable"])
def available(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Have the module do as on Linux, or as elsewhere; return which."""
    value = bool(request.param)
    monkeypatch.setattr(linux, "AVAILABLE", value)
    return value


@pytest.mark.usefixtures("available")
def test_space_is_reserved_and_what_is_there_stays(tmp_path: Path) -> None:
    """A file is lengthened by zeros; one that is long enough is left alone."""
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    with path.open("r+b") as file:
        linux.reserve_space(file.fileno(), 10_000)
        linux.sync_data(file.fileno())
        linux.reserve_space(file.fileno(), 100)
        linux.sync(file.fileno())
    assert path.read_bytes() == b"kept" + bytes(9_996)
    assert path.stat().st_blocks * 512 >= 10_000


@pytest.mark.usefixtures("available")
def test_reserving_space_on_a_full_disk_is_an_error() -> None:
    """As a write would have been."""
    with Path("/dev/full").open("wb") as file, pytest.raises(OSError, match=r"No space|Illegal|Invalid|No such device"):
        linux.reserve_space(file.fileno(), 10)


@pytest.mark.parametrize("can_fork", [True, False])
def test_end_of_a_child_is_waited_for(can_fork: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has ended or the time is over; its exit code is there afterwards."""
    monkeypatch.setattr(linux, "CAN_FORK", can_fork)
    with subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE) as child:
        linux.wait_for_end(child.pid, 0.05)
        assert child.poll() is None
        child.communicate(b"\n", timeout=_BOUND_S)
        assert child.returncode == 3
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(4)"]) as child:
        linux.wait_for_end(child.pid, _BOUND_S)
        assert child.poll() == 4


_TRACER = """
import ctypes, sys, time
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
print(libc.ptrace(ctypes.c_long(0x4206), ctypes.c_long(pid), None, None), flush=True)  # PTRACE_SEIZE
time.sleep(1.0)  # in which it is not told that the process has ended, and the parent neither
"""
_TRACED = """
import ctypes
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: whoever wants to
print(flush=True)
input()
"""


@pytest.mark.requires_linux
@pytest.mark.parametrize("can_fork", [True, False])
def test_end_of_a_traced_child_is_waited_for(can_fork: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of one that py-spy looks into: it has ended, but its exit code is the tracer's first."""
    monkeypatch.setattr(linux, "CAN_FORK", can_fork)
    traced = [sys.executable, "-c", _TRACED]
    with subprocess.Popen(traced, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tracing = [sys.executable, "-c", _TRACER, str(child.pid)]
        with subprocess.Popen(tracing, stdout=subprocess.PIPE, text=True) as tracer:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != "0\n":
                pytest.skip("this system lets nobody trace a process")
            assert child.stdin is not None
            child.stdin.close()
            linux.wait_for_end(child.pid, _BOUND_S)
            assert os.waitpid(child.pid, os.WNOHANG)[0] == child.pid
            child.returncode = 1  # waited for


def test_children_are_found(available: bool) -> None:
    """In a process that starts one and loses it."""
    if not available and shutil.which("pgrep") is None:
        pytest.skip("there is no pgrep, which every macOS has")
    script = (
        "import subprocess, sys; from tidemill import linux\n"
        f"linux.AVAILABLE = {available}\n"
        "print(linux.has_children())\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(linux.has_children())\n"
        "child.communicate(b'\\n')\n"
        "print(linux.has_children())\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_BOUND_S, check=True)
    assert said.stdout.split() == ["False", "True", "False"]


_PARENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=0, stdout=2).pid, flush=True)
input()
"""
_CHILD = """
import os, signal, sys, threading
from tidemill import linux
linux.AVAILABLE = {available}
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"told\\n"), os._exit(0)))  # "ready" may not be out
linux.end_with_parent(signal.SIGTERM)
print("ready", flush=True)
while True:
    threading.Event().wait(0.1)
"""


def test_process_is_told_of_its_parents_end(available: bool) -> None:
    """By the kernel, or by a separate thread that asks who the parent is; a living parent is left alone."""
    read, write = os.pipe()
    command = [sys.executable, "-c", _PARENT, _CHILD.format(available=available)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write, text=True) as parent,
        open(read, encoding="utf-8") as said,
    ):
        os.close(write)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert said.readline() == "ready\n"
            parent.kill()
            parent.wait(_BOUND_S)
            assert said.readline() == "told\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_memory_is_shared_on_linux_alone(available: bool) -> None:
    """Elsewhere asking for it is refused, and each rank keeps a mirror."""
    if available:
        os.close(linux.memory_file("test"))
    else:
        with pytest.raises(OSError, match="memfd"):
            linux.memory_file("test")


def test_memory_is_not_shared_by_a_python_that_cannot_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that uv installed for years."""
    monkeypatch.setattr(linux, "AVAILABLE", True)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="memfd"):
        linux.memory_file("test")


@pytest.mark.requires_linux
@pytest.mark.parametrize(
    "lack, expected",
    [
        ("", "True True"),
        ("del os.pidfd_open", "True False"),
        ("del signal.pidfd_send_signal", "True False"),
        ("os.pidfd_open = lambda pid: os.stat(f'/nowhere/{pid}')", "True False"),
    ],
)
def test_nothing_is_forked_without_descriptors_of_processes(lack: str, expected: str) -> None:
    """Pythons that uv installed for years lack the functions, and kernels before 5.3 the call."""
    there = "import os, signal; os.pidfd_open, signal.pidfd_send_signal = lambda pid: os.dup(1), print"
    script = f"{there}; {lack}\nfrom tidemill import linux; print(linux.AVAILABLE, linux.CAN_FORK)"
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=True).stdout
    assert said.split() == expected.split()


def test_processors_are_counted(available: bool) -> None:
    """Those that the process may use, or all."""
    expected = os.sched_getaffinity(0) if available else set(range(os.cpu_count() or 1))
    assert linux.allowed_processors() == expected
    linux.pin_threads(expected)


_SHOW = "from tidemill import linux as a, container_limits as c; print(a.AVAILABLE, a.LONGEST_SOCKET, a.MAP_NORESERVE, "
_SHOW += "a.mallopt() is None, a.available_memory_bytes() is None, c.memory_bytes() is None)"


@pytest.mark.parametrize(
    "value, expected",
    [("", "True 107 16384 False False"), ("0", "True 107 16384 False False"), ("1", "False 103 0 True True True")],
)
def test_variable_turns_the_calls_off(value: str, expected: str) -> None:
    """A process reads it once, when it starts."""
    environment = os.environ | {linux.VARIABLE: value}
    command = [sys.executable, "-c", _SHOW]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BOUND_S, check=True).stdout
    assert said.startswith(expected)


_WEIGHED = "from tidemill import linux; print(linux.resident_bytes())"
_LARGE = (
    f"import subprocess, sys; b = bytearray(b'x') * (300 << 20); subprocess.run([sys.executable, '-c', {_WEIGHED!r}])"
)


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps")
@pytest.mark.parametrize("value", ["0", "1"])
def test_memory_of_a_process_is_not_that_of_the_one_that_started_it(value: str) -> None:
    """A worker of some MiB that a large actor starts is not above `env.max_memory_mib`."""
    environment = os.environ | {linux.VARIABLE: value}
    command = [sys.executable, "-c", _LARGE]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BOUND_S, check=True).stdout
    assert 1 << 20 < int(said) < 150 << 20
