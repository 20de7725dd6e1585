"""The conformance tests' server on Reverb (dm-reverb 0.14), by its published Python interface."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.integration.conformance.adapter import Limiter, Sampled, Spec, TimedOut
from tests.support.waiting import WAIT_S

_MOST_STEPS = 8
_FLUSH_MS = 50


class ReverbServer:
    """One table of a server in this process."""

    def __init__(self, spec: Spec) -> None:
        """Start it; reverb is imported here, as it is seldom there."""
        self._reverb: Any = importlib.import_module("reverb")
        table = self._reverb.Table(
            name="t",
            sampler=self._selector(spec.sampler, spec.exponent),
            remover=self._selector(spec.remover, spec.exponent),
            max_size=spec.max_size,
            rate_limiter=self._limiter(spec.limiter),
            max_times_sampled=spec.max_times_sampled,
        )
        self._server = self._reverb.Server(tables=[table])
        self._client = self._reverb.Client(f"localhost:{self._server.port}")
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=_MOST_STEPS)

    def insert(self, value: int, priority: float = 1.0) -> None:
        """Send it."""
        self._writer.append({"value": np.int64(value), "action": np.int64(value)})
        history = self._writer.history
        self._writer.create_item("t", priority, {name: history[name][-1:] for name in ("action", "value")})
        with contextlib.suppress(self._reverb.errors.DeadlineExceededError):
            self._writer.flush(timeout_ms=_FLUSH_MS)

    def sample(self, count: int = 1, timeout_s: float = 30.0) -> list[Sampled]:
        """Take so many, by a sampler that fetches none ahead of use."""
        dataset = self._reverb.TrajectoryDataset(
            f"localhost:{self._server.port}",
            table="t",
            dtypes={"action": np.int64, "value": np.int64},
            shapes={"action": [None], "value": [None]},
            max_in_flight_samples_per_worker=1,
            num_workers_per_iterator=1,
            rate_limiter_timeout_ms=int(timeout_s * 1000),
        ).take(count)
        found = [
            Sampled(
                int(sample.data["value"][-1]),
                int(sample.info.key),
                float(sample.info.probability),
                int(sample.info.times_sampled),
            )
            for sample in dataset.as_numpy_iterator()
        ]
        if len(found) < count:
            raise TimedOut
        return found

    def size(self) -> int:
        """Ask the server."""
        return int(self._client.server_info(timeout=int(WAIT_S))["t"].current_size)

    def update(self, key: int, priority: float) -> None:
        """By key."""
        self._client.mutate_priorities("t", updates={key: priority})

    def delete(self, key: int) -> None:
        """By key."""
        self._client.mutate_priorities("t", deletes=[key])

    def reset(self) -> None:
        """By name."""
        self._client.reset("t")

    def insert_trajectory(self, steps: Sequence[Mapping[str, int]], last: Mapping[str, int]) -> None:
        """Make an item of a slice of each column's history."""
        for step in steps:
            self._writer.append({name: np.int64(value) for name, value in step.items()})
        history = self._writer.history
        self._writer.create_item("t", 1.0, {name: history[name][-count:] for name, count in last.items()})
        self._writer.flush(timeout_ms=int(WAIT_S * 1000))

    def sample_trajectory(self) -> dict[str, NDArray[Any]]:
        """Take one whole; leaves come in the order of the columns' names."""
        (sample,) = self._client.sample("t", 1, emit_timesteps=False)
        return dict(zip(("action", "value"), map(np.asarray, sample.data), strict=True))

    def close(self) -> None:
        """End writer and server."""
        self._server.stop()

    def _selector(self, name: str, exponent: float) -> object:
        selectors = self._reverb.selectors
        made = {
            "uniform": selectors.Uniform,
            "fifo": selectors.Fifo,
            "lifo": selectors.Lifo,
            "max_heap": selectors.MaxHeap,
            "min_heap": selectors.MinHeap,
        }
        return selectors.Prioritized(exponent) if name == "prioritized" else made[name]()

    def _limiter(self, limiter: Limiter) -> object:
        limiters = self._reverb.rate_limiters
        if limiter.kind == "ratio":
            return limiters.SampleToInsertRatio(limiter.samples_per_insert, limiter.size, limiter.error_buffer)
        return {"min_size": limiters.MinSize, "queue": limiters.Queue, "stack": limiters.Stack}[limiter.kind](
            limiter.size
        )


def start(spec: Spec) -> ReverbServer:
    """Return a server with an empty table."""
    return ReverbServer(spec)
