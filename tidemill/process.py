"""Behaviour every process shares: end on a signal or with its launcher, explain fatal errors, keep freed memory."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from tidemill import interrupts, linux
from tidemill.background_stream import BackgroundStream
from tidemill.errors import ConfigError, EnvFailed, FatalError, GpuLost, TidemillError, UnknownFormat
from tidemill.parent import stop_with_parent

ENDS_WITH_INPUT = "TIDEMILL_ENDS_WITH_INPUT"
"""Environment variable that tells a launcher to stop its run when its standard input ends."""

NAMES_ERRORS = "TIDEMILL_NAMES_ERRORS"
"""Environment variable that has a process put the class of an error before its message, for who raises it again."""

HELD_UP = 75
"""Exit code of a process that its environment holds up: EX_TEMPFAIL of sysexits.h, to be started again."""

GPU_LOST = 69
"""Exit code of a process that has lost its GPU: EX_UNAVAILABLE of sysexits.h, to be started again later."""

ENV_FAILED = 70
"""Exit code of a process whose environment keeps failing: EX_SOFTWARE of sysexits.h. Another process would not help."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KEPT_BYTES = 2**30

_actions: dict[int, Callable[[int], None]] = {}  # of this process, by signal


def run(service: str, main: Callable[[], int]) -> int:
    """Run a process's main function; return its exit code.

    Returns:
        What `main` returned; 1 after a Tidemill error, 2 after a wrong setting or a file of an unknown format,
        `ENV_FAILED` after an environment that keeps failing, `GPU_LOST` after a GPU that is lost, each explained on
        standard error; 130 after Ctrl-C; 141 if the reader of standard output left. Other exceptions are bugs and keep
        their traceback.
    """
    stop_with_parent()
    interrupts.raise_again()
    names_errors = os.environ.pop(NAMES_ERRORS, "")  # of this process alone
    try:
        return end_with_reader(main)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ConfigError, UnknownFormat) as error:
        print(_printable(f"{service}: {error}"), file=sys.stderr)
        return 2
    except TidemillError as error:
        kind = f"{type(error).__name__}: " if names_errors and not isinstance(error, FatalError) else ""
        print(_printable(f"{service}: {kind}{error}"), file=sys.stderr)
        if isinstance(error, GpuLost):
            return GPU_LOST
        return ENV_FAILED if isinstance(error, EnvFailed) and error.is_final else 1


def _printable(text: str) -> str:
    """Return a text with escapes in place of what a terminal would not show but obey, such as to move its cursor."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def _open_standard_streams() -> None:
    """Give a process that was started without standard streams, by `>&-` for one, those of nothing."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue  # something else has its number by now
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for as long as the process lives


class _Lossy:
    """A stream that loses what its file does not take."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose the text."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or leave it."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the stream has
        """Return an attribute of the stream."""
        return getattr(self._stream, name)


def survive_without_output() -> None:
    """From now on lose what standard output and error do not take: a full disk, a terminal that is gone, `| head`.

    What nobody takes, as of a terminal that was stopped by Ctrl-S, holds up nothing either. For a process that only
    reports on the side what it is there for.
    """
    sys.stdout, sys.stderr = _lossy(sys.stdout, sys.__stdout__), _lossy(sys.stderr, sys.__stderr__)


def _lossy(stream: TextIO, original: TextIO | None) -> TextIO:
    """Return a stream that loses what `stream` does not take, and does not wait for it if it is the process's own."""
    with contextlib.suppress(OSError, ValueError):  # it is closed, or what was written before is not taken
        if stream is original:
            stream = cast(TextIO, BackgroundStream(stream))
    return cast(TextIO, _Lossy(stream))


def leave(code: int) -> NoReturn:
    """Exit with a code, without tearing down imported modules.

    The teardown takes over a quarter of the processor time that a process with torch needs to start and end. As usual,
    threads that are not daemons are joined, exit handlers run and streams are flushed, the way `multiprocessing` ends
    its children.
    """
    cast(Any, threading)._shutdown()
    cast(Any, atexit)._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has left, or it is closed
            stream.flush()
    os._exit(code)


def end_with_reader(main: Callable[[], int]) -> int:
    """Call a main function; return its exit code.

    If the reader of its output left, as `head` does, that is 141, silently; if a disk is full or a file is closed to
    this user, 1 with a line that says so.
    """
    _open_standard_streams()
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be handled
    except BrokenPipeError:
        if not _reader_left():
            raise  # another pipe or socket
        _discard_output()
        return 128 + signal.SIGPIPE
    except PermissionError as error:
        if not error.filename:
            raise
        print(f"cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _discard_output()
        print(f"cannot write {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1


def _discard_output() -> None:
    """Lose what is still buffered, which the interpreter would write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left() -> bool:
    """True if standard output is a pipe or socket whose other end is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)  # macOS reports nothing to who asks for nothing
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0))


class StopRequests:
    """Tells a request to stop from the same one that arrives again.

    A closing terminal sends SIGHUP to the whole group and its shell sends it again; systemd sends it after SIGTERM.
    GNU `timeout` sends its signal to its child and then to the group, the child included. With SIGINT, two that come
    faster than anybody presses Ctrl-C twice are one.
    """

    _SAME_S = 1.0
    _SAME_INTERRUPT_S = 0.1

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._interrupted_s = -math.inf

    def is_new(self, signal_number: int) -> bool:
        """True if a signal that has arrived is a new request, not a repetition."""
        now_s, last_s = time.monotonic(), self._last_s
        if last_s is not None and signal_number == signal.SIGHUP:
            return False
        self._last_s = now_s
        if signal_number == signal.SIGINT:
            interrupted_s, self._interrupted_s = self._interrupted_s, now_s
            return now_s - interrupted_s > self._SAME_INTERRUPT_S
        return last_s is None or signal_number != signal.SIGTERM or now_s - last_s > self._SAME_S


class StopEvent(threading.Event):
    """An event that calls `then` in the thread that sets it."""

    then: Callable[[], object] = staticmethod(lambda: None)

    def set(self) -> None:
        """Set the event, then call."""
        super().set()
        self.then()


def stop_event() -> StopEvent:
    """Return an event that SIGTERM, SIGHUP or Ctrl-C sets; a second request ends the process at once."""
    event, requests = StopEvent(), StopRequests()

    def stop(signal_number: int) -> None:
        if requests.is_new(signal_number) and event.is_set():
            os._exit(128 + signal_number)
        event.set()

    for number in _heard_signals():
        _on_signal(number, stop)
    return event


def _heard_signals() -> list[signal.Signals]:
    """Return the signals that stop a process, without what its parent has it ignore, as nohup does SIGHUP."""
    return [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit in the main thread, as Ctrl-C raises KeyboardInterrupt.

    What was begun is undone; the same request that arrives again does not interrupt that.
    """
    requests = StopRequests()

    def end(signal_number: int, _: FrameType | None) -> None:
        if requests.is_new(signal_number):
            if signal_number == signal.SIGINT:
                raise KeyboardInterrupt
            sys.exit(128 + signal_number)

    for number in _heard_signals():
        signal.signal(number, end)


def signal_event(signal_number: int) -> threading.Event:
    """Return an event that a signal sets."""
    event = threading.Event()
    _on_signal(signal_number, lambda _: event.set())
    return event


def _on_signal(signal_number: int, act: Callable[[int], None]) -> None:
    """Have a thread call `act` for each such signal; called in the main thread.

    A handler would run in the main thread, between any two of its instructions. Did that thread hold the lock of the
    event just then, as it does at the start and at the end of every wait, `Event.set` would wait for itself.
    """
    if not _actions:
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_act, args=(reader, writer), name="signals", daemon=True).start()
    _actions[signal_number] = act
    signal.signal(signal_number, lambda *_: None)  # for the signal's number to be written
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal_number})  # tidemill.programs.child blocks it until here


def _act(reader: socket.socket, _writer: socket.socket) -> None:
    """Call the action of each signal whose number comes; keeps the writing end open."""
    while numbers := reader.recv(64):
        for number in numbers:
            if number in _actions:
                _actions[number](number)


def stop_requested(before: StopEvent | None = None) -> asyncio.Task[bool]:
    """Return a task of the running event loop that is done once SIGTERM, SIGHUP or Ctrl-C comes, from this call on.

    A second request ends the process at once, also while the event loop is held up.

    To be called before anyone is told that the service is ready: the first signal may follow at once.

    Args:
        before: What `stop_event` returned, if it was called: a signal that came since counts, too.
    """
    event, requested = before or stop_event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(requested.set)

    event.then = tell  # the thread of a signal that came just now may set it after the next look
    if event.is_set():
        requested.set()
    return loop.create_task(requested.wait())


def keep_freed_memory() -> bool:
    """Let this process reuse the arrays it frees instead of returning them to the system; return whether it does.

    Batches of images are megabytes each, allocated and freed a hundred times per second. By default every one
    is mapped, faulted in page by page and unmapped again, which costs more than filling it. Up to 1 GiB of
    freed memory is kept, in one arena: what one thread frees, all can reuse. Only glibc offers this. Call it
    before threads are started.
    """
    mallopt = linux.mallopt()
    if mallopt is None:
        return False
    options = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: _KEPT_BYTES, _M_ARENA_MAX: 1}
    return all([mallopt(option, value) for option, value in options.items()])
