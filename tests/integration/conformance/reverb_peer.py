"""A process with a server of Reverb (dm-reverb 0.14), for `on_reverb`: a line of JSON asks, a line answers.

Runs in Reverb's own environment, imports nothing of ours, and uses Reverb by its published Python interface. Standard
input is a socket, for both directions: what TensorFlow prints cannot get between the answers.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

MOST_STEPS = 8
FLUSH_MS = 50
WAIT_S = 60
COLUMNS = ("action", "value")


class Peer:
    """One server at a time, with one table; each method is a call of the line protocol."""

    def start(self, spec: dict[str, Any]) -> None:
        """Start a server with an empty table; `spec` is an `adapter.Spec`."""
        table = reverb.Table(
            name="t",
            sampler=_selector(spec["sampler"], spec["exponent"]),
            remover=_selector(spec["remover"], spec["exponent"]),
            max_size=spec["max_size"],
            rate_limiter=_limiter(**spec["limiter"]),
            max_times_sampled=spec["max_times_sampled"],
        )
        self._server = reverb.Server(tables=[table])
        self._address = f"localhost:{self._server.port}"
        self._client = reverb.Client(self._address)
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=MOST_STEPS)

    def insert(self, value: int, priority: float) -> None:
        """Send an item of one step; where the rate limiter holds it back Reverb's own thread continues."""
        self._writer.append({"value": np.int64(value), "action": np.int64(value)})
        history = self._writer.history
        self._writer.create_item("t", priority, {name: history[name][-1:] for name in COLUMNS})
        with contextlib.suppress(reverb.errors.DeadlineExceededError):
            self._writer.flush(timeout_ms=FLUSH_MS)

    def sample(self, count: int, timeout_s: float) -> list[tuple[int, int, float, int]]:
        """Take so many, fetching none ahead; fewer if the rate limiter holds one back for that long."""
        return [
            (
                int(sample.data["value"][-1]),
                int(sample.info.key),
                float(sample.info.probability),
                int(sample.info.times_sampled),
            )
            for sample in self._samples(count, timeout_s)
        ]

    def sample_trajectory(self) -> dict[str, list[int]]:
        """Take one whole."""
        (sample,) = self._samples(1, WAIT_S)
        return {name: sample.data[name].tolist() for name in COLUMNS}

    def insert_trajectory(self, steps: list[dict[str, int]], last: dict[str, int]) -> None:
        """Make an item of a slice of each column's history."""
        for step in steps:
            self._writer.append({name: np.int64(value) for name, value in step.items()})
        history = self._writer.history
        self._writer.create_item("t", 1.0, {name: history[name][-count:] for name, count in last.items()})
        self._writer.flush(timeout_ms=WAIT_S * 1000)

    def size(self) -> int:
        """Ask the server."""
        return int(self._client.server_info(timeout=WAIT_S)["t"].current_size)

    def update(self, key: int, priority: float) -> None:
        """By key."""
        self._client.mutate_priorities("t", updates={key: priority})

    def delete(self, key: int) -> None:
        """By key."""
        self._client.mutate_priorities("t", deletes=[key])

    def reset(self) -> None:
        """By name."""
        self._client.reset("t")

    def close(self) -> None:
        """End the server; what the limiter still holds back is given up."""
        self._server.stop()

    def _samples(self, count: int, timeout_s: float) -> Any:  # noqa: ANN401 - Reverb's
        return reverb.TrajectoryDataset(
            self._address,
            table="t",
            dtypes=dict.fromkeys(COLUMNS, np.int64),
            shapes=dict.fromkeys(COLUMNS, tf.TensorShape([None])),
            max_in_flight_samples_per_worker=1,
            num_workers_per_iterator=1,
            rate_limiter_timeout_ms=int(timeout_s * 1000),
            max_samples=count,
        ).as_numpy_iterator()


def _selector(name: str, exponent: float) -> object:
    if name == "prioritized":
        return reverb.selectors.Prioritized(exponent)
    kinds = {"uniform": "Uniform", "fifo": "Fifo", "lifo": "Lifo", "max_heap": "MaxHeap", "min_heap": "MinHeap"}
    return getattr(reverb.selectors, kinds[name])()


def _limiter(kind: str, size: int, samples_per_insert: float, error_buffer: float) -> object:
    if kind == "ratio":
        return reverb.rate_limiters.SampleToInsertRatio(samples_per_insert, size, error_buffer)
    return getattr(reverb.rate_limiters, {"min_size": "MinSize", "queue": "Queue", "stack": "Stack"}[kind])(size)


def main() -> None:
    """Answer until the other side closes."""
    peer = Peer()
    with socket.socket(fileno=0) as connection, connection.makefile("rw") as lines:
        for line in lines:
            asked = json.loads(line)
            try:
                answer = {"result": getattr(peer, asked["call"])(**asked["arguments"])}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
