"""Cost of a version to many readers on one machine, read from its file and sent in pieces.

Readers are separate processes; versions go to them in turns one way and the other.

    python -m benchmarks.params [--readers 32] [--bytes 7000000] [--rounds 20]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from benchmarks.params_reader import read
from benchmarks.processes import processor_s
from benchmarks.rows import row, write
from tidemill.params.blob import pack
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision

_WAIT_S = 60.0
_UNITS = {
    "publish to the last reader": "ms",
    "reader's time for a fetch": "ms",
    "server's time for a version": "ms",
    "messages to a reader": "1",
    "bytes to a reader": "B",
}


def main() -> None:
    """Measure, print, and write benchmarks/results/params.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, default=32, help="processes that fetch")
    parser.add_argument("--bytes", type=int, default=7_000_000, help="of the parameters; a dueling network has 7 MB")
    parser.add_argument("--rounds", type=int, default=20, help="versions published for each way")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-params-") as folder, _server(Path(folder)) as (address, server):
        figures = _measure(address, server, arguments.readers, arguments.bytes, 2 * arguments.rounds)
    what = f"{arguments.bytes / 1e6:g} MB, {arguments.readers} readers, from file beside sent"
    write("params", [row(f"{name}: {what}", unit, *figures[name]) for name, unit in _UNITS.items()])


def _measure(
    address: str, server: int, readers: int, size_bytes: int, versions: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return by name the figures from files, and those of bytes that were sent."""
    blobs = {Precision.FULL: pack({"weights": np.zeros(size_bytes // 4, np.float32)})}
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in _UNITS}
    with ExitStack() as stack:
        # Forked, for 128 programs would take minutes to start; before this process has threads of gRPC.
        processes = [stack.enter_context(_reader(address, versions)) for _ in range(readers)]
        publisher = stack.enter_context(ParamsClient(address))
        token = publisher.acquire_fencing_token("benchmark", connect_timeout_s=_WAIT_S).fencing_token

        def publish(number: int) -> None:
            metadata = ParamsMetadata("dqn", learner_steps=number)
            publisher.publish(blobs, metadata, fencing_token=token, base_version=number - 1)

        publish(1)
        for process in processes:
            _line(process)
        for number in range(2, versions + 2):
            time.sleep(0.2)  # so that all wait for the next
            began, used = time.monotonic(), processor_s(server)
            publish(number)
            lines = [_line(process).split() for process in processes]
            way = number % 2  # as params_reader.py takes turns
            taken["publish to the last reader"][way].append((max(float(line[1]) for line in lines) - began) * 1e3)
            used_s, messages, sent_bytes = (sum(float(line[place]) for line in lines) / readers for place in (2, 3, 4))
            taken["reader's time for a fetch"][way].append(used_s * 1e3)
            taken["messages to a reader"][way].append(messages)
            taken["bytes to a reader"][way].append(sent_bytes)
            taken["server's time for a version"][way].append((processor_s(server) - used) * 1e3)
    return taken


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, int]]:
    address = f"unix://{folder}/params.sock"
    command = [sys.executable, "-m", "tidemill.services.paramserver", "--run.root", str(folder), "--run.name", "bench"]
    process = subprocess.Popen([*command, "--paramserver.server.address", address], stdout=subprocess.DEVNULL)
    try:
        while not (folder / "params.sock").exists() and process.poll() is None:
            time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(_WAIT_S)


@contextmanager
def _reader(address: str, versions: int) -> Iterator[TextIO]:
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        try:
            with os.fdopen(writing, "w", encoding="ascii") as out:
                read(address, versions, out)
        finally:
            os._exit(0)  # the rest is the parent's
    os.close(writing)
    with os.fdopen(reading, encoding="ascii") as lines:
        try:
            yield lines
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _line(reader: TextIO) -> str:
    line = reader.readline()
    if not line:
        raise RuntimeError("a reader ended before its last version")
    return line


if __name__ == "__main__":
    main()
