"""What a forked child does with the clients of its parent."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import gc, os
from tidemill.rpc import fork

class Call:
    def __init__(self):
        self.me = self

    def __del__(self):
        print("collected by", os.getpid(), flush=True)

for collects in (True, False):
    (gc.enable if collects else gc.disable)()
    Call()
    if (child := os.fork()) == 0:
        gc.collect()
        os._exit(10 + gc.isenabled())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10 + collects
    assert gc.isenabled() is collects
    gc.collect()
print("parent", os.getpid())
"""


def test_child_collects_nothing_of_its_parent() -> None:
    """A call or channel would end in gRPC's threads, which are not in the child: it hangs or is aborted."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    *collected, parent = (line.split()[-1] for line in done.stdout.splitlines())
    assert collected == [parent, parent]
