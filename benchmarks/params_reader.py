"""One reader of benchmarks/params.py: fetches each version as it comes, in turns from its file and sent in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tidemill.params.blob import unpack
from tidemill.params.client import ParamsClient
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.version import Params

_WAIT_S = 240.0


class _Counting(ParamsClient):
    """Counts what it is sent."""

    messages = sent_bytes = 0

    def _receive(self, responses: Iterator[pb.FetchResponse], folder: Path | None) -> Params | None:
        return super()._receive(self._counted(responses), folder)

    def _counted(self, responses: Iterator[pb.FetchResponse]) -> Iterator[pb.FetchResponse]:
        for response in responses:
            self.messages += 1
            self.sent_bytes += response.ByteSize()
            yield response


def read(address: str, versions: int, out: TextIO) -> None:
    """Fetch versions, and write a line for each.

    The line has the version's number, when it was there (monotonic seconds), this process's time for it, and how many
    messages and bytes it was sent.

    Args:
        address: Of the parameter server.
        versions: How many are published after the first.
        out: Takes the lines, and `ready` before them.
    """
    with _Counting(address, reads_files=False) as sent, _Counting(address) as from_file:
        for client in (sent, from_file):
            client.fetch(wait_s=_WAIT_S)  # connects; the first version is not counted
        print("ready", file=out, flush=True)
        for number in range(2, versions + 2):
            client = (from_file, sent)[number % 2]
            client.messages = client.sent_bytes = 0
            started_s = time.process_time()
            params = client.fetch(newer_than=number - 1, wait_s=_WAIT_S)
            assert params is not None
            assert params.number == number
            unpack(params.blob)
            used_s = time.process_time() - started_s
            print(number, time.monotonic(), used_s, client.messages, client.sent_bytes, file=out, flush=True)
