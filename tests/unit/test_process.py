"""Signals that set events, and the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemill.process import NAMES_ERRORS, StopRequests

_BOUND_S = 120.0

_SIGNALLED_WHILE_IT_HOLDS_THE_LOCK = """
import os, signal
from tidemill.process import {event}
event = {made}
with event._cond:  # as at the start and the end of event.wait
    os.kill(os.getpid(), signal.{signal})  # a handler runs before the next instruction
assert event.wait(120)
print("stopped", flush=True)
"""


@pytest.mark.parametrize(
    "event,made,signal",
    [
        ("stop_event", "stop_event()", "SIGTERM"),
        ("stop_event", "stop_event()", "SIGINT"),
        ("signal_event", "signal_event(signal.SIGUSR1)", "SIGUSR1"),
    ],
)
def test_signal_sets_its_event_whatever_the_main_thread_holds(event: str, made: str, signal: str) -> None:
    """A signal that comes while the main thread has the event's lock does not leave it waiting for itself."""
    script = _SIGNALLED_WHILE_IT_HOLDS_THE_LOCK.format(event=event, made=made, signal=signal)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


_STOPS = """
import os, signal, threading
from tidemill.process import stop_event
event = stop_event()
os.kill(os.getpid(), signal.SIGTERM)
assert event.wait(120)
os.kill(os.getpid(), signal.SIGINT)
threading.Event().wait(10)
"""
_LOOP_STOPS = """
import asyncio, os, signal, threading
from tidemill.process import stop_requested
async def main():
    stop = stop_requested()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop, 120)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(10)  # holds up the loop, as a disk that hangs does
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [_STOPS, _LOOP_STOPS], ids=["thread", "event loop"])
def test_second_signal_ends_the_process(script: str) -> None:
    """Who does not stop in order is ended by asking again, with the shell's code for the signal."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert done.returncode == 128 + 2, done.stderr


_NOBODY = ["--cluster.replay", "127.0.0.1:1", "--cluster.params", "127.0.0.1:1"]


@pytest.mark.parametrize(
    "service, word, options",
    [
        ("replay", "serving", ["--replay.server.address", "127.0.0.1:0"]),
        ("paramserver", "serving", ["--paramserver.server.address", "127.0.0.1:0"]),
        ("actor", "listening", ["--config", "quickstart", *_NOBODY]),
        ("evaluator", "listening", ["--config", "quickstart", "--evaluator.server.address", "127.0.0.1:0", *_NOBODY]),
    ],
    ids=["replay", "paramserver", "actor", "evaluator"],
)
def test_service_that_is_stopped_as_soon_as_it_says_that_it_is_there_ends_in_order(
    service: str, word: str, options: list[str], tmp_path: Path
) -> None:
    """A signal that comes while it says that it is ready is heard: it does not end by the signal's own action."""
    script = f"""
import os, signal, sys
from tidemill.services.{service}.__main__ import main
class Stopping:  # the signal comes between the message and whatever is done next
    def write(self, text):
        if "{word}" in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return sys.__stderr__.write(text)
    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)
sys.stderr = Stopping()
sys.exit(main({options}))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stderr


@pytest.mark.parametrize(
    "error, named, line, code",
    [
        ("AlreadyExists", "", "x: there is one", 1),
        ("AlreadyExists", "1", "x: AlreadyExists: there is one", 1),
        ("ConfigError", "1", "x: there is one", 2),
        ("FatalError", "1", "x: there is one", 1),
    ],
)
def test_error_ends_a_process_with_its_message_alone_unless_a_program_asks_for_its_class(
    error: str, named: str, line: str, code: int
) -> None:
    """Names of Python's classes are for programs that raise the error again."""
    script = f"""
import sys
from tidemill import errors, process
def main():
    raise errors.{error}("there is one")
sys.exit(process.run("x", main))
"""
    environment = os.environ | {NAMES_ERRORS: named}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False, env=environment)
    assert (done.returncode, done.stderr) == (code, f"{line}\n")


def test_control_characters_of_an_error_are_escaped() -> None:
    """A message may quote a file or a server; only its line breaks and tabs are for the terminal."""
    script = """
import sys
from tidemill import errors, process
def main():
    raise errors.ConfigError("a\\tb\\nc\\x1b]0;title\\x07\\rd \\u00e9\\u202e")
sys.exit(process.run("x", main))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_BOUND_S, check=False)
    assert done.stderr == "x: a\tb\nc\\x1b]0;title\\x07\\rd \u00e9\\u202e\n"


@pytest.mark.parametrize("count, is_all", [(900, True), (3000, False)])
def test_output_that_nobody_takes_holds_up_nothing(count: int, is_all: bool) -> None:
    """A reader that is late gets all, or the first and the newest lines, each of them whole."""
    script = f"""
import sys
from tidemill.process import survive_without_output
survive_without_output()
for number in range({count}):
    print(f"{{number:0500}}", flush=True)
print("went on", file=sys.stderr)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stderr.readline() == "went on\n"
        numbers: list[int] = []
        while not numbers or numbers[-1] < count - 1:
            line = process.stdout.readline()
            assert len(line) == 501
            numbers.append(int(line))
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0
    assert (numbers[0], numbers[-1000:]) == (0, list(range(count))[-1000:])
    assert (len(numbers) == count) == is_all


def test_process_that_leaves_has_done_all_that_was_due() -> None:
    """Threads end, exit handlers run and what was printed is out; modules are not taken apart."""
    script = """
import atexit, sys, tempfile, threading
from tidemill.process import leave

class Module:
    def __del__(self):
        print("taken apart")

sys.modules["heavy"] = Module()
folder = tempfile.TemporaryDirectory()
atexit.register(lambda: print("exit handler"))
threading.Timer(0.2, lambda: print("thread")).start()
print(folder.name)
leave(3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_BOUND_S, check=False)
    folder, *rest = done.stdout.splitlines()
    assert (done.returncode, rest) == (3, ["thread", "exit handler"]), done.stderr
    assert not Path(folder).exists()


def test_hang_up_asks_once_however_often_it_arrives() -> None:
    """A closing terminal and its shell both send it; under nohup it is not heard."""
    script = """
import os, signal, time
from tidemill.process import stop_event
event = stop_event()
for _ in range(3):
    os.kill(os.getpid(), signal.SIGHUP)
    assert event.wait(60)
print("stopped", flush=True)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    ignored = script.replace(
        "event = stop_event()", "signal.signal(signal.SIGHUP, signal.SIG_IGN); event = stop_event()"
    )
    ignored = ignored.replace("assert event.wait(60)", "assert not event.is_set()")
    done = subprocess.run(
        [sys.executable, "-c", ignored], capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_request_to_stop_undoes_what_was_begun(number: signal.Signals) -> None:
    """Also if it arrives again meanwhile; what the parent has the process ignore stays ignored."""
    script = f"""
import os, signal
from tidemill.process import end_in_order
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
end_in_order()
try:
    os.kill(os.getpid(), {number})
    print("continues")
finally:
    os.kill(os.getpid(), {number})
    print("undone")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    code = -number if number == signal.SIGINT else 128 + number  # as Python ends by a KeyboardInterrupt
    assert (done.returncode, done.stdout) == (code, "undone\n"), done.stderr
    ignored = [sys.executable, "-c", script.replace("SIGUSR1", number.name)]
    done = subprocess.run(ignored, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert (done.returncode, done.stdout) == (0, "continues\nundone\n"), done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_command_with_closed_streams_runs(closed: str, tmp_path: Path) -> None:
    """What is closed is nothing to write to; no file that is opened later takes its place."""
    script = f"""
import os
from tidemill.process import end_with_reader

def main():
    with open({str(tmp_path / "file")!r}, "w") as file:
        assert file.fileno() > 2
        print("not in the file")
        os.write(1, b"nor this")
        file.write("kept")
    return 3

raise SystemExit(end_with_reader(main))
"""
    command = f"exec {sys.executable} -c '{script.replace(chr(39), chr(34))}' {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("write", ["print('x')", "sys.stdout.buffer.write(bytes(10**6))", "print('x', flush=True)"])
def test_output_on_a_full_disk_is_told_in_a_line(write: str) -> None:
    """With an exit code of 1 and no traceback."""
    script = f"import sys; from tidemill.process import run; sys.exit(run('it', lambda: {write} and 0 or 0))"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_BOUND_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "cannot write output: No space left on device\n")


def test_request_that_arrives_again_is_one() -> None:
    """GNU `timeout` sends SIGTERM or SIGINT twice, a terminal SIGHUP; a second Ctrl-C is a second request, at once."""
    requests = StopRequests()
    numbers = (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    assert [requests.is_new(number) for number in numbers] == [True, False, False, True, False]
    assert not requests.is_new(signal.SIGINT)
    requests._interrupted_s = time.monotonic() - 0.2
    assert requests.is_new(signal.SIGINT)
    requests._last_s = time.monotonic() - 2.0
    assert requests.is_new(signal.SIGTERM)


@pytest.mark.parametrize("arrives", ["before", "meanwhile"])
def test_signal_before_the_event_loop_counts(arrives: str) -> None:
    """As while a service makes its environment, also if its thread sets the event late; it would serve until killed."""
    script = f"""
import asyncio, os, signal
from tidemill.process import stop_event, stop_requested
before = stop_event()
if {arrives!r} == "before":
    os.kill(os.getpid(), signal.SIGTERM)
    assert before.wait(60)
async def main():
    stop = stop_requested(before)
    if {arrives!r} == "meanwhile":
        before.set()
    await asyncio.wait_for(stop, 10)
asyncio.run(main())
before.set()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_BOUND_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
