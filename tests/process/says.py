"""A module that writes what it is and has as JSON, or stays until it is ended."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import given_client
from tidemill.programs.fork_server import READY, Order

if __name__ == "__main__":
    if sys.argv[1] == "stay":
        sys.stderr.write("here\n")
        signal.pause()
    if sys.argv[1] == "asks":
        server = given_client()
        assert server is not None
        assert READY in server.said
        environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
        child = server.fork(Order("tests.process.says", ["stay"], environment), sys.stderr.buffer)
        assert child is not None
        sys.stderr.write(f"{os.getcwd()} {server.pid} {child.pid}\n")
        signal.pause()
    if sys.argv[1] == "draw":
        import numpy as np

        drawn = {"random": random.random(), "numpy": float(np.random.random())}
        json.dump(drawn | {"has torch": "torch" in sys.modules}, sys.stdout)
        sys.exit(0)
    shown = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")
    state = {
        "arguments": sys.argv[1:],
        "parent": os.getppid(),
        "session": os.getsid(0),
        "mark": os.environ.get("MARK"),
        "parent variable": os.environ.get(PARENT_VARIABLE),
        "input": sys.stdin.read(),
        "command": shown[1:],
        "main": sys.modules["__main__"].__name__,
        "descriptors": sorted(
            int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
        ),
    }
    json.dump(state, sys.stdout)
    sys.exit(7)
