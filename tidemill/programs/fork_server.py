"""`python -m tidemill.programs.fork_server [MODULE ...] ROOM`: imports what services share and forks them (ADR 0050).

That is torch before all, and further modules if they are named. A service so starts without the seconds that importing
takes, and shares the memory of what was imported. It becomes a child of the process that asked for it, and outlives
this one. What needs no torch is forked before that has been imported. A launcher that is forked may get a server of its
own, which is forked as well, and so is there at once.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import socket
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from tidemill import linux
from tidemill.parent import PARENT_VARIABLE, end_with_parent
from tidemill.programs.child import await_word, hold_requests_to_finish, run_module

WITHOUT_TORCH = (
    "gymnasium",
    "tidemill.config.load",
    "tidemill.config.sections",
    "tidemill.envs.make",
    "tidemill.params.watcher",
    "tidemill.replay.writing.appender",
    "tidemill.rpc.background",
    "tidemill.rpc.server",
    "tidemill.rpc.telemetry",
)
"""What every service needs, imported first. Not the services themselves: each would show the metrics of the others."""

WITH_TORCH = ("tidemill.rl.agents.build", "tidemill.tensorboard_writer", "torch")

READY_WITHOUT_TORCH, READY = b"ready without torch", b"ready"
"""Status messages that the fork server sends, in this order, interleaved with its replies."""

MAX_MESSAGE_BYTES = 2**17

TITLE_BYTES = 1024
"""Length of a last argument that nothing reads: room for the command line that a forked service shows."""

ROOM_VARIABLE, ROOM_BYTES = "TIDEMILL_ROOM", 4096
"""Name and length of an environment variable that nothing reads: room for the environment that a service shows."""

_POLL_S = 0.001
_COMMAND = (sys.executable, "-m", "tidemill.programs.fork_server")


class Order(NamedTuple):
    """Description of a new process."""

    module: str
    """What `python -m` would run."""
    arguments: Sequence[str]
    """Its command line."""
    environment: Mapping[str, str]
    """Its environment variables, all of them."""
    directory: str = ""
    """Where it works, if not where the server does."""
    with_server: bool = False
    """True if it gets a separate server, which ends with it."""
    needs_torch: bool = True
    """Whether it waits until torch has been imported."""
    ends_in_order: bool = False
    """Whether it ends with its parent as `tidemill.process.run` has it, instead of at once."""
    first_parent: int = 0
    """Who its parent is until it is handed over; the server's to say."""

    def packed(self) -> bytes:
        """Return it as a message to the server."""
        return json.dumps(self._asdict() | {"environment": dict(self.environment)}).encode()

    def command(self) -> list[str]:
        """Return the command that starts it without a server."""
        words = [self.module] if self.ends_in_order else ["tidemill.programs.child", self.module]
        return [sys.executable, "-P", "-m", *words, *self.arguments]  # -P: no file of the working directory shadows it


def main() -> None:
    """Serve the socket that is standard input until it ends; in a new process, run its module."""
    end_with_parent()
    hold_requests_to_finish()  # in what is forked, too
    requests = socket.socket(fileno=os.dup(0))
    _show(_COMMAND)
    _import(WITHOUT_TORCH)
    requests.send(READY_WITHOUT_TORCH)
    order = _import_while_serving(requests, (*WITH_TORCH, *sys.argv[1:-1]))
    if order is None:
        requests.send(READY)
        order = _serve(requests)
    while order is not None:
        _begin(order)
        next_order = _fork_server(order.environment) if order.with_server else None
        if next_order is None:
            _run(order)
        order = next_order


def _import(modules: Sequence[str]) -> None:
    gc.disable()  # what is imported stays: looking through it again and again is a tenth of the time
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection would write to what is shared, and so copy it


def _import_while_serving(requests: socket.socket, modules: Sequence[str]) -> Order | None:
    """Import modules and return None; a child of this process serves meanwhile, and what that forks gets its order."""
    imported, has_imported = os.pipe()
    parent = str(os.getpid())
    if pid := _fork():
        os.close(imported)
        _import(modules)
        os.close(has_imported)
        os.waitpid(pid, 0)
        return None
    os.close(has_imported)
    os.environ[PARENT_VARIABLE] = parent
    end_with_parent()
    if (order := _serve(requests, until=imported)) is None:
        os._exit(0)
    os.close(imported)
    return order


def _serve(requests: socket.socket, until: int | None = None) -> Order | None:
    """Fork for each request; return its order in the new process, and None in this one when no more will come.

    A request is a message with two descriptors: of the new process's output, and of the pipe where it waits for a word.
    The answer is its process id, 0 if there could be none. If there is something to read at the descriptor `until`,
    another will serve what comes from then on.
    """
    while True:
        if until is not None and until in select.select([requests.fileno(), until], [], [])[0]:
            return None
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 2)
        if not message:
            return None
        said, says = os.pipe()
        between = _fork()
        if not between:
            first_parent = os.getpid()
            _fork_and_end(says)
            os.setsid()
            requests.close()
            output, word = descriptors
            for descriptor, number in ((word, 0), (output, 1), (output, 2)):
                os.dup2(descriptor, number)
            for descriptor in (said, says, *descriptors):
                os.close(descriptor)
            return Order(**json.loads(message))._replace(first_parent=first_parent)
        for descriptor in (says, *descriptors):
            os.close(descriptor)
        with open(said, "rb") as answer:
            pid = answer.read()
        os.waitpid(between, 0)
        requests.send(pid or b"0")


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads: there are NumPy's alone, which it stops before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _fork_and_end(says: int) -> None:
    """Fork once more; return in the new process alone. Its parent ends, so that it is handed to the one that asked."""
    pid = 1
    try:
        if pid := _fork():
            os.write(says, str(pid).encode())
    finally:
        if pid:
            os._exit(0)


def _begin(order: Order) -> None:
    """Become the process that was ordered, once the one that asked is the parent and gives its word."""
    while os.getppid() == order.first_parent:
        time.sleep(_POLL_S)
    os.environ.clear()
    os.environ.update(order.environment)
    _show([sys.executable, "-m", order.module, *order.arguments], order.environment)
    if not order.ends_in_order:  # which `process.run` sees to
        end_with_parent()
    await_word()
    if order.directory:
        os.chdir(order.directory)


def _fork_server(environment: Mapping[str, str]) -> Order | None:
    """Fork a server for this process; return None in this one, and in what that one forks the order."""
    from tidemill.programs.fork_client import give_server  # in the new process: it needs this module

    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = str(os.getpid())
    if pid := _fork():
        theirs.close()
        give_server(requests, pid)
        return None
    requests.close()
    os.setsid()  # a Ctrl-C is for the launcher
    os.environ[PARENT_VARIABLE] = parent
    end_with_parent()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    _show(_COMMAND, {**environment, PARENT_VARIABLE: parent})
    if (order := _serve(theirs)) is None:
        os._exit(0)
    return order


def _run(order: Order) -> NoReturn:
    """Run a module as `python -m` would."""
    from tidemill.process import leave

    threads = order.environment.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and "torch" in sys.modules:  # which had another number when it was imported
        sys.modules["torch"].set_num_threads(max(int(threads), 1))
    sys.modules["numpy"].random.seed()  # or all would draw alike from NumPy's global generator; Python's own is seeded
    try:
        run_module(order.module, order.arguments)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        leave(end.code or 0)  # what the service never used need not be taken apart
    leave(0)


def _show(words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Show a command line in `ps`, as far as there is room, in place of the one that this process was started with.

    So it goes with the environment variables, if they are given: they must have replaced those of the start.
    """
    try:
        # The name in parentheses may hold blanks; after it come the fields of proc(5) from the third.
        fields = (linux.PROC / "self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:  # another system than Linux
        return
    _write(words, *map(int, fields[45:47]))
    if environment is not None:
        # Who the parent is comes first: there may not be room for all.
        names = sorted(environment, key=lambda name: name != PARENT_VARIABLE)
        _write([f"{name}={environment[name]}" for name in names], *map(int, fields[47:49]))


def _write(words: Sequence[str], start: int, end: int) -> None:
    line = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
