"""One reader of benchmarks/params.py: fetches each version as it comes, in turns from its file and sent in pieces.

    python -m benchmarks.params_reader ADDRESS VERSIONS

prints a line for each version: its number, when it was there (monotonic seconds), and this process's time for it.
"""

from __future__ import annotations

import sys
import time

from tidemill.params.blob import unpack
from tidemill.params.client import ParamsClient

_WAIT_S = 120.0


def main() -> None:
    """Fetch and print."""
    address, versions = sys.argv[1], int(sys.argv[2])
    with ParamsClient(address, reads_files=False) as sent, ParamsClient(address) as from_file:
        for client in (sent, from_file):
            client.fetch(wait_s=_WAIT_S)  # connects; the first version is not counted
        print("ready", flush=True)
        for number in range(2, versions + 2):
            started_s = time.process_time()
            params = (from_file, sent)[number % 2].fetch(newer_than=number - 1, wait_s=_WAIT_S)
            assert params is not None
            assert params.number == number
            unpack(params.blob)
            print(number, time.monotonic(), time.process_time() - started_s, flush=True)


if __name__ == "__main__":
    main()
