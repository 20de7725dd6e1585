"""A server that forks `tidemill` commands for shells: `python -m tests.support.forked_commands SOCKET`.

Each start of a command that imports torch takes seconds of processor time otherwise. That the installed command itself
works is tested by tests/process/test_release.py and test_surroundings.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.launched import STARTS_SERVICES
from tests.support.waiting import wait_until
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import DRAWING, ForkClient
from tidemill.programs.fork_server import MAX_MESSAGE_BYTES, Order

_WRAPPER = Path(__file__).with_name("forked_command.py")


@contextmanager
def forked_commands(address: Path, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process of a server.

    Args:
        address: Path of its socket.
        before: What starts it, as `unshare` would.
    """
    environment = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([*before, sys.executable, "-P", "-m", __name__, str(address)], env=environment)
    try:
        wait_until(lambda: address.exists() or server.poll() is not None, "a server of commands")
        assert server.poll() is None
        yield server
    finally:
        server.kill()
        server.wait()


def write_command(file: Path, address: Path) -> None:
    """Write a program that stands for `tidemill`."""
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {_WRAPPER} {address} "$@"\n')
    file.chmod(0o755)


def main(address: str) -> None:
    """Serve until this process is killed, which ends its commands."""
    client = ForkClient(os.environ, DRAWING)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=_answer, args=(caller, client), daemon=True).start()


def _answer(caller: socket.socket, client: ForkClient) -> None:
    """Run a command for the one who calls; end it when they do."""
    with caller:
        message, descriptors, _, _ = socket.recv_fds(caller, MAX_MESSAGE_BYTES, 1)
        order = json.loads(message)
        arguments, environment = order["arguments"], order["environment"] | {PARENT_VARIABLE: str(os.getpid())}
        with open(descriptors[0], "wb") as output:
            command = client.fork(
                Order(
                    "tidemill.services.launcher",
                    arguments,
                    environment,
                    order["directory"],
                    with_server=arguments[0] in STARTS_SERVICES,
                ),
                output,
            )
        if command is None:
            return
        caller.send(str(command.pid).encode())
        ended = os.pidfd_open(command.pid)
        if caller.fileno() in select.select([caller.fileno(), ended], [], [])[0]:
            command.send_signal(signal.SIGKILL)
        os.close(ended)
        code = command.wait()
        with suppress(OSError):
            caller.send(str(code).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
