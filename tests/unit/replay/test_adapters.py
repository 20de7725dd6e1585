"""Decoded batches as tensors: the same numbers over the same memory, and a clear error without the library."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from tests.support.naming import naming
from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.replay import (
    ItemWindow,
    ReplayBatch,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.replay.sampling.adapters import to_jax, to_torch, torch_dataset

_TABLE = TableConfig(
    "t",
    signature_like({"number": 0, "tokens": [0.5]}, max_lengths={"tokens": 3}),
    SelectorConfig(SelectorKind.FIFO),
    max_items=100,
    max_item_steps=2,
    max_times_sampled=1,
)


@contextmanager
def _filled() -> Iterator[str]:
    """Yield the address of a server with eleven items of two steps."""
    with local_server() as server:
        with ReplayWriter(server.address, _TABLE, windows=ItemWindow(2), timeout_s=WAIT_S) as writer:
            for number in range(12):
                writer.append({"number": number, "tokens": [float(number)] * (number % 4)})
        yield server.address


def _open(address: str) -> ReplayDataset:
    return ReplayDataset(address, _TABLE, 4, timeout_s=WAIT_S, prefetch=1)


def _batch() -> ReplayBatch:
    with _filled() as address, _open(address) as dataset:
        return next(dataset)


def test_tensors_have_the_batch() -> None:
    """Each column, the lengths of the one that varies, and the weights; on a CPU without a copy."""
    batch = _batch()
    tensors = to_torch(batch)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "number": (4, 2),
        "tokens": (4, 2, 3),
        "tokens__len": (4, 2),
        "weights": (4,),
    }
    assert tensors["number"][:, 1].tolist() == [1, 2, 3, 4]
    assert tensors["tokens__len"][:, 1].tolist() == [1, 2, 3, 0]
    assert np.shares_memory(tensors["number"].numpy(), batch["number"])


@pytest.mark.requires_cuda
def test_tensors_on_a_gpu() -> None:
    """Go there through pinned memory."""
    batch = _batch()
    tensors = to_torch(batch, "cuda")
    assert all(tensor.is_cuda for tensor in tensors.values())
    assert tensors["tokens"].cpu().numpy().tolist() == batch["tokens"].tolist()


def test_tensors_are_on_the_device_asked_for() -> None:
    """Also on one that is neither a CPU nor a GPU with CUDA, which needs no hardware where it is meta."""
    tensors = to_torch(_batch(), "meta")
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}


@contextmanager
def _loading(data: IterableDataset[Any], workers: int) -> Iterator[Iterator[Any]]:
    """Yield the batches of a DataLoader, and end its workers.

    It ends them itself once nobody has the iterator any more. An error of a worker, however, keeps the frames it went
    through, and with them the iterator, until garbage is collected.
    """
    before = set(multiprocessing.active_children())
    context = "spawn" if workers else None
    loader = DataLoader(data, None, num_workers=workers, multiprocessing_context=context, timeout=workers * WAIT_S)
    batches: Any = iter(loader)
    try:
        yield batches
    finally:
        if workers:
            batches._shutdown_workers()
    wait_until(lambda: set(multiprocessing.active_children()) <= before, "the end of the workers")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_iterates_over_batches(workers: int) -> None:
    """With `batch_size=None`, each of its batches is one of the table's; here, and in a worker that is spawned."""
    table = replace(_TABLE, name="again", max_times_sampled=0)
    with local_server() as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(2), timeout_s=WAIT_S) as writer:
            for number in range(5):
                writer.append({"number": number, "tokens": [0.5]})
        data = torch_dataset(partial(ReplayDataset, server.address, table, 4, timeout_s=WAIT_S, prefetch=1))
        with _loading(data, workers) as batches:
            assert [next(batches)["number"][:, 0].tolist() for _ in range(2)] == [[0] * 4] * 2


@pytest.mark.parametrize("given", [{"epochs": 1}, {"seed": 7}], ids=str)
def test_data_loader_has_one_worker_for_draws_that_repeat(given: dict[str, Any]) -> None:
    """Two workers with the same arguments gave each item of an epoch, or each batch of a seed, twice."""
    data = torch_dataset(partial(ReplayDataset, "127.0.0.1:9", _TABLE, 4, timeout_s=WAIT_S, **given))
    with _loading(data, 2) as batches:
        for _ in range(2):  # workers, both of which have started then
            with pytest.raises(InvalidArgument, match=naming("num_workers 2 1", *given)):
                next(batches)


def test_data_loader_is_given_what_opens_a_dataset() -> None:
    """A dataset that is open already would take batches that no worker gets: the error says what to give instead."""
    with _filled() as address, _open(address) as dataset, pytest.raises(TypeError, match="functools"):
        torch_dataset(dataset)  # type: ignore[arg-type]


def test_column_of_the_name_weights_is_kept() -> None:
    """The importance weights then have another name, which no column can have."""
    step = {"weights": 7.0, "number": 1}
    table = TableConfig("w", signature_like(step), SelectorConfig(SelectorKind.UNIFORM), 10, 1)
    with local_server() as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(1), timeout_s=WAIT_S) as writer:
            writer.append(step)
        with ReplayDataset(server.address, table, 2, timeout_s=WAIT_S) as dataset:
            tensors = to_torch(next(dataset))
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "weights": [[7.0]] * 2,
        "number": [[1]] * 2,
        "_weights": [1.0] * 2,
    }


def test_library_that_is_not_installed() -> None:
    """Says which one, and how to have it; with JAX its arrays have the numbers."""
    batch = _batch()
    if importlib.util.find_spec("jax") is None:
        with pytest.raises(ConfigError, match=naming("jax pip jax")):
            to_jax(batch)
    else:
        assert np.asarray(to_jax(batch)["number"]).tolist() == batch["number"].tolist()
    assert "torch" in sys.modules
