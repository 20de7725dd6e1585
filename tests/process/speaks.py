"""A module that prints its argument and ends with 7, or is there until it is ended if its input is a pipe left open."""

from __future__ import annotations

import os
import sys

from tidemill.parent import PARENT_VARIABLE

if __name__ == "__main__":
    sys.stdout.write(sys.argv[1].format(environment=os.environ.get(PARENT_VARIABLE)) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    sys.exit(7)
