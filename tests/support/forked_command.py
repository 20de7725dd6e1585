"""What stands for `tidemill` in shells of tests: asks the server of `forked_commands.py` for the command, and waits.

Standard error goes where standard output goes, as in all of those shells. Imports nothing that takes time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(address: str, *arguments: str) -> int:
    """Run a command, passing signals on to it; return its exit code."""
    order = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(order).encode()], [1])
        if not (answer := server.recv(32)):
            return 1
        pid = int(answer)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(server.recv(32) or b"1")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
