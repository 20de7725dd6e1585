"""Clients, datasets and writers in other processes: pickled, they are opened again with their arguments."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S
from tidemill.replay import ItemWindow, ReplayClient, ReplayDataset, ReplaySampler, ReplayWriter


def _work(writer: ReplayWriter, dataset: ReplayDataset, sampler: ReplaySampler, client: ReplayClient) -> list[int]:
    """Write one step and read it in every way."""
    with writer, dataset, sampler, client:
        writer.append(numbered_step(7))
        writer.flush(WAIT_S)
        return [int(next(dataset)["number"][0, -1]), len(next(sampler).keys), client.describe_table("t").items]


def test_another_process_opens_its_own(server: LocalServer) -> None:
    """Unsent steps of this process stay here, and each object continues here as if nothing had been pickled."""
    table = steps_table(max_times_sampled=0)
    with (
        ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer,
        ReplayDataset(server.address, table, batch_size=1, timeout_s=WAIT_S) as dataset,
        ReplaySampler([server.address], table, 1) as sampler,
        ReplayClient(server.address) as client,
        ProcessPoolExecutor(1, get_context("spawn")) as there,
    ):
        writer.append(numbered_step(3))
        assert there.submit(_work, writer, dataset, sampler, client).result(WAIT_S) == [7, 1, 1]
        assert next(dataset)["number"][0, -1] == 7
        writer.flush(WAIT_S)
        assert client.describe_table("t").items == 2


def test_event_of_this_process_does_not_travel(server: LocalServer) -> None:
    """The error names the argument."""
    with (
        ReplayDataset(server.address, steps_table(), 1, create=True, stop=threading.Event()) as dataset,
        pytest.raises(TypeError, match=naming("ReplayDataset stop")),
    ):
        pickle.dumps(dataset)


@pytest.mark.parametrize("given", ["state", "epoch"])
def test_writer_that_continues_streams_does_not_travel(server: LocalServer, given: str) -> None:
    """Two that continue the same streams lose steps of each other; the error says where to make the writer."""
    with ReplayWriter(server.address, steps_table(), windows=ItemWindow(1), name="one") as first:
        first.append(numbered_step(0))
        first.flush(WAIT_S)
        before: dict[str, Any] = {given: getattr(first, given)() if given == "state" else first.epoch}
    with (
        ReplayWriter(server.address, "t", windows=ItemWindow(1), name="one", **before) as second,
        pytest.raises(TypeError, match=naming(f"ReplayWriter {given} process")),
    ):
        pickle.dumps(second)
