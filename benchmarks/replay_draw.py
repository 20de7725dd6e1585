"""Output of one replay server: batches of 512 Atari items, drawn by priority from a table of a million.

The server has core 0 and its client core 1, which reads no more than it must: nothing of whole batches, the keys of
mirrored ones, to send new priorities for each; of these also several batches in one call, as learners draw small ones
(`learner.batches_per_sample`). Rates are per second of the server's processor time, so that other
programs disturb them little. A server with the compiled kernel and one without it are measured in turns.

    python -m benchmarks.replay_draw [--items 1000000] [--rounds 3] [--seconds 5]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import grpc
import numpy as np

from benchmarks.learner_cases import CASES
from benchmarks.learner_feed import START_S, process, random_columns
from benchmarks.processes import processor_s
from benchmarks.replay_roles import FRAME_STACK, N_STEPS, SIGNATURE, TABLE, WINDOW
from benchmarks.rows import Row, row, write
from tidemill.replay import codec
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc.channel import open_channel

_BATCH = 512
_IN_FLIGHT = 4
_SEVERAL = 8
_CHUNK_LENGTH = 16
_DIFFERENT_CHUNKS = 64
_WARM_UP_S = 2.0
_SAMPLE = "/tidemill.replay.v1.ReplayService/Sample"


def fill(address: str, table: TableConfig) -> None:
    """Append streams of made-up steps until the table is full."""
    rng = np.random.default_rng(0)
    blocks = [codec.encode(SIGNATURE, random_columns(table, _CHUNK_LENGTH, rng)) for _ in range(_DIFFERENT_CHUNKS)]
    with ReplayClient(address) as client:
        client.wait_for_ready(START_S)
        client.create_table(table)
    with StreamAppender(address, "benchmark", 1, SIGNATURE, [table.name], _CHUNK_LENGTH) as appender:
        for number in range(-(-(table.max_items + table.max_item_steps) // _CHUNK_LENGTH)):
            first = number * _CHUNK_LENGTH
            chunk = Chunk(0, first, _CHUNK_LENGTH, _CHUNK_LENGTH, 1, blocks[number % _DIFFERENT_CHUNKS])
            ends = np.arange(max(table.max_item_steps - 1 - first, 0), _CHUNK_LENGTH)
            items = ItemBatch(
                0, np.zeros_like(ends), ends, np.full_like(ends, table.max_item_steps), rng.random(len(ends)) + 0.01
            )
            if not appender.append([chunk], [items]):
                raise SystemExit("the replay service does not take what it is sent")
        appender.flush(START_S)


class Draws:
    """A call of Sample that takes batches as fast as they come."""

    def __init__(self, address: str, table: TableConfig, *, mirrored: bool, batches: int = 1) -> None:
        """Open the call, for so many batches at a time; with `mirrored` every priority is set after each draw."""
        self.batches = self.size_bytes = 0
        self._at_a_time = batches
        self._granted: queue.SimpleQueue[pb.SampleRequest | None] = queue.SimpleQueue()
        mirror = pb.Mirror(slots=2 * table.max_items // _CHUNK_LENGTH + 4096, slot_steps=_CHUNK_LENGTH, hold=_IN_FLIGHT)
        opening = pb.SampleOpen(table=table.name, batch_size=batches * _BATCH, mirror=mirror if mirrored else None)
        self._granted.put(pb.SampleRequest(open=opening, credit=_IN_FLIGHT))
        self._channel, self._client, self._table = open_channel(address), ReplayClient(address), table.name
        method: grpc.StreamStreamMultiCallable[pb.SampleRequest, bytes] = self._channel.stream_stream(
            _SAMPLE, request_serializer=pb.SampleRequest.SerializeToString
        )
        self._call, self._mirrored = method(iter(self._granted.get, None)), mirrored
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the call."""
        self._granted.put(None)
        self._call.cancel()
        self._thread.join(START_S)
        self._client.close()
        self._channel.close()

    def _take(self) -> None:
        rng = np.random.default_rng(1)
        try:
            for answer in self._call:
                self._granted.put(pb.SampleRequest(credit=1))
                self.batches += self._at_a_time
                self.size_bytes += len(answer)
                if self._mirrored:
                    keys = np.array(pb.SampleResponse.FromString(answer).keys, dtype=np.uint64)
                    self._client.update_priorities(self._table, keys, rng.random(len(keys)) + 0.01)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


@contextmanager
def server(folder: Path, table: TableConfig, *, kernel: bool) -> Iterator[tuple[str, int]]:
    """Start a server with the compiled kernel or without it, and fill its table; yield its address and process id."""
    path, address = CASES["nature_dueling_dqn_512"].write(folder), f"unix://{folder}/{int(kernel)}"
    options = ("--replay.server.address", address)
    with process("0", "tidemill.services.replay", path, *options, TIDEMILL_KERNEL=str(int(kernel))) as pid:
        fill(address, table)
        yield address, pid


def measure(items: int, rounds: int, seconds: float) -> list[Row]:
    """Measure both kinds of batches with both servers, in turns."""
    table = dataclasses.replace(TABLE, max_items=items)
    kinds = {
        "whole": (False, 1),
        "mirrored, with new priorities": (True, 1),
        f"mirrored, with new priorities, {_SEVERAL} batches a call": (True, _SEVERAL),
    }
    rates: dict[tuple[str, bool], list[float]] = {(name, kernel): [] for name in kinds for kernel in (True, False)}
    sizes: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory(prefix="tm-") as folder, ExitStack() as stack:
        servers = {used: stack.enter_context(server(Path(folder), table, kernel=used)) for used in (True, False)}
        for _ in range(rounds):
            for (name, (mirrored, at_a_time)), (kernel, (address, pid)) in product(kinds.items(), servers.items()):
                draws = Draws(address, table, mirrored=mirrored, batches=at_a_time)
                for rate, size in _rates(draws, pid, seconds, mirrored):
                    rates[name, kernel].append(rate)
                    sizes[name].append(size)
    what = f"table of {items:,}, stack {FRAME_STACK}, {N_STEPS} steps, {WINDOW.length} steps an item"
    batches = f"batches of {_BATCH} per core second of one server"
    return [
        *(
            row(f"{batches}, {name}, kernel against Python, {what}", "1/s", rates[name, True], rates[name, False])
            for name in kinds
        ),
        *(row(f"bytes per item, {name}", "B", sizes[name]) for name in kinds),
    ]


def _rates(draws: Draws, pid: int, seconds: float, mirrored: bool) -> Iterator[tuple[float, float]]:
    """Yield batches per second of a process's time, and bytes per item, once; a mirror first gets all that is kept."""
    try:
        time.sleep(4 * seconds if mirrored else _WARM_UP_S)
        batches, size, used = draws.batches, draws.size_bytes, processor_s(pid)
        time.sleep(seconds)
        found = draws.batches - batches
        yield found / (processor_s(pid) - used), (draws.size_bytes - size) / (found * _BATCH)
    finally:
        draws.close()


def main() -> None:
    """Measure and write benchmarks/results/replay_draw.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000, help="in the table")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    write("replay_draw", measure(arguments.items, arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
